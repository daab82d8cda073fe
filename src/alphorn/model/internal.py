"""What is said on internal connections: between work processes and message servers, and between the two servers.

A work process (a node, or a program that has joined) keeps a connection to every message server. One of them is its
home: it speaks through it, and hears there what is said to all.

- What one process says to another is numbered for that pair, 1, 2, 3 …, from the sender's run to the receiver's, and
  confirmed by the receiver; servers only pass it on.
- What a process says to all others, and the events it reports, are numbered in one lane of its run. Servers keep the
  last of it in a ring, whose positions are the server's own; the home says it from there.

Confirmations are cumulative. Frames are four bytes of length and one msgpack array, as at the native door.
"""

import hashlib
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from alphorn.model.discretion import shown
from alphorn.model.errors import PeerViolation
from alphorn.model.events import Event

VERSION = 1
LENGTH_BYTES = 4
RUN_BYTES = SECRET_BYTES = 16
MESSAGE_BYTES_MAX = (1 << 20) + 6  # of a body of 1 MiB, packed
FRAME_BYTES_MAX = MESSAGE_BYTES_MAX + (64 << 10)
NAME_CHARACTERS_MAX = 200
NUMBER_MAX = (1 << 62) - 1
TURN_MAX = 1 << 32
KINDS_MAX = 100  # of events that one process wants
LANES_MAX = 5_000  # in one frame: that many are remembered
ROWS_MAX = 50  # in one frame: with all their kinds of events they fit
ITEMS_MAX = 10_000  # of other lists in one frame
OTHERS = ""  # in place of a name: every other process

PROGRAM = "program"  # the kind of a work process that is no node of the cluster

Name = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
Run = Annotated[bytes, Meta(min_length=RUN_BYTES, max_length=RUN_BYTES)]
Secret = Annotated[bytes, Meta(max_length=SECRET_BYTES)]
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
ClaimKey = Annotated[bytes, Meta(max_length=64)]
EventKind = Annotated[str, Meta(max_length=64)]
EventKinds = Annotated[list[EventKind], Meta(max_length=KINDS_MAX)]
Lanes = Annotated[list[tuple[Run, Number]], Meta(max_length=LANES_MAX)]  # of senders' lanes the last numbers


def run_of(secret: bytes) -> bytes:
    """The run of the process that keeps this secret: everybody may know the run, and nobody else can join as it."""
    return hashlib.sha256(secret).digest()[:RUN_BYTES]


class ProcessFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A work process speaks to a message server."""


class ServerFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message server speaks to a work process."""


class PeerFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message server speaks to the other one."""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A work process, as others know it."""

    name: Name
    run: Run  # one start of it
    kind: Name  # as in the cluster file, or `PROGRAM`
    pid: int = 0
    address: Name = ""
    wants: EventKinds = []  # kinds of events
    turn: Annotated[int, Meta(ge=1, le=TURN_MAX)] = 1  # how often it has come, this time included: after it had lost
    # every server, or after one of them had called it down


