"""A client's connection as the Client Manager knows it: its sessions, producers and consumers. All of it is transient.

The connection's id outlives the stream: a client that was cut off names it at any Client Manager and goes on. What is
promised lies in the log and in the client's own memory, so nothing here has to survive.
"""

from collections import deque
from collections.abc import Callable

from alphorn.model.commands import Publish
from alphorn.model.link import DeliveredRun
from alphorn.model.ranges import RangeSet

PLACES_MAX = 1024  # that a producer is remembered to have sent to


class Batch:
    """A publish under way."""

    __slots__ = ("command", "connection", "is_done", "place", "producer", "size", "state")

    def __init__(
        self, connection: "Connection", producer: int, state: "Producer", place: int, command: Publish
    ) -> None:
        self.connection = connection
        self.producer = producer
        self.state = state
        self.place = place
        self.command = command
        self.size = len(command.blob)
        self.is_done = False

    @property
    def last(self) -> int:
        """The counter of its last message."""
        return self.command.counter + self.command.count - 1


class Producer:
    """Which counter comes next, and whether the log is known to agree with it."""

    __slots__ = ("_sent", "expected", "is_proven", "unanswered", "under_way")

    def __init__(self, expected: int, *, is_proven: bool) -> None:
        self.expected = expected
        self.is_proven = is_proven
        self.unanswered = 0  # batches whose outcome the primary tells
        self.under_way: deque[Batch] = deque()  # confirmed in order, whatever channels they went to
        self._sent: dict[int, int] = {}  # place → the last counter that went there

    def after(self, place: int, counter: int, count: int) -> int:
        """What a publish to this place says of the one before it (model.commands.Publish); it is sent now."""
        before = self._sent.get(place, 0)
        if len(self._sent) >= PLACES_MAX:
            self._sent.clear()
        self._sent[place] = counter + count - 1
        return -1 if before == counter - 1 else before


class Consumer:
    """Who receives, and what it has received and not yet acknowledged."""

    __slots__ = (
        "channel",
        "destination",
        "held",
        "is_attached",
        "is_volatile",
        "key",
        "number",
        "on_settled",
        "place",
        "postponed",
        "prefetch",
        "request",
        "returning",
        "selector",
        "session",
        "settling",
        "stream",
        "subscription",
        "waiting",
    )

    def __init__(
        self, *, number: int, key: bytes, stream: int, session: int, place: int, channel: int, destination: int
    ) -> None:
        self.number = number
        self.key = key
        self.stream = stream
        self.session = session
        self.place = place
        self.channel = channel
        self.destination = destination
        self.subscription = 0
        self.is_volatile = False  # its subscription ends with its last consumer
        self.selector = ""
        self.prefetch = 0
        self.request = 0  # of its client, while that waits to hear that the consumer is there
        self.held = RangeSet()
        self.settling = RangeSet()  # acknowledged, and not yet heard from the log
        self.returning = RangeSet()  # given back, and not yet heard from the log
        self.is_attached = False  # wants messages; False until its subscription exists
        self.postponed: list[Callable[[], None]] = []  # what its client said meanwhile
        self.on_settled: Callable[[], None] | None = None  # called once, when all of that is heard
        self.waiting: deque[DeliveredRun] = deque()  # runs whose batch is being fetched, and all after them

    def turn_to(self, place: int, channel: int, destination: int) -> None:
        """Its destination is at this place."""
        self.place, self.channel, self.destination = place, channel, destination

    def settle(self, positions: list[int]) -> None:
        """These are acknowledged or returned in the log."""
        for first, last in zip(positions[::2], positions[1::2], strict=True):
            self.settling.remove(first, last)
            self.returning.remove(first, last)
        if not self.is_unheard and self.on_settled is not None:
            then, self.on_settled = self.on_settled, None
            then()

    def give_back(self, positions: list[int]) -> None:
        """These are on their way back, and claimed no more: a primary that has applied it would keep them for ever."""
        for first, last in zip(positions[::2], positions[1::2], strict=True):
            self.settling.remove(first, last)
            self.returning.add(first, last)

    @property
    def is_unheard(self) -> bool:
        """Whether something that its client said of its messages is not yet heard from the log."""
        return bool(self.settling) or bool(self.returning)

    def claims(self) -> list[int]:
        """What a primary must not give to anybody else, or again."""
        claimed = self.held.copy()
        claimed.update(self.settling)
        return claimed.flat()


class Connection:
    """One client."""

    __slots__ = ("client_id", "consumers", "id", "is_writable", "producers", "resumption", "sessions", "stream")

    def __init__(self, *, stream: int, identity: bytes, client_id: str, resumption: int = 0) -> None:
        self.stream = stream
        self.resumption = resumption  # how often its client has come back
        self.id = identity
        self.client_id = client_id
        self.sessions: set[int] = set()
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.is_writable = True

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "connection": self.id.hex(),
            "client": self.client_id,
            "sessions": len(self.sessions),
            "producers": len(self.producers),
            "consumers": len(self.consumers),
        }
