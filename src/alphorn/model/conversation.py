"""What a client and its Client Manager say to each other, whatever door the client came through.

Doors (doors/) turn bytes into these values and back; the Client Manager knows nothing else of clients. A client begins
with `Hello`; everything before `Welcome` is refused.

Numbers that a client chooses mean something on its connection only. A destination's `place` (`Resolved`) stays valid on
every Client Manager while the destination lives. Positions are flat pairs (first, last, first, last).
"""

from typing import Annotated

from msgspec import Meta

from alphorn.model.frame_kinds import CONSUMERS_MAX, ITEMS_MAX, ClientFrame, ServerFrame
from alphorn.model.log_conversation import Channels, ChannelsAnswer, DropStaged, NoteReader, PublishStaged, Stage
from alphorn.model.moving_conversation import Drain, Move
from alphorn.model.process_conversation import AskTicket, TicketAnswer

FRAME_BYTES_MAX = 16 << 20
_CHANNEL_SHIFT = 40
_NUMBER_MASK = (1 << _CHANNEL_SHIFT) - 1


def place_of(channel: int, number: int) -> int:
    """The place of a channel's destination."""
    return channel << _CHANNEL_SHIFT | number


def parts_of(place: int) -> tuple[int, int]:
    """Channel and number of a place."""
    return place >> _CHANNEL_SHIFT, place & _NUMBER_MASK


class Hello(ClientFrame, frozen=True, array_like=True, gc=False, tag=1):
    """Begins a connection, or goes on with one that was cut off (`connection` is not empty)."""

    version: int
    client_id: str = ""
    user: str = ""
    password: str = ""
    connection: bytes = b""
    resumption: int = 0  # how often this connection has gone on, this time included
    secret: bytes = b""  # of the connection, as its welcome said it
    now_ms: int = 0  # what its clock shows, by which it dates messages; 0: the cluster's time


class Resolve(ClientFrame, frozen=True, array_like=True, gc=False, tag=2):
    """Asks for a destination's place; it is created where it does not exist. Answered by `Resolved` or `Failed`."""

    request: int
    destination: str  # "queue:orders"
    is_temporary: bool = False  # lives as long as this connection
    policy: bytes = b""  # model.destinations.Policy as msgpack; empty leaves an existing one as it is


class OpenSession(ClientFrame, frozen=True, array_like=True, gc=False, tag=3):
    """Begins an independent flow. `is_resumed` after a reconnection."""

    session: int
    is_resumed: bool = False


class CloseSession(ClientFrame, frozen=True, array_like=True, gc=False, tag=4):
    """Ends a flow and its consumers; what they had not acknowledged comes back. Answered by `Done`.

    What the program was never handed is `unseen`, consumer → positions: deliveries that do not count.
    """

    request: int
    session: int
    unseen: Annotated[dict[int, list[int]], Meta(max_length=CONSUMERS_MAX)] = {}


class Publish(ClientFrame, frozen=True, array_like=True, gc=False, tag=5):
    """A batch of messages; `Confirmed` or `Refused` follows. Counters of a producer begin with 1 and have no gaps.

    A producer may send to destinations of several channels, each of which sees a part of its counters. Then `after`
    says which was the last one that went to this channel (0 for none), so that nothing on its way is overtaken.
    """

    session: int
    producer: int
    place: int
    counter: int
    count: int
    flags: int
    timestamp: int
    blob: memoryview
    after: int = -1  # -1: the counter before


class Consume(ClientFrame, frozen=True, array_like=True, gc=False, tag=6):
    """Begins to receive. Answered by `Done` or `Failed`; `Delivered` may come before."""

    request: int
    session: int
    consumer: int
    place: int
    prefetch: int
    selector: str = ""
    subscription: str = ""
    is_durable: bool = False
    is_shared: bool = False
    no_local: bool = False
    start: int = -1  # -1 new messages, 0 the earliest, otherwise a sequence number of the log
    start_ms: int = 0
    held: list[int] = []  # positions this consumer has and has not acknowledged, after a reconnection


class Acknowledge(ClientFrame, frozen=True, array_like=True, gc=False, tag=7):
    """These messages are consumed. `request` 0 wants no answer; otherwise `Done` follows once that is committed."""

    request: int
    consumer: int
    positions: list[int]


class Return(ClientFrame, frozen=True, array_like=True, gc=False, tag=8):
    """These messages come back: to be given out again, or (`is_dead`) as dead."""

    request: int
    consumer: int
    positions: list[int]
    delay_ms: int = -1
    is_dead: bool = False
    is_unseen: bool = False  # prefetched and never handed to the program: a delivery that does not count


class CloseConsumer(ClientFrame, frozen=True, array_like=True, gc=False, tag=9):
    """Ends receiving; what was not acknowledged comes back. Answered by `Done`, unless `request` is 0."""

    request: int
    consumer: int
    unseen: list[int] = []  # positions that the program was never handed: deliveries that do not count


class Unsubscribe(ClientFrame, frozen=True, array_like=True, gc=False, tag=10):
    """Ends a durable or shared subscription of this client. Answered by `Done` or `Failed`."""

    request: int
    name: str


