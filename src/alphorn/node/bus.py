"""Runs the room `bus/`: one member of one group, from its disk to the network, for an upper layer.

Everything happens in turns of one event loop (io/driver.py): what arrived goes into the endpoint, and what it wants
done is done here, in one `match`, in order. At the end of a turn datagrams leave and the turn's view of the disk is
given back.

A member that cannot go on (a failed disk, a broken invariant, a `Stop` of the protocol) falls silent at once and says
why: to the upper layer by `on_stop`, to its owner by `stopped`. It is never restarted within the process.
"""

import asyncio
import logging
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from alphorn.bus.config import Budget, GroupConfig, MemberConfig, Role, Timing
from alphorn.bus.endpoint import Endpoint
from alphorn.bus.entries import Assignment, Member
from alphorn.bus.machine import (
    CheckpointWritten,
    Deliver,
    Durable,
    Goodbye,
    Input,
    InstallCheckpoint,
    Machine,
    MemberChanged,
    Order,
    Ordered,
    Output,
    Persist,
    PrimaryChanged,
    Received,
    Refused,
    Send,
    Stop,
    SynchronisedChanged,
    TakeCheckpoint,
    Trace,
    WindowChanged,
)
from alphorn.bus.storage import CheckpointInfo, Storage
from alphorn.io.checkpoint_writing import CheckpointWriting
from alphorn.io.connections import ConnectionSettings
from alphorn.io.disk import DiskSpace
from alphorn.io.driver import Driver
from alphorn.io.homes import Home, Homes
from alphorn.io.memory_storage import MemoryStorage
from alphorn.io.multicast import MulticastSettings
from alphorn.io.process import keep_freed_memory
from alphorn.io.store import MAP_BYTES, Store
from alphorn.io.transport import Transport, TransportSettings
from alphorn.model.errors import Misuse, Unavailable
from alphorn.model.ids import host_bytes
from alphorn.model.ranges import RangeSet
from alphorn.node.checkpointing import Checkpointing
from alphorn.node.installing import Installing
from alphorn.node.retained import Retained

# So little of one turn's writes is written to disk within the turn. More takes long enough to be left to a thread.
AHEAD_BYTES_MAX = 8 << 10
LACKING_S = 5.0  # after which a member says what it lacks and nobody gives
PATIENCE_S = 0.002  # so long frames that can wait are kept for the next turn

_log = logging.getLogger(__name__)


class Upper(Protocol):
    """What stands on the log. Called within a turn: it may call `order`, and must not block.

    Payloads may be views that end with the turn; what is kept must be copied. An exception stops the member.
    """

    def on_deliver(self, sequence: int, assignment: Assignment, payload: bytes | memoryview) -> None:
        """The next committed batch; numbers only grow, and are the same everywhere."""

    def on_ordered(self, handle: int, sequence: int) -> None:
        """The batch that `order` took is committed."""

    def on_refused(self, handle: int, reason: str, *, is_unknown: bool) -> None:
        """The batch was not taken; or, when unknown, it may yet be committed or not."""

    def on_window(self, *, is_open: bool) -> None:
        """Whether to order more now, or to wait."""

    def on_member(self, sequence: int, event: str, member: Member) -> None:
        """Someone joined, left or failed, or a voter was added or removed, at this place of the log."""

    def on_primary(self, sequence: int, epoch: int, number: int, *, is_self: bool, members: tuple[Member, ...]) -> None:
        """Who is primary from this place of the log on, and who was in the group there."""

    def on_synchronised(self, *, is_synchronised: bool) -> None:
        """Whether this member follows the log closely."""

    def give_checkpoint(self, sequence: int) -> Iterable[bytes]:
        """The state exactly as it is now, after `sequence`: the same bytes on every member, in pieces of any size.

        They are taken one by one, in this turn and between later ones, while the log goes on; each should be little
        work, and may be empty. The next call comes after the last piece was taken, unless `install_checkpoint` comes
        between: then nobody takes the rest.
        """

    def retained(self, sequence: int) -> RangeSet:
        """The entries at or before `sequence` that the state there needs, which was just given or installed.

        They are kept when the log is collected, and others are dropped, once that checkpoint is durable. What one state
        does not need, no later one may need.
        """

    def install_checkpoint(self, sequence: int, chunks: Iterator[bytes]) -> Awaitable[None] | None:
        """Replaces the state by the bytes that another member, or this one in an earlier run, gave; cut differently.

        Returns None when done, or something to wait for where entries must be fetched first (`BusNode.read_entry`,
        `put_retained`): until then nothing is delivered, and this member is not synchronised and never primary. Raises
        `Unavailable`, at once or later, when a needed entry is nowhere any more: a newer checkpoint follows. When one
        follows for another reason, what was waited for is cancelled; it may notice after the newer one was given.
        """

    def on_stop(self, reason: str) -> None:
        """This member has fallen silent and does nothing more."""


