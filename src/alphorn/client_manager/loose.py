"""What consumers gave back or had when they went, until the log says that it was acknowledged or has come back.

The primary knows it too, and puts it back by a `Return`, which counts as a delivery. A primary that takes over before
that hears it from here, so that what was given out once is not given out again as if for the first time.
"""

from alphorn.client_manager.connection import Consumer
from alphorn.model.commands import Acknowledge, Return, connection_of
from alphorn.model.ranges import RangeSet

INTERVALS_MAX = 1000  # of one backlog; beyond that, what lies between counts as loose as well

Place = tuple[int, int, int]  # channel, destination, subscription


class Loose:
    """Positions by backlog."""

    __slots__ = ("_owners", "_positions")

    def __init__(self) -> None:
        self._positions: dict[Place, RangeSet] = {}
        self._owners: dict[Place, set[bytes]] = {}  # of those that end with the last of these connections

    def __bool__(self) -> bool:
        return bool(self._positions)

    def let_go(self, consumer: Consumer) -> None:
        """A consumer is gone with all that it had, attached or on its way to another channel."""
        self.add(consumer, consumer.claims())

    def add(self, consumer: Consumer, flat: list[int]) -> None:
        """A consumer has these no longer."""
        if not flat:
            return
        place = (consumer.channel, consumer.destination, consumer.subscription)
        positions = self._positions.setdefault(place, RangeSet())
        positions.update(RangeSet(zip(flat[::2], flat[1::2], strict=True)))
        if consumer.is_passing:
            self._owners.setdefault(place, set()).add(connection_of(consumer.key))
        if positions.intervals > INTERVALS_MAX:
            flat = positions.flat()
            positions.add(flat[0], flat[-1])

    def hold(self, consumer: Consumer) -> None:
        """A consumer has, or has again, what it claims."""
        self._remove((consumer.channel, consumer.destination, consumer.subscription), consumer.claims())

    def settle(self, channel: int, command: Acknowledge | Return) -> None:
        """The log says what became of these."""
        self._remove((channel, command.destination, command.subscription), command.positions)

    def has(self, channel: int, destination: int) -> bool:
        """Whether there is anything of a destination."""
        return any(place[:2] == (channel, destination) for place in self._positions)

    def forget(self, channel: int, destination: int) -> None:
        """A destination is gone, or all that it held."""
        for place in [place for place in self._positions if place[:2] == (channel, destination)]:
            self._drop(place)

    def forget_subscription(self, channel: int, destination: int, subscription: int) -> None:
        """A subscription has ended, or one of its consumers has."""
        self._drop((channel, destination, subscription))

    def forget_connection(self, channel: int, connection: bytes) -> None:
        """A connection has ended, and with it its temporary destinations and subscriptions without a name."""
        for place in [place for place, owners in self._owners.items() if place[0] == channel and connection in owners]:
            self._owners[place].discard(connection)
            if not self._owners[place]:
                self._drop(place)

    def of(self, channel: int) -> list[tuple[int, int, list[int]]]:
        """All of one channel."""
        return [(place[1], place[2], found.flat()) for place, found in self._positions.items() if place[0] == channel]

    def _remove(self, place: Place, flat: list[int]) -> None:
        positions = self._positions.get(place)
        if positions is not None:
            for first, last in zip(flat[::2], flat[1::2], strict=True):
                positions.remove(first, last)
            if not positions:
                self._drop(place)

    def _drop(self, place: Place) -> None:
        self._positions.pop(place, None)
        self._owners.pop(place, None)
