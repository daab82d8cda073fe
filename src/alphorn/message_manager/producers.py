"""What every producer has sent: the counter that comes next, and which of its messages were refused.

A message that was seen before is not stored again, and one that was refused stays refused, so that a producer that
did not hear the outcome may send again. Refusals are remembered within bounds, newest last: a producer resends only
what it has no outcome for.

A producer is forgotten when its client has closed it. What comes of it after that is a copy that a Client Manager was
late with, and must not count as new: so its number is known to be over, without a word for each such number.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping

from alphorn.message_manager.guarded import Guarded
from alphorn.model.commands import CONNECTION_BYTES, NOBODY, connection_of, number_of
from alphorn.model.ranges import RangeSet

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


class Mine(dict[bytes, Producer]):
    """One connection's producers by key, and what it has said of its numbers: through this one only these are used."""

    __slots__ = ("connection", "through", "used")

    def __init__(self, connection: bytes) -> None:
        super().__init__()
        self.connection = connection
        self.through = 0
        self.used: frozenset[int] = frozenset()

    def is_over(self, key: bytes) -> bool:
        """Whether the connection has said that this producer or session of it is not used any more."""
        number = number_of(key)
        return number <= self.through and number not in self.used


class Producers:
    """All producers of a channel, by connection and key: in `plain` to look at, in `of` to change."""

    __slots__ = ("forgotten", "of", "plain")

    def __init__(self) -> None:
        self.plain: dict[bytes, Mine] = {}
        self.of: MutableMapping[bytes, Mine] = self.plain
        # Connections that have ended, the newest last, and the largest number that each is known to have used.
        self.forgotten: dict[bytes, int] = {}

    def guard(self, keep: Callable[[bytes], None]) -> None:
        """From now on `keep` hears of each connection before its producers may change."""
        self.of = Guarded(self.plain, keep)

    def unguard(self) -> None:
        """Nobody needs to hear of changes any more."""
        self.of = self.plain

    def is_forgotten(self, key: bytes) -> bool:
        """Whether this is a producer that was closed, or of a connection that has ended: what comes of it is late.

        Numbers only grow, so one with a larger number is of a connection that has come back.
        """
        largest = self.forgotten.get(connection_of(key))
        return (largest is not None and number_of(key) <= largest) or self.is_over(key)

    def is_over(self, key: bytes) -> bool:
        """Whether a connection that is there has said that this producer or session of it is not used any more."""
        mine = self.plain.get(connection_of(key))
        return mine is not None and mine.is_over(key)

    def find(self, key: bytes) -> Producer | None:
        """The producer, if it is known."""
        found = self.of.get(key[:CONNECTION_BYTES])
        return None if found is None else found.get(key)

    def add(self, key: bytes) -> Producer:
        """A producer that sends for the first time."""
        made = Producer()
        self.put(key, made)
        return made

    def put(self, key: bytes, producer: Producer) -> None:
        """A producer whose counters are known."""
        self.of_connection(connection_of(key))[key] = producer

    def of_connection(self, connection: bytes) -> Mine:
        """A connection's producers, which may be none yet."""
        found = self.of.get(connection)
        if found is None:
            found = self.of[connection] = Mine(connection)
        return found

    def retire(self, connection: bytes, through: int, used: Iterable[int]) -> bool:
        """Through this number a connection uses only these; False where that is known, or came after its end."""
        known = self.plain.get(connection)
        if through <= max(known.through if known is not None else 0, self.forgotten.get(connection, 0)):
            return False
        mine = self.of_connection(connection)
        mine.through, mine.used = through, frozenset(used)
        self.drop(connection, mine.is_over)
        return True

    def drop(self, connection: bytes, is_over: Callable[[bytes], bool]) -> int:
        """Those of a connection's producers that are over are gone; gives the largest number that is known of it."""
        mine = self.of.get(connection)
        if mine is None:
            return 0
        over = [key for key in mine if is_over(key)]
        for key in over:
            del mine[key]
        if not mine and not mine.through:
            del self.of[connection]
        return max([mine.through, *map(number_of, over)])

    def forget(self, connection: bytes, largest: int = 0) -> None:
        """All producers of a connection are forgotten; for a while it is remembered that they were.

        `largest` is the largest number that others know of it.
        """
        mine = self.of.pop(connection, None)
        numbers = [mine.through, *map(number_of, mine)] if mine is not None else []
        self.forgotten[connection] = max([self.forgotten.pop(connection, 0), largest, *numbers])
        if len(self.forgotten) > FORGOTTEN_MAX:
            del self.forgotten[next(iter(self.forgotten))]

    def forget_idle(self, now_ms: int) -> None:
        """Producers of nobody that were not used for long are forgotten."""
        mine = self.of.get(NOBODY)
        if mine is not None:
            self.drop(NOBODY, lambda key: mine[key].used_ms + IDLE_MS_MAX <= now_ms)

    def next_idle(self) -> int | None:
        """When the next producer of nobody is forgotten."""
        mine = self.plain.get(NOBODY)
        return min(producer.used_ms for producer in mine.values()) + IDLE_MS_MAX if mine else None

    def __iter__(self) -> Iterator[tuple[bytes, Producer]]:
        """In order of their keys, the same on every replica."""
        for connection in sorted(self.of):
            for key in sorted(self.of[connection]):
                yield key, self.of[connection][key]
