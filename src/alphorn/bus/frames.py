"""Bus frames: what members say to each other, and its bytes.

Every frame is self-delimiting, so several share a datagram and any number a stream:

     0          8    10    11     12       16      20      28       30        40
     | checksum | AH | ver | type | length | group | epoch | number | origin  | body ...

checksum  xxh3-64 of everything after it        length  of the whole frame
group     frames of other groups are ignored    epoch   the newest the speaker follows: the fence
number    the speaker's, 0 before it has one    origin  the speaker's run (model/ids.py)

The body of `Data` and `Repair` is laid out by hand, because it carries the bulk:

     0     16          24         32       40     44      48      52
     | id  | timestamp | sequence | digest | size | offset | fragments << 16 | fragment | payload ...

`sequence` is 0 where the speaker knows none; `size` and `digest` are the whole batch's. All other bodies are msgpack
arrays of the fields listed in their class, validated on arrival. Integers are big-endian.
"""

import struct
from typing import Annotated

import msgspec
import xxhash

from alphorn.bus.entries import U16, U32, U64, Assignment, Id, Member, OriginBytes, Text, decode_system
from alphorn.model.errors import PeerViolation

VERSION = 1
MAGIC = b"AH"
HEADER_BYTES = 40
DATA_HEADER_BYTES = 52
FRAME_BYTES_MAX = 8 << 20

_HEADER = struct.Struct(">Q2sBBIIQH10s")
_PREAMBLE = struct.Struct(">8x2sBBI")
_DATA = struct.Struct(">16sQQQIII")
_CHECKSUM = struct.Struct(">Q")
_GLANCE = struct.Struct(">11xBI4xQ")  # type, length, epoch
_PLACE = struct.Struct(">88xHH")  # of a data frame: fragments, fragment
_FRAGMENTS_MAX = 0xFFFF
Digest = Annotated[bytes, msgspec.Meta(max_length=16)]


class Data(msgspec.Struct, frozen=True, gc=False):
    """One fragment of a batch. Type 1 from its sender, type 2 (`is_repair`) from a data server or on request."""

    id: bytes
    timestamp: int
    sequence: int
    digest: int
    size: int
    offset: int
    fragment: int
    fragments: int
    payload: bytes | memoryview
    is_repair: bool = False


class Body(msgspec.Struct, frozen=True, array_like=True):
    """Common shape of the msgpack bodies."""


class Held(Body, frozen=True, array_like=True):
    """A batch that a data server holds and that has no number yet."""

    id: Id
    timestamp: U64
    digest: U64
    size: U32


class DataReport(Body, frozen=True, array_like=True):
    """Data server to sequencer: please number these."""

    held: list[Held]


class CommitSubmit(Body, frozen=True, array_like=True):
    """Sequencer to commit servers: the numbers after `previous`, as they stand in the frame's epoch."""

    previous: U64
    previous_epoch: U64
    committed: U64
    assignments: list[Assignment]


class CommitAcknowledge(Body, frozen=True, array_like=True):
    """Commit and data server to sequencer: durable here, through these numbers of the frame's epoch."""

    accepted: U64  # assignments; 0 from a member that is no commit server
    stored: U64  # entries; 0 from a member that is no data server


class Commit(Body, frozen=True, array_like=True):
    """Sequencer to all: numbers `first`… are final and mean these; everything through `committed` is final."""

    committed: U64
    first: U64
    assignments: list[Assignment]


class Heartbeat(Body, frozen=True, array_like=True):
    """Sequencer to all: finds the loss of the last frame."""

    committed: U64
    assigned: U64
    collected: U64
    window_bytes: U32  # each sender's share


class Status(Body, frozen=True, array_like=True):
    """Every member to all: where it stands, who it is, and what it has sent."""

    delivered: U64
    accepted: U64
    stored: U64
    checkpoint: U64
    sent: U64  # counter of its newest batch
    is_synchronised: bool
    address: Text


class AssignmentQuery(Body, frozen=True, array_like=True):
    """What do the numbers after `previous` mean? To a commit server, or to the sequencer by one."""

    previous: U64
    last: U64


