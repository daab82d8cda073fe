"""The contract of every bus machine, and the values that go in and come out.

A machine never acts. Its owner calls `receive` for each input, `on_time` when `next_deadline` has passed, and then
performs what `take_outputs` gives, in that order. Outputs that need something on disk first are withheld by the machine
until the `Durable` input that answers its `Persist`; so the owner may perform every output at once.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from alphorn.bus.entries import Assignment, Member
from alphorn.bus.frames import Parts
from alphorn.model.ranges import RangeSet

# Where a frame goes: one of the group's two addresses, or a member's own.
DATA_GROUP = "*data"
CONTROL_GROUP = "*control"


class Input(msgspec.Struct, frozen=True, gc=False):
    """Something that happened."""


class Received(Input, frozen=True, gc=False):
    """Frames from the network: one whole datagram, or one whole frame of a stream."""

    data: bytes | memoryview


class Durable(Input, frozen=True, gc=False):
    """All writes of the `Persist` with this token, and of all before it, are on stable storage."""

    token: int


class Order(Input, frozen=True, gc=False):
    """The upper layer wants this batch ordered. `handle` comes back in `Ordered` or `Refused`."""

    payload: bytes
    handle: int


class CheckpointWritten(Input, frozen=True, gc=False):
    """The state asked for by `TakeCheckpoint` is durable in the storage."""

    sequence: int


class CheckpointInstalled(Input, frozen=True, gc=False):
    """The upper layer has taken over the state of `InstallCheckpoint`, with all that the state needs."""

    sequence: int


class CheckpointRefused(Input, frozen=True, gc=False):
    """The upper layer cannot take over this state, because what it needs is gone everywhere: it wants a newer one."""

    sequence: int


class ChangeVoters(Input, frozen=True, gc=False):
    """An administrator adds or removes one commit server. Only the sequencer acts on it."""

    number: int
    add: bool


class ChangeInterval(Input, frozen=True, gc=False):
    """An administrator sets the checkpoint interval and the lifetime. Only the sequencer acts on it."""

    interval: int
    lifetime: int


class Goodbye(Input, frozen=True, gc=False):
    """The node is about to stop in good order."""


class Output(msgspec.Struct, frozen=True, gc=False):
    """Something to do."""


class Send(Output, frozen=True, gc=False):
    """Send one frame; `to` is DATA_GROUP, CONTROL_GROUP or a member's address. May be lost."""

    to: str
    parts: Parts


class Persist(Output, frozen=True, gc=False):
    """Apply these writes in order, atomically with respect to a crash, then answer `Durable(token)`.

    Tokens grow by one; a later `Persist` never becomes durable before an earlier one.
    """

    token: int
    writes: "list[Write]"
    is_urgent: bool = True  # False where nobody waits for it, as far as this member knows


class Deliver(Output, frozen=True, gc=False):
    """A committed batch for the upper layer. Numbers only grow; system entries leave holes in them."""

    sequence: int
    assignment: Assignment
    payload: bytes | memoryview


class Ordered(Output, frozen=True, gc=False):
    """This member's batch is committed under this number; 0 where a checkpoint told so, without the number."""

    handle: int
    sequence: int


class Refused(Output, frozen=True, gc=False):
    """This member's batch was not taken, or (`is_unknown`) its outcome cannot be known any more.

    Where no departed senders are remembered the latter means that the group has given this member up, and that the
    batch is never ordered, unless the member learned of that from a checkpoint.
    """

    handle: int
    reason: str
    is_unknown: bool = False


class WindowChanged(Output, frozen=True, gc=False):
    """The upper layer may order (True), or should wait because the window is full (False)."""

    is_open: bool


class MemberChanged(Output, frozen=True, gc=False):
    """A membership event, the same and in the same place of the log on every member."""

    sequence: int
    event: str  # joined, left, failed, voter_added, voter_removed
    member: Member


class PrimaryChanged(Output, frozen=True, gc=False):
    """From this number on `number` is sequencer and primary; `is_self` when that is this run of this member.

    `members` are those of the group at this place of the log, which may have gone on meanwhile.
    """

    sequence: int
    epoch: int
    number: int
    is_self: bool
    members: tuple[Member, ...] = ()


class TakeCheckpoint(Output, frozen=True, gc=False):
    """The upper layer's state, exactly as it is after `sequence`, goes to storage: then `CheckpointWritten`.

    It is sealed (`SealCheckpoint`) together with the epoch of that entry and the group's own state there.
    """

    sequence: int
    epoch: int
    state: bytes


class InstallCheckpoint(Output, frozen=True, gc=False):
    """The upper layer replaces its state by the checkpoint in storage; nothing is delivered until it has.

    It answers `CheckpointInstalled` or `CheckpointRefused`, and may take its time. Another one with a higher number
    takes the place of one that is not answered yet.
    """

    sequence: int


class SynchronisedChanged(Output, frozen=True, gc=False):
    """Whether this member follows the log closely (True) or is catching up (False)."""

    is_synchronised: bool


class Stop(Output, frozen=True, gc=False):
    """This member must not go on; the owner ends the node."""

    reason: str


class Trace(Output, frozen=True, gc=False):
    """One line for the timeline: stable event name, then key=value details."""

    event: str
    details: str


class Write(msgspec.Struct, frozen=True, gc=False):
    """One change to the storage."""


class PutMeta(Write, frozen=True, gc=False):
    """Replaces the `Meta` record (storage.py), encoded."""

    data: bytes


class PutAssignments(Write, frozen=True, gc=False):
    """Assignments of the numbers from `first` on, replacing what was there."""

    first: int
    assignments: list[Assignment]


class PutEntry(Write, frozen=True, gc=False):
    """The bytes of the batch at a number."""

    sequence: int
    payload: bytes | memoryview
    digest: int


class DropAfter(Write, frozen=True, gc=False):
    """Forgets assignments and entries above this number: they were never committed."""

    sequence: int


class DropThrough(Write, frozen=True, gc=False):
    """Forgets assignments, entries, and checkpoints before the newest complete one, through this number.

    A storage that is retaining keeps entries that the newest checkpoint needs, or that follow it, outside the log.
    """

    sequence: int
    is_retaining: bool = False


class Retain(Write, frozen=True, gc=False):
    """The state of the checkpoint at this number, which is sealed, needs these entries and none else at or before it.

    Written by the owner, in the words of its upper layer; never by the machine, which does not see what is retained.
    """

    sequence: int
    needed: RangeSet  # not changed any more


class PutGroupState(Write, frozen=True, gc=False):
    """The group's own state at a checkpoint mark; replaces older ones."""

    sequence: int
    data: bytes


class PutChunk(Write, frozen=True, gc=False):
    """A received chunk of the checkpoint at this number."""

    sequence: int
    chunk: int
    payload: bytes | memoryview


class SealCheckpoint(Write, frozen=True, gc=False):
    """All chunks of this checkpoint are there: it may be used and offered, and older ones dropped."""

    sequence: int
    epoch: int
    size: int
    chunks: int
    digest: int
    state: bytes  # the group's own state there


class Machine(Protocol):
    """The five verbs. `now` is monotonic seconds and never goes back within one run."""

    def receive(self, item: Input, now: float) -> None:
        """Takes in one thing that happened."""

    def on_time(self, now: float) -> None:
        """Does what is due."""

    def next_deadline(self) -> float:
        """When `on_time` wants to be called; infinity for never."""

    def take_outputs(self) -> Iterable[Output]:
        """Everything to do since the last call, in order."""

    def describe(self) -> dict[str, object]:
        """The one printable state."""
