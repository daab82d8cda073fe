"""Sets of whole numbers as intervals: what is stored, locked, acknowledged.

A million messages acknowledged in order are one interval. Every operation costs by intervals, never by numbers.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

Range = tuple[int, int]  # first and last, both within


class RangeSet:
    """A set of whole numbers; intervals never touch each other."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            self.add(first, last)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """How many numbers; costs by intervals."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __iter__(self) -> Iterator[Range]:
        return iter(list(zip(self._firsts, self._lasts, strict=True)))

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._firsts, number) - 1
        return place >= 0 and number <= self._lasts[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self._firsts == other._firsts and self._lasts == other._lasts

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    @property
    def intervals(self) -> int:
        """How many intervals it takes."""
        return len(self._firsts)

    @property
    def first(self) -> int:
        """The smallest number; the set must not be empty."""
        return self._firsts[0]

    @property
    def last(self) -> int:
        """The largest number; the set must not be empty."""
        return self._lasts[-1]

    @property
    def head(self) -> Range | None:
        """The first interval; None for an empty set."""
        return (self._firsts[0], self._lasts[0]) if self._firsts else None

    @property
    def tail(self) -> Range | None:
        """The last interval; None for an empty set."""
        return (self._firsts[-1], self._lasts[-1]) if self._firsts else None

    def copy(self) -> "RangeSet":
        """Another set with the same numbers."""
        twin = RangeSet()
        twin._firsts, twin._lasts = self._firsts.copy(), self._lasts.copy()
        return twin

    def add(self, first: int, last: int) -> None:
        """Takes in all numbers from `first` through `last`."""
        firsts, lasts = self._firsts, self._lasts
        if first > last:
            return
        if not lasts or first > lasts[-1] + 1:  # by far the most frequent: after all others
            firsts.append(first)
            lasts.append(last)
            return
        if first >= firsts[-1]:
            lasts[-1] = max(lasts[-1], last)
            return
        low = bisect_left(lasts, first - 1)
        high = bisect_right(firsts, last + 1)
        if low < high:
            first, last = min(first, firsts[low]), max(last, lasts[high - 1])
        firsts[low:high] = [first]
        lasts[low:high] = [last]

    def remove(self, first: int, last: int) -> int:
        """Takes out all numbers from `first` through `last`; gives how many of them were within."""
        firsts, lasts = self._firsts, self._lasts
        if firsts and firsts[0] == first and first <= last <= lasts[0]:  # by far the most frequent: off the front
            if last == lasts[0]:
                del firsts[0], lasts[0]
            else:
                firsts[0] = last + 1
            return last - first + 1
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last)
        if low >= high or first > last:
            return 0
        kept = []
        if firsts[low] < first:
            kept.append((firsts[low], first - 1))
        if lasts[high - 1] > last:
            kept.append((last + 1, lasts[high - 1]))
        before = sum(lasts[low:high]) - sum(firsts[low:high]) + high - low
        firsts[low:high] = [start for start, _ in kept]
        lasts[low:high] = [end for _, end in kept]
        return before - sum(end - start + 1 for start, end in kept)

    def cut(self, first: int, last: int) -> list[Range]:
        """Takes out all numbers from `first` through `last`; gives the parts that were within."""
        firsts, lasts = self._firsts, self._lasts
        if firsts and firsts[0] == first and first <= last < lasts[0]:  # by far the most frequent: off the front
            firsts[0] = last + 1
            return [(first, last)]
        parts = self.intersection(first, last)
        if parts:
            self.remove(first, last)
        return parts

    def intersection(self, first: int, last: int) -> list[Range]:
        """The parts of this set within `first` through `last`."""
        firsts, lasts = self._firsts, self._lasts
        if first > last:
            return []
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last)
        return [(max(first, firsts[place]), min(last, lasts[place])) for place in range(low, high)]

    def next_range(self, after: int) -> Range | None:
        """The first part of this set at or after a number."""
        place = bisect_left(self._lasts, after)
        if place == len(self._lasts):
            return None
        return max(after, self._firsts[place]), self._lasts[place]

    def take(self, count: int) -> list[Range]:
        """Takes out and gives the smallest `count` numbers."""
        taken = []
        while count > 0 and self._firsts:
            first, last = self._firsts[0], self._lasts[0]
            if last - first + 1 > count:
                last = first + count - 1
                self._firsts[0] = last + 1
            else:
                del self._firsts[0], self._lasts[0]
            taken.append((first, last))
            count -= last - first + 1
        return taken

    def update(self, other: "RangeSet") -> None:
        """Takes in all numbers of the other."""
        for first, last in other:
            self.add(first, last)

    def difference(self, other: "RangeSet") -> "RangeSet":
        """The numbers of this set that are not in the other."""
        rest = RangeSet()
        for first, last in self:
            low, high = bisect_left(other._lasts, first), bisect_right(other._firsts, last)
            firsts = [first, *[end + 1 for end in other._lasts[low:high]]]
            lasts = [*[start - 1 for start in other._firsts[low:high]], last]
            if firsts[0] > lasts[0]:
                del firsts[0], lasts[0]
            if firsts and firsts[-1] > lasts[-1]:
                del firsts[-1], lasts[-1]
            rest._firsts += firsts
            rest._lasts += lasts
        return rest

    def common(self, other: "RangeSet") -> "RangeSet":
        """What is here and there."""
        return self.difference(self.difference(other))

    def agree_through(self, other: "RangeSet") -> int:
        """Both have the same numbers through this one, at least; -1 where they differ from the first interval on."""
        low, high = 0, min(len(self._firsts), len(other._firsts))
        while low < high:  # all before `low` are equal; each look compares half of the rest, at the speed of lists
            middle = (low + high + 1) // 2
            is_equal = self._firsts[low:middle] == other._firsts[low:middle]
            if is_equal and self._lasts[low:middle] == other._lasts[low:middle]:
                low = middle
            else:
                high = middle - 1
        return self._lasts[low - 1] if low else -1

    def flat(self) -> list[int]:
        """First, last, first, last: how it is stored."""
        return [number for pair in zip(self._firsts, self._lasts, strict=True) for number in pair]

    @classmethod
    def from_flat(cls, numbers: list[int]) -> "RangeSet":
        """The set that `flat` gave; raises `msgspec.ValidationError` for anything else."""
        made = cls()
        made._firsts, made._lasts = numbers[::2], numbers[1::2]
        is_paired = len(made._firsts) == len(made._lasts)
        grows = all(a <= b for a, b in pairwise(numbers))
        apart = all(last + 1 < first for last, first in zip(made._lasts, made._firsts[1:], strict=False))
        if not (is_paired and grows and apart):
            raise msgspec.ValidationError("these numbers are no intervals")
        return made
