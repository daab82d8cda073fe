"""Waiting for what producers have sent: until everything has an outcome, and only then for what went wrong."""

from collections.abc import Iterable

from alphorn.client.outbox import Outbox
from alphorn.model.errors import Error


class Flushing:
    """What some producers had sent at one moment; a transaction leaves as a whole, and does not count."""

    __slots__ = ("_wanted",)

    def __init__(self, outboxes: Iterable[Outbox]) -> None:
        self._wanted = [(outbox, outbox.counter) for outbox in outboxes if not outbox.is_transacted]

    @property
    def is_done(self) -> bool:
        """Whether nothing comes of waiting longer."""
        return all(outbox.confirmed >= counter or outbox.failure is not None for outbox, counter in self._wanted)

    @property
    def unconfirmed(self) -> int:
        """How many messages have no outcome so far."""
        return sum(max(0, counter - outbox.confirmed) for outbox, counter in self._wanted)

    def take_fault(self) -> Error | None:
        """The first refusal that the program has not heard of, else the first unknown outcome; it hears of all now."""
        refusals = [outbox.take_refusal() for outbox, _ in self._wanted]
        outcomes = [outbox.outcome(counter) for outbox, counter in self._wanted if outbox.confirmed < counter]
        faults = [fault for fault in (*refusals, *outcomes) if isinstance(fault, Error)]
        return faults[0] if faults else None
