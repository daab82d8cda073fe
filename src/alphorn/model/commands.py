"""Commands: every change to the state of a channel, as they stand in its log.

One log entry is one `Entry`: what one node wanted at one moment, in order. Replicas apply entries in the order of the
log, and nothing but what is in them: no clock, no chance. Time comes in `Tick`, which only the primary sends. What a
primary wants rests on what it alone knows, so nothing of it is done once another epoch has begun (`decode_heeded`).

A connection has a global id, given by the Client Manager that it first reached and kept across reconnections. Its
producers and consumers have keys: that id and a number of the client's own (`key_of`).

Numbers: a destination has a number of its channel, given when it was created; a message has a position within its
destination, one more than the message before. Acknowledgements and the like name positions as flat pairs
(first, last, first, last), because they come in runs.

Limits that a cluster file sets stand in the commands that they are for: so every replica knows the same ones, whatever
its own file says by then.
"""

import enum

import msgspec

from alphorn.model.destinations import Destination, Policy
from alphorn.model.discretion import shown
from alphorn.model.errors import PeerViolation

CONNECTION_BYTES = 16
NOBODY = bytes(CONNECTION_BYTES)  # stands for the connection of producers that belong to none
_KEY_NUMBER_BYTES = 4
NUMBER_MAX = (1 << 8 * _KEY_NUMBER_BYTES) - 1  # of a client's own numbers of producers and consumers
USED_MAX = 200_000  # of a client's own numbers, in one `Retire`: as many producers and sessions as it may have
COUNTER_MAX = 1 << 62
STAGED_PARTS_MAX = 200_000  # of one writer
SIGNET_BYTES = 32
WRITER_NAME_MAX = 255


def key_of(connection: bytes, number: int) -> bytes:
    """The key of a connection's producer or consumer."""
    return connection + number.to_bytes(_KEY_NUMBER_BYTES, "big")


def connection_of(key: bytes) -> bytes:
    """Whose producer or consumer this is."""
    return key[:CONNECTION_BYTES]


def number_of(key: bytes) -> int:
    """The client's own number of a producer or consumer."""
    return int.from_bytes(key[CONNECTION_BYTES:], "big")


