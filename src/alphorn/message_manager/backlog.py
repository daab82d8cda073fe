"""What one queue, or one subscription of a topic, still has to give out.

A message is pending from its arrival until it is consumed, expired or dead. Pending ones that wait for their time are
deferred. How often one was given out is known for those that came back; all others have not been, or are with a
consumer for the first time: that is the dispatcher's to know.
"""

import msgspec

from alphorn.model.ranges import Range, RangeSet


class Backlog:
    """Positions that are not yet consumed."""

    __slots__ = ("counts", "deferred", "pending")

    def __init__(self) -> None:
        self.pending = RangeSet()
        self.deferred: dict[int, int] = {}  # position → due, ms since 1970
        self.counts: dict[int, int] = {}  # position → how often it came back

    def __len__(self) -> int:
        return len(self.pending)

    def arrive(self, first: int, last: int) -> None:
        """New messages, after all others."""
        self.pending.add(first, last)

    def defer(self, position: int, due_ms: int) -> None:
        """A pending message is not given out before this time."""
        self.deferred[position] = due_ms

    def remove(self, first: int, last: int) -> list[Range]:
        """These are done with; gives those that were pending."""
        removed = self.pending.intersection(first, last)
        self.pending.remove(first, last)
        for notes in (self.deferred, self.counts):
            if notes:
                for position in [position for position in notes if first <= position <= last]:
                    del notes[position]
        return removed

    def give_back(self, first: int, last: int) -> list[Range]:
        """These were given out and came back; gives those that are still pending, each counted once more."""
        returned = self.pending.intersection(first, last)
        for start, end in returned:
            for position in range(start, end + 1):
                self.counts[position] = self.counts.get(position, 0) + 1
        return returned

    def due(self, now_ms: int) -> list[int]:
        """Takes out and gives the deferred messages whose time has come, in order."""
        found = sorted(position for position, due_ms in self.deferred.items() if due_ms <= now_ms)
        for position in found:
            del self.deferred[position]
        return found

    def ready(self, first: int, last: int) -> list[Range]:
        """Those of these that may be given out now."""
        if not self.deferred:
            return self.pending.intersection(first, last)
        ready = RangeSet(self.pending.intersection(first, last))
        for position in self.deferred:
            ready.remove(position, position)
        return list(ready)

    def encode(self) -> "BacklogState":
        """As a checkpoint keeps it."""
        return BacklogState(self.pending.flat(), sorted(self.deferred.items()), sorted(self.counts.items()))

    @classmethod
    def decode(cls, state: "BacklogState") -> "Backlog":
        """What `encode` gave."""
        made = cls()
        made.pending = RangeSet.from_flat(state.pending)
        made.deferred = dict(state.deferred)
        made.counts = dict(state.counts)
        return made


class BacklogState(msgspec.Struct, frozen=True, array_like=True):
    """A backlog within a checkpoint."""

    pending: list[int]
    deferred: list[tuple[int, int]]
    counts: list[tuple[int, int]]
