"""What Client Managers and Message Managers say on their link of destinations that go from one channel to another.

How a move goes is told in docs/decisions/0030-moving-destinations.md; the frames are part of the link (model/link.py).
"""

import msgspec

from alphorn.model.destinations import Destination, Policy
from alphorn.model.frame_kinds import Asked, Told


class Export(Asked, frozen=True, array_like=True, gc=False, tag=55):
    """Asks for the messages of a destination that is to leave, from a position on; below 0 for all else about it.

    Destination 0 asks for the names of all that could leave.

    Answered by `Exported`, or by `Answered` where that cannot be.
    """

    request: int
    destination: int
    start: int


class Followed(Asked, frozen=True, array_like=True, gc=False, tag=56):
    """All consumers of this Client Manager that followed a destination from another channel are attached here.

    What was to be delivered to them before and never was is `unseen`; what those had that are gone is `loose`.
    """

    destination: int
    unseen: list[tuple[int, list[int]]] = msgspec.field(default_factory=list)  # subscription, positions
    loose: list[tuple[int, list[int]]] = msgspec.field(default_factory=list)


class Home(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a destination that has left a channel is."""

    channel: int  # by its place in the cluster's configuration
    number: int
    begun_at: int  # the log entry from which on it takes nothing in the channel that it left


class Inventoried(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A name that a channel knows: of a destination that is there, comes there, or is elsewhere."""

    name: str
    is_here: bool  # or on its way
    channel: int = -1  # where it is, or is to be moved; -1 for one that stays


class CarriedRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive messages of one producer, as a batch of their own."""

    position: int
    producer: bytes
    counter: int
    count: int
    flags: int
    timestamp: int
    blob: memoryview


class Exported(Told, frozen=True, array_like=True, gc=False, tag=155):
    """Some of what `Export` asked for."""

    request: int
    runs: list[CarriedRun] = msgspec.field(default_factory=list)
    start: int = 0  # where the next messages begin; 0 where there are no more
    newest: int = 0  # the last position that the destination has given so far
    record: bytes = b""  # one piece of all else
    is_last: bool = True


class Carry(Told, frozen=True, array_like=True, gc=False, tag=156):
    """Wants this Client Manager to carry a destination to another channel."""

    number: int
    destination: Destination
    policy: Policy
    channel: int
    names: list[tuple[bool, str, str]]  # of its subscriptions: is durable, client, name


class Departed(Told, frozen=True, array_like=True, gc=False, tag=157):
    """A destination has left this channel: nothing of it is delivered from here after this frame."""

    number: int
    home: Home


class Landed(Told, frozen=True, array_like=True, gc=False, tag=158):
    """A destination has come here from another channel: consumers follow, and then `Followed` is to be said."""

    number: int
    channel: int  # where it was, and its number there
    source: int
    begun_at: int  # the log entry there from which on it takes nothing