class Command(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One change."""

    def __repr__(self) -> str:
        return shown(self)


class Publish(Command, frozen=True, array_like=True, gc=False, tag=1):
    """A batch of one producer for one destination. A counter that was seen before is stored once."""

    destination: int
    producer: bytes  # key (below)
    counter: int  # of the first message; the next ones follow
    count: int
    flags: int  # model.messages.Flag
    timestamp: int  # ms since 1970, the sender's clock
    blob: memoryview  # model.messages
    # Which counter of this producer came before in this log: -1 the one before; 0 none that is known, where a producer
    # sends to several channels; otherwise this one. What came between went to other channels.
    after: int = -1


class Acknowledge(Command, frozen=True, array_like=True, gc=False, tag=2):
    """These messages are consumed."""

    destination: int
    subscription: int  # 0 for a queue
    consumer: bytes  # key of who had them
    positions: list[int]  # flat pairs


class Return(Command, frozen=True, array_like=True, gc=False, tag=3):
    """These messages were given out and come back unacknowledged; their delivery count is raised.

    Not so for those that no program has seen (`is_unseen`): they are where they were, as if never given out.
    """

    destination: int
    subscription: int
    consumer: bytes
    positions: list[int]
    delay_ms: int = -1  # -1: as the destination's policy says
    is_dead: bool = False  # the consumer wants them dead, whatever the limit
    is_unseen: bool = False  # no program has seen them: their delivery does not count


class CreateDestination(Command, frozen=True, array_like=True, gc=False, tag=4):
    """Creates a destination, or changes nothing when it exists. An owner's end deletes it (temporary destinations).

    A channel that takes no new ones records `otherwise` as the channel of this name. Where what the logs record leads
    back, `recorded_at` is the entry of this log that it was followed from: its record is forgotten, unless there is a
    newer one.
    """

    destination: Destination
    policy: Policy
    owner: bytes = b""  # the connection that it lives with; empty for ever
    otherwise: int = -1  # channel
    recorded_at: int = -1
    is_sent_on: bool = False  # a new one is to be on `otherwise` in any case
    destinations_max: int = 0  # a new one is refused where the channel has so many; 0 for no limit


class DeleteDestination(Command, frozen=True, array_like=True, gc=False, tag=5):
    """Deletes a destination and all it holds."""

    destination: int


class SetPolicy(Command, frozen=True, array_like=True, gc=False, tag=6):
    """Replaces a destination's policy."""

    destination: int
    policy: Policy


class Subscribe(Command, frozen=True, array_like=True, gc=False, tag=7):
    """Creates a subscription to a topic, or changes nothing when the same one exists.

    A durable or shared one is known by client and name; a volatile one by the consumer, and ends with it.
    """

    destination: int
    name: str  # empty for a volatile one that is not shared
    client: str  # client id; empty for shared ones of no client
    consumer: bytes
    selector: str
    is_durable: bool
    is_shared: bool
    no_local: bytes  # the connection whose messages are left out; empty for none
    start: int  # position to begin with: -1 new messages only, 0 the earliest that is kept
    start_ms: int = 0  # begin with the first message of this time or later; 0 where `start` says it
    subscriptions_max: int = 0  # a new named one is refused where the channel has so many; 0 for no limit


class Unsubscribe(Command, frozen=True, array_like=True, gc=False, tag=8):
    """Ends a subscription, or lets one consumer off a volatile one, which ends with its last.

    What the subscription had not consumed is let go.
    """

    destination: int
    subscription: int
    consumer: bytes = b""  # key of who leaves; empty ends it for all


class Forget(Command, frozen=True, array_like=True, gc=False, tag=9):
    """A connection has ended: its producers, its volatile subscriptions and its temporary destinations go with it."""

    connection: bytes


class Tick(Command, frozen=True, array_like=True, gc=False, tag=10):
    """The time is now this: what expires, is due or was kept long enough is dealt with. Only the primary sends it.

    Of the messages that expire now it names those that consumers have (`kept`): they live until these are done with
    them. And those that consumers may have had before (`held`): that was a delivery of each.
    """

    now_ms: int
    held: list[tuple[int, int, list[int]]] = []  # destination, subscription, positions in flat pairs
    kept: list[tuple[int, int, list[int]]] = []


class Redrive(Command, frozen=True, array_like=True, gc=False, tag=11):
    """Dead messages go back to where they came from, with fresh counts; expired ones go on with theirs."""

    destination: int
    positions: list[int]


class Purge(Command, frozen=True, array_like=True, gc=False, tag=12):
    """Everything a queue holds is let go."""

    destination: int


class Retire(Command, frozen=True, array_like=True, gc=False, tag=13):
    """Of its numbers through this one a connection uses only these: its other producers and sessions are over.

    Each such word contains all that came before it, so a late one changes nothing.
    """

    connection: bytes
    through: int
    used: list[int]


class KeepSignet(Command, frozen=True, array_like=True, gc=False, tag=14):
    """The cluster's signet, where it has none yet: the first one holds for ever. It stands in the first channel's log.

    Client Managers make of it the secrets by which connections prove themselves (client_manager/identity.py). Each
    orders a draft of its own and is answered with the one that holds.
    """

    signet: bytes


class TransactionCommit(Command, frozen=True, array_like=True, gc=False, tag=20):
    """The next `count` commands of this entry are done, all or none: a transaction that concerns one channel.

    They are `Publish` and `Acknowledge`. A transaction that was decided here before is answered as it was then.
    """

    session: bytes  # key (above) of the session
    counter: int  # of this transaction: every one of a session has a larger one than those before
    count: int


class TransactionPrepare(Command, frozen=True, array_like=True, gc=False, tag=21):
    """The next `count` commands of this entry are part of a transaction over several channels.

    They are checked, and their messages set aside, so that whatever is decided can be done. Until then nobody else is
    given what they consume, and nobody is given what they publish.
    """

    session: bytes
    counter: int
    channels: list[int]  # all that take part; the first one is home, where it is decided
    count: int


class TransactionDecide(Command, frozen=True, array_like=True, gc=False, tag=22):
    """What becomes of a transaction: stands in the log of its home channel, where the first decision holds for ever.

    Whoever wants to know the outcome asks by deciding to roll back: where nothing was decided, that is decided now.
    """

    session: bytes
    counter: int
    channels: list[int]
    is_commit: bool


class TransactionFinish(Command, frozen=True, array_like=True, gc=False, tag=23):
    """What was prepared here is done, or (not `is_commit`) undone, as it was decided at home."""

    session: bytes
    counter: int
    is_commit: bool


class TransactionSettle(Command, frozen=True, array_like=True, gc=False, tag=24):
    """Every channel has finished: nobody will ask its home for the decision any more."""

    session: bytes
    counter: int


class Fragment(Command, frozen=True, array_like=True, gc=False, tag=40):
    """The next piece of a body that is too large for one batch. A `Publish` of the same producer follows the last one.

    Until then nobody is given anything of it. Counters are as for messages; index 0 begins a body and gives up one of
    this producer that was not finished.
    """

    destination: int
    producer: bytes  # key
    counter: int
    index: int  # of this piece within the body
    blob: memoryview
    after: int = -1  # as of a `Publish`


class Abandon(Command, frozen=True, array_like=True, gc=False, tag=41):
    """The sender gives up the body that its fragments have begun."""

    producer: bytes
    counter: int  # its own, after that of the last fragment
    destination: int = 0
    after: int = -1  # as of a `Publish`


class MoveStage(enum.IntEnum):
    """How far a destination is on its way to another channel, as the log that it leaves has it."""

    PLANNED = 1  # its messages are copied there while it is used here
    BEGUN = 2  # it takes nothing here any more, and is as it is until all of it is there
    ENDED = 3  # it is there; here remains where it went
    CANCELLED = 4  # it stays here: it was only planned
    CLOSED = 5  # the channel takes no new destinations (number 0 stands for all)
    OPENED = 6  # it does so again


class Move(Command, frozen=True, array_like=True, gc=False, tag=55):
    """A destination takes the next step to another channel. A step that was taken before changes nothing."""

    destination: int
    stage: MoveStage
    channel: int  # where to, by its place in the cluster's configuration
    number: int = 0  # its number there, from BEGUN on
    reason: str = ""  # why it is CANCELLED
    channels: list[str] = []  # names of all, this one's first: with BEGUN, for parts of a dead letter queue that leaves


class Expect(Command, frozen=True, array_like=True, gc=False, tag=56):
    """A destination is on its way here from another channel. Gives its number here, and how far it was carried."""

    destination: Destination
    policy: Policy
    channel: int  # where it comes from, and its number there
    number: int
    names: list[tuple[bool, str, str]] = []  # of its subscriptions: is durable, client, name


class Carried(Publish, frozen=True, array_like=True, gc=False, tag=57):
    """Messages of a destination on its way here, as their producer sent them, with the positions they had."""

    position: int = 0  # of the first; the next ones follow


class Arrive(Command, frozen=True, array_like=True, gc=False, tag=58):
    """All else that is known of a destination on its way here, in pieces; with the last one it is here."""

    destination: int
    attempt: bytes  # who carries it: pieces of different attempts do not mix
    piece: int  # from 0 on
    records: list[bytes]  # of message_manager.checkpoint
    is_last: bool = False
    channels: list[str] = []  # names of all, this one's first, with the last piece: for its dead letter queue


class Settle(Command, frozen=True, array_like=True, gc=False, tag=59):
    """All Client Managers have attached their consumers to a destination that has come here. The primary sends it."""

    destination: int


class Stage(Publish, frozen=True, array_like=True, gc=False, tag=60):
    """A batch that lies in the log unseen until `PublishStaged` names it; the same part again is stored once.

    Its producer and counters are the sender's to choose: they are not counted, only kept, as parts of messages' ids.
    """

    writer: str = ""  # who stages and publishes: the name of a query or a job
    batch: int = 0  # of the writer; they grow, and each is published once
    partition: int = 0  # of the batch, staged by one task
    attempt: int = 0  # of the partition: only one of several is published
    part: int = 0  # which of the attempt's, from 0
    staged_bytes_max: int = 0  # it is refused where its writer, or all of them (message_manager.staging), have more


class PublishStaged(Command, frozen=True, array_like=True, gc=False, tag=61):
    """What was staged for a writer's batch becomes visible, all at once; again, or for an earlier batch, nothing does.

    Attempts are (partition, attempt, parts, messages); others of the batch are let go.
    """

    writer: str
    batch: int
    attempts: list[tuple[int, int, int, int]]
    destinations: list[int] = []  # for which they have something: one that has left without it must not be passed over


class DropStaged(Command, frozen=True, array_like=True, gc=False, tag=62):
    """What was staged for a writer's batch is let go."""

    writer: str
    batch: int


class NoteReader(Command, frozen=True, array_like=True, gc=False, tag=63):
    """A named reader of the log has read these destinations up to before a number; only people want to know."""

    name: str
    destinations: list[int]
    sequence: int


class Release(Command, frozen=True, array_like=True, gc=False, tag=65):
    """A topic keeps no more what arrived through this log entry, because it was consolidated elsewhere."""

    destination: int
    through: int


AnyCommand = (
    Publish
    | Acknowledge
    | Return
    | CreateDestination
    | DeleteDestination
    | SetPolicy
    | Subscribe
    | Unsubscribe
    | Forget
    | Tick
    | Redrive
    | Purge
    | Retire
    | KeepSignet
    | TransactionCommit
    | TransactionPrepare
    | TransactionDecide
    | TransactionFinish
    | TransactionSettle
    | Fragment
    | Abandon
    | Stage
    | PublishStaged
    | DropStaged
    | NoteReader
    | Release
    | Move
    | Expect
    | Carried
    | Arrive
    | Settle
)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of a channel's log."""

    commands: list[AnyCommand]
    requests: list[int] = []  # for the sender alone: which of its requests each command answers, 0 for none
    epoch: int = 0  # in which its sender is primary and wants this as that; 0 for what anybody may want


def after_group(entry: Entry, place: int) -> int:
    """The place after a transaction's command and those that belong to it; after all where it says nonsense."""
    command = entry.commands[place]
    if not isinstance(command, TransactionCommit | TransactionPrepare):
        return place + 1
    after = place + 1 + command.count
    return after if place < after <= len(entry.commands) else len(entry.commands)


_decode = msgspec.msgpack.Decoder(Entry).decode
_encode = msgspec.msgpack.Encoder().encode


def encode_entry(entry: Entry) -> bytes:
    """As the log stores it; without an epoch where that is 0."""
    return _encode(entry if entry.epoch else (entry.commands, entry.requests))


def decode_entry(payload: bytes | memoryview) -> Entry:
    """What a log entry says; blobs are views into the payload. Raises `PeerViolation`."""
    try:
        return _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerViolation(f"a log entry cannot be read: {error}") from None


def decode_heeded(payload: bytes | memoryview, epoch: int) -> Entry:
    """What is to be done of an entry that got its number in this epoch: nothing of what a primary of another wanted.

    That knew neither what was given out since nor who has come back. Raises `PeerViolation`.
    """
    entry = decode_entry(payload)
    return entry if entry.epoch in (0, epoch) else Entry([])
