"""Which pages of a file are free. Pure: numbers only.

Pages are taken in runs, from where the last one ended, so that what is written one after another mostly lies one after
another; and a file whose oldest runs are given back first is written round and round. Where no free run is long enough
the file grows. Only some runs are looked at for each, the next ones next time, so that a file with many small gaps
costs no more than one without.
"""

from collections.abc import Iterable
from typing import Final

from alphorn.model.ranges import Range, RangeSet

LOOKED_AT: Final = 64  # runs for each that is wanted


class FreePages:
    """The pages below `end` that nothing is in."""

    __slots__ = ("_free", "_looked_at", "_next", "end", "used")

    def __init__(self, taken: Iterable[Range] = (), looked_at: int = LOOKED_AT) -> None:
        """`taken` are the runs, first and last page, that something is in."""
        self._looked_at = looked_at
        runs = RangeSet(sorted(taken))
        self.used = len(runs)  # how many pages
        self.end = runs.last + 1 if runs else 0
        self._free = RangeSet([(0, self.end - 1)]).difference(runs)
        self._next = 0

    def take(self, count: int, end_max: int) -> int | None:
        """The first of so many pages in a row; None if the file would have to grow beyond `end_max` for them."""
        first = self._find(count)
        if first is None:
            first = self._end_of_used()
            if first + count > end_max:
                return None
            self._free.add(self.end, first + count - 1)
            self.end = max(self.end, first + count)  # what is free there may be longer, and have been passed over
        else:
            self._next = first + count
        self._free.remove(first, first + count - 1)
        self.used += count
        return first

    def give(self, first: int, count: int) -> None:
        """Nothing is in these pages any more."""
        self._free.add(first, first + count - 1)
        self.used -= count

    def cut(self) -> int:
        """Takes the free pages at the end off the file; gives how many they are."""
        end = self._end_of_used()
        count = self.end - end
        self._free.remove(end, self.end - 1)
        self.end = end
        return count

    @property
    def free_at_end(self) -> int:
        """How many pages `cut` would take off."""
        return self.end - self._end_of_used()

    def _find(self, count: int) -> int | None:
        for _ in range(self._looked_at):
            run = self._free.next_range(self._next)
            if run is None:
                if not self._next:
                    return None
                self._next = 0  # round again; if it leads nowhere, the file grows
                continue
            first, last = run
            if last - first + 1 >= count:
                return first
            self._next = last + 1
        return None

    def _end_of_used(self) -> int:
        tail = self._free.tail
        return tail[0] if tail is not None and tail[1] == self.end - 1 else self.end
