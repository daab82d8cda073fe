"""What is to happen at which time: a heap of items that may turn out to be void when their time comes.

Nothing is taken out when its reason ends; void items are left out when they come up, and swept when they are many.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

_ITEMS_MIN = 1024  # fewer are not worth a sweep


class Kind(IntEnum):
    """What is to happen."""

    RELEASE = 1  # deferred messages are due
    EXPIRE = 2
    REVIEW = 3  # a destination's timeline: time to live, retention
    END_DELAY = 4  # messages that a topic keeps are due: later subscriptions need not wait for them


class Item(NamedTuple):
    """One thing to happen, to these positions of a destination."""

    due_ms: int
    kind: Kind
    number: int
    subscription: int = 0
    first: int = 0
    last: int = 0


class Schedule:
    """Items by time. `is_live` says whether one still means anything."""

    __slots__ = ("_heap", "_is_live", "_sweep_at")

    def __init__(self, is_live: Callable[[Item], bool]) -> None:
        self._heap: list[Item] = []
        self._is_live = is_live
        self._sweep_at = _ITEMS_MIN

    def __len__(self) -> int:
        """How many items, void ones among them."""
        return len(self._heap)

    def push(self, item: Item) -> None:
        """Adds an item."""
        heapq.heappush(self._heap, item)
        if len(self._heap) >= self._sweep_at:
            self.fill(self.live())
            self._sweep_at = 2 * len(self._heap) + _ITEMS_MIN

    def fill(self, items: Iterable[Item]) -> None:
        """Has these items and no others."""
        self._heap = list(items)
        heapq.heapify(self._heap)

    def live(self) -> list[Item]:
        """All items that mean something, each once, in order."""
        return [item for item in sorted(set(self._heap)) if self._is_live(item)]

    def take_due(self, now_ms: int) -> list[Item]:
        """Takes out and gives the items whose time has come and that mean something."""
        taken = []
        while self._heap and self._heap[0].due_ms <= now_ms:
            item = heapq.heappop(self._heap)
            if self._is_live(item):
                taken.append(item)
        return taken

    def due(self, now_ms: int) -> Iterator[Item]:
        """The items whose time has come, void ones among them, in no order; they stay. Costs by their number."""
        places = [0]
        while places:
            place = places.pop()
            if place < len(self._heap) and self._heap[place].due_ms <= now_ms:
                yield self._heap[place]
                places += (2 * place + 1, 2 * place + 2)

    def next_due(self) -> int | None:
        """When the next item that means something is due."""
        while self._heap and not self._is_live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0].due_ms if self._heap else None
