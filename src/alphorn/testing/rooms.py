"""The rooms above the log on simulated members: what the shells in node/ do, in virtual time.

A Message Manager's member has the real engine as its replica, so its checkpoints, and the entries they need, go through
the simulated disk. Links from Client Managers to Message Managers, and clients' connections, are simulated streams.
"""

from random import Random
from typing import Any

from alphorn.bus.entries import Member
from alphorn.bus.machine import Deliver
from alphorn.client_manager import machine as cm
from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.desk import Settings
from alphorn.doors import native
from alphorn.message_manager import machine as mm
from alphorn.message_manager.core import MessageManager
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.status import About
from alphorn.model import frame_kinds, link
from alphorn.model.conversation import Delivered, FragmentRead
from alphorn.model.ids import IdSource, origin_of
from alphorn.model.ranges import RangeSet
from alphorn.testing.node import UNIX_START_S, SimulatedNode
from alphorn.testing.replica import Replica
from alphorn.testing.streams import SimulatedStreams, StreamEnd
from alphorn.testing.upper import Turns, Upper
from alphorn.testing.workload import Workload

CLIENT_MANAGER_TAG = "client_manager"
RELINK_S = (0.02, 0.5)  # first and longest wait before a lost link is tried again
SUPPLY_BYTES_MAX = 500  # so little that an answer often holds a part of what was asked
CACHE_BYTES = 4_000  # so little that bodies are often fetched from a backup


class EngineReplica(Replica):
    """The state of a Message Manager: the engine's."""

    __slots__ = ("_room",)

    def __init__(self, room: "MessageManagerRoom") -> None:
        super().__init__()
        self._room = room

    def needs(self) -> RangeSet:
        """See `Replica`."""
        return self._room.engine.retained()

    def content(self) -> bytes:
        """See `Replica`."""
        return b"".join(self._room.engine.checkpoint())

    def restore(self, content: bytes) -> None:
        """See `Replica`."""
        self._room.restore(Engine.restore([content]))


class MessageManagerRoom(Upper):
    """One Message Manager on its member."""

    __slots__ = ("_ends", "_next_link", "_workload", "machine", "node", "turns")

    def __init__(self, node: SimulatedNode, workload: Workload) -> None:
        self.node = node
        self._workload = workload
        self._begin()

    @property
    def engine(self) -> Engine:
        """The state."""
        return self.machine.engine

    def restore(self, engine: Engine) -> None:
        """Goes on from a checkpoint."""
        self.machine.restore(engine)

    def accept(self, end: StreamEnd) -> bool:
        """A Client Manager connects; False where nobody listens."""
        if not self.node.is_up:
            return False
        self._next_link += 1
        number, turns = self._next_link, self.turns
        self._ends[number] = end
        end.on_frame = lambda data: turns.receive(mm.Asked(number, link.decode_asked(data[link.LENGTH_BYTES :])))
        end.on_closed = lambda reason: self._on_closed(number, turns)
        turns.receive(mm.LinkOpened(number))
        return True

    def on_started(self) -> None:
        """See `Upper`."""
        self._begin()
        self.turns.finish_soon()

    def on_resumed(self) -> None:
        """See `Upper`."""
        self.turns.resume()

    def on_deliver(self, output: Deliver) -> None:
        """See `Upper`."""
        self.turns.receive(mm.Committed(output.sequence, origin_of(output.assignment.id), output.payload))

    def on_member(self, event: str, member: Member) -> None:
        """See `Upper`."""
        if member.tag == CLIENT_MANAGER_TAG and event in ("left", "failed"):
            self.turns.receive(mm.ClientManagerLeft(member.origin))

    def on_primary(self, epoch: int, *, is_self: bool) -> None:
        """See `Upper`."""
        if not is_self:
            self.turns.receive(mm.Demoted(epoch))
            return
        endpoint: Any = self.node.machine
        known = tuple(m.origin for m in endpoint.members() if m.tag == CLIENT_MANAGER_TAG and m.is_live)
        self.turns.receive(mm.Promoted(epoch, endpoint.origin, known))

    def _begin(self) -> None:
        node = self.node
        about = About(name=node.name, pid=node.run, address=node.name, channel="main", rank=node.me.rank)
        skew_s = node.clock_skew_s
        self.machine = MessageManager(
            about, wall_ms=lambda now: int((UNIX_START_S + skew_s + node.virtual(now)) * 1000), read=self._read
        )
        self.turns = Turns(node, self.machine, self._perform)
        self._ends: dict[int, StreamEnd] = {}
        self._next_link = 0

    def read(self, sequence: int) -> bytes | None:
        """A log entry that is on this node's disk."""
        return self._read(sequence)

    def _read(self, sequence: int) -> bytes | None:
        found = self.node.disk.entry(sequence)
        return bytes(found) if isinstance(found, bytes | memoryview) else None

    def _on_closed(self, number: int, turns: Turns) -> None:
        if turns is self.turns and self._ends.pop(number, None) is not None:
            turns.receive(mm.LinkClosed(number))

    def _perform(self, output: mm.Output) -> None:
        match output:
            case mm.Tell(number, frame):
                self._say(number, frame)
            case mm.Order(payload):
                self._workload.order_payload(self.node, payload)
            case mm.Supply(number, request, sequences):
                self._say(number, link.Entries(request, self._supply(sequences)))
            case mm.Break(number, _):
                end = self._ends.get(number)
                if end is not None:
                    end.close()
                    self._on_closed(number, self.turns)
            case mm.Log(_, event, details):
                self.node.tell_input(event, details)

    def _supply(self, sequences: list[int]) -> list[tuple[int, memoryview]]:
        found: list[tuple[int, memoryview]] = []
        for sequence in sequences:
            payload = self._read(sequence)
            if payload is not None:
                found.append((sequence, memoryview(payload)))
            if sum(len(entry) for _, entry in found) >= SUPPLY_BYTES_MAX:
                break
        return found

    def _say(self, number: int, frame: frame_kinds.Told) -> None:
        end = self._ends.get(number)
        if end is not None:
            end.send(link.encode(frame))


