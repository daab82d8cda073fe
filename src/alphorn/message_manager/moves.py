"""What a channel knows of destinations that leave it, have left it, or come here.

A move (docs/decisions/0030-moving-destinations.md) is planned and begun in the log that the destination leaves. From
then on the destination is out of the directory: no command reaches it, no Tick ages it, and whoever exports it finds it
as it was at that moment. The log that it comes to keeps what has come so far apart, until all of it is there.
"""

from collections.abc import Iterable
from typing import NamedTuple

from alphorn.message_manager.queue import Queue
from alphorn.message_manager.schedule import Item
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import MoveStage
from alphorn.model.destinations import Destination
from alphorn.model.ranges import RangeSet

SubscriptionName = tuple[bool, str, str]  # is durable, client, name
Home = tuple[int, int]  # channel, and number there
Gone = tuple[int, int, int]  # channel, number there, and the log entry here from which on it takes nothing
Came = tuple[int, int, int]  # channel, number there, and the log entry that brought it here
Recalled = tuple[int, Destination]  # the channel where it was to go
Elsewhere = tuple[int, int]  # channel, and the log entry here that says so


class Leaving:
    """A destination on its way to another channel. Once that has begun, it is here and nowhere else."""

    __slots__ = ("begun_at", "channel", "expirations", "is_awaiting", "number", "source", "stage")

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.number = 0  # there
        self.stage = MoveStage.PLANNED
        self.begun_at = 0  # number of the log entry
        self.source: Queue | Topic | None = None  # once it has begun
        self.expirations: list[Item] = []
        self.is_awaiting = False


class Incoming:
    """A destination on its way here: messages up to a position, pieces of the rest, and names that are taken for it."""

    __slots__ = ("attempt", "home", "made", "names", "pieces", "through")

    def __init__(self, home: Home, made: Queue | Topic, names: Iterable[SubscriptionName] = ()) -> None:
        self.home = home
        self.names = set(names)  # of all subscriptions that it may come with
        self.made = made  # its segments count, nothing else of it
        self.through = 0  # everything needed through this position is here
        self.attempt = b""
        self.pieces: list[list[bytes]] = []


class Lent(NamedTuple):
    """What consumers had or may have had of a destination when it left, by subscription.

    What was `given` they had, or nobody can tell any more. Of what is `unclear` Client Managers can tell: the primary
    that knew was lost, and they had not told the next one yet.
    """

    given: dict[int, RangeSet]
    unclear: dict[int, RangeSet]

    def doubted(self) -> "Lent":
        """The same where somebody is missing of those who could tell."""
        given = {subscription: positions.copy() for subscription, positions in self.given.items()}
        for subscription, positions in self.unclear.items():
            given.setdefault(subscription, RangeSet()).update(positions)
        return Lent(given, {})


class Landing:
    """A destination that has come here, while Client Managers attach their consumers again.

    What was or may have been with consumers when it left is given to nobody until they have said so.
    """

    __slots__ = ("begun_at", "home", "lent")

    def __init__(self, home: Home, begun_at: int) -> None:
        self.home = home
        self.begun_at = begun_at
        self.lent = Lent({}, {})


class Moves:
    """All of it, for one channel; part of the replicated state."""

    __slots__ = ("came", "elsewhere", "gone", "incoming", "is_closed", "landing", "leaving", "recalled")

    def __init__(self) -> None:
        self.is_closed = False  # new destinations go elsewhere
        self.leaving: dict[int, Leaving] = {}
        self.recalled: dict[
            int, Recalled
        ] = {}  # deleted before they left, which somebody has to say where they were to go
        self.gone: dict[int, Gone] = {}  # old number → where it is
        self.elsewhere: dict[Destination, Elsewhere] = {}  # by name
        self.came: dict[int, Came] = {}  # number here → where it was, in the order in which they came
        self.incoming: dict[int, Incoming] = {}
        self.landing: dict[int, Landing] = {}

    def home_of(self, number: int) -> Gone | None:
        """Where a destination of this number goes or has gone; None for one that is here, or was never."""
        leaving = self.leaving.get(number)
        if leaving is not None and leaving.source is not None:
            return leaving.channel, leaving.number, leaving.begun_at
        return self.gone.get(number)

    def came_at(self, number: int) -> int:
        """The log entry that brought a destination here; 0 for one that was made here."""
        came = self.came.get(number)
        return 0 if came is None else came[2]

    def is_coming(self, destination: Destination) -> bool:
        """Whether a name belongs to a destination that is on its way here."""
        return self.comes_from(destination) is not None

    def comes_from(self, destination: Destination) -> Home | None:
        """Where the destination of this name is that is on its way here; None where there is no such."""
        coming = self.incoming.values()
        return next((incoming.home for incoming in coming if incoming.made.destination == destination), None)

    def bringer_of(self, name: SubscriptionName) -> Destination | None:
        """The topic on its way here that brings a subscription of this name."""
        coming = self.incoming.values()
        return next((incoming.made.destination for incoming in coming if name in incoming.names), None)

    def kept(self) -> list[Queue | Topic]:
        """What is in no directory and still needs its log entries."""
        leaving = [found.source for found in self.leaving.values() if found.source is not None]
        return leaving + [found.made for found in self.incoming.values()]

    def under_way(self) -> set[int]:
        """All that have begun to leave, or come here, or have just come."""
        leaving = {number for number, found in self.leaving.items() if found.source is not None}
        return leaving.union(self.incoming, self.landing)

    def forget(self, number: int, destination: Destination) -> None:
        """A destination that was here is deleted; where it was to be moved, it may be expected."""
        leaving = self.leaving.pop(number, None)
        if leaving is not None:
            self.recalled[number] = (leaving.channel, destination)
        self.landing.pop(number, None)