class Dropped(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive numbers of a lane that are not kept any more."""

    run: Run
    first: Number
    last: Number
    kind: EventKind = ""  # of these events; empty for messages, and for what nobody knows
    is_given: bool = True  # or events that others had reported before
    is_past: bool = (
        False  # from before the server heard of this lane: missed only by who has been told what came before
    )


class Join(ProcessFrame, frozen=True, array_like=True, gc=False, tag=1):
    """The first frame. Answered by `Joined` or `Refused`."""

    version: int
    row: Row
    secret: Secret = b""  # its run follows from it

    __repr__ = shown


class Want(ProcessFrame, frozen=True, array_like=True, gc=False, tag=2):
    """The kinds of events that it wants from now on."""

    kinds: EventKinds


class Home(ProcessFrame, frozen=True, array_like=True, gc=False, tag=3):
    """Whether this server is its home. It speaks there from `first` on, and has of each lane what is said here."""

    is_here: bool
    first: Number = 1  # of its own lane: everything before is with both servers, or nobody's to say
    lanes: Lanes = []


class Say(ProcessFrame, frozen=True, array_like=True, gc=False, tag=4):
    """A message to one process. Everything before `base` is confirmed or given up."""

    to: Run
    base: Number
    number: Number
    body: bytes


class Confirm(ProcessFrame, frozen=True, array_like=True, gc=False, tag=5):
    """It has what these processes said to it alone, through these numbers."""

    heard: Lanes


class SayAll(ProcessFrame, frozen=True, array_like=True, gc=False, tag=6):
    """A message to all others, next in its lane."""

    number: Number
    body: bytes


class Report(ProcessFrame, frozen=True, array_like=True, gc=False, tag=7):
    """Something happened, next in its lane."""

    number: Number
    event: Event


class Took(ProcessFrame, frozen=True, array_like=True, gc=False, tag=8):
    """It has what its home said to all, through this position of the ring."""

    position: Number


class Find(ProcessFrame, frozen=True, array_like=True, gc=False, tag=9):
    """Asks whether somebody may have this name. Answered by `Found`."""

    name: Name


class Claim(ProcessFrame, frozen=True, array_like=True, gc=False, tag=10):
    """It wants to be the one that does this. Answered by `Claimed`."""

    key: ClaimKey
    is_begun: bool = False  # it is: it was told so before, by a server that is gone


class Withdraw(ProcessFrame, frozen=True, array_like=True, gc=False, tag=16):
    """It does not do this: another server has said no."""

    key: ClaimKey


class Finish(ProcessFrame, frozen=True, array_like=True, gc=False, tag=11):
    """It has done this: nobody else is to do it any more."""

    key: ClaimKey


class Recent(ProcessFrame, frozen=True, array_like=True, gc=False, tag=12):
    """Asks for the last events. Answered by `Happened`."""

    request: int
    maximum: int


class Look(ProcessFrame, frozen=True, array_like=True, gc=False, tag=13):
    """Asks how this server stands. Answered by `Stands`."""

    request: int


class Ping(ProcessFrame, frozen=True, array_like=True, gc=False, tag=14):
    """It is there."""


class Leave(ProcessFrame, frozen=True, array_like=True, gc=False, tag=15):
    """It ends in good order."""


class Joined(ServerFrame, frozen=True, array_like=True, gc=False, tag=101):
    """Welcome. All processes follow in `Arrived`. Who comes for the first time begins behind these lanes."""

    server: Name
    run: Run
    lanes: Lanes = []


class Refused(ServerFrame, frozen=True, array_like=True, gc=False, tag=102):
    """The connection ends; `error` is a class of model/errors.py."""

    error: str
    reason: str


class Arrived(ServerFrame, frozen=True, array_like=True, gc=False, tag=103):
    """These processes are reached from here now. What was on its way to them may be lost."""

    rows: Annotated[list[Row], Meta(max_length=ROWS_MAX)]


class Departed(ServerFrame, frozen=True, array_like=True, gc=False, tag=104):
    """These are not reached for now, or have ended and never will be."""

    runs: Annotated[list[Run], Meta(max_length=ITEMS_MAX)]
    have_ended: bool


class Found(ServerFrame, frozen=True, array_like=True, gc=False, tag=105):
    """Whether a process of this name was here within the last hour, or is one of the cluster's nodes."""

    name: Name
    is_known: bool
    reason: str  # what to do where it is not


class Relay(ServerFrame, frozen=True, array_like=True, gc=False, tag=106):
    """A message of another process to this one alone."""

    sender: Name
    run: Run
    base: Number
    number: Number
    body: bytes


class Confirmed(ServerFrame, frozen=True, array_like=True, gc=False, tag=107):
    """These processes have what this one said to them alone, through these numbers."""

    by: Lanes


class RelayAll(ServerFrame, frozen=True, array_like=True, gc=False, tag=108):
    """A message of another process to all. `Took` answers."""

    position: Number
    sender: Name
    run: Run
    number: Number
    body: bytes


class Notify(ServerFrame, frozen=True, array_like=True, gc=False, tag=109):
    """An event of a wanted kind. `Took` answers."""

    position: Number
    run: Run  # of who reported it
    number: Number
    event: Event


class Passed(ServerFrame, frozen=True, array_like=True, gc=False, tag=110):
    """What these lanes have through these numbers it does not get: it does not want it, or it was not kept."""

    lanes: Lanes
    missed: Number = 0  # that it would have wanted


class Taken(ServerFrame, frozen=True, array_like=True, gc=False, tag=111):
    """Its own lane is safe through this number, but for what was not kept until everybody had it."""

    through: Number
    held: Number  # and the other server has it through this one; what comes after that is to be said to a new home
    lost: Annotated[list[Number], Meta(max_length=ITEMS_MAX)] = []


class Claimed(ServerFrame, frozen=True, array_like=True, gc=False, tag=112):
    """Whether this process does it, as far as this server knows."""

    key: ClaimKey
    is_yours: bool


class Free(ServerFrame, frozen=True, array_like=True, gc=False, tag=113):
    """Whoever was to do this is gone and has not said that it is done: claim it again."""

    key: ClaimKey


class Happened(ServerFrame, frozen=True, array_like=True, gc=False, tag=114):
    """The last events, oldest first."""

    request: int
    events: list[Event]


class Stands(ServerFrame, frozen=True, array_like=True, gc=False, tag=115):
    """How this server stands, as JSON."""

    request: int
    data: bytes


class Pong(ServerFrame, frozen=True, array_like=True, gc=False, tag=116):
    """It is there."""


class Meet(PeerFrame, frozen=True, array_like=True, gc=False, tag=201):
    """The first frame, from both sides, with what it has of all lanes. What the other one lacks follows, then
    `Synchronised`."""

    version: int
    server: Name
    run: Run
    lanes: Lanes


class Here(PeerFrame, frozen=True, array_like=True, gc=False, tag=202):
    """These processes have a connection to this server."""

    rows: Annotated[list[Row], Meta(max_length=ROWS_MAX)]


class Away(PeerFrame, frozen=True, array_like=True, gc=False, tag=203):
    """These have none any more; or they have ended."""

    rows: Annotated[list[Row], Meta(max_length=ROWS_MAX)]
    have_ended: bool


class Carry(PeerFrame, frozen=True, array_like=True, gc=False, tag=204):
    """A message for a process that the other server reaches."""

    to: Run
    sender: Name
    run: Run
    base: Number
    number: Number
    body: bytes


class CarryBack(PeerFrame, frozen=True, array_like=True, gc=False, tag=205):
    """Confirmations for senders that the other server reaches: sender, receiver, through which number."""

    items: Annotated[list[tuple[Run, Run, Number]], Meta(max_length=ITEMS_MAX)]


class Lost(PeerFrame, frozen=True, array_like=True, gc=False, tag=206):
    """What the ring does not keep any more."""

    records: Annotated[list[Dropped], Meta(max_length=ITEMS_MAX)]


class Hold(PeerFrame, frozen=True, array_like=True, gc=False, tag=207):
    """An entry of the ring. `Held` answers."""

    position: Number
    sender: Name
    run: Run
    number: Number
    body: bytes
    event: Event | None
    is_given: bool  # or an event that others have reported before, and that only counts for its lane


class Held(PeerFrame, frozen=True, array_like=True, gc=False, tag=208):
    """It has the other one's ring through this position."""

    position: Number


class Known(PeerFrame, frozen=True, array_like=True, gc=False, tag=209):
    """The last events, oldest first, and names of processes that were here within the last hour."""

    events: list[Event]
    names: list[Name]


class Assigned(PeerFrame, frozen=True, array_like=True, gc=False, tag=210):
    """Who does what: key, the process, whether it is done."""

    claims: Annotated[list[tuple[ClaimKey, Run, bool]], Meta(max_length=ITEMS_MAX)]


class Synchronised(PeerFrame, frozen=True, array_like=True, gc=False, tag=211):
    """All that there was has been said."""

    knows_claims: bool  # or has just started, and does not


class Beat(PeerFrame, frozen=True, array_like=True, gc=False, tag=212):
    """It is there."""


AnyProcessFrame = (
    Join
    | Want
    | Home
    | Say
    | Confirm
    | SayAll
    | Report
    | Took
    | Find
    | Claim
    | Withdraw
    | Finish
    | Recent
    | Look
    | Ping
    | Leave
)
AnyServerFrame = (
    Joined
    | Refused
    | Arrived
    | Departed
    | Found
    | Relay
    | Confirmed
    | RelayAll
    | Notify
    | Passed
    | Taken
    | Claimed
    | Free
    | Happened
    | Stands
    | Pong
)
AnyPeerFrame = Meet | Here | Away | Carry | CarryBack | Lost | Hold | Held | Known | Assigned | Synchronised | Beat

_encode = msgspec.msgpack.Encoder().encode
_decode_process: Callable[[bytes | memoryview], AnyProcessFrame | AnyPeerFrame] = msgspec.msgpack.Decoder(
    AnyProcessFrame | AnyPeerFrame
).decode
_decode_server: Callable[[bytes | memoryview], AnyServerFrame] = msgspec.msgpack.Decoder(AnyServerFrame).decode


def encode(frame: ProcessFrame | ServerFrame | PeerFrame) -> bytes:
    """A frame with its length."""
    body = _encode(frame)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_heard(body: bytes | memoryview) -> AnyProcessFrame | AnyPeerFrame:
    """What a work process, or the other server, said to a message server; raises `PeerViolation`."""
    try:
        return _decode_process(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerViolation(f"a frame on an internal connection cannot be read: {error}") from None


def decode_server(body: bytes | memoryview) -> AnyServerFrame:
    """What a message server said to a work process; raises `PeerViolation`."""
    try:
        return _decode_server(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerViolation(f"a message server's frame cannot be read: {error}") from None
