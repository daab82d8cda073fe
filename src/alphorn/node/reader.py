"""A Client Manager's seats in the channels' groups: what it orders and hears there, and its votes.

Where a Message Manager of the channel runs in the same process the Client Manager is that one's guest: it has no member
of its own, and what it orders goes by the Message Manager's origin (decision 35).
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from alphorn.bus.config import CHANNEL_BUDGET, MemberConfig, Role
from alphorn.bus.entries import Assignment, Member
from alphorn.client_manager.hearing import Hearing
from alphorn.client_manager.machine import Input, Joined, Window
from alphorn.io.cluster_file import CLIENT_MANAGER_TAG, WITNESS_TAG, ClusterFile, NodeTable
from alphorn.io.streams import FrameStream
from alphorn.io.topology import seat_of
from alphorn.model.ranges import RangeSet
from alphorn.node.bus import BusNode, BusSettings
from alphorn.node.links import Link, MakeStream

# A witness decides only while a data server is away. Until then nobody waits for its votes, and one fsync for many of
# them leaves disk and processor to those that are waited for.
WITNESS_LINGER_S = 0.02


class Halting(Protocol):
    """A node that can be told so."""

    def halt(self, reason: str) -> None:
        """It cannot go on."""


class Owner(Halting, Protocol):
    """Whose seats these are."""

    def receive(self, item: Input) -> None:
        """Something happened."""


class Host(Protocol):
    """A Message Manager of this process, whose member a guest shares."""

    table: NodeTable
    bus: BusNode

    def lodge(self, guest: "Guest") -> None:
        """From now on the guest hears what the host hears."""

    def accept(self, make: MakeStream) -> FrameStream:
        """The host's end of a link, made by `make`."""


class Voter:
    """The upper layer of a commit server that serves nobody: it votes, and is given no batches."""

    def __init__(self, node: Halting) -> None:
        self._node = node

    def on_deliver(self, sequence: int, assignment: Assignment, payload: bytes | memoryview) -> None:
        """Never: it does not read."""

    def on_ordered(self, handle: int, sequence: int) -> None:
        """Never: it orders nothing."""

    def on_refused(self, handle: int, reason: str, *, is_unknown: bool) -> None:
        """Never."""

    def on_window(self, *, is_open: bool) -> None:
        """See `Upper`."""

    def on_member(self, sequence: int, event: str, member: Member) -> None:
        """See `Upper`."""

    def on_primary(self, sequence: int, epoch: int, number: int, *, is_self: bool, members: tuple[Member, ...]) -> None:
        """See `Upper`."""

    def on_synchronised(self, *, is_synchronised: bool) -> None:
        """See `Upper`."""

    def give_checkpoint(self, sequence: int) -> Iterable[bytes]:
        """It is no checkpoint server."""
        return ()

    def retained(self, sequence: int) -> RangeSet:
        """It needs nothing."""
        return RangeSet()

    def install_checkpoint(self, sequence: int, chunks: Iterator[bytes]) -> None:
        """It keeps no state."""

    def on_stop(self, reason: str) -> None:
        """See `Upper`."""
        self._node.halt(f"its witness stopped: {reason}")


