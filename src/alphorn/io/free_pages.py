"""Which pages of a file are free. Pure: numbers only.

Pages are taken in runs, from where the last one ended, so that what is written one after another mostly lies one after
another; and a file whose oldest runs are given back first is written round and round. Where no free run is long enough
the file grows. Only some runs are looked at for each, the next ones next time, so that a file with many small gaps
costs no more than one without.

Free pages that were given back to the file system are holes: they take no space on disk, and what is written there
takes some again, as if the file grew.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from alphorn.model.ranges import Range, RangeSet

LOOKED_AT: Final = 64  # runs for each that is wanted


class FreePages:
    """The pages below `end` that nothing is in."""

    __slots__ = ("_free", "_holes", "end", "kept", "used")

    def __init__(self, taken: Iterable[Range] = (), looked_at: int = LOOKED_AT) -> None:
        """`taken` are the runs, first and last page, that something is in."""
        runs = RangeSet(sorted(taken))
        self.used = len(runs)  # how many pages something is in,
        self.end = runs.last + 1 if runs else 0
        self.kept = self.end  # and how many take space on disk
        self._free = _Runs(RangeSet([(0, self.end - 1)]).difference(runs), looked_at)
        self._holes = _Runs(RangeSet(), looked_at)

    def take(self, count: int, kept_max: int) -> int | None:
        """The first of so many pages in a row; None if the file would have to take more than `kept_max` for them."""
        first = self._free.find(count)
        if first is None:
            first = self._holes.find(count)
        if first is None:
            first = self._end_of_used()
        last = first + count - 1
        fresh = count - sum(end - start + 1 for start, end in self._free.pages.intersection(first, last))
        if fresh and self.kept + fresh > kept_max:
            return None
        self._free.pages.remove(first, last)
        self._holes.pages.remove(first, last)
        self.end = max(self.end, last + 1)  # a free run at the end may be longer, and have been passed over
        self.kept += fresh
        self.used += count
        return first

    def give(self, first: int, count: int) -> None:
        """Nothing is in these pages any more."""
        self._free.pages.add(first, first + count - 1)
        self.used -= count

    def runs(self, count: int) -> list[Range]:
        """The first so many runs of free pages that are no holes."""
        return list(islice(self._free.pages, count))

    def punch(self, first: int, last: int) -> None:
        """These, or those of them that are free, take no space on disk any more."""
        for start, end in self._free.pages.cut(first, last):
            self._holes.pages.add(start, end)
            self.kept -= end - start + 1

    def cut(self) -> int:
        """Takes the free pages at the end off the file; gives how many they are."""
        end = self._end_of_used()
        count = self.end - end
        self.kept -= self._free.pages.remove(end, self.end - 1)
        self._holes.pages.remove(end, self.end - 1)
        self.end = end
        return count

    @property
    def free(self) -> int:
        """How many pages nothing is in that take space on disk."""
        return self.kept - self.used

    @property
    def free_at_end(self) -> int:
        """How many pages `cut` would take off."""
        return self.end - self._end_of_used()

    def _end_of_used(self) -> int:
        """As far as the last run of either kind tells; where several alternate, the rest is at the end next time."""
        end = self.end
        for first, last in sorted(filter(None, (self._free.pages.tail, self._holes.pages.tail)), reverse=True):
            end = first if last == end - 1 else end
        return end


class _Runs:
    """Free pages of one kind, searched from where the last run was found."""

    __slots__ = ("_looked_at", "_next", "pages")

    def __init__(self, pages: RangeSet, looked_at: int) -> None:
        self.pages = pages
        self._looked_at = looked_at
        self._next = 0

    def find(self, count: int) -> int | None:
        """The first of so many pages in a row, which are taken next; None if none were found."""
        for _ in range(self._looked_at):
            run = self.pages.next_range(self._next)
            if run is None:
                if not self._next:
                    return None
                self._next = 0  # round again; if it leads nowhere, the file grows
                continue
            first, last = run
            if last - first + 1 >= count:
                self._next = first + count
                return first
            self._next = last + 1
        return None