class Browse(ClientFrame, frozen=True, array_like=True, gc=False, tag=11):
    """Looks at a queue without consuming. `Delivered` frames for consumer 0, then `Done` with the next position.

    Only the position 0 says that there is no more: a page may have few messages, or none.
    """

    request: int
    place: int
    selector: str
    start: int
    maximum: int


class Administer(ClientFrame, frozen=True, array_like=True, gc=False, tag=12):
    """Create, delete, policy, purge, redrive or release, of one destination. Answered by `Done` or `Failed`."""

    request: int
    action: str
    destination: str
    policy: bytes = b""
    number: int = 0  # of the last log entry that is released


class Status(ClientFrame, frozen=True, array_like=True, gc=False, tag=13):
    """Asks for the cluster's state. Answered by `StatusAnswer`, a page at a time."""

    request: int
    cursor: int = 0  # as the answer before says; 0 for the first page


class Ping(ClientFrame, frozen=True, array_like=True, gc=False, tag=14):
    """Are you there? Answered by `Pong`."""


class Close(ClientFrame, frozen=True, array_like=True, gc=False, tag=15):
    """Ends the connection in good order: its producers and temporary destinations are forgotten."""


class CommitTransaction(ClientFrame, frozen=True, array_like=True, gc=False, tag=20):
    """All that a session sent and received, to be done or not: `Done` or `Failed`, and the same when asked again."""

    request: int
    session: int
    counter: int  # of the session's transactions; begins with 1
    publishes: Annotated[list[Publish], Meta(max_length=ITEMS_MAX)]
    # Consumer, place of its destination, positions.
    consumed: Annotated[list[tuple[int, int, list[int]]], Meta(max_length=ITEMS_MAX)]


class SendFragment(ClientFrame, frozen=True, array_like=True, gc=False, tag=40):
    """The next piece of a large body; `Confirmed` or `Refused` follows, as for messages.

    After the last one a `Publish` with `Flag.STREAM` of the same producer makes it a message.
    """

    session: int
    producer: int  # one that sends one body at a time and nothing else
    place: int
    counter: int
    index: int  # of this piece within the body; 0 begins another one
    blob: memoryview


class AbandonStream(ClientFrame, frozen=True, array_like=True, gc=False, tag=41):
    """The body that was begun will not be finished. `Confirmed` follows."""

    session: int
    producer: int
    place: int
    counter: int


class ReadFragment(ClientFrame, frozen=True, array_like=True, gc=False, tag=42):
    """Asks for one piece of the body of a message that this client was given. Answered by `FragmentRead` or `Failed`.

    A client asks for as many ahead as it has room for.
    """

    request: int
    place: int
    producer: bytes  # key of who sent the message,
    counter: int  # and its counter
    sequence: int  # the log entry of the message: whoever has not come so far cannot know
    index: int


class ConsumePattern(ClientFrame, frozen=True, array_like=True, gc=False, tag=50):
    """Begins to receive from all destinations that match, those that come later included.

    Each is told in `Joined`, and then receives like a consumer of its own; `Done` follows when all that are there now
    have begun. The numbers of such consumers are as model/joining.py says.
    """

    request: int
    session: int
    watch: int  # number of this wish
    pattern: str  # "glob:topic:prices.*"
    prefetch: int  # of each destination
    selector: str = ""
    subscription: str = ""
    is_durable: bool = False
    is_shared: bool = False
    no_local: bool = False
    start: int = -1
    start_ms: int = 0
    joined: list[int] = []  # places that receive already, after a reconnection; they consume again before this


class ClosePattern(ClientFrame, frozen=True, array_like=True, gc=False, tag=51):
    """Ends a wish and all its consumers; what they had not acknowledged comes back. Answered by `Done`."""

    request: int
    watch: int
    # Consumer → positions that the program was never handed.
    unseen: Annotated[dict[int, list[int]], Meta(max_length=CONSUMERS_MAX)] = {}


class Recover(ClientFrame, frozen=True, array_like=True, gc=False, tag=16):
    """All that a consumer has comes back and is given out again, the oldest first. Answered by `Done`.

    Until then nothing is delivered to it; what was on its way comes back as well, and does not count as delivered.
    """

    request: int
    consumer: int
    seen: list[int]  # positions that the program was handed: a delivery that counts
    unseen: list[int]  # positions that it was not

    @property
    def positions(self) -> list[int]:
        """All of them."""
        return self.seen + self.unseen


class Retire(ClientFrame, frozen=True, array_like=True, gc=False, tag=17):
    """Of its numbers through this one the client uses only these: other producers and sessions are closed for good.

    It contains all that earlier ones said, and is not answered: where one is lost, the next says it again.
    """

    through: int
    used: list[int]


class Regulate(ClientFrame, frozen=True, array_like=True, gc=False, tag=30):
    """A consumer has more than it can use at the moment, and is to get no more; or (not blocked) it can use more."""

    consumer: int
    is_blocked: bool


