"""Which entries a store keeps when the log is collected: those that the upper layer's newest checkpoint still needs.

The bus forgets everything through a collected number (`DropThrough`). The upper layer may still refer to entries there,
so the store keeps some of them, outside the log: they have no assignment, and the bus does not see them.

- A number may be dropped once a checkpoint at or after it is sealed and the upper layer has said what that one needs
  (`Retain`). Numbers after that checkpoint wait for the next one.
- Until the upper layer has spoken, in this run, nothing is dropped. It speaks whenever it gives or has installed a
  checkpoint, and a restart begins with that; so what is needed follows from the checkpoint's own bytes and is no record
  of its own that could be lost or damaged.
- What one checkpoint does not need, no later one needs: a state can only lose references to what precedes it.
- `DropAfter` cuts the log, whose last entries may never have been committed. What is outside the log is committed and
  stays.
"""

from alphorn.bus.machine import DropAfter, DropThrough, Retain, Write
from alphorn.io.records import NUMBER_MAX
from alphorn.model.ranges import RangeSet

Bounds = tuple[int, int]  # of the log: first and last number with an assignment; first > last when there is none


class Retention:
    """The rule in force, as the writes of one run of one store have set it, and what it has dropped already.

    What many entries are retained for leaves as many gaps between them, and nearly all are the same at every
    checkpoint: they are given once.
    """

    __slots__ = ("_checkpoint", "_gone_through", "_kept", "_needed")

    def __init__(self) -> None:
        self._checkpoint = 0
        self._needed: RangeSet | None = None  # None: not known yet
        self._gone_through = -1  # through this number there is nothing any more
        self._kept = RangeSet()  # but these

    def put(self, sequence: int) -> None:
        """An entry is put there: if it is not needed, it is dropped again."""
        if sequence <= self._gone_through:
            self._gone_through = sequence - 1

    def dropped_by(self, write: Write, bounds: Bounds) -> RangeSet | None:
        """The numbers whose entries this write drops; None where it drops none. `bounds` are those before the write.

        Where it is known that none is left, numbers may be missing.
        """
        match write:
            case DropAfter(sequence):
                first, last = bounds
                return RangeSet([(max(sequence + 1, first), NUMBER_MAX)] if first <= last else [])
            case DropThrough(sequence, is_retaining):
                return self._unneeded(sequence) if is_retaining else RangeSet([(0, sequence)])
            case Retain(sequence, needed):
                self._checkpoint, self._needed = sequence, needed
                return self._unneeded(last_outside(bounds))
        return None

    def _unneeded(self, through: int) -> RangeSet:
        needed, through = self._needed, min(through, self._checkpoint)
        if needed is None:
            return RangeSet()
        gone_through, kept = self._gone_through, self._kept
        self._gone_through, self._kept = through, needed
        start = min(needed.agree_through(kept), gone_through) + 1
        gone = RangeSet([(start, gone_through)]).difference(kept)
        return RangeSet([(start, through)]).difference(needed).difference(gone)


class Filled:
    """How far a store has entries: what is put behind all others takes the place of none."""

    __slots__ = ("_highest",)

    def __init__(self, highest: int = -1) -> None:
        """`highest` is the last number that has an entry."""
        self._highest = highest

    def fill(self, number: int) -> bool:
        """An entry is put there; says whether there may be one already."""
        if number <= self._highest:
            return True
        self._highest = number
        return False


def last_outside(bounds: Bounds) -> int:
    """Entries through this number are not in the log: they are retained, or about to be judged."""
    first, last = bounds
    return first - 1 if first <= last else NUMBER_MAX
