"""Positions that wait to be given out: strictly by priority from 9 to 0, within one priority by position.

Nearly all messages have the default priority, so that level is a plain set of ranges and the others exist on demand.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from alphorn.model.messages import PRIORITY_DEFAULT
from alphorn.model.ranges import RangeSet

PRIORITY_MAX = 9
NORMAL = PRIORITY_MAX - PRIORITY_DEFAULT


class Stretch(NamedTuple):
    """Consecutive positions of one rank. The smallest stretch is the first to be given out."""

    rank: int  # 0 for priority 9, through 9 for priority 0
    first: int
    last: int

    @property
    def priority(self) -> int:
        """The priority of this rank."""
        return PRIORITY_MAX - self.rank


def ranked(first: int, last: int, priorities: Mapping[int, RangeSet]) -> list[Stretch]:
    """A range, cut where the rank changes. `priorities` names the positions whose priority is not the default."""
    if not priorities:
        return [Stretch(NORMAL, first, last)]
    normal = RangeSet([(first, last)])
    found = []
    for priority, positions in priorities.items():
        for start, end in positions.intersection(first, last):
            normal.remove(start, end)
            found.append(Stretch(PRIORITY_MAX - priority, start, end))
    return found + [Stretch(NORMAL, start, end) for start, end in normal]


class Ready:
    """A set of positions with ranks."""

    __slots__ = ("_normal", "_others")

    def __init__(self) -> None:
        self._normal = RangeSet()
        self._others: dict[int, RangeSet] = {}  # rank → positions; never an empty set

    def __bool__(self) -> bool:
        return bool(self._normal) or bool(self._others)

    def __len__(self) -> int:
        return len(self._normal) + sum(len(positions) for positions in self._others.values())

    def __iter__(self) -> Iterator[Stretch]:
        """All of it, in no particular order of ranks."""
        for rank, positions in [(NORMAL, self._normal), *self._others.items()]:
            for first, last in positions:
                yield Stretch(rank, first, last)

    def add(self, stretch: Stretch) -> None:
        """Takes these in."""
        rank, first, last = stretch
        if rank == NORMAL:
            self._normal.add(first, last)
        else:
            self._others.setdefault(rank, RangeSet()).add(first, last)

    def remove(self, first: int, last: int) -> int:
        """Takes these out, whatever their rank; gives how many of them were within."""
        removed = self._normal.remove(first, last)
        if self._others:
            for rank, positions in list(self._others.items()):
                removed += positions.remove(first, last)
                if not positions:
                    del self._others[rank]
        return removed

    def head(self) -> Stretch | None:
        """What is to be given out first."""
        rank, positions = NORMAL, self._normal
        if self._others:
            rank = min(self._others)
            if rank > NORMAL and positions:
                rank = NORMAL
            else:
                positions = self._others[rank]
        found = positions.head
        return None if found is None else Stretch(rank, found[0], found[1])

    def take(self, count: int) -> list[Stretch]:
        """Takes out and gives the first `count` positions, or all where there are fewer."""
        taken = []
        while count > 0 and (head := self.head()):
            rank, first, last = head
            last = min(last, first + count - 1)
            self.remove(first, last)
            taken.append(Stretch(rank, first, last))
            count -= last - first + 1
        return taken
