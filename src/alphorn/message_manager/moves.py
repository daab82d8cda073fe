"""What a channel knows of destinations that leave it, have left it, or come here.

A move (docs/decisions/0030-moving-destinations.md) is planned and begun in the log that the destination leaves. From
then on the destination is out of the directory: no command reaches it, no Tick ages it, and whoever exports it finds it
as it was at that moment. The log that it comes to keeps what has come so far apart, until all of it is there.
"""

from alphorn.message_manager.queue import Queue
from alphorn.message_manager.schedule import Item
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import MoveStage
from alphorn.model.destinations import Destination
from alphorn.model.ranges import RangeSet

Home = tuple[int, int]  # channel, and number there
Gone = tuple[int, int, int]  # channel, number there, and the log entry here from which on it takes nothing


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
    """A destination on its way here: messages up to a position, and pieces of the rest."""

    __slots__ = ("attempt", "home", "made", "pieces", "through")

    def __init__(self, home: Home, made: Queue | Topic) -> None:
        self.home = home
        self.made = made  # its segments count, nothing else of it
        self.through = 0  # everything needed through this position is here
        self.attempt = b""
        self.pieces: list[list[bytes]] = []


class Landing:
    """A destination that has come here, while Client Managers attach their consumers again.

    What was with consumers when it left (`lent`, by subscription) is given to nobody until they have said so. It is a
    guess, namely everything, where the primary that knew was lost meanwhile.
    """

    __slots__ = ("begun_at", "home", "is_guess", "lent")

    def __init__(self, home: Home, begun_at: int, *, is_guess: bool = False) -> None:
        self.home = home
        self.begun_at = begun_at
        self.is_guess = is_guess
        self.lent: dict[int, RangeSet] = {}


class Moves:
    """All of it, for one channel; part of the replicated state."""

    __slots__ = ("came", "elsewhere", "gone", "incoming", "is_closed", "landing", "leaving")

    def __init__(self) -> None:
        self.is_closed = False  # new destinations go elsewhere
        self.leaving: dict[int, Leaving] = {}
        self.gone: dict[int, Gone] = {}  # old number → where it is
        self.elsewhere: dict[Destination, int] = {}  # name → channel
        self.came: dict[int, Home] = {}  # number here → where it was
        self.incoming: dict[int, Incoming] = {}
        self.landing: dict[int, Landing] = {}

    def home_of(self, number: int) -> Gone | None:
        """Where a destination of this number goes or has gone; None for one that is here, or was never."""
        leaving = self.leaving.get(number)
        if leaving is not None and leaving.source is not None:
            return leaving.channel, leaving.number, leaving.begun_at
        return self.gone.get(number)

    def kept(self) -> list[Queue | Topic]:
        """What is in no directory and still needs its log entries."""
        leaving = [found.source for found in self.leaving.values() if found.source is not None]
        return leaving + [found.made for found in self.incoming.values()]

    def forget(self, number: int) -> None:
        """A destination that was here is deleted."""
        self.leaving.pop(number, None)
        self.landing.pop(number, None)
        self.came.pop(number, None)