class BusMachine(Machine, Protocol):
    """An endpoint: a machine that knows its run."""

    @property
    def origin(self) -> bytes:
        """The origin in all its frames."""

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The data servers that have all that is committed."""

    @property
    def lacking(self) -> str:
        """What this member waits for that only others can give, in one sentence; empty where it lacks nothing."""

    def can_wait(self, datagram: bytes | memoryview) -> bool:
        """Whether a datagram may be handed over together with the next."""


class LogStore(Storage, Protocol):
    """Where the endpoint reads and the node writes: io.store.Store, or io.memory_storage.MemoryStorage."""

    def submit(self, persist: Persist) -> None:
        """Takes over writes; raises `Unavailable` when the disk has failed."""

    def begin_checkpoint(self, sequence: int, epoch: int, state: bytes) -> CheckpointWriting:
        """Takes the upper layer's state chunk by chunk."""

    def retain(self, sequence: int, needed: RangeSet) -> None:
        """Keeps the entries that an installed checkpoint needs."""

    def put_retained(self, sequence: int, payload: bytes, on_written: Callable[[], None]) -> None:
        """Stores an entry that is missing or damaged."""

    def end_turn(self) -> None:
        """Views handed out are no longer used."""

    def close(self) -> None:
        """Writes what is queued."""

    def describe(self) -> dict[str, object]:
        """The printable state."""


class BusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One member of one group on this machine."""

    config: GroupConfig
    me: MemberConfig  # its address is IPv4 host:port; port 0 takes a free one, for members that are not configured
    store: Path | None = None  # directory of the store; None for a client, which keeps nothing
    store_bytes_max: int = MAP_BYTES
    linger_s: float = 0.0  # how long its store waits for more before it writes what is not urgent
    founding: bool = False  # only at the very first start of a configured member
    site: int | None = None  # site id, where addresses are private and may repeat between sites
    interface: str = ""  # by name, where the address is not the first of its interface
    data_address: str = ""  # "host:port" of the group's bulk lane; empty derives it from the group's id
    control_address: str = ""  # of the control lane
    further: tuple[Home, ...] = ()  # this member's places on further buses
    aliases: dict[str, str] = {}  # configured address of a member → its address on the bus that this one is on
    ttl: int = 1  # routers that multicast may cross, plus one
    reads: bool = True  # False for a witness: it votes, is given no batches, and joins the control lane only
    history: bool = True  # False begins at the newest number; only for members that keep no log
    is_tracing: bool = False  # logs every step of the protocol, for finding faults
    cluster_key: Path | None = None  # seals everything said; the same key on all members
    capture: Path | None = None  # records every frame
    timing: Timing = Timing()
    budget: Budget = Budget()  # datagram_bytes is lowered to what the interface carries
    connections: ConnectionSettings = ConnectionSettings()

    def transport(self) -> TransportSettings:
        """The part that the transport needs; raises `Misuse` for an address without a port."""
        host, _, port = self.me.address.rpartition(":")
        if not port.isdigit():
            raise Misuse(f"member {self.me.name} has the address {self.me.address!r}; write it as host:port")
        multicast = MulticastSettings(
            group=self.config.group,
            host=host,
            port=int(port),
            interface=self.interface,
            data=self.data_address,
            control=self.control_address,
            ttl=self.ttl,
            receives_data=self.reads or Role.DATA in self.me.roles,
        )
        return TransportSettings(
            multicast=multicast, connections=self.connections, cluster_key=self.cluster_key, capture=self.capture
        )


class BusNode:
    """One member. `start`, `order` any number of batches, `stop`. All calls belong to the thread of the event loop.

    `machine` makes the endpoint; another than the real one takes the same parameters.
    """

    def __init__(self, settings: BusSettings, upper: Upper, *, machine: Callable[..., BusMachine] = Endpoint) -> None:
        settings.config.check()
        self._settings = settings
        self._upper = upper
        self._make_machine = machine
        self._transport_settings = settings.transport()
        self._handle = 0
        self._patient: list[bytes] = []  # frames that wait for others

    @property
    def address(self) -> str:
        """Where other members reach this one, once started."""
        return self._transport.address

    @property
    def origin(self) -> bytes:
        """This run of this member, once started: the first ten bytes of the ids of its batches."""
        return self._machine.origin

    @property
    def copies(self) -> int:
        """How many data servers have all that is committed, once started."""
        return len(self._machine.in_sync)

    async def start(self) -> None:
        """Opens disk and network and begins to take part.

        Raises `Misuse` or `Corruption`, with everything closed again, when this member cannot start as it is set up.
        """
        keep_freed_memory()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.stopped: asyncio.Future[str] = self._loop.create_future()  # gets the reason
        self._store: LogStore = self._open_store()
        self._retained = Retained(self._store, self._loop)
        self._installing = Installing(self._store, self._upper, tell=self._driver_receive, fail=self._on_failure)
        self._checkpointing = Checkpointing(
            self._store,
            self._upper,
            chunk_bytes=self._settings.budget.chunk_bytes,
            on_written=self._on_checkpoint_written,
            fail=self._on_failure,
        )
        try:
            self._transport = self._make_transport()
        except BaseException:
            self._store.close()
            raise
        try:
            self._transport.open()
            self._machine = self._build_machine()
            self._driver: Driver[Input, Output] = Driver(
                self._machine,
                perform=self._perform,
                end_turn=self._end_turn,
                on_failure=self._on_failure,
                hear=self._hear,
            )
            await self._transport.start(self._machine.origin)
        except BaseException:
            await self._transport.close()
            self._store.close()
            raise
        self._driver.start()
        self._lacking = self._loop.call_later(LACKING_S, self._tell_lacking, self._machine.lacking)

    def _make_transport(self) -> Transport | Homes:
        settings = self._settings
        if settings.further or settings.aliases:
            return Homes(self._transport_settings, settings.further, settings.aliases, on_frames=self._on_frames)
        return Transport(self._transport_settings, on_frames=self._on_frames)

    async def stop(self) -> None:
        """Says goodbye, if this member has not fallen silent already, and closes everything."""
        self._lacking.cancel()
        if not self._driver.is_closed:
            self._driver.receive(Goodbye())
            self._driver.finish_turn()
            self._halt("it was told to stop", level=logging.INFO)
        await self._installing.close()
        await self._transport.close()
        self._store.close()

    def order(self, payload: bytes) -> int:
        """Asks for a place in the log; `on_ordered` or `on_refused` answers with the handle returned here.

        The batch leaves at the end of the turn, together with all that was ordered meanwhile. Raises `Unavailable` when
        this member has stopped.
        """
        if self._driver.is_closed:
            raise Unavailable(f"member {self._settings.me.name} has stopped; start it again, or use another")
        self._handle += 1
        self._driver.receive(Order(payload, self._handle))
        return self._handle

    def read_entry(self, sequence: int) -> bytes | memoryview | None:
        """An entry of the log, or one retained after its collection; None where it is not here, or damaged.

        A view ends with the turn, or for a caller outside of one with its next `await`.
        """
        return self._retained.read(sequence)

    def put_retained(self, sequence: int, payload: bytes) -> "asyncio.Future[None]":
        """Stores an entry, fetched from a peer, that `read_entry` does not find; the future is done when it is durable.

        The number is at or before the newest checkpoint. Raises `Misuse` for another, or for bytes that are not what
        the log has there; and `Unavailable`, also in the future, when the store has stopped.
        """
        return self._retained.put(sequence, payload)

    def store_bytes(self) -> tuple[int, int, DiskSpace]:
        """How much of its store is in use, and at most may be, and how its disk stands; no bytes without a store."""
        if not isinstance(self._store, Store):
            return 0, 0, DiskSpace(0, 0)
        return self._store.used_bytes(), self._settings.store_bytes_max, self._store.disk_space()

    def tell(self, item: Input) -> None:
        """Hands an administrator's wish (`ChangeVoters`, `ChangeInterval`) to the endpoint."""
        self._driver.receive(item)

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return {
            "endpoint": self._machine.describe(),
            "transport": self._transport.describe(),
            "store": self._store.describe(),
            "checkpoints": self._checkpointing.describe(),
            "turns": self._driver.turns,
        }

    def _perform(self, output: Output) -> None:
        match output:
            case Send(to, parts):
                self._transport.send(to, parts)
            case Deliver(sequence, assignment, payload):
                self._upper.on_deliver(sequence, assignment, payload)
            case Persist():
                self._store.submit(output)
            case Ordered(handle, sequence):
                self._upper.on_ordered(handle, sequence)
            case Trace(event, details):
                _log.debug("event=%s member=%s %s", event, self._settings.me.name, details)
            case WindowChanged(is_open):
                self._upper.on_window(is_open=is_open)
            case Refused(handle, reason, is_unknown):
                self._upper.on_refused(handle, reason, is_unknown=is_unknown)
            case MemberChanged(sequence, event, member):
                self._upper.on_member(sequence, event, member)
            case PrimaryChanged(sequence, epoch, number, is_self, members):
                self._upper.on_primary(sequence, epoch, number, is_self=is_self, members=members)
            case SynchronisedChanged(is_synchronised):
                self._upper.on_synchronised(is_synchronised=is_synchronised)
            case TakeCheckpoint(sequence, epoch, state):
                self._checkpointing.begin(sequence, epoch, state)
            case InstallCheckpoint(sequence):
                self._checkpointing.abandon()
                self._installing.begin(sequence)
            case Stop(reason):
                self._halt(reason)
            case _:
                raise AssertionError(f"the node does not know the output {output!r}")

    def _end_turn(self) -> None:
        self._transport.flush()  # First: frames may refer to the store's views.
        self._store.end_turn()

    def _on_frames(self, frames: list[bytes]) -> None:
        """Hands over what arrived, in order; what can wait causes no turn of its own while others are expected."""
        if all(map(self._machine.can_wait, frames)):
            if not self._patient:
                self._loop.call_later(PATIENCE_S, self._hear_patient)
            self._patient += frames
            return
        if self._patient:
            frames = self._patient + frames
            self._patient = []
        self._driver.receive_all(map(Received, frames))

    def _hear_patient(self) -> None:
        frames, self._patient = self._patient, []
        if frames:
            self._driver.receive_all(map(Received, frames))

    def _hear(self) -> None:
        self._transport.hear()
        self._hear_patient()

    # The store calls these three, on its own thread or this one.

    def _on_durable(self, token: int) -> None:
        if threading.get_ident() == self._thread:  # within the end of a turn
            self._driver.receive(Durable(token))
        else:
            self._loop.call_soon_threadsafe(self._driver_receive, Durable(token))

    def _on_checkpoint_written(self, info: CheckpointInfo) -> None:
        self._loop.call_soon_threadsafe(self._driver_receive, CheckpointWritten(info.sequence))

    def _on_store_failure(self, reason: str) -> None:
        self._loop.call_soon_threadsafe(self._halt, reason)

    def _driver_receive(self, item: Input) -> None:
        self._driver.receive(item)

    def _on_failure(self, error: BaseException) -> None:
        self._halt(f"{type(error).__name__}: {error}")

    def _halt(self, reason: str, *, level: int = logging.ERROR) -> None:
        self._driver.close()
        self._checkpointing.abandon()
        if self.stopped.done():
            return
        self._installing.cancel()
        self._retained.fail(reason)
        _log.log(level, "event=member_stopped member=%s reason=%s", self._settings.me.name, reason)
        self.stopped.set_result(reason)
        self._upper.on_stop(reason)

    def _tell_lacking(self, before: str, told: str = "") -> None:
        """Says once what this member has lacked for a while."""
        if self._driver.is_closed:
            return
        lacking = self._machine.lacking
        if lacking and lacking == before != told:
            told = lacking
            _log.warning("event=log_lacking member=%s text=%s", self._settings.me.name, lacking)
            print(f"alphorn: {lacking}", file=sys.stderr, flush=True)
        self._lacking = self._loop.call_later(LACKING_S, self._tell_lacking, lacking, told)

    def _open_store(self) -> LogStore:
        if self._settings.store is None:
            return MemoryStorage(on_durable=self._on_durable)
        return Store(
            self._settings.store,
            on_durable=self._on_durable,
            on_failure=self._on_store_failure,
            map_bytes=self._settings.store_bytes_max,
            linger_s=self._settings.linger_s,
            ahead_bytes_max=AHEAD_BYTES_MAX,
        )

    def _build_machine(self) -> BusMachine:
        settings, address = self._settings, self._transport.address
        host, _, port = address.rpartition(":")
        budget = msgspec.structs.replace(
            settings.budget,
            datagram_bytes=min(settings.budget.datagram_bytes, self._transport.datagram_bytes),
            # What is under way must fit the receive buffers, which count the kernel's bookkeeping too, or it is
            # dropped and sent twice.
            window_bytes=min(settings.budget.window_bytes, self._transport.buffer_bytes // 2),
        )
        return self._make_machine(
            config=settings.config,
            me=msgspec.structs.replace(settings.me, address=address),
            storage=self._store,
            host=host_bytes(host, site=settings.site),
            port=int(port),
            unix_s=time.time(),
            founding=settings.founding,
            random=random.Random(),
            timing=settings.timing,
            budget=budget,
            now=self._loop.time(),
            reads=settings.reads,
            history=settings.history,
            is_tracing=settings.is_tracing,
        )
