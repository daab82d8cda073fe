"""What many want and nobody can have at once, in a fair order: whoever has had the least work done comes next.

Each has a line of its own, which keeps its order. The first in a line has a start, in work done; the smallest start is
taken, and the line behind it starts so much later as that was work. Who comes anew starts where the others are: it
neither waits for what they have waiting, nor gets anything for the time when it wanted nothing. One whose line has just
ended is remembered until the others have had as much, so that it gains nothing by asking for one thing at a time.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

REMEMBERED_MAX = 1000  # of those whose line has ended, before they are looked through

T = TypeVar("T")


class _Line(Generic[T]):
    __slots__ = ("size", "waiting")

    def __init__(self) -> None:
        self.size = 0
        self.waiting: deque[tuple[T, int, int]] = deque()  # with its size and its work


class Turns(Generic[T]):
    """Lines of things that wait, by whose they are. Sizes are bytes; work is measured as its owner likes."""

    __slots__ = ("_count", "_ended", "_lines", "_now", "_order", "size")

    def __init__(self) -> None:
        self._lines: dict[bytes, _Line[T]] = {}
        self._order: list[tuple[int, int, bytes]] = []  # a heap with one place for each line: start, turn, whose
        self._ended: dict[bytes, int] = {}  # where a line would go on that has ended
        self._now = 0  # the start of what was taken last
        self._count = 0
        self.size = 0  # of all that waits

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __len__(self) -> int:
        return sum(len(line.waiting) for line in self._lines.values())

    def __iter__(self) -> Iterator[bytes]:
        """Those who have something waiting."""
        return iter(self._lines)

    @property
    def count(self) -> int:
        """How many have something waiting."""
        return len(self._lines)

    def add(self, whose: bytes, item: T, *, size: int, work: int) -> None:
        """Puts something at the end of a line."""
        line = self._lines.get(whose)
        if line is None:
            line = self._lines[whose] = _Line()
            self._enter(whose, max(self._now, self._ended.pop(whose, 0)))
        line.waiting.append((item, size, work))
        line.size += size
        self.size += size

    def first(self) -> T:
        """What comes next; there must be something."""
        return self._lines[self._order[0][2]].waiting[0][0]

    def take(self) -> tuple[bytes, T]:
        """Takes what comes next, and says whose it is; there must be something."""
        start, _, whose = heappop(self._order)
        line = self._lines[whose]
        item, size, work = line.waiting.popleft()
        self._now = start
        line.size -= size
        self.size -= size
        if line.waiting:
            self._enter(whose, start + work)
            return whose, item
        del self._lines[whose]
        self._ended[whose] = start + work
        if not self._lines:
            self._ended, self._now = {}, 0  # whoever comes next waits for nobody
        elif len(self._ended) > REMEMBERED_MAX + len(self._lines):
            self._ended = {each: end for each, end in self._ended.items() if end > start}
        return whose, item

    def last_of(self, whose: bytes) -> T | None:
        """The last thing in a line; None where nothing waits."""
        line = self._lines.get(whose)
        return line.waiting[-1][0] if line is not None else None

    def grow_last(self, whose: bytes, size: int) -> None:
        """The last thing in a line, which must be there, has become larger."""
        line = self._lines[whose]
        item, before, work = line.waiting.pop()
        line.waiting.append((item, before + size, work + size))
        line.size += size
        self.size += size

    def size_of(self, whose: bytes) -> int:
        """What waits in a line."""
        line = self._lines.get(whose)
        return line.size if line is not None else 0

    def _enter(self, whose: bytes, start: int) -> None:
        self._count += 1  # of equal starts the earlier comes first
        heappush(self._order, (start, self._count, whose))