class AssignmentAnswer(Body, frozen=True, array_like=True):
    """A commit server's answer: what committed numbers after `previous` mean. The sequencer answers by a submit."""

    previous: U64
    assignments: list[Assignment]


class Fetch(Body, frozen=True, array_like=True):
    """Gap repair. `target` should answer; others who miss the same hold their own request back."""

    target: U16
    sequences: list[tuple[U64, U64]]  # inclusive ranges, asked of a data server by number
    ids: list[tuple[Id, U16, U16]]  # id, first missing fragment, one past the last; 0,0 for the whole
    digests: list[U64] = []  # of these batches, in the same order, from a candidate: it knows what their numbers mean
    cuts: list[U16] = []  # into how many fragments these batches were cut, in the same order, where some are here


class Absent(Body, frozen=True, array_like=True):
    """Answer to a fetch: not held here."""

    ids: list[Id]


class RangeFetch(Body, frozen=True, array_like=True):
    """Unicast catch-up: committed entries from `first` on."""

    first: U64
    reads: bool  # a witness wants no state of the upper layer


class RangeEntry(Body, frozen=True, array_like=True):
    """One committed entry of a range."""

    assignment: Assignment
    payload: bytes


class Range(Body, frozen=True, array_like=True):
    """Committed entries from `first` on, at most a budget's worth; `committed` tells how much is left."""

    first: U64
    committed: U64
    entries: list[RangeEntry]


class CheckpointOffer(Body, frozen=True, array_like=True):
    """Answer to a range fetch below what was collected: start from this checkpoint instead."""

    sequence: U64
    epoch: U64  # of the entry at `sequence`
    size: U64
    chunks: U32
    digest: U64
    state: bytes  # the group's own state at `sequence`


class CheckpointFetch(Body, frozen=True, array_like=True):
    """One chunk, please. A transfer resumes at any chunk, from any server with the same digest."""

    sequence: U64
    digest: U64
    chunk: U32


class CheckpointChunk(Body, frozen=True, array_like=True):
    """One chunk of a checkpoint."""

    sequence: U64
    digest: U64
    chunk: U32
    chunks: U32
    payload: bytes


class CheckpointReport(Body, frozen=True, array_like=True):
    """Checkpoint server to sequencer: durable here, up to its terminal number."""

    sequence: U64
    size: U64
    digest: U64


class Prepare(Body, frozen=True, array_like=True):
    """Candidate to commit servers: promise the frame's epoch and tell what you accepted after `committed`."""

    committed: U64
    incarnation: U32


class Promise(Body, frozen=True, array_like=True):
    """Commit server to candidate, after its promise is durable; or a refusal that names what it promised before."""

    is_granted: bool
    epoch: U64  # the epoch asked for
    promised: U64
    incarnation: U32
    previous: U64
    previous_epoch: U64
    committed: U64
    last: U64
    last_epoch: U64
    assignments: list[Assignment]


class NewEpoch(Body, frozen=True, array_like=True):
    """The new sequencer to all: report to me what has no number after `last`."""

    last: U64
    last_epoch: U64
    address: Text


class Join(Body, frozen=True, array_like=True):
    """A member asks to be part of the group, at every start."""

    member: Member
    is_blank: bool  # its disk holds nothing: it must not vote
    config: Digest  # of its configuration; empty for an unconfigured member
    accepted: U64  # how far its log goes, records that cannot be read included
    promised: U64
    unused: U64  # nothing was sent under this run's name before it knew the log through this number
    told: tuple[U64, U64] = (0, 0)  # by the newest answer to this run: its epoch, and how far the log went then


class Welcome(Body, frozen=True, array_like=True):
    """Answer to a join, once it is committed. Number 0: it was heard and is not committed yet, or is refused."""

    number: U16
    sequence: U64  # the committed number whose state this is; of number 0, one that is to be known before the next Join
    epoch: U64  # of the entry at `sequence`
    state: bytes  # the group's own state there
    assigned: U64 = 0  # how far the sequencer's log goes
    refusal: Text = ""
    nonce: U64 = 0  # of the run that asked: one that was meant for an earlier run says nothing of this one's disk


class Leave(Body, frozen=True, array_like=True):
    """A member says goodbye."""

    origin: OriginBytes


