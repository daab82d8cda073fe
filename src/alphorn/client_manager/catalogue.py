"""All destinations of the cluster by name, as Message Managers advertise them; kept only while there are patterns.

Besides the directory, because what is here may not be used yet: a topic is advertised before whoever created it hears
of it, so that consumers of patterns are there before the first message.
"""

from bisect import bisect_left, bisect_right, insort

from alphorn.model.conversation import parts_of
from alphorn.model.destinations import Destination

_SORT_MIN = 100  # so many new names are sorted in at once

Name = tuple[str, int]  # of a destination, with its place


class Catalogue:
    """Destinations by place, and their names in order."""

    __slots__ = ("_by_place", "_fresh", "_names")

    def __init__(self) -> None:
        self._by_place: dict[int, Destination] = {}
        self._names: list[Name] = []
        self._fresh: list[Name] = []  # not in order yet

    def __len__(self) -> int:
        return len(self._by_place)

    def __contains__(self, place: int) -> bool:
        return place in self._by_place

    def at(self, place: int) -> Destination:
        """The destination at a place that is known."""
        return self._by_place[place]

    def add(self, place: int, destination: Destination) -> bool:
        """A destination is there; False where that is known."""
        if place in self._by_place:
            return False
        self._by_place[place] = destination
        self._fresh.append((destination.name, place))
        return True

    def remove(self, place: int) -> Destination | None:
        """A destination is gone."""
        destination = self._by_place.pop(place, None)
        if destination is not None:
            self._sort()
            del self._names[bisect_left(self._names, (destination.name, place))]
        return destination

    def of(self, channel: int) -> list[int]:
        """The places of one channel."""
        return [place for place in self._by_place if parts_of(place)[0] == channel]

    def page(self, bounds: tuple[str, str] | None, after: Name | None, maximum: int) -> list[Name]:
        """Names in order, up to so many: those within bounds (both included), and behind where the last page ended."""
        self._sort()
        first = bisect_left(self._names, (bounds[0], -1)) if bounds is not None else 0
        if after is not None:
            first = max(first, bisect_right(self._names, after))
        page = self._names[first : first + maximum]
        return page if bounds is None else [name for name in page if name[0] <= bounds[1]]

    def clear(self) -> None:
        """Nothing is known any more."""
        self._by_place.clear()
        self._names.clear()
        self._fresh.clear()

    def _sort(self) -> None:
        fresh, self._fresh = self._fresh, []
        if len(fresh) < _SORT_MIN:
            for name in fresh:
                insort(self._names, name)
        else:
            self._names += fresh
            self._names.sort()
