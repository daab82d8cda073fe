"""Runs the room `message_manager/`: one replica of a channel, from the log to the links of Client Managers.

The bus delivers, the machine applies and, as primary, gives out. A new backup takes a checkpoint, then fetches the log
entries that the state still needs from a peer, and only then goes on.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path

import msgspec

from alphorn.bus.config import CHANNEL_BUDGET, Role, Timing
from alphorn.bus.entries import Assignment, Member
from alphorn.bus.machine import ChangeInterval
from alphorn.io.addresses import why_not_bound
from alphorn.io.cluster_file import CLIENT_MANAGER_TAG, SHARED_TAG, ClusterFile
from alphorn.io.crash_points import CrashPoints
from alphorn.io.driver import Driver
from alphorn.io.strangers import Strangers
from alphorn.io.streams import FrameStream
from alphorn.io.tasks import Tasks
from alphorn.io.topology import link_hosts, seat_of
from alphorn.message_manager.consolidation import Consolidation
from alphorn.message_manager.core import MessageManager
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.fullness import Space
from alphorn.message_manager.machine import (
    Asked,
    Break,
    ClientManagerJoined,
    ClientManagerLeft,
    Committed,
    Demoted,
    Following,
    Happen,
    Input,
    LinkClosed,
    LinkOpened,
    Log,
    Logged,
    Measured,
    Order,
    Output,
    Promoted,
    Supply,
    Tell,
    Witness,
    WitnessesChanged,
)
from alphorn.message_manager.own_orders import OwnOrders
from alphorn.message_manager.snapshot import Snapshot
from alphorn.message_manager.status import About
from alphorn.model import frame_kinds, link
from alphorn.model.errors import PeerViolation, Unavailable
from alphorn.model.ids import origin_of
from alphorn.model.ranges import RangeSet
from alphorn.node.bus import BusNode, BusSettings
from alphorn.node.client_half import ClientHalf, Early
from alphorn.node.completing import complete
from alphorn.node.fetching import fetch_entries
from alphorn.node.links import MakeStream
from alphorn.node.reader import Guest

REPORT_DELAY_S = 0.01  # the primary holds data itself and numbers it unasked; a backup speaks up when that fails
INTRODUCE_S = 5.0  # so long a stranger may take to say its first frame
SUPPLY_BYTES_MAX = 8 << 20  # of entries in one answer
MEASURE_S = 0.1  # how often the disk is measured, beside what its space says

_CLIENT_MANAGERS = (CLIENT_MANAGER_TAG, SHARED_TAG)
_log = logging.getLogger(__name__)
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class MessageManagerNode:
    """One Message Manager."""

    def __init__(self, file: ClusterFile, name: str, *, founding: bool, beside: object = ()) -> None:
        self._file = file
        self.table = file.node(name)
        self._guest: Guest | None = None  # the Client Manager in this process
        self._channel = next(i for i, channel in enumerate(file.channels) if channel.name == self.table.channel)
        self._streams: dict[int, FrameStream] = {}
        self._dirty: set[FrameStream] = set()
        self._strangers = Strangers(INTRODUCE_S, self._dismiss)
        self._next_link = 0
        self._is_synchronised = False
        self._tasks = Tasks()
        self._crash_points = CrashPoints()
        self._early = Early()
        self._happen = self._early.happen
        self._own_orders = OwnOrders()
        self._witness_names = {node.name for node in file.nodes if node.kind == "witness"}
        self._witnesses: dict[str, Witness] = {}
        config = file.group(self._channel)
        self._lifetime = config.lifetime
        self._consolidation = Consolidation(config.checkpoint_interval)
        self._snapshot: Snapshot | None = None  # of which a checkpoint is being made
        self._unmeasured = self._unmeasured_max = 0  # bytes of the log
        self._sharers = file.sharers_of(self.table)
        seat = seat_of(file, self.table, self._channel)
        me = next(member for member in config.members if member.name == name)
        if file.has_guest(self.table):
            me = msgspec.structs.replace(me, tag=SHARED_TAG, roles=me.roles | Role.READER)
        self.bus = BusNode(
            BusSettings(
                config=config,
                me=me,
                store=Path(file.directory) / name / "log",
                store_bytes_max=self.table.store_bytes_max,
                founding=founding,
                further=seat.further,
                cluster_key=Path(file.cluster_key) if file.cluster_key else None,
                timing=Timing(report_delay_s=REPORT_DELAY_S),
                budget=CHANNEL_BUDGET,
            ),
            self,
        )
        self._about = About(
            name=name,
            pid=os.getpid(),
            address=self.table.link,
            channel=self.table.channel,
            rank=self.table.rank,
            run=time.time_ns().to_bytes(8, "big"),
            copies=lambda: self.bus.copies,
            copies_wanted=config.copies,
        )

    async def start(self) -> None:
        """Takes part, and listens for Client Managers."""
        loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[str] = loop.create_future()
        offset_ms = time.time() * 1000 - loop.time() * 1000
        self._machine = MessageManager(
            self._about, wall_ms=lambda now: int(offset_ms + now * 1000), read=self.bus.read_entry
        )
        self._driver: Driver[Input, Output] = Driver(
            self._machine, perform=self._perform, end_turn=self._end_turn, on_failure=self._on_failure
        )
        port = int(self.table.link.rpartition(":")[2])
        try:
            self._server = await loop.create_server(self.accept, link_hosts(self.table), port, start_serving=False)
        except OSError as error:
            place = f"{self.table.name} cannot listen for Client Managers at {self.table.link}"
            raise Unavailable(f"{place}: {why_not_bound(error)}") from None
        try:
            await self.bus.start()
        except BaseException:
            self._server.close()
            raise
        self._driver.start()
        self._tasks.start(self._keep_measuring(), name="disk")
        await self._server.start_serving()

    async def stop(self) -> None:
        """Leaves in good order: another replica takes over at once."""
        self._driver.close()
        await self._tasks.close()
        await self.bus.stop()
        self._server.close()
        for stream in list(self._streams.values()):
            stream.close("the node stops")

    def publish_log(self, lines: list[str]) -> None:
        """Puts this node's log lines onto the `_LOG` topic, when the channel works."""
        self._driver.receive(Logged(self.bus.origin, lines))

    def meet(self, half: ClientHalf) -> None:
        """It has an internal connection from now on."""
        self._happen = half.happen
        self._early.pass_on(half)

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return {"message_manager": self._machine.describe(), "bus": self.bus.describe()}

    def die_at(self, step: str, count: int) -> None:
        """For tests: kills the process when it has applied this step as primary."""
        self._crash_points.arm(step, count)

    def lodge(self, guest: Guest) -> None:
        """A Client Manager of this process takes part by this one's member from now on."""
        self._guest = guest
        guest.on_synchronised(is_synchronised=self._is_synchronised)

    # --- the upper layer of the bus ---

    def on_deliver(self, sequence: int, assignment: Assignment, payload: bytes | memoryview) -> None:
        """See `Upper`."""
        self._driver.receive(Committed(sequence, origin_of(assignment.id), payload, assignment.epoch))
        if self._guest is not None:
            self._guest.on_deliver(sequence, assignment, payload)
        self._consolidation.on_entry(sequence, len(payload))
        self._unmeasured += len(payload)
        if self._unmeasured >= self._unmeasured_max:
            self._measure()
        if self._crash_points.is_armed and self._machine.is_primary:
            self._crash_points.reach_applied(payload)

    def on_ordered(self, handle: int, sequence: int) -> None:
        """See `Upper`. The machine hears of its own entries as of all others."""
        if self._guest is not None and self._guest.is_mine(handle):
            self._guest.on_ordered(handle, sequence)
        else:
            self._own_orders.landed(handle)

    def on_refused(self, handle: int, reason: str, *, is_unknown: bool) -> None:
        """See `Upper`."""
        if self._guest is not None and self._guest.is_mine(handle):
            self._guest.on_refused(handle, reason, is_unknown=is_unknown)
            return
        _log.warning("event=order_refused node=%s reason=%s", self.table.name, reason)
        payload = self._own_orders.refused(handle, is_unknown=is_unknown)
        if payload is not None:
            self._order(payload)

    def on_window(self, *, is_open: bool) -> None:
        """See `Upper`. What the primary orders is little."""
        if self._guest is not None:
            self._guest.on_window(is_open=is_open)

    def on_member(self, sequence: int, event: str, member: Member) -> None:
        """See `Upper`."""
        if member.tag in _CLIENT_MANAGERS and event in ("left", "failed"):
            self._driver.receive(ClientManagerLeft(member.origin))
        elif member.tag in _CLIENT_MANAGERS and event == "joined":
            self._driver.receive(ClientManagerJoined(member.origin))
        self._note_witnesses(msgspec.structs.replace(member, is_live=event not in ("left", "failed")))

    def on_primary(self, sequence: int, epoch: int, number: int, *, is_self: bool, members: tuple[Member, ...]) -> None:
        """See `Upper`."""
        self._note_witnesses(*members)
        if is_self:
            origins = tuple(m.origin for m in members if m.tag in _CLIENT_MANAGERS and m.is_live)
            self._driver.receive(Promoted(epoch, self.bus.origin, origins))
        else:
            primary = next((member.name for member in members if member.number == number), "")
            self._driver.receive(Demoted(epoch, primary))

    def _note_witnesses(self, *members: Member) -> None:
        """Those that are nodes of their own; of one within a Client Manager that one's row tells."""
        seen = [_witness_of(member) for member in members if member.name in self._witness_names]
        if seen:
            self._witnesses |= {witness.name: witness for witness in seen}
            self._driver.receive(WitnessesChanged(tuple(self._witnesses.values())))

    def on_synchronised(self, *, is_synchronised: bool) -> None:
        """See `Upper`."""
        self._is_synchronised = is_synchronised
        self._driver.receive(Following(is_synchronised))
        if self._guest is not None:
            self._guest.on_synchronised(is_synchronised=is_synchronised)

    def give_checkpoint(self, sequence: int) -> Iterator[bytes]:
        """See `Upper`."""
        self._set_interval(self._consolidation.on_checkpoint(sequence))
        self._snapshot = self._machine.engine.snapshot()
        return self._weighed(self._snapshot)

    def _weighed(self, snapshot: Snapshot) -> Iterator[bytes]:
        for piece in snapshot:
            self._consolidation.on_state(len(piece))
            yield piece

    def retained(self, sequence: int) -> RangeSet:
        """See `Upper`."""
        snapshot, self._snapshot = self._snapshot, None
        needed = snapshot.needed() if snapshot is not None else self._machine.engine.retained()
        self._consolidation.on_retained(len(needed))
        return needed

    def install_checkpoint(self, sequence: int, chunks: Iterator[bytes]) -> Awaitable[None] | None:
        """See `Upper`."""
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
        if self._guest is not None:
            self._guest.install_checkpoint(sequence, iter(()))
        engine = Engine.restore(chunks)
        needed = engine.retained()
        if not needed:
            self._machine.restore(engine)
            return None
        return self._complete(engine, needed)

    async def _complete(self, engine: Engine, needed: RangeSet) -> None:
        peers = [node for node in self._file.message_managers(self.table.channel) if node.name != self.table.name]
        await complete(self.bus, needed, lambda missing: fetch_entries(peers, missing))
        self._machine.restore(engine)

    def on_stop(self, reason: str) -> None:
        """See `Upper`."""
        if not self.stopped.done():
            self.stopped.set_result(reason)
        if self._guest is not None:
            self._guest.on_stop(reason)

    # --- the disk ---

    async def _keep_measuring(self) -> None:
        while True:
            self._measure()
            await asyncio.sleep(MEASURE_S)

    def _measure(self) -> None:
        self._unmeasured = 0
        used, limit, disk = self.bus.store_bytes()
        within = disk.within(limit, self._sharers)
        left = disk.left if within < limit else None
        space = Space(used=used, limit=within, reserve=self._file.reserve_bytes(within), left=left)
        self._unmeasured_max = space.unmeasured_max
        self._driver.receive(Measured(space))
        if self._snapshot is None:  # its weight is not known before, nor what it frees
            is_full, now = self._machine.flow.is_disk_full, asyncio.get_running_loop().time()
            self._set_interval(self._consolidation.look(space, is_full=is_full, now=now))

    def _set_interval(self, interval: int | None) -> None:
        if interval is not None and self._machine.is_primary:
            self.bus.tell(ChangeInterval(interval, self._lifetime))

    # --- links ---

    def accept(self, make: MakeStream = FrameStream) -> FrameStream:
        """A Client Manager calls."""
        self._next_link += 1
        number = self._next_link
        stream = make(
            on_open=lambda stream: self._on_open(number, stream),
            on_frames=lambda stream, frames: self._on_frames(number, stream, frames),
            on_closed=lambda stream, reason: self._on_closed(number),
            frame_bytes_max=link.FRAME_BYTES_MAX,
        )
        self._strangers.add(number, stream)
        return stream

    def _dismiss(self, number: int, stream: FrameStream) -> None:
        """Whoever has something to do here says at once who it is, or what it wants."""
        _log.warning("event=stranger_dismissed node=%s peer=%s", self.table.name, stream.peer)
        stream.abort(f"a link begins with a frame, within {INTRODUCE_S:.0f} seconds")

    def _on_open(self, number: int, stream: FrameStream) -> None:
        self._streams[number] = stream
        self._driver.receive(LinkOpened(number))

    def _on_frames(self, number: int, stream: FrameStream, frames: list[memoryview]) -> None:
        self._strangers.forget(number)
        try:
            asked = [Asked(number, link.decode_asked(frame)) for frame in frames]
        except PeerViolation as error:
            stream.abort(str(error))
            return
        self._driver.receive_all(asked)

    def _on_closed(self, number: int) -> None:
        self._strangers.forget(number)
        if self._streams.pop(number, None) is not None:
            self._driver.receive(LinkClosed(number))

    # --- what the machine wants ---

    def _perform(self, output: Output) -> None:
        match output:
            case Tell(number, frame):
                self._say(number, frame)
            case Order(payload):
                self._order(payload)
            case Supply(number, request, sequences):
                self._supply(number, request, sequences)
            case Break(number, reason):
                stream = self._streams.get(number)
                if stream is not None:
                    stream.abort(reason)
            case Happen(event):
                self._happen(event)
            case Log(level, event, details):
                _log.log(_LEVELS[level], "event=%s %s", event, details)
            case _:
                raise AssertionError(f"the node does not know the output {output!r}")

    def _order(self, payload: bytes) -> None:
        self._own_orders.ordered(self.bus.order(payload), payload)

    def _say(self, number: int, frame: frame_kinds.Told) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            stream.send(link.encode(frame))
            self._dirty.add(stream)

    def _supply(self, number: int, request: int, sequences: list[int]) -> None:
        """Sends what is here, as much as one answer may hold; the rest is asked for again."""
        found: list[tuple[int, memoryview]] = []
        size = 0
        for sequence in sequences:
            payload = self.bus.read_entry(sequence)
            if payload is not None:
                found.append((sequence, memoryview(payload)))
                size += len(payload)
            if size >= SUPPLY_BYTES_MAX:
                break
        self._say(number, link.Entries(request, found))

    def _end_turn(self) -> None:
        for stream in self._dirty:
            stream.flush()
        self._dirty.clear()

    def _on_failure(self, error: BaseException) -> None:
        _log.error("event=machine_failed node=%s", self.table.name, exc_info=error)
        self.on_stop(f"{type(error).__name__}: {error}")


def _witness_of(member: Member) -> Witness:
    _, _, pid = member.tag.partition(":")
    return Witness(member.name, member.address, int(pid) if pid.isdecimal() else 0, member.is_live)
