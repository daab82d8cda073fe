"""Receiving: `Consumer` and `Browser`."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING

from alphorn.client.blocking.line import Line
from alphorn.client.blocking.places import Places
from alphorn.client.browsing import is_whole, parts_of
from alphorn.client.choices import check_maximum, check_timeout
from alphorn.client.forks import FORKS, forked
from alphorn.client.inbox import Inbox
from alphorn.client.message import Message
from alphorn.client.refusals import again
from alphorn.client.requests import Answer, OnAnswer
from alphorn.model.conversation import Browse, Done
from alphorn.model.errors import Error, Misuse
from alphorn.model.log_conversation import Channels

if TYPE_CHECKING:
    from alphorn.client.blocking.listening import Listening

PAGE_MESSAGES = 1000


class Consumer:
    """Receives messages of one destination, each thread that shares it others."""

    def __init__(self, line: Line, inbox: Inbox, listening: "Listening") -> None:
        self._line = line
        self._inbox = inbox
        self._listening = listening
        self._forks = FORKS.number
        inbox.guard = line.change
        inbox.on_wish = self._on_wish

    def __repr__(self) -> str:
        return f"<Consumer of {self._inbox.destination}>"

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None:
            self._unhand()
        self.close()

    def __iter__(self) -> Iterator[Message]:
        """Messages for as long as the consumer is open."""
        while (message := self._receive_open()) is not None:
            yield message

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came within `timeout` seconds. Without a timeout it waits.

        In a session with `ack="auto"` this acknowledges what was received before. Raises `Misuse` on a closed
        consumer, and the reason when the server closed it.
        """
        inbox = self._inbox
        if FORKS.number != self._forks:
            raise forked()
        deadline: float | None = None
        is_waiting = False
        while True:
            # Not next(): after a call a signal's handler may raise, and the message would count as handed out.
            for message in inbox.ready:
                try:
                    inbox.in_hand = 1
                    if self._line.is_idle and inbox.has_wishes:
                        self._line.wake()
                except BaseException:
                    self._line.change(partial(inbox.give_back, message._arrival, message._index))
                    raise
                return message
            if not is_waiting:
                self._check()
                timeout = check_timeout(timeout)
                deadline = None if timeout is None else time.monotonic() + timeout
                is_waiting = True
            if not self._await_ready(deadline):
                return None

    def receive_many(self, maximum: int = 1000, timeout: float | None = None) -> list[Message]:
        """Up to `maximum` messages: waits for the first only, and gives an empty list when the time is over."""
        maximum = check_maximum(maximum)
        line, inbox = self._line, self._inbox
        self._check()
        timeout = check_timeout(timeout)
        line.change(inbox.finish)
        if not inbox.has_prefetched:
            self._await_arrival(timeout)
        taken: list[Message] = []
        try:
            taken = line.change(partial(inbox.take, maximum))
            if (line.is_asleep and inbox.is_urgent) or (line.is_idle and inbox.has_wishes):
                line.wake()
            if not taken:
                self._check()
        except BaseException:
            for message in taken:  # nobody gets them any more
                line.change(partial(inbox.give_back, message._arrival, message._index))
            raise
        return taken

    def listen(self, callback: Callable[[Message], object]) -> None:
        """Calls `callback` for each message, one at a time in the session.

        That is on the session's own thread. With `ack="auto"` a message is acknowledged when the callback returns. An
        exception returns the message, which then comes again, and is logged.
        """
        self._check()
        if not callable(callback):
            raise Misuse(f"listen needs something to call, not {type(callback).__name__}")
        self._listening.add(self._inbox, callback)

    def close(self) -> None:
        """Ends receiving: in automatic modes what was handed out is acknowledged, everything else comes back.

        Interrupted while a callback runs, it does not wait for that: its message comes back as well.
        """
        try:
            self._listening.remove(self._inbox)
        except BaseException:
            if self._is_receiving:
                self._line.change(self._leave)
                self._line.wake()
            raise
        if self._is_receiving:
            self._line.await_answer(self._end)

    @property
    def _is_receiving(self) -> bool:
        return self._inbox.is_open and self._line.core.failure is None

    def _leave(self) -> None:
        self._inbox.unhand(is_closing=True)
        self._line.core.close_inbox(self._inbox, lambda answer: None)

    def _end(self, on_answer: OnAnswer) -> None:
        self._inbox.finish()
        self._line.core.close_inbox(self._inbox, on_answer)

    def _receive_open(self) -> Message | None:
        try:
            return self.receive()
        except Misuse:
            if self._inbox.is_open or self._inbox.failure is not None or FORKS.number != self._forks:
                raise
            return None

    def _await_ready(self, deadline: float | None) -> bool:
        """Waits until messages are ready to be handed out; False when the time is over first."""
        while not self._line.change(self._turn):
            self._check()
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self._await_arrival(None if deadline is None else deadline - time.monotonic())
        return True

    def _turn(self) -> bool:
        """Under the lock; another thread that shares the consumer may have been here a moment ago."""
        self._inbox.finish()
        return length_hint(self._inbox.ready) > 0 or self._inbox.turn()

    def _await_arrival(self, timeout: float | None) -> None:
        """Waits for messages; the server hears meanwhile what the program is done with."""
        inbox, line = self._inbox, self._line
        line.check_thread()
        if (line.is_asleep and inbox.is_urgent) or (line.is_idle and inbox.has_wishes):
            line.wake()
        line.wait_for(lambda: inbox.has_prefetched or not inbox.is_open, timeout)

    def _check(self) -> None:
        if FORKS.number != self._forks:
            raise forked()
        if not self._inbox.is_open:
            if self._inbox.failure is not None:
                raise again(self._inbox.failure)
            raise Misuse("this consumer is closed; make another with session.consumer")

    def _unhand(self) -> None:
        if FORKS.number == self._forks:
            with self._line.lock:
                self._inbox.unhand(is_closing=True)

    def _on_wish(self) -> None:
        if self._line.is_idle or (self._line.is_asleep and self._inbox.is_urgent):
            self._line.wake()


