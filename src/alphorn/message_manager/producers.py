"""What every producer has sent: the counter that comes next, and which of its messages were refused.

A message that was seen before is not stored again, and one that was refused stays refused, so that a producer that
did not hear the outcome may send again. Refusals are remembered within bounds, newest last: a producer resends only
what it has no outcome for.
"""

from collections.abc import Callable, Iterator, MutableMapping

from alphorn.message_manager.guarded import Guarded
from alphorn.model.commands import CONNECTION_BYTES, connection_of, number_of
from alphorn.model.ranges import RangeSet

NOBODY = bytes(CONNECTION_BYTES)  # the connection of producers that belong to none
IDLE_MS_MAX = 24 * 3600 * 1000  # how long a producer of nobody is remembered after its last message
FORGOTTEN_MAX = 4096  # connections that are remembered to have ended
REASONS_MAX = 16
REFUSALS_MAX = 1024  # intervals for each reason

Refusal = tuple[str, str]  # class of model.errors, sentence


class Producer:
    """One producer's counters."""

    __slots__ = ("awaited", "awaited_at", "last", "next", "refused", "used_ms")

    def __init__(self) -> None:
        self.next = 1
        self.used_ms = 0
        self.awaited = 0  # the counter that was postponed and must come again before any later one; 0 for none
        self.awaited_at = 0  # number of the destination that had no room for it
        self.last = 0  # number of the destination it sends to; -1 where it sends to several
        self.refused: dict[Refusal, RangeSet] = {}

    def note(self, destination: int) -> None:
        """It sends to this destination."""
        if self.last != destination:
            self.last = destination if self.last == 0 else -1

    def await_again(self, counter: int, destination: int) -> None:
        """From this counter on it sends again, because this destination has no room now."""
        self.awaited, self.awaited_at = counter, destination

    def copy(self, destination: int) -> "Producer":
        """Another producer with the same counters, for one destination alone."""
        twin = Producer()
        if self.awaited_at == destination:
            twin.await_again(self.awaited, destination)
        twin.next, twin.used_ms, twin.last = self.next, self.used_ms, self.last
        twin.refused = {refusal: counters.copy() for refusal, counters in self.refused.items()}
        return twin

    def refuse(self, first: int, last: int, refusal: Refusal) -> None:
        """These messages are not taken, now and whenever they come again."""
        counters = self.refused.pop(refusal, RangeSet())
        counters.add(first, last)
        while counters.intervals > REFUSALS_MAX:
            counters.remove(*next(iter(counters)))
        self.refused[refusal] = counters
        if len(self.refused) > REASONS_MAX:
            del self.refused[next(iter(self.refused))]
        self.next = last + 1

    def refusal_of(self, first: int, last: int) -> Refusal | None:
        """Why some of these messages were not taken when they came first."""
        for refusal, counters in self.refused.items():
            if counters.intersection(first, last):
                return refusal
        return None


class Producers:
    """All producers of a channel, by connection and key: in `plain` to look at, in `of` to change."""

    __slots__ = ("forgotten", "of", "plain")

    def __init__(self) -> None:
        self.plain: dict[bytes, dict[bytes, Producer]] = {}
        self.of: MutableMapping[bytes, dict[bytes, Producer]] = self.plain
        # Connections that have ended, the newest last, and the largest number of a producer that each had.
        self.forgotten: dict[bytes, int] = {}

    def guard(self, keep: Callable[[bytes], None]) -> None:
        """From now on `keep` hears of each connection before its producers may change."""
        self.of = Guarded(self.plain, keep)

    def unguard(self) -> None:
        """Nobody needs to hear of changes any more."""
        self.of = self.plain

    def is_forgotten(self, key: bytes) -> bool:
        """Whether this is a producer of a connection that has ended: what comes of it late was stored before.

        Numbers of producers only grow, so one with a larger number is of a connection that has come back.
        """
        largest = self.forgotten.get(connection_of(key))
        return largest is not None and number_of(key) <= largest

    def find(self, key: bytes) -> Producer | None:
        """The producer, if it is known."""
        found = self.of.get(key[:CONNECTION_BYTES])
        return None if found is None else found.get(key)

    def add(self, key: bytes) -> Producer:
        """A producer that sends for the first time."""
        made = self.of.setdefault(connection_of(key), {})[key] = Producer()
        return made

    def put(self, key: bytes, producer: Producer) -> None:
        """A producer whose counters are known."""
        self.of.setdefault(connection_of(key), {})[key] = producer

    def forget(self, connection: bytes) -> None:
        """All producers of a connection are forgotten; for a while it is remembered that they were."""
        numbers = [number_of(key) for key in self.of.pop(connection, None) or ()]
        self.forgotten[connection] = max([self.forgotten.pop(connection, 0), *numbers])
        if len(self.forgotten) > FORGOTTEN_MAX:
            del self.forgotten[next(iter(self.forgotten))]

    def forget_idle(self, now_ms: int) -> None:
        """Producers of nobody that were not used for long are forgotten."""
        mine = self.of.get(NOBODY, {})
        for key in [key for key, producer in mine.items() if producer.used_ms + IDLE_MS_MAX <= now_ms]:
            del mine[key]
        if not mine:
            self.of.pop(NOBODY, None)

    def next_idle(self) -> int | None:
        """When the next producer of nobody is forgotten."""
        mine = self.plain.get(NOBODY)
        return min(producer.used_ms for producer in mine.values()) + IDLE_MS_MAX if mine else None

    def __iter__(self) -> Iterator[tuple[bytes, Producer]]:
        """In order of their keys, the same on every replica."""
        for connection in sorted(self.of):
            for key in sorted(self.of[connection]):
                yield key, self.of[connection][key]
