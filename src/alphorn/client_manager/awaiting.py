"""Deliveries that wait for their log entry: it comes with the log, or is fetched, or turns out to be needed no more.

What the primary gave out may be gone before its body is here: whoever had the message before acknowledged it after all,
or it expired. Its entry may be dropped by all then. So where nobody has an entry the primary is asked whether it still
has the messages; what is gone is passed over, or all that came later for the same consumer would wait for ever.
"""

from collections.abc import Callable

from alphorn.client_manager.connection import Consumer
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.fetching import Fetching
from alphorn.model import link


class Awaiting:
    """Who waits for which entry. `go_on` is called for a consumer whose next delivery may be passed on."""

    __slots__ = ("_desk", "_go_on", "_waiters", "fetching")

    def __init__(self, desk: Desk, go_on: Callable[[Consumer], None]) -> None:
        self._desk = desk
        self._go_on = go_on
        self._waiters: dict[tuple[int, int], list[Consumer]] = {}  # by channel and sequence
        self.fetching = Fetching(desk, self.on_heard, self._on_missing)

    def __len__(self) -> int:
        """How many entries are waited for."""
        return len(self._waiters)

    def wait(self, channel: int, sequence: int, consumer: Consumer) -> None:
        """An entry comes with the log, where this Client Manager has not heard that far; otherwise it is fetched."""
        waiters = self._waiters.setdefault((channel, sequence), [])
        if consumer not in waiters:
            waiters.append(consumer)
        is_to_come = 0 < self._desk.channels[channel].heard < sequence
        if not is_to_come:
            self.fetching.fetch(channel, sequence)

    def on_heard(self, channel: int, sequence: int) -> None:
        """An entry is in the cache: what waited for it goes on."""
        for consumer in self._waiters.pop((channel, sequence), ()):
            if consumer.channel == channel:  # otherwise it has turned elsewhere since
                self._go_on(consumer)

    def _on_missing(self, channel: int, sequence: int) -> None:
        waiters = [
            consumer
            for consumer in self._waiters.pop((channel, sequence), ())
            if consumer.channel == channel and any(run.sequence == sequence for run in consumer.waiting)
        ]
        if not waiters:
            self.fetching.forget(channel, sequence)
            return
        self._waiters[(channel, sequence)] = waiters
        for consumer in waiters:
            if consumer.waiting[0].sequence == sequence:
                self._ask(channel, consumer, consumer.waiting[0])

    def _ask(self, channel: int, consumer: Consumer, run: link.DeliveredRun) -> None:
        ground = self._desk.channels[channel]
        if not ground.primary:
            return

        def on_answer(answer: link.Answered) -> None:
            is_gone = not answer.error and not answer.number
            if is_gone and consumer.waiting and consumer.waiting[0] is run:
                consumer.waiting.popleft()
                self._go_on(consumer)

        request, last = ground.ask(on_answer), run.position + run.count - 1
        question = link.AskPending(
            request, consumer.destination, consumer.subscription, run.sequence, run.position, last
        )
        self._desk.ask_primary(channel, question)