class Browser:
    """Looks at the messages of a queue without consuming them: iterate over it, each time from the first."""

    def __init__(self, line: Line, places: Places, destination: str, place: int, selector: str) -> None:
        self._line = line
        self._places = places
        self._destination = destination
        self._place = place
        self._selector = selector

    def __repr__(self) -> str:
        return f"<Browser of {self._destination}>"

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        for queue in self._queues():
            place = self._place if queue == self._destination else self._places.find(queue)
            start, following = -1, 0
            while following > start:  # a page that shows nothing is the last one only where it says so
                start = following
                messages, following = self._page(queue, place, start)
                yield from messages

    def _queues(self) -> list[str]:
        """One, or of what belongs to the system each channel's part."""
        if not is_whole(self._destination):
            return [self._destination]
        return parts_of(self._destination, self._line.ask(Channels))

    def close(self) -> None:
        """Nothing is held open between pages."""

    def _page(self, queue: str, place: int, start: int) -> tuple[list[Message], int]:
        line, core = self._line, self._line.core
        line.check()
        seen: list[tuple[Inbox, Answer | Error]] = []

        def begin() -> bool:
            if core.is_browsing:
                return False  # another thread was faster
            core.browse(
                queue,
                lambda request: Browse(request, place, self._selector, start, PAGE_MESSAGES),
                lambda inbox, answer: seen.append((inbox, answer)),
            )
            return True

        while not line.change(begin):
            line.changed.wait_for(lambda: not core.is_browsing)
        line.wake()
        line.changed.wait_for(lambda: seen)
        inbox, answer = seen[0]
        if isinstance(answer, Error):
            raise again(answer)
        taken = line.change(partial(inbox.take, 1 << 31))
        inbox.close()
        return taken, answer.number if isinstance(answer, Done) else 0
