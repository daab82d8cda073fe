"""What is said on internal connections: between work processes and message servers, and between the two servers.

A work process (a node, or a program that has joined) keeps a connection to every message server and speaks through
one of them. What it says has a number of its own run, and stays with it until everybody whom it concerns has it: a
message server that dies takes nothing along. Frames are four bytes of length and one msgpack array, as at the native
door.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from alphorn.model.errors import PeerViolation
from alphorn.model.events import Event
from alphorn.model.frame_kinds import ITEMS_MAX

VERSION = 1
LENGTH_BYTES = 4
RUN_BYTES = 16
MESSAGE_BYTES_MAX = (1 << 20) + 6  # of a body of 1 MiB, packed
FRAME_BYTES_MAX = MESSAGE_BYTES_MAX + (64 << 10)
NAME_CHARACTERS_MAX = 200
KINDS_MAX = 100  # of events that one process wants
OTHERS = ""  # in place of a name: every other process

PROGRAM = "program"  # the kind of a work process that is no node of the cluster

Name = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
Run = Annotated[bytes, Meta(min_length=RUN_BYTES, max_length=RUN_BYTES)]
EventKinds = Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=KINDS_MAX)]
Key = tuple[Run, int]  # a sender's run and its number


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
    turn: int = 1  # how often it has come, this time included, after it had lost every server


class Join(ProcessFrame, frozen=True, array_like=True, gc=False, tag=1):
    """The first frame. Answered by `Joined` or `Refused`."""

    version: int
    row: Row


class Want(ProcessFrame, frozen=True, array_like=True, gc=False, tag=2):
    """The kinds of events that it wants from now on."""

    kinds: EventKinds


class Speak(ProcessFrame, frozen=True, array_like=True, gc=False, tag=3):
    """Whether it says what it has to say through this server."""

    is_here: bool


class Say(ProcessFrame, frozen=True, array_like=True, gc=False, tag=4):
    """A message to the process of this name, or to all `OTHERS`. Numbers grow; the same one may come again."""

    number: int
    to: Name
    body: bytes


class Report(ProcessFrame, frozen=True, array_like=True, gc=False, tag=5):
    """Something happened. Numbered like messages."""

    number: int
    event: Event


class Confirm(ProcessFrame, frozen=True, array_like=True, gc=False, tag=6):
    """It has all that these senders said: to it alone through the first number, and to all through the second."""

    heard: Annotated[list[tuple[Run, int, int]], Meta(max_length=ITEMS_MAX)]


class Claim(ProcessFrame, frozen=True, array_like=True, gc=False, tag=7):
    """It wants to be the one that does this. Answered by `Claimed`."""

    key: Annotated[bytes, Meta(max_length=64)]


class Finish(ProcessFrame, frozen=True, array_like=True, gc=False, tag=8):
    """It has done this: nobody else is to do it any more."""

    key: Annotated[bytes, Meta(max_length=64)]


class Recent(ProcessFrame, frozen=True, array_like=True, gc=False, tag=9):
    """Asks for the last events. Answered by `Happened`."""

    request: int
    maximum: int


class Look(ProcessFrame, frozen=True, array_like=True, gc=False, tag=10):
    """Asks how this server stands. Answered by `Stands`."""

    request: int


class Ping(ProcessFrame, frozen=True, array_like=True, gc=False, tag=11):
    """It is there."""


class Leave(ProcessFrame, frozen=True, array_like=True, gc=False, tag=12):
    """It ends in good order."""


class Joined(ServerFrame, frozen=True, array_like=True, gc=False, tag=101):
    """Welcome. All processes follow in `Arrived`."""

    server: Name
    run: Run
    is_known: bool = True  # this run of the process was known here: what it missed is told, or counted


class Refused(ServerFrame, frozen=True, array_like=True, gc=False, tag=102):
    """The connection ends; `error` is a class of model/errors.py."""

    error: str
    reason: str


class Arrived(ServerFrame, frozen=True, array_like=True, gc=False, tag=103):
    """These processes are there."""

    rows: list[Row]


class Departed(ServerFrame, frozen=True, array_like=True, gc=False, tag=104):
    """These are not there any more, or not for now."""

    runs: list[Run]


class Relay(ServerFrame, frozen=True, array_like=True, gc=False, tag=105):
    """What another process said. `Confirm` answers, once for many."""

    sender: Name
    run: Run
    number: int
    body: bytes
    is_for_all: bool = False


class Notify(ServerFrame, frozen=True, array_like=True, gc=False, tag=106):
    """An event of a wanted kind. `Confirm` answers."""

    run: Run  # of who reported it
    number: int
    event: Event


class Taken(ServerFrame, frozen=True, array_like=True, gc=False, tag=107):
    """These numbers are safe: both message servers have them, and go on giving them out."""

    numbers: list[int]


class Settled(ServerFrame, frozen=True, array_like=True, gc=False, tag=108):
    """Everybody whom these numbers concerned has them."""

    numbers: list[int]


class Failed(ServerFrame, frozen=True, array_like=True, gc=False, tag=109):
    """This number is not given out, or nobody can tell whether it was; `error` is a class of model/errors.py."""

    number: int
    error: str
    reason: str


class Missed(ServerFrame, frozen=True, array_like=True, gc=False, tag=110):
    """So many messages and events were not kept for this process."""

    count: int


class Claimed(ServerFrame, frozen=True, array_like=True, gc=False, tag=111):
    """Whether this process does it, as far as this server knows."""

    key: bytes
    is_yours: bool


class Free(ServerFrame, frozen=True, array_like=True, gc=False, tag=112):
    """Whoever was to do this is gone and has not said that it is done: claim it again."""

    key: bytes


class Happened(ServerFrame, frozen=True, array_like=True, gc=False, tag=113):
    """The last events, oldest first."""

    request: int
    events: list[Event]


class Stands(ServerFrame, frozen=True, array_like=True, gc=False, tag=114):
    """How this server stands, as JSON."""

    request: int
    data: bytes


class Pong(ServerFrame, frozen=True, array_like=True, gc=False, tag=115):
    """It is there."""


class Meet(PeerFrame, frozen=True, array_like=True, gc=False, tag=201):
    """The first frame, from both sides. `Here`, `Hold` and `Known` follow with all there is, then `Synchronised`."""

    version: int
    server: Name
    run: Run


class Here(PeerFrame, frozen=True, array_like=True, gc=False, tag=202):
    """These processes have a connection to this server."""

    rows: list[Row]


class Away(PeerFrame, frozen=True, array_like=True, gc=False, tag=203):
    """These have none any more; of those that have ended nothing is to be kept."""

    rows: list[Row]
    have_ended: bool


class Hold(PeerFrame, frozen=True, array_like=True, gc=False, tag=204):
    """Keep this, in case the sender and this server are lost. Answered by `Held`."""

    sender: Name
    run: Run
    number: int
    to: Name
    recipients: list[Run]  # who have not confirmed it
    delegated: list[Run]  # who are there too, but reached by the other server alone: give it to them
    is_own: bool  # its sender said it here
    body: bytes
    event: Event | None = None


class Held(PeerFrame, frozen=True, array_like=True, gc=False, tag=205):
    """These are kept here too."""

    items: list[Key]


class Release(PeerFrame, frozen=True, array_like=True, gc=False, tag=206):
    """These processes have this, or will never have it."""

    items: list[tuple[Run, Run, int]]  # recipient, sender, number


class Known(PeerFrame, frozen=True, array_like=True, gc=False, tag=207):
    """The last events, oldest first."""

    events: list[Event]


class Synchronised(PeerFrame, frozen=True, array_like=True, gc=False, tag=208):
    """All that there was has been said."""


class Beat(PeerFrame, frozen=True, array_like=True, gc=False, tag=209):
    """It is there."""


AnyProcessFrame = Join | Want | Speak | Say | Report | Confirm | Claim | Finish | Recent | Look | Ping | Leave
AnyServerFrame = (
    Joined
    | Refused
    | Arrived
    | Departed
    | Relay
    | Notify
    | Taken
    | Settled
    | Failed
    | Missed
    | Claimed
    | Free
    | Happened
    | Stands
    | Pong
)
AnyPeerFrame = Meet | Here | Away | Hold | Held | Release | Known | Synchronised | Beat

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
