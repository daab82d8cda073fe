"""A client's connection as the Client Manager knows it: its sessions, producers and consumers. All of it is transient.

The connection's id outlives the stream: a client that was cut off names it at any Client Manager and goes on. What is
promised lies in the log and in the client's own memory, so nothing here has to survive.
"""

from collections import deque
from collections.abc import Callable

from alphorn.model.commands import Abandon, Fragment, Publish
from alphorn.model.link import DeliveredRun
from alphorn.model.ranges import RangeSet

PLACES_MAX = 10_000  # whose counters are remembered of one producer


class Batch:
    """A publish under way. Those of one producer are confirmed in order: once one waits for an answer, all do."""

    __slots__ = (
        "command",
        "connection",
        "count",
        "counter",
        "is_audited",
        "is_judged",
        "is_void",
        "place",
        "producer",
        "session",
        "size",
        "state",
    )

    def __init__(
        self,
        connection: "Connection",
        session: int,
        producer: int,
        state: "Producer",
        place: int,
        command: Publish | Fragment | Abandon,
        count: int,
        *,
        is_judged: bool,
    ) -> None:
        self.counter = command.counter
        self.count = count
        self.is_judged = is_judged  # the primary's answer decides
        self.is_audited = False
        self.is_void = False  # an earlier one was postponed: this one comes again after that
        self.connection = connection
        self.session = session
        self.producer = producer
        self.state = state
        self.place = place
        self.command = command
        self.size = 0 if isinstance(command, Abandon) else len(command.blob)


class Producer:
    """Which counter comes next, whether the log is known to agree with it, and where its messages go."""

    __slots__ = ("_closed", "_sent", "expected", "is_postponed", "is_proven", "open", "place", "session", "unanswered")

    def __init__(self, expected: int, *, is_proven: bool, session: int) -> None:
        self.expected = expected
        self.session = session
        self.place = -1  # of the last batch
        self.is_proven = is_proven
        self.unanswered: dict[int, Batch] = {}  # batches whose outcome the primary tells, by counter
        self.is_postponed = False  # what it sends is left unheard before the expected counter comes again
        self.open: deque[int] = deque()  # counters of batches that have no outcome, or follow such a one
        self._closed: dict[int, int] = {}  # of these, which have one: the last counter, 0 where it was refused
        self._sent: dict[int, deque[int]] = {}  # place → last counters of what went there

    def close(self, counter: int, confirmed: int) -> int:
        """The batch that begins with a counter has its outcome: confirmed through this one, 0 where it was refused.

        Gives the counter through which everything has one and the last is confirmed, 0 where nothing new is.
        """
        self._closed[counter] = confirmed
        through = 0
        while self.open and self.open[0] in self._closed:
            through = max(through, self._closed.pop(self.open.popleft()))
        return through

    def postpone(self, counter: int, first: int) -> None:
        """Messages from this counter on come again; `first` is where the batch begins that it is in.

        What becomes of batches under way from there on counts no more.
        """
        self.expected, self.is_postponed = counter, True
        while self.open and self.open[-1] >= first:
            self._closed.pop(self.open.pop(), None)
        for later in [later for later in self.unanswered if later >= first]:
            self.unanswered.pop(later).is_void = True

    @property
    def is_under_way(self) -> bool:
        """Whether something of it has no outcome yet."""
        return bool(self.open or self.unanswered)

    def has_sent_to(self, place: int) -> bool:
        """Whether it is known what went to this place before."""
        return place in self._sent

    def after(self, place: int, counter: int, count: int) -> int:
        """What a publish to this place says of the one before it (model.commands.Publish); it is sent now.

        Of what was postponed and comes again nothing is said: it may not be there.
        """
        if place not in self._sent and len(self._sent) >= PLACES_MAX:
            self._sent.clear()
        sent = self._sent.setdefault(place, deque())
        while sent and sent[-1] >= counter:
            sent.pop()
        before = sent[-1] if sent else 0
        oldest = self.open[0] if self.open else counter
        while len(sent) > 1 and sent[1] < oldest:
            sent.popleft()
        sent.append(counter + count - 1)
        return -1 if before == counter - 1 else before