class Reader(Voter):
    """This node's member of one channel: orders what clients want, hears everything that is committed."""

    _begins_at_once = True

    def __init__(self, owner: Owner, file: ClusterFile, me: NodeTable, number: int) -> None:
        super().__init__(owner)
        self._owner = owner
        self.number = number
        self.links: dict[str, Link] = {}
        self.origin = b""  # as the machine knows it
        self._hearing = Hearing(number, has_begun=self._begins_at_once)
        self.bus = self._find_member(file, me)

    def _find_member(self, file: ClusterFile, me: NodeTable) -> BusNode:
        seat = seat_of(file, me, self.number)
        return BusNode(
            BusSettings(
                config=file.group(self.number),
                me=MemberConfig(number=0, name=me.name, address=seat.address, roles=Role.NONE, tag=CLIENT_MANAGER_TAG),
                data_address=seat.home.data,
                control_address=seat.home.control,
                aliases=seat.aliases,
                history=False,
                cluster_key=file.key_path,
                budget=CHANNEL_BUDGET,
            ),
            self,
        )

    async def start(self) -> None:
        """Takes part; raises what `BusNode.start` raises."""
        await self.bus.start()
        self.origin = self.bus.origin

    async def stop(self) -> None:
        """Leaves the group."""
        await self.bus.stop()

    def listen(self) -> None:
        """The owner hears from now on."""

    def order(self, handle: int, payload: bytes) -> None:
        """Puts an entry into the log."""
        self._hearing.order(self.bus.order(payload), handle)

    def _tell(self, *items: Input) -> None:
        """Hands things over; a member that the group had given up joined again, under another origin."""
        if items and self.bus.origin != self.origin:
            self.origin = self.bus.origin
            self._owner.receive(Joined(self.number, self.origin))
        for item in items:
            self._owner.receive(item)

    def on_deliver(self, sequence: int, assignment: Assignment, payload: bytes | memoryview) -> None:
        """See `Upper`."""
        self._tell(*self._hearing.on_deliver(sequence, payload, assignment.epoch))

    def on_ordered(self, handle: int, sequence: int) -> None:
        """See `Upper`."""
        self._tell(*self._hearing.on_ordered(handle, sequence))

    def on_refused(self, handle: int, reason: str, *, is_unknown: bool) -> None:
        """See `Upper`."""
        self._tell(*self._hearing.on_refused(handle, reason, is_unknown=is_unknown))

    def on_window(self, *, is_open: bool) -> None:
        """See `Upper`."""
        self._tell(Window(self.number, is_open))

    def install_checkpoint(self, sequence: int, chunks: Iterator[bytes]) -> None:
        """It was cut off for so long that the log went on without it; what it knew of destinations may be old."""
        self._owner.halt("it missed more of the log than is kept; start it again")

    def on_stop(self, reason: str) -> None:
        """See `Upper`."""
        self._owner.halt(reason)


class Guest(Reader):
    """The seat of a Client Manager beside a Message Manager of the channel.

    A Message Manager replays the log's past when it starts. A guest begins like any Client Manager, at the newest
    number: when its host first follows the log closely.
    """

    _begins_at_once = False

    def __init__(self, owner: Owner, file: ClusterFile, me: NodeTable, number: int, host: Host) -> None:
        self._host = host
        super().__init__(owner, file, me, number)

    def _find_member(self, file: ClusterFile, me: NodeTable) -> BusNode:
        return self._host.bus

    async def start(self) -> None:
        """The host has started."""
        self.origin = self.bus.origin

    async def stop(self) -> None:
        """The host leaves the group."""

    def listen(self) -> None:
        """The owner hears from now on."""
        self._host.lodge(self)

    def is_mine(self, handle: int) -> bool:
        """Whether the guest ordered it, and not the host."""
        return self._hearing.is_mine(handle)

    def on_synchronised(self, *, is_synchronised: bool) -> None:
        """See `Upper`."""
        self._hearing.has_begun = self._hearing.has_begun or is_synchronised

    def install_checkpoint(self, sequence: int, chunks: Iterator[bytes]) -> None:
        """See `Upper`."""
        if self._hearing.has_begun:
            super().install_checkpoint(sequence, chunks)
        else:
            self._tell(*self._hearing.pass_over(sequence))


async def start_all(members: Sequence[BusNode | Reader]) -> None:
    """Starts these in turn; where one cannot start those before it are stopped, and its error is raised."""
    started: list[BusNode | Reader] = []
    try:
        for member in members:
            await member.start()
            started.append(member)
    except BaseException:
        for member in started:
            await member.stop()
        raise


def make_witness(node: Halting, file: ClusterFile, me: NodeTable, number: int, *, founding: bool) -> BusNode:
    """A node's commit server of one channel."""
    config = file.group(number)
    seat = seat_of(file, me, number)
    voter = next(member for member in config.members if member.name == me.name)
    return BusNode(
        BusSettings(
            config=config,
            me=msgspec.structs.replace(voter, tag=f"{WITNESS_TAG}:{os.getpid()}"),
            store=Path(file.directory) / me.name / f"witness-{number}",
            founding=founding,
            reads=False,
            linger_s=WITNESS_LINGER_S,
            data_address=seat.home.data,
            control_address=seat.home.control,
            aliases=seat.aliases,
            cluster_key=file.key_path,
            budget=CHANNEL_BUDGET,
        ),
        Voter(node),
    )