class ClientManagerRoom(Upper):
    """One Client Manager on its member: its clients' streams, its links, its place on the log."""

    __slots__ = (
        "_clients",
        "_consumer_bytes_max",
        "_delivered",
        "_handles",
        "_links",
        "_managers",
        "_next_stream",
        "_ordered",
        "_origin",
        "_session_bytes_max",
        "_streams",
        "_workload",
        "machine",
        "node",
        "turns",
    )

    def __init__(
        self,
        node: SimulatedNode,
        workload: Workload,
        streams: SimulatedStreams,
        managers: list[MessageManagerRoom],
        *,
        session_bytes_max: int,
        consumer_bytes_max: int,
    ) -> None:
        self.node = node
        self._session_bytes_max = session_bytes_max
        self._consumer_bytes_max = consumer_bytes_max
        self._workload = workload
        self._streams = streams
        self._managers = managers
        self.turns: Turns | None = None

    @property
    def keeps_state(self) -> bool:
        """See `Upper`."""
        return False

    @property
    def name(self) -> str:
        """Of the process."""
        return self.node.name

    @property
    def place(self) -> int:
        """In the network."""
        return self.node.index

    def accept(self, end: StreamEnd) -> bool:
        """A client connects; False where nobody listens."""
        turns = self.turns
        if turns is None or not self.node.is_up:
            return False
        self._next_stream += 1
        number = self._next_stream
        self._clients[number] = end
        end.on_frame = lambda data: turns.receive(cm.Said(number, native.decode_client(data[native.LENGTH_BYTES :])))
        end.on_closed = lambda reason: self._on_closed(number, turns, reason)
        turns.receive(cm.Opened(number))
        return True

    def slow_down(self, seconds: float, stream: Random) -> bool:
        """One of its clients takes nothing for a while; False where there is none."""
        turns = self.turns
        if turns is None or not turns.is_alive or not self._clients:
            return False
        number = stream.choice(sorted(self._clients))
        turns.receive(cm.Writable(number, False))
        self._streams.schedule.after(seconds, turns.receive, cm.Writable(number, True))
        return True

    def on_started(self) -> None:
        """See `Upper`."""
        node = self.node
        endpoint: Any = node.machine
        ids = IdSource(bytes((10, 0, 0, node.index + 1)), 7000 + node.index, unix_s=node.unix_s)
        settings = Settings(
            name=node.name,
            pid=node.run,
            address=node.name,
            cache_bytes=CACHE_BYTES,
            session_bytes_max=self._session_bytes_max,
            consumer_bytes_max=self._consumer_bytes_max,
        )
        self._origin: bytes = endpoint.origin
        self.machine = ClientManager(settings, ids, origins=[self._origin])
        self.turns = Turns(node, self.machine, self._perform)
        self._clients: dict[int, StreamEnd] = {}
        self._links: dict[str, StreamEnd] = {}
        self._handles: dict[int, int] = {}  # the bus's to the machine's
        self._ordered: dict[int, int] = {}  # sequence → the machine's handle, until it is delivered
        self._delivered = 0
        self._next_stream = 0
        for manager in self._managers:
            self._open_link(self.turns, manager, RELINK_S[0])

    def on_ended(self) -> None:
        """See `Upper`. It keeps nothing: its member's disk is memory."""
        self.node.disk.lose()

    def on_resumed(self) -> None:
        """See `Upper`."""
        if self.turns is not None:
            self.turns.resume()

    def on_deliver(self, output: Deliver) -> None:
        """See `Upper`."""
        self._delivered = output.sequence
        handle = self._ordered.pop(output.sequence, 0)
        self._receive(cm.Committed(0, output.sequence, handle, bytes(output.payload)))

    def on_ordered(self, handle: int, sequence: int) -> None:
        """See `Upper`."""
        mine = self._handles.pop(handle)
        if sequence > self._delivered:
            self._ordered[sequence] = mine
        else:
            self._receive(cm.Committed(0, sequence, mine, b""))

    def on_refused(self, handle: int, reason: str) -> None:
        """See `Upper`."""
        self._receive(cm.Lost(0, self._handles.pop(handle), reason))

    def on_window(self, *, is_open: bool) -> None:
        """See `Upper`."""
        self._receive(cm.Window(0, is_open))

    def _receive(self, item: cm.Input) -> None:
        assert self.turns is not None
        endpoint: Any = self.node.machine
        if endpoint.origin != self._origin:
            self._origin = endpoint.origin
            self.turns.receive(cm.Joined(0, self._origin))
        self.turns.receive(item)

    def _on_closed(self, number: int, turns: Turns, reason: str) -> None:
        if turns is self.turns and self._clients.pop(number, None) is not None:
            turns.receive(cm.Closed(number, reason))

    def _perform(self, output: cm.Output) -> None:
        match output:
            case cm.Reply(number, frame):
                end = self._clients.get(number)
                if end is not None and isinstance(frame, Delivered | FragmentRead):
                    end.send(b"".join(native.encode_parts(frame)))
                elif end is not None:
                    end.send(native.encode(frame))
            case cm.Order(_, handle, payload):
                self._handles[self._workload.next_handle] = handle
                self._workload.order_payload(self.node, payload)
            case cm.Ask(_, name, asked):
                end = self._links.get(name)
                if end is not None:
                    end.send(link.encode(asked))
            case cm.Gauge(number):  # simulated streams take everything
                turns = self.turns
                if number in self._clients and turns is not None:
                    self._streams.schedule.after(0.0, turns.receive, cm.Writable(number, True))
            case cm.Hang(number, _):
                end = self._clients.pop(number, None)
                if end is not None:
                    end.close()
            case cm.Log(_, event, details):
                self.node.tell_input(event, details)

    # --- links ---

    def _open_link(self, turns: Turns, manager: MessageManagerRoom, wait_s: float) -> None:
        def done(end: StreamEnd | None) -> None:
            if not turns.is_alive:
                if end is not None:
                    end.close()
            elif end is None:
                delay_s = wait_s * self._streams.stream.uniform(0.5, 1.5)
                later_s = min(2 * wait_s, RELINK_S[1])
                self._streams.schedule.after(delay_s, self._open_link, turns, manager, later_s)
            else:
                self._on_link(turns, manager, end)

        if turns.is_alive:
            here, there = (self.node.index, self.node.name), (manager.node.index, manager.node.name)
            self._streams.connect(here, there, manager.accept, done)

    def _on_link(self, turns: Turns, manager: MessageManagerRoom, end: StreamEnd) -> None:
        name = manager.node.name

        def on_closed(reason: str) -> None:
            if turns.is_alive:
                del self._links[name]
                turns.receive(cm.Linked(0, name, False))
                self._open_link(turns, manager, RELINK_S[0])

        end.on_frame = lambda data: turns.receive(cm.Told(0, name, link.decode_told(data[link.LENGTH_BYTES :])))
        end.on_closed = on_closed
        self._links[name] = end
        turns.receive(cm.Linked(0, name, True))
