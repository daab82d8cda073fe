"""The counters of messages that one call has sent: several threads or tasks may share a producer."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload


class Counters(Sequence[int]):
    """Ascending, in few runs: where others sent meanwhile, theirs are between."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[range] = []

    def add(self, last: int, count: int) -> None:
        """So many more, through this one."""
        start = last - count + 1
        if self._runs and self._runs[-1].stop == start:
            start = self._runs.pop().start
        self._runs.append(range(start, last + 1))

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        if isinstance(place, slice):
            return list(self)[place]
        left = place if place >= 0 else place + len(self)
        for run in self._runs:
            if 0 <= left < len(run):
                return run[left]
            left -= len(run)
        raise IndexError(f"there are {len(self)} of them, and none at {place}")

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._runs)
