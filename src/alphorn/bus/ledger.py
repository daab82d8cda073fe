"""A member's view of the log: what each number means, how far it is final, and which epoch last confirmed it.

Rules, the same as Raft's log matching:
- two ledgers that hold the same number with the same epoch are equal up to that number;
- numbers through `committed` never change;
- a submit is taken only where its predecessor matches; what conflicts with it was never committed and is cut off;
- `confirmed` is how far the log of `confirmed_epoch`'s sequencer is known to be the same as this one. Only that much
  may be acknowledged to it, and only that much may be taken as committed on its word.

Old assignments are kept in storage; memory holds the open ones and a bounded run of recent ones.
"""

from collections.abc import Callable, Iterator

from alphorn.bus.entries import Assignment, SystemEntry
from alphorn.bus.group_state import GroupState
from alphorn.bus.storage import Storage

_RECENT_MIN = 512


class Ledger:
    """Assignments from `base` + 1 through `last`; `state` is folded through `committed`."""

    __slots__ = (
        "_anchor",
        "_anchor_epoch",
        "_floor",
        "_recent",
        "_sequence_of",
        "_storage",
        "base",
        "committed",
        "confirmed",
        "confirmed_epoch",
        "last",
        "on_committed",
        "state",
    )

    def __init__(self, state: GroupState, storage: Storage, *, base: int) -> None:
        assert base <= state.sequence
        self._storage = storage
        self.on_committed: Callable[[int, Assignment, SystemEntry | None], None] = _nothing
        self.reset(state)
        self.base = base

    def reset(self, state: GroupState) -> None:
        """Starts anew from a state that a peer gave."""
        self.state = state
        self.base = self.last = self._floor = state.sequence
        self.committed = state.sequence  # numbers through this one are final
        # The epoch of one number is known without its record, which may be damaged or collected. Here that is the last
        # number of the state: every entry is of the epoch that began last before it.
        self._anchor, self._anchor_epoch = state.sequence, state.epoch
        self.confirmed = 0
        self.confirmed_epoch = 0
        self._recent: dict[int, Assignment] = {}
        self._sequence_of: dict[bytes, int] = {}

    @property
    def last_epoch(self) -> int:
        """Epoch of the last number, which is in memory or the anchor.

        A candidate compares logs by it and by `last`, so it is never guessed: by an epoch that is too high a log would
        win that lacks committed numbers, and by one that is too low it would lose although it alone may have some.
        """
        epoch = self.epoch_at(self.last)
        assert epoch is not None
        return epoch

    def get(self, sequence: int) -> Assignment | None:
        """What a number means; None where this member does not know."""
        recent = self._recent.get(sequence)
        if recent is None and self.base < sequence <= self._floor:
            stored = self._storage.assignment(sequence)
            return stored if isinstance(stored, Assignment) else None
        return recent

    def epoch_at(self, sequence: int) -> int | None:
        """The epoch that assigned a number; None where it is not known any more."""
        if sequence == self._anchor:
            return self._anchor_epoch
        assignment = self.get(sequence)
        return None if assignment is None else assignment.epoch

    def find(self, batch: bytes) -> int:
        """The number of a recent batch, or 0."""
        return self._sequence_of.get(batch, 0)

    def stored_ids(self, after: int) -> Iterator[tuple[int, bytes]]:
        """Numbers after this one that `find` does not know, because only storage has them, with their batches.

        Ends before the first one that cannot be read.
        """
        for sequence in range(max(after, self.base) + 1, self._floor + 1):
            stored = self._storage.assignment(sequence)
            if not isinstance(stored, Assignment):
                return
            yield sequence, stored.id

    @property
    def floor(self) -> int:
        """Numbers through this one are known to storage only."""
        return self._floor

    def slice(self, after: int, through: int) -> list[Assignment]:
        """Assignments after one number through another; stops at the first that is not known."""
        found = []
        for sequence in range(after + 1, through + 1):
            assignment = self.get(sequence)
            if assignment is None:
                break
            found.append(assignment)
        return found

    def matches(self, previous: int, previous_epoch: int) -> bool:
        """Whether the log of a speaker who has this entry is the same as this one up to there."""
        if previous <= self.committed:
            return True
        return previous <= self.last and self.epoch_at(previous) == previous_epoch

    def append(self, assignment: Assignment) -> int:
        """Adds the next number."""
        self.last += 1
        self._recent[self.last] = assignment
        if not assignment.system:
            self._sequence_of[assignment.id] = self.last
        return self.last

    def merge(self, previous: int, assignments: list[Assignment]) -> tuple[int | None, int]:
        """Takes in what follows `previous`, which must match.

        Gives the number after which the old tail was cut (None: nothing was), and the first new number (0: none).
        """
        cut, first = None, 0
        for sequence, assignment in enumerate(assignments, previous + 1):
            if sequence <= self.committed:
                continue
            if sequence <= self.last:
                if self.epoch_at(sequence) == assignment.epoch:
                    continue
                self.cut(sequence - 1)
                cut = sequence - 1
            self.append(assignment)
            first = first or sequence
        return cut, first

    def cut(self, after: int) -> None:
        """Forgets the numbers after this one. They must be open: cutting a final number is a broken promise."""
        assert after >= self.committed, f"number {after + 1} is committed and cannot be cut off"
        for sequence in range(after + 1, self.last + 1):
            assignment = self._recent.pop(sequence)
            if self._sequence_of.get(assignment.id) == sequence:
                del self._sequence_of[assignment.id]
        self.last = after
        self.confirmed = min(self.confirmed, after)

    def confirm(self, epoch: int, through: int) -> None:
        """The sequencer of this epoch has the same log through here."""
        if epoch > self.confirmed_epoch:
            self.confirmed_epoch, self.confirmed = epoch, through
        elif epoch == self.confirmed_epoch:
            self.confirmed = max(self.confirmed, through)

    def commit(self, through: int) -> None:
        """Makes numbers final, in order, and folds them into the state."""
        for sequence in range(self.committed + 1, min(through, self.last) + 1):
            assignment = self._recent[sequence]
            entry = self.state.fold(sequence, assignment)
            self.committed = sequence
            self.on_committed(sequence, assignment, entry)

    def trim(self, *, stored: int, needed: int) -> None:
        """Lets go of recent assignments that storage has (`stored`) and nobody here waits for (`needed`)."""
        end = min(self.committed - _RECENT_MIN, stored, needed)
        for sequence in range(self._floor + 1, end + 1):
            assignment = self._recent.pop(sequence)
            if self._sequence_of.get(assignment.id) == sequence:
                del self._sequence_of[assignment.id]
            self._floor = sequence

    def collect(self, through: int) -> None:
        """Forgets numbers through this one, which are in a checkpoint or too old to matter."""
        through = min(through, self.committed)
        if through <= self.base:
            return
        epoch = self.epoch_at(through)
        if epoch is not None and through > self._anchor:
            self._anchor, self._anchor_epoch = through, epoch
        for sequence in range(self._floor + 1, through + 1):
            assignment = self._recent.pop(sequence)
            self._sequence_of.pop(assignment.id, None)
        self._floor = max(self._floor, through)
        self.base = through

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "base": self.base,
            "committed": self.committed,
            "last": self.last,
            "confirmed": self.confirmed,
            "in_memory": len(self._recent),
        }


def _nothing(sequence: int, assignment: Assignment, entry: SystemEntry | None) -> None:
    """Until an owner wants to hear of commits."""
