"""Why messages in a dead letter queue are there: kept for runs of positions that died alike."""

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from alphorn.model.ranges import RangeSet


class History(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What became of a message before it died. `encode` gives what consumers see."""

    destination: str  # where it was: "queue:orders"
    reason: str
    deliveries: int  # how often it came back
    time: int  # ms since 1970, of the last Tick before
    subscription: int = 0  # of a topic
    made_at: int = 0  # the log entry that made that subscription; consumers do not see it

    def encode(self) -> bytes:
        """As a msgpack map."""
        return _encode(msgspec.structs.replace(self, made_at=0) if self.made_at else self)


_encode = msgspec.msgpack.Encoder().encode


class Histories:
    """Runs of positions in order, each with its history."""

    __slots__ = ("_firsts", "_known", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._known: list[History] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int, History]]:
        return iter(list(zip(self._firsts, self._lasts, self._known, strict=True)))

    def append(self, first: int, last: int, history: History) -> None:
        """Messages after all others died."""
        self._firsts.append(first)
        self._lasts.append(last)
        self._known.append(history)

    def find(self, position: int) -> History | None:
        """What is known of one message."""
        place = bisect_right(self._firsts, position) - 1
        return self._known[place] if place >= 0 and position <= self._lasts[place] else None

    def split(self, first: int, last: int) -> Iterator[tuple[int, int, History | None]]:
        """These positions in order, in runs that died alike or not at all."""
        while first <= last:
            place = bisect_right(self._firsts, first) - 1
            if place >= 0 and first <= self._lasts[place]:
                end, history = min(last, self._lasts[place]), self._known[place]
            else:
                following = self._firsts[place + 1] - 1 if place + 1 < len(self._firsts) else last
                end, history = min(last, following), None
            yield first, end, history
            first = end + 1

    def sweep(self, pending: RangeSet) -> None:
        """Forgets what is not pending any more, at both ends of each run; the same whenever it was done before."""
        runs = [(pending.intersection(first, last), history) for first, last, history in self]
        kept = [(parts[0][0], parts[-1][1], history) for parts, history in runs if parts]
        self._firsts = [first for first, _, _ in kept]
        self._lasts = [last for _, last, _ in kept]
        self._known = [history for _, _, history in kept]
