"""Who holds which positions: intervals with an owner, beside each other and never over each other.

A consumer that was given ten thousand messages in order is one interval. Every operation costs by intervals.
"""

from bisect import bisect_left, bisect_right
from typing import Generic, TypeVar

from alphorn.model.ranges import Range, RangeSet

Owner = TypeVar("Owner")


class Locks(Generic[Owner]):
    """Positions that are with somebody. Owners are told apart by identity."""

    __slots__ = ("_firsts", "_lasts", "_owners")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._owners: list[Owner] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """How many positions; costs by intervals."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def lock(self, first: int, last: int, owner: Owner) -> None:
        """These are now with this owner; nobody may hold any of them."""
        firsts, lasts, owners = self._firsts, self._lasts, self._owners
        if lasts and lasts[-1] == first - 1 and owners[-1] is owner:  # by far the most frequent: goes on from there
            lasts[-1] = last
            return
        place = len(firsts) if not lasts or first > lasts[-1] else bisect_left(firsts, first)
        assert place == 0 or lasts[place - 1] < first, "a position is with two owners"
        assert place == len(firsts) or last < firsts[place], "a position is with two owners"
        low = place - 1 if place and owners[place - 1] is owner and lasts[place - 1] == first - 1 else place
        high = place + 1 if place < len(firsts) and owners[place] is owner and firsts[place] == last + 1 else place
        if low == high:
            firsts.insert(place, first)
            lasts.insert(place, last)
            owners.insert(place, owner)
            return
        merged_first, merged_last = min(first, firsts[low]), max(last, lasts[high - 1])
        firsts[low:high] = [merged_first]
        lasts[low:high] = [merged_last]
        owners[low:high] = [owner]

    def release(self, first: int, last: int) -> list[tuple[Owner, int, int]]:
        """Nobody holds these any more; gives the parts that were held, in order."""
        firsts, lasts, owners = self._firsts, self._lasts, self._owners
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last)
        if low >= high:
            return []
        if high - low == 1 and firsts[low] == first and last < lasts[low]:  # by far the most frequent: off the front
            firsts[low] = last + 1
            return [(owners[low], first, last)]
        released = self.parts(first, last)
        kept = []
        if firsts[low] < first:
            kept.append((firsts[low], first - 1, owners[low]))
        if lasts[high - 1] > last:
            kept.append((last + 1, lasts[high - 1], owners[high - 1]))
        firsts[low:high] = [start for start, _, _ in kept]
        lasts[low:high] = [end for _, end, _ in kept]
        owners[low:high] = [owner for _, _, owner in kept]
        return released

    def parts(self, first: int, last: int) -> list[tuple[Owner, int, int]]:
        """The parts of `first` through `last` that are held, in order."""
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        return [
            (self._owners[place], max(first, self._firsts[place]), min(last, self._lasts[place]))
            for place in range(low, high)
        ]

    def free(self, first: int, last: int) -> list[Range]:
        """The parts of `first` through `last` that nobody holds, in order."""
        if not self._lasts or first > self._lasts[-1]:
            return [(first, last)]
        found = []
        for _, start, end in self.parts(first, last):
            if first < start:
                found.append((first, start - 1))
            first = end + 1
        if first <= last:
            found.append((first, last))
        return found

    def of(self, owner: Owner) -> RangeSet:
        """All that one owner holds; costs by all intervals."""
        found = RangeSet()
        for place, other in enumerate(self._owners):
            if other is owner:
                found.add(self._firsts[place], self._lasts[place])
        return found