_BODY_TYPES: dict[int, type[Body]] = {
    3: DataReport,
    4: CommitSubmit,
    5: CommitAcknowledge,
    6: Commit,
    7: Heartbeat,
    8: Status,
    9: AssignmentQuery,
    10: Fetch,
    11: Absent,
    12: RangeFetch,
    13: Range,
    14: CheckpointOffer,
    15: CheckpointFetch,
    16: CheckpointChunk,
    17: CheckpointReport,
    18: Prepare,
    19: Promise,
    20: NewEpoch,
    21: Join,
    22: Welcome,
    23: Leave,
    24: AssignmentAnswer,
}
_TYPE_OF = {body: number for number, body in _BODY_TYPES.items()}
_DECODERS = {number: msgspec.msgpack.Decoder(body) for number, body in _BODY_TYPES.items()}
_encode_body = msgspec.msgpack.Encoder().encode

DATA_TYPE, REPAIR_TYPE = 1, 2
SUBMIT_TYPE, COMMIT_TYPE = _TYPE_OF[CommitSubmit], _TYPE_OF[Commit]
FRAME_NAMES = {DATA_TYPE: "Data", REPAIR_TYPE: "Repair"} | {n: b.__name__ for n, b in _BODY_TYPES.items()}


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A decoded frame: who says it, in which epoch, and what."""

    group: int
    epoch: int
    number: int
    origin: bytes
    body: Data | Body

    @property
    def name(self) -> str:
        """The frame's name in diagrams and transcripts."""
        if type(self.body) is Data:
            return "Repair" if self.body.is_repair else "Data"
        return type(self.body).__name__


Parts = tuple[bytes | memoryview, ...]


def encode(*, group: int, epoch: int, number: int, origin: bytes, body: Data | Body) -> Parts:
    """A frame as the parts to write one after the other; a batch's payload is never copied."""
    if type(body) is Data:
        head = _DATA.pack(
            body.id,
            body.timestamp,
            body.sequence,
            body.digest,
            body.size,
            body.offset,
            body.fragments << 16 | body.fragment,
        )
        kind, payload = REPAIR_TYPE if body.is_repair else DATA_TYPE, body.payload
        length = HEADER_BYTES + DATA_HEADER_BYTES + len(payload)
        start = _HEADER.pack(0, MAGIC, VERSION, kind, length, group, epoch, number, origin)[8:] + head
        checksum = xxhash.xxh3_64(start)
        checksum.update(payload)
        return (_CHECKSUM.pack(checksum.intdigest()) + start, payload)
    encoded = _encode_body(body)
    length = HEADER_BYTES + len(encoded)
    kind = _TYPE_OF[type(body)]  # type: ignore[index]
    rest = _HEADER.pack(0, MAGIC, VERSION, kind, length, group, epoch, number, origin)[8:] + encoded
    return (_CHECKSUM.pack(xxhash.xxh3_64_intdigest(rest)) + rest,)


def frame_length(buffer: bytes | bytearray | memoryview, start: int = 0) -> int:
    """Bytes of the frame that begins at `start`; 0 when more bytes are needed to tell."""
    if len(buffer) - start < _PREAMBLE.size:
        return 0
    magic, version, _, length = _PREAMBLE.unpack_from(buffer, start)
    if magic != MAGIC:
        raise PeerViolation("these bytes are not a bus frame")
    if version != VERSION:
        raise PeerViolation(f"frame version {version} is unknown; this node speaks version {VERSION}")
    if not HEADER_BYTES <= length <= FRAME_BYTES_MAX:
        raise PeerViolation(f"frame of {length} bytes; a frame has {HEADER_BYTES} to {FRAME_BYTES_MAX}")
    return int(length)


def says_only(buffer: bytes | memoryview, kinds: frozenset[int], epoch: int) -> bool:
    """Whether a datagram's frames all are of these types and this epoch, by a glance that checks nothing else."""
    start = 0
    while start + HEADER_BYTES <= len(buffer):
        kind, length, its_epoch = _GLANCE.unpack_from(buffer, start)
        if kind not in kinds or its_epoch != epoch:
            return False
        start += max(length, HEADER_BYTES)
    return True


