"""The link between a Client Manager and a Message Manager: deliveries by reference, and what concerns one pair only.

Commands and bodies travel on the bus, once for all. The link carries what only two need to know: which consumers are
attached, which messages (by their place in the log) go to which consumer, outcomes, and log entries in bulk. Frames are
four bytes of length and one msgpack array, as at the native door (doors/native.py).

All of it is soft. When the link or the primary is lost, the Client Manager attaches its consumers again, with what
they hold; a Message Manager that is not primary in the epoch it names answers nothing but fetches.
"""

from collections.abc import Callable

import msgspec

from alphorn.model.commands import Subscribe
from alphorn.model.destinations import Destination, Policy
from alphorn.model.errors import PeerViolation
from alphorn.model.frame_kinds import Asked, Told
from alphorn.model.log_link import Hash, Hashed, Measure, Measured, Scan, Scanned, Search, Searched, Survey, Surveyed
from alphorn.model.moving_link import Carry, Departed, Export, Exported, Followed, Home, Landed

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 64 << 20
PAGE_ROWS = 1000  # destinations that a primary describes in one turn: a few milliseconds' work
FIRST_PAGE = -1  # in place of the number after which a page begins


class Introduce(Asked, frozen=True, array_like=True, gc=False, tag=1):
    """The first frame. All connections that live on this Client Manager; those it does not name live elsewhere."""

    name: str
    origin: bytes  # of its run on this channel's bus, as in its batches and in membership events
    pid: int
    address: str  # where clients reach it
    connections: list[bytes]
    clients: list[tuple[bytes, str]] = []  # those of them that have a client id, with that
    time_ms: int = 0  # the cluster's time as it knew that before this one was primary; 0 where it did not


class ConnectionOpened(Asked, frozen=True, array_like=True, gc=False, tag=2):
    """A client connected or came back."""

    connection: bytes


class ConnectionLost(Asked, frozen=True, array_like=True, gc=False, tag=3):
    """A client is gone without goodbye; it may come back, here or elsewhere."""

    connection: bytes


class Attach(Asked, frozen=True, array_like=True, gc=False, tag=4):
    """A consumer wants messages, up to `prefetch` unacknowledged at a time; `held` it has already.

    That is so after what the Client Manager has heard of the log. The log may be slower here: the primary attaches the
    consumer when it has applied as much.
    """

    request: int
    consumer: bytes  # key (model.commands.key_of)
    destination: int
    subscription: int
    selector: str  # of a queue's consumer; that of a subscription is part of the subscription
    prefetch: int
    held: list[int]
    resumption: int = 0  # how often its client has come back: whoever attaches it for an earlier stream is refused
    heard: int = 0  # the newest entry of the log that the Client Manager has heard


class Detach(Asked, frozen=True, array_like=True, gc=False, tag=5):
    """A consumer wants no more. What it holds comes back, by a command that the primary orders; then `Answered`.

    It is sent when all that the consumer said of its messages is in the log. What the program was given and did not
    settle is `held`; the rest of what was given out never reached it.
    """

    request: int
    consumer: bytes
    held: list[int]


class Look(Asked, frozen=True, array_like=True, gc=False, tag=6):
    """Browses a queue: answered by `Looked`, and then `Answered` with the position to go on from; 0: this was all.

    One look goes only so far. Where it finds nothing there is no `Looked`, and more may follow all the same.
    """

    request: int
    destination: int
    selector: str
    start: int
    maximum: int


class Fetch(Asked, frozen=True, array_like=True, gc=False, tag=7):
    """Asks any Message Manager for log entries."""

    request: int
    sequences: list[int]


class Describe(Asked, frozen=True, array_like=True, gc=False, tag=8):
    """Asks for the printable state; destinations come in pages, in order of their numbers.

    What is not destinations comes with the first page only, and so does all that a backup has to say.
    """

    request: int
    maximum: int  # destinations, up to `PAGE_ROWS`
    after: int = FIRST_PAGE  # the number after which this page begins


class Locate(Asked, frozen=True, array_like=True, gc=False, tag=9):
    """Asks for a destination's number, without creating it."""

    request: int
    destination: Destination
    recorded_at: int = -1  # the log entry that says it is elsewhere, from where it leads back


class FindSubscription(Asked, frozen=True, array_like=True, gc=False, tag=10):
    """Asks which subscription of any topic has this name; `Answered.number` is destination << 32 | subscription.

    One that has consumers is refused with `Misuse`, because it cannot be ended.
    """

    request: int
    client: str
    name: str


class Name(Asked, frozen=True, array_like=True, gc=False, tag=12):
    """Asks which destination has this number; `Answered` has it and its policy."""

    request: int
    destination: int