class Consumer:
    """Who receives, and what it has received and not yet acknowledged."""

    __slots__ = (
        "attaching",
        "channel",
        "destination",
        "has_returned",
        "held",
        "is_attached",
        "is_blocked",
        "is_temporary",
        "is_volatile",
        "key",
        "number",
        "on_begun",
        "on_settled",
        "place",
        "postponed",
        "prefetch",
        "recovers_later",
        "recovery",
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
        self.is_temporary = False  # its destination ends with its connection
        self.selector = ""
        self.prefetch = 0
        self.request = 0  # of its client, while that waits to hear that the consumer is there
        self.held = RangeSet()
        self.settling = RangeSet()  # acknowledged, and not yet heard from the log
        self.returning = RangeSet()  # given back, and not yet heard from the log
        self.recovers_later = False  # its client wants everything again, when it is attached
        self.recovery: RangeSet | None = None  # what came unseen by its program while everything comes back
        self.attaching = 0  # the request by which it attaches, until that is answered
        self.has_returned = False  # something came back meanwhile, which the primary may believe it holds
        self.is_attached = False  # wants messages; False until its subscription exists
        self.is_blocked = False  # its client can use no more at the moment
        self.postponed: list[Callable[[], None]] = []  # what its client said meanwhile
        self.on_settled: Callable[[], None] | None = None  # called once, when all of that is heard
        self.on_begun: Callable[[], None] | None = None  # called once, when it receives or never will
        self.waiting: deque[DeliveredRun] = deque()  # runs whose batch is being fetched, and all after them

    @property
    def has_room(self) -> bool:
        """Whether it is given as much again as it has before it waits for its acknowledgements to be heard."""
        return 2 * (len(self.held) + len(self.settling)) < self.prefetch

    @property
    def is_passing(self) -> bool:
        """Whether what it receives from ends at the latest with the connections of all who do."""
        return self.is_volatile or self.is_temporary

    def turn_to(self, place: int, channel: int, destination: int) -> None:
        """Its destination is at this place."""
        self.place, self.channel, self.destination = place, channel, destination

    def begin(self) -> None:
        """It receives, or is over before it could."""
        then, self.on_begun = self.on_begun, None
        if then is not None:
            then()

    def settle(self, positions: list[int]) -> None:
        """These are acknowledged in the log."""
        self._hear(self.settling, positions)

    def come_back(self, positions: list[int]) -> None:
        """These are returned in the log; some may have been given out again since then, and acknowledged."""
        self._hear(self.returning, positions)

    def _hear(self, unheard: RangeSet, positions: list[int]) -> None:
        for first, last in zip(positions[::2], positions[1::2], strict=True):
            unheard.remove(first, last)
        if not self.is_unheard and self.on_settled is not None:
            then, self.on_settled = self.on_settled, None
            then()

    def give_back(self, positions: list[int]) -> None:
        """These are on their way back, and claimed no more: a primary that has applied it would keep them for ever."""
        self.has_returned = self.has_returned or bool(self.attaching)
        for first, last in zip(positions[::2], positions[1::2], strict=True):
            self.settling.remove(first, last)
            self.returning.add(first, last)

    @property
    def must_attach_again(self) -> bool:
        """Whether the primary may have applied a return before it heard, by the link, who had the message."""
        return self.has_returned and not self.attaching and not self.returning

    @property
    def is_unheard(self) -> bool:
        """Whether something that its client said of its messages is not yet heard from the log."""
        return bool(self.settling) or bool(self.returning)

    def claims(self) -> list[int]:
        """What a primary must not give to anybody else, or again."""
        claimed = self.held.copy()
        claimed.update(self.settling)
        return claimed.flat()


class Members:
    """What belongs to one session of a connection, so that its end costs by that alone."""

    __slots__ = ("consumers", "producers", "watches")

    def __init__(self) -> None:
        self.consumers: dict[int, Consumer] = {}
        self.producers: dict[int, Producer] = {}
        self.watches: set[int] = set()  # numbers of its patterns


class Connection:
    """One client."""

    __slots__ = (
        "_members",
        "asked",
        "asked_bytes",
        "calendar_ms",
        "client_id",
        "consumers",
        "id",
        "is_resumed",
        "is_slow_told",
        "is_writable",
        "load",
        "numbered",
        "on_hold",
        "places",
        "producers",
        "resumption",
        "sessions",
        "stream",
        "under_way",
        "unproven",
    )

    def __init__(
        self,
        *,
        stream: int,
        identity: bytes,
        client_id: str,
        resumption: int = 0,
        is_resumed: bool = False,
        calendar_ms: int | None = None,
    ) -> None:
        self.stream = stream
        self.calendar_ms = calendar_ms  # how far its clock is from the time of turns; None: it did not say
        self.resumption = resumption  # how often its client has come back
        self.is_resumed = is_resumed  # it was there before: what the logs know of it is not known here
        self.id = identity
        self.client_id = client_id
        self.sessions: set[int] = set()
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.is_writable = True
        self.is_slow_told = False  # primaries know that it takes nothing
        self.unproven = 0  # bytes handed to its stream since that was last found to take more
        self.places: dict[int, None] = {}  # of destinations that it knows and is told of, first comes first
        self.under_way: dict[int, int] = {}  # session → bytes that are not answered
        self.on_hold: set[int] = set()  # sessions that were told to wait
        self.numbered = 0  # producers that the logs may know, since the client said which it uses
        self.asked: dict[int, tuple[int, int]] = {}  # requests that wait for their answers → bytes in them, load
        self.asked_bytes = 0
        self.load = 0  # of all that it has asked for
        self._members: dict[int, Members] = {}  # by session, of those that have any

    def ask(self, request: int, size: int, load: int) -> None:
        """A request waits for its answer."""
        self.asked[request] = size, load
        self.asked_bytes += size
        self.load += load

    def answer(self, request: int) -> None:
        """A request waits no more."""
        size, load = self.asked.pop(request, (0, 0))
        self.asked_bytes -= size
        self.load -= load

    def of_session(self, session: int) -> Members:
        """What belongs to a session; to look at."""
        return self._members.get(session) or Members()

    def add_consumer(self, consumer: Consumer) -> None:
        """A consumer begins."""
        self.consumers[consumer.number] = consumer
        self._members.setdefault(consumer.session, Members()).consumers[consumer.number] = consumer

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer has ended, or was none of these."""
        if self.consumers.get(consumer.number) is consumer:
            del self.consumers[consumer.number]
            del self._members[consumer.session].consumers[consumer.number]
            self._tidy(consumer.session)

    def add_producer(self, number: int, producer: Producer) -> None:
        """A producer begins, or goes on here."""
        self.numbered += 1
        self.producers[number] = producer
        self._members.setdefault(producer.session, Members()).producers[number] = producer

    def remove_producer(self, number: int) -> None:
        """A producer is forgotten."""
        producer = self.producers.pop(number)
        del self._members[producer.session].producers[number]
        self._tidy(producer.session)

    def add_watch(self, session: int, number: int) -> None:
        """A pattern begins."""
        self._members.setdefault(session, Members()).watches.add(number)

    def remove_watch(self, session: int, number: int) -> None:
        """A pattern has ended."""
        self._members[session].watches.discard(number)
        self._tidy(session)

    def _tidy(self, session: int) -> None:
        members = self._members[session]
        if not (members.consumers or members.producers or members.watches):
            del self._members[session]

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "connection": self.id.hex(),
            "client": self.client_id,
            "sessions": len(self.sessions),
            "producers": len(self.producers),
            "consumers": len(self.consumers),
            "on_hold": len(self.on_hold),
        }