def is_part(buffer: bytes | memoryview) -> bool:
    """Whether a datagram is nothing but a sender's fragment with more of its batch behind it, by a glance as above."""
    if len(buffer) < HEADER_BYTES + DATA_HEADER_BYTES:
        return False
    kind, length, _ = _GLANCE.unpack_from(buffer)
    fragments, fragment = _PLACE.unpack_from(buffer)
    return bool(kind == DATA_TYPE and length == len(buffer) and fragment + 1 < fragments)


def decode(buffer: bytes | memoryview, start: int = 0) -> tuple[Frame, int] | None:
    """The frame at `start` and where the next begins, or None when more bytes are needed.

    Raises `PeerViolation` for anything else; payloads are views into `buffer`.
    """
    length = frame_length(buffer, start)
    end = start + length
    if not length or len(buffer) < end:
        return None
    view = memoryview(buffer)
    checksum, _, _, kind, _, group, epoch, number, origin = _HEADER.unpack_from(buffer, start)
    if checksum != xxhash.xxh3_64_intdigest(view[start + 8 : end]):
        raise PeerViolation("a frame's checksum does not match its bytes")
    body: Data | Body
    if kind <= REPAIR_TYPE:
        body = _decode_data(view[start + HEADER_BYTES : end], kind)
    else:
        decoder = _DECODERS.get(kind)
        if decoder is None:
            raise PeerViolation(f"frame type {kind} is unknown")
        try:
            body = decoder.decode(view[start + HEADER_BYTES : end])
            _check_system(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PeerViolation(f"a {FRAME_NAMES[kind]} frame is malformed: {error}") from error
    return Frame(group, epoch, number, origin, body), end


def decode_all(buffer: bytes | memoryview) -> list[Frame]:
    """Every frame of a datagram; a datagram that ends inside a frame is a violation."""
    frames: list[Frame] = []
    start = 0
    while start < len(buffer):
        decoded = decode(buffer, start)
        if decoded is None:
            raise PeerViolation("a datagram ends inside a frame")
        frame, start = decoded
        frames.append(frame)
    return frames


def _check_system(body: Body) -> None:
    """System entries are read when they are folded, long after their frame: what is malformed must not get that far."""
    if isinstance(body, CommitSubmit | Commit | AssignmentAnswer | Promise):
        assignments = body.assignments
    elif isinstance(body, Range):
        assignments = [entry.assignment for entry in body.entries]
    else:
        return
    for assignment in assignments:
        if assignment.system:
            decode_system(assignment.system)


def _decode_data(body: memoryview, kind: int) -> Data:
    if kind < DATA_TYPE:
        raise PeerViolation(f"frame type {kind} is unknown")
    if len(body) < DATA_HEADER_BYTES:
        raise PeerViolation("a data frame is shorter than its header")
    batch, timestamp, sequence, digest, size, offset, place = _DATA.unpack_from(body)
    fragment, fragments, payload = place & 0xFFFF, place >> 16, body[DATA_HEADER_BYTES:]
    if fragment >= fragments or offset + len(payload) > size:
        raise PeerViolation("a data frame does not fit its own batch")
    return Data(batch, timestamp, sequence, digest, size, offset, fragment, fragments, payload, kind == REPAIR_TYPE)


def fragment_batch(
    batch: bytes, payload: bytes | memoryview, *, digest: int, timestamp: int, limit: int, cut: int = 0
) -> list[Data]:
    """A batch cut into frames of at most `limit` bytes, of equal size but the last; into `cut` where those fit."""
    room = limit - HEADER_BYTES - DATA_HEADER_BYTES
    size = len(payload)
    fragments = max(1, -(-size // room))
    if fragments > _FRAGMENTS_MAX:
        raise ValueError(f"a batch of {size} bytes does not fit {_FRAGMENTS_MAX} fragments of {room}")
    if fragments < cut <= min(size, _FRAGMENTS_MAX):
        fragments = cut
    step = -(-size // fragments)
    view = memoryview(payload)
    return [
        Data(batch, timestamp, 0, digest, size, index * step, index, fragments, view[index * step : (index + 1) * step])
        for index in range(fragments)
    ]
