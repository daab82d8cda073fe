"""Waiting for what producers have sent: until everything has an outcome, and only then for what went wrong.

A program that leaves by an exception is to see that: it waits a bounded time, after which the rest is given up.
"""

import logging
from collections.abc import Iterable

from alphorn.client.outbox import Outbox
from alphorn.model.errors import Error

GIVE_UP_S = 5.0  # so long who leaves by an exception waits for confirmations, of all producers together

_log = logging.getLogger("alphorn.client")


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
        return sum(max(0, counter - box.confirmed) for box, counter in self._wanted if box.failure is None)

    def take_fault(self) -> Error | None:
        """The first refusal that the program has not heard of, else the first unknown outcome; it hears of all now."""
        refusals = [outbox.take_refusal() for outbox, _ in self._wanted]
        outcomes = [outbox.outcome(counter) for outbox, counter in self._wanted if outbox.confirmed < counter]
        faults = [fault for fault in (*refusals, *outcomes) if isinstance(fault, Error)]
        return faults[0] if faults else None


def give_up_at(now: float, *, is_failed: bool) -> float | None:
    """Until when to wait for confirmations; without a limit unless the program has failed."""
    return now + GIVE_UP_S if is_failed else None


def log_given_up(count: int) -> None:
    """So many messages had no outcome when the program left by an exception."""
    if count:
        _log.warning(
            "event=messages_given_up count=%d reason=%r",
            count,
            f"the program left by an exception, and they were not confirmed within {GIVE_UP_S} s",
        )


def log_fault(fault: Error) -> None:
    """Something could not be done in good order while the program left by an exception, which it is to see instead."""
    _log.warning("event=closing_failed error=%r", str(fault))
