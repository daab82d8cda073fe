"""Writes on their way to disk, and what may be said once they are there.

Roles hand over writes during a turn; the turn's end makes one `Persist` of them. `then` runs when it is durable.
Nothing a member must not forget is ever said from anywhere but such a continuation.
"""

from collections import deque
from collections.abc import Callable

from alphorn.bus.machine import Deliver, Output, Persist, PutAssignments, TakeCheckpoint, Write


class Journal:
    """Writes of the current turn, and continuations of the turns that are not yet durable."""

    __slots__ = ("_pending", "_then", "_token", "_writes")

    def __init__(self) -> None:
        self._token = 0
        self._writes: list[Write] = []
        self._then: list[Callable[[], None]] = []
        self._pending: deque[tuple[int, list[Callable[[], None]]]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether everything handed over is durable."""
        return not self._writes and not self._then and not self._pending

    @property
    def has_writes(self) -> bool:
        """Whether this turn wrote anything."""
        return bool(self._writes or self._then)

    @property
    def has_system(self) -> bool:
        """Whether this turn wrote assignments of system entries."""
        puts = (write for write in self._writes if isinstance(write, PutAssignments))
        return any(assignment.system for put in puts for assignment in put.assignments)

    def write(self, *writes: Write) -> None:
        """Adds to this turn's writes."""
        self._writes.extend(writes)

    def then(self, act: Callable[[], None]) -> None:
        """Runs when all that was written so far is durable."""
        self._then.append(act)

    def take(self, *, is_urgent: bool = True) -> Persist:
        """This turn's writes, to be performed now."""
        self._token += 1
        persist = Persist(self._token, self._writes, is_urgent)
        self._pending.append((self._token, self._then))
        self._writes, self._then = [], []
        return persist

    def put_into(self, outbox: list[Output], *, is_urgent: bool) -> None:
        """Puts this turn's writes among its outputs, behind what is sent.

        Before a checkpoint: one that is durable while the numbers it covers are not would stand on a stale log. And
        before what is delivered: the disk writes while the upper layer works.
        """
        marks = (n for n, output in enumerate(outbox) if isinstance(output, Deliver | TakeCheckpoint))
        outbox.insert(next(marks, len(outbox)), self.take(is_urgent=is_urgent))

    def on_durable(self, token: int) -> None:
        """Runs what waited for this token and all before it."""
        while self._pending and self._pending[0][0] <= token:
            for act in self._pending.popleft()[1]:
                act()

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"token": self._token, "pending": len(self._pending)}