AnyClientFrame = (
    Hello
    | Resolve
    | OpenSession
    | CloseSession
    | Publish
    | Consume
    | Acknowledge
    | Return
    | CloseConsumer
    | Unsubscribe
    | Browse
    | Administer
    | Status
    | Ping
    | Close
    | SendFragment
    | AbandonStream
    | ReadFragment
    | ConsumePattern
    | ClosePattern
    | Recover
    | CommitTransaction
    | Channels
    | Stage
    | PublishStaged
    | DropStaged
    | NoteReader
    | Regulate
    | Retire
    | Move
    | Drain
    | AskTicket
)


class Welcome(ServerFrame, frozen=True, array_like=True, gc=False, tag=101):
    """The connection is open under this id; who comes back names it, and says the secret."""

    version: int
    connection: bytes
    server: str  # name of the Client Manager
    addresses: list[str]  # of all Client Managers, "host:port"
    frame_bytes_max: int = FRAME_BYTES_MAX
    secret: bytes = b""


class Resolved(ServerFrame, frozen=True, array_like=True, gc=False, tag=102):
    """Where a destination is."""

    request: int
    place: int
    destination: str


class Done(ServerFrame, frozen=True, array_like=True, gc=False, tag=103):
    """What was asked for is done."""

    request: int
    number: int = 0


class Failed(ServerFrame, frozen=True, array_like=True, gc=False, tag=104):
    """What was asked for is not done."""

    request: int
    error: str  # name of a class of model.errors
    reason: str


class Confirmed(ServerFrame, frozen=True, array_like=True, gc=False, tag=105):
    """All messages of this producer through this counter are committed."""

    producer: int
    counter: int


class Refused(ServerFrame, frozen=True, array_like=True, gc=False, tag=106):
    """These messages of a producer were not taken."""

    producer: int
    counter: int
    count: int
    error: str
    reason: str


class Delivered(ServerFrame, frozen=True, array_like=True, gc=False, tag=107):
    """Messages for a consumer: consecutive ones of one producer, as the batch in `blob`."""

    consumer: int
    position: int  # of the first message; the next ones follow
    delivery_count: int  # 1 for the first time
    sequence: int  # of the log entry
    index: int  # of the first message within that entry's batch
    producer: bytes  # key of who sent them
    counter: int  # of the first message
    timestamp: int
    history: bytes  # of a dead message: original destination, reason, deliveries (msgpack map); empty for others
    blob: memoryview


class ConsumerClosed(ServerFrame, frozen=True, array_like=True, gc=False, tag=108):
    """This consumer gets nothing any more: its destination or subscription is gone, or another took over."""

    consumer: int
    error: str
    reason: str


class StatusAnswer(ServerFrame, frozen=True, array_like=True, gc=False, tag=109):
    """The cluster's state as JSON: one page of its destinations, and with the first one everything else."""

    request: int
    data: bytes
    cursor: int = 0  # says in the next question where to go on; larger from page to page, 0 where there is no more


class Pong(ServerFrame, frozen=True, array_like=True, gc=False, tag=110):
    """Here I am."""


class Goodbye(ServerFrame, frozen=True, array_like=True, gc=False, tag=111):
    """The Client Manager closes the connection; a client that did nothing wrong may reconnect at once."""

    error: str
    reason: str


class FragmentRead(ServerFrame, frozen=True, array_like=True, gc=False, tag=142):
    """One piece of a large body."""

    request: int
    blob: memoryview


class Joined(ServerFrame, frozen=True, array_like=True, gc=False, tag=150):
    """A destination matches a pattern: this consumer receives from it. It ends as others do (`ConsumerClosed`)."""

    watch: int
    consumer: int
    place: int
    destination: str
    is_new: bool  # it came after the wish, so its consumer begins with its first message


class Lapsed(ServerFrame, frozen=True, array_like=True, gc=False, tag=113):
    """The time of messages that a consumer has is over: what its program was not handed yet is to be given back."""

    consumer: int
    positions: list[int]


class Vanished(ServerFrame, frozen=True, array_like=True, gc=False, tag=112):
    """The destination at a place that this client knows was deleted. Its name may have, or get, another place."""

    place: int


class Postponed(ServerFrame, frozen=True, array_like=True, gc=False, tag=130):
    """A producer's messages from this counter on were not taken now. They are sent again, beginning with this one.

    Whatever the producer sent after them is left unheard until then. What is before them in their batch is committed.
    """

    producer: int
    counter: int
    taken: int = -1  # messages that the destination had room for; -1 where that is not what was lacking


class Flow(ServerFrame, frozen=True, array_like=True, gc=False, tag=131):
    """These destinations take no messages at the moment, and why; without a reason: they take messages again."""

    places: list[int]
    reason: str


class Hold(ServerFrame, frozen=True, array_like=True, gc=False, tag=132):
    """A session sends faster than its messages go on, and is to wait; without a reason: it may go on."""

    session: int
    reason: str


AnyServerFrame = (
    Welcome
    | Resolved
    | Done
    | Failed
    | Confirmed
    | Refused
    | Delivered
    | ConsumerClosed
    | Lapsed
    | StatusAnswer
    | Pong
    | Goodbye
    | FragmentRead
    | Joined
    | Vanished
    | ChannelsAnswer
    | Postponed
    | Flow
    | Hold
    | TicketAnswer
)