class Claim(Asked, frozen=True, array_like=True, gc=False, tag=13):
    """Asks whether a named subscription may be used so; `Misuse` where its active consumers forbid it."""

    request: int
    subscribe: Subscribe


class Watch(Asked, frozen=True, array_like=True, gc=False, tag=50):
    """Asks for all destinations of the channel and, from now on, for each that comes or goes; or no more of it.

    Told in `Advertised` frames; `Answered` follows the last one of those that are there now.
    """

    request: int
    is_on: bool = True


class Noted(Asked, frozen=True, array_like=True, gc=False, tag=51):
    """Whoever waited here for destinations that were advertised up to this turn receives from them now."""

    turn: int


class Pause(Asked, frozen=True, array_like=True, gc=False, tag=15):
    """A consumer wants nothing until it attaches again; it keeps what it has. `Answered` after all it was given."""

    request: int
    consumer: bytes


class ClaimClient(Asked, frozen=True, array_like=True, gc=False, tag=14):
    """A client wants to enter under an id of its own; `Misuse` while another connection has it.

    Asked of the first channel's primary, which decides when it knows of all clients. Where it grants the id, the
    connection is there as after `ConnectionOpened`.
    """

    request: int
    connection: bytes
    client: str


class Settled(Asked, frozen=True, array_like=True, gc=False, tag=11):
    """All consumers of this Client Manager are attached: what none of them holds is with nobody here.

    What consumers had that are gone, and what has not come back yet, is `loose`: it may have been used.
    """

    loose: list[tuple[int, int, list[int]]] = []  # destination, subscription, positions


class LocateFragments(Asked, frozen=True, array_like=True, gc=False, tag=42):
    """Asks the primary where the pieces of a streamed body are, from one of them on. Answered by `FragmentsLocated`.

    One that has not applied the log entry of the message is primary no more, and says nothing.
    """

    request: int
    producer: bytes  # key of who sent the message,
    counter: int  # and its counter
    sequence: int
    index: int


class AskPending(Asked, frozen=True, array_like=True, gc=False, tag=16):
    """Asks the primary whether it still has any of the messages that it gave out from an entry of the log.

    Answered with the number 1, or 0 where all of them are gone. One that has not applied the entry is primary no more,
    and says nothing.
    """

    request: int
    destination: int
    subscription: int
    sequence: int
    first: int  # positions
    last: int


class Regulate(Asked, frozen=True, array_like=True, gc=False, tag=30):
    """These consumers take nothing more at the moment, or (not blocked) again; what they hold they keep."""

    consumers: list[bytes]  # keys
    is_blocked: bool


class RegulateClient(Asked, frozen=True, array_like=True, gc=False, tag=32):
    """A client takes nothing at the moment, or does again; its consumers keep what they hold.

    It counts until the client attaches a consumer: a Client Manager says it again after that.
    """

    connection: bytes
    is_slow: bool


class Waiting(Asked, frozen=True, array_like=True, gc=False, tag=31):
    """How many producers of this Client Manager's clients wait for each of these destinations, for people to see."""

    producers: list[tuple[int, int]]  # destination, count


AnyAsked = (
    Introduce
    | ConnectionOpened
    | ConnectionLost
    | Attach
    | Detach
    | Look
    | Fetch
    | Describe
    | Locate
    | FindSubscription
    | Settled
    | Name
    | Claim
    | LocateFragments
    | Watch
    | Noted
    | ClaimClient
    | Pause
    | AskPending
    | Survey
    | Measure
    | Scan
    | Search
    | Hash
    | Regulate
    | RegulateClient
    | Waiting
    | Export
    | Followed
)


class Role(Told, frozen=True, array_like=True, gc=False, tag=101):
    """What it is, told first and at every change."""

    name: str
    epoch: int
    is_primary: bool
    time_ms: int = 0  # of the log, where it is primary: for whoever knows no time of the cluster yet


class Time(Told, frozen=True, array_like=True, gc=False, tag=133):
    """The time of the log is this now, whatever was said before: the primary has heard better, or knows better."""

    time_ms: int


class Deliver(Told, frozen=True, array_like=True, gc=False, tag=102):
    """Messages for a consumer, by their place in the log."""

    consumer: bytes
    destination: int
    runs: "list[DeliveredRun]"


class DeliveredRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive messages of one batch that were given out equally often before."""

    sequence: int
    command: int
    index: int  # of the first within its batch
    count: int
    position: int  # of the first within its destination
    delivery_count: int
    history: bytes = b""  # of a dead message

    def grown_by(self, other: "DeliveredRun") -> "DeliveredRun | None":
        """Both as one run; None where the other does not go on from this one, or is not like it."""
        if (
            self.position + self.count != other.position
            or self.sequence != other.sequence
            or self.command != other.command
            or self.index + self.count != other.index
            or self.delivery_count != other.delivery_count
            or self.history != other.history
        ):
            return None
        count = self.count + other.count
        return DeliveredRun(
            self.sequence, self.command, self.index, count, self.position, self.delivery_count, self.history
        )


class Answered(Told, frozen=True, array_like=True, gc=False, tag=103):
    """The outcome of a request, be it asked on the link or as a command in the log."""

    request: int
    number: int = 0
    error: str = ""
    reason: str = ""
    policy: Policy | None = None  # of the destination that was asked for
    destination: Destination | None = None  # where its number was asked for
    position: int = 0  # how far a destination on its way was carried
    home: Home | None = None  # of a destination that has left; of one that is looked for and comes: where from
    signet: bytes = b""  # the cluster's, where a command offered one


class Detached(Told, frozen=True, array_like=True, gc=False, tag=104):
    """A consumer gets nothing any more."""

    consumer: bytes
    error: str
    reason: str


class Lapsed(Told, frozen=True, array_like=True, gc=False, tag=108):
    """The time of messages that a consumer has is over: what no program has seen of them is to come back."""

    consumer: bytes
    positions: list[int]


class Entries(Told, frozen=True, array_like=True, gc=False, tag=105):
    """Log entries that were asked for; those it does not have are missing."""

    request: int
    entries: list[tuple[int, memoryview]]


class Described(Told, frozen=True, array_like=True, gc=False, tag=106):
    """The printable state as JSON; nothing where a later page is asked of one that is not primary."""

    request: int
    data: bytes
    after: int = 0  # the next page is what comes after this number; 0: this was the last one


class Looked(Told, frozen=True, array_like=True, gc=False, tag=107):
    """Messages that a look found, in order, and the log entries that hold them, each once."""

    request: int
    runs: list[DeliveredRun]
    entries: list[tuple[int, memoryview]]


class InDoubt(Told, frozen=True, array_like=True, gc=False, tag=120):
    """A transaction was prepared or decided here, and nobody has finished it: the Client Manager is to do so."""

    session: bytes
    counter: int
    channels: list[int]


class FragmentsLocated(Told, frozen=True, array_like=True, gc=False, tag=142):
    """Where pieces of a streamed body are; no places where there is no such body (any more)."""

    request: int
    places: list[int]  # flat pairs: log entry, command within it; of the piece asked for and those after it


class Advertised(Told, frozen=True, array_like=True, gc=False, tag=150):
    """Destinations that are there, and numbers of those that are not any more; temporary ones are not told of."""

    turn: int
    made: list[tuple[int, Destination]]
    gone: list[int] = []


class Full(Told, frozen=True, array_like=True, gc=False, tag=130):
    """Destinations that take no messages at the moment, each with the reason; without one: it takes messages again."""

    destinations: list[tuple[int, str]]
    is_whole: bool = False  # all others take messages


class Stored(Told, frozen=True, array_like=True, gc=False, tag=131):
    """Why this Message Manager's disk has no room for messages at the moment; without a reason: it has."""

    reason: str


AnyTold = (
    Role
    | Time
    | Deliver
    | Answered
    | Detached
    | Lapsed
    | Entries
    | Described
    | Looked
    | InDoubt
    | FragmentsLocated
    | Advertised
    | Surveyed
    | Measured
    | Scanned
    | Searched
    | Hashed
    | Full
    | Stored
    | Exported
    | Carry
    | Departed
    | Landed
)

_encode = msgspec.msgpack.Encoder().encode
_decode_asked: Callable[[bytes | memoryview], AnyAsked] = msgspec.msgpack.Decoder(AnyAsked).decode
_decode_told: Callable[[bytes | memoryview], AnyTold] = msgspec.msgpack.Decoder(AnyTold).decode


def encode(frame: Asked | Told) -> bytes:
    """A frame with its length."""
    body = _encode(frame)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_asked(body: bytes | memoryview) -> AnyAsked:
    """What a Client Manager said; raises `PeerViolation`."""
    try:
        return _decode_asked(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerViolation(f"a Client Manager's frame on the link cannot be read: {error}") from None


def decode_told(body: bytes | memoryview) -> AnyTold:
    """What a Message Manager said; raises `PeerViolation`."""
    try:
        return _decode_told(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerViolation(f"a Message Manager's frame on the link cannot be read: {error}") from None
