"""A Message Manager on a simulated member: what its shell in node/ does, in virtual time.

Its member has the real engine as its replica, so its checkpoints, and the entries they need, go through the simulated
disk. Links from Client Managers (client_manager_room.py) are simulated streams.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import msgspec

from alphorn.bus.config import Role
from alphorn.bus.entries import Member
from alphorn.bus.machine import Deliver
from alphorn.io.cluster_file import CLIENT_MANAGER_TAG, SHARED_TAG
from alphorn.message_manager import machine as mm
from alphorn.message_manager.core import MessageManager
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.own_orders import OwnOrders
from alphorn.message_manager.status import About
from alphorn.model import frame_kinds, link
from alphorn.model.ids import origin_of
from alphorn.model.ranges import RangeSet
from alphorn.testing.node import UNIX_START_S, SimulatedNode
from alphorn.testing.replica import Given, Replica
from alphorn.testing.streams import StreamEnd
from alphorn.testing.upper import Turns, Upper
from alphorn.testing.workload import Workload

CLIENT_MANAGER_TAGS = (CLIENT_MANAGER_TAG, SHARED_TAG)
SUPPLY_BYTES_MAX = 500  # so little that an answer often holds a part of what was asked


class EngineReplica(Replica):
    """The state of a Message Manager: the engine's."""

    __slots__ = ("_room",)

    def __init__(self, room: "MessageManagerRoom") -> None:
        super().__init__()
        self._room = room

    def needs(self) -> RangeSet:
        """See `Replica`."""
        return self._room.engine.retained()

    def give(self) -> Given:
        """See `Replica`: in the smallest pieces there are."""
        snapshot = self._room.engine.snapshot(piece_bytes=1)
        return Given(self, snapshot, snapshot.needed, snapshot.close)

    def restore(self, content: bytes) -> None:
        """See `Replica`."""
        self._room.restore(Engine.restore([content]))


class GuestUpper(Upper, ABC):
    """What else stands on a Message Manager's member: a Client Manager of the same process."""

    __slots__ = ()

    @abstractmethod
    def on_restored(self, sequence: int) -> None:
        """The host goes on from a checkpoint."""

    @abstractmethod
    def is_mine(self, handle: int) -> bool:
        """Whether the guest ordered it, and not the host."""


class MessageManagerRoom(Upper):
    """One Message Manager on its member, alone or with a guest."""

    __slots__ = (
        "_ends",
        "_guest",
        "_next_link",
        "_own_orders",
        "_workload",
        "giving",
        "hearing",
        "machine",
        "node",
        "turns",
    )

    def __init__(self, node: SimulatedNode, workload: Workload) -> None:
        self.node = node
        self.giving: list[Callable[[MessageManagerRoom, link.Deliver], None]] = []  # hear what it gives out
        # Called before it hears an entry of the log, unless it stands still; what they give is called after that.
        self.hearing: list[Callable[[MessageManagerRoom, Deliver], Callable[[], None] | None]] = []
        self._guest: GuestUpper | None = None
        self._workload = workload
        self._begin()

    @property
    def engine(self) -> Engine:
        """The state."""
        return self.machine.engine

    def restore(self, engine: Engine) -> None:
        """Goes on from a checkpoint."""
        self.machine.restore(engine)
        if self._guest is not None:
            self._guest.on_restored(engine.sequence)

    def lodge(self, guest: GuestUpper) -> None:
        """Lets a Client Manager take part by this one's member; before its first start."""
        self._guest = guest
        me = self.node.me
        self.node.me = msgspec.structs.replace(me, tag=SHARED_TAG, roles=me.roles | Role.READER)

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
        if self._guest is not None:
            self._guest.on_started()

    def on_ended(self) -> None:
        """See `Upper`."""
        if self._guest is not None:
            self._guest.on_ended()

    def on_resumed(self) -> None:
        """See `Upper`."""
        self.turns.resume()
        if self._guest is not None:
            self._guest.on_resumed()

    def on_deliver(self, output: Deliver) -> None:
        """See `Upper`."""
        assignment = output.assignment
        heard = [callback(self, output) for callback in self.hearing] if self.node.is_running else []
        self.turns.receive(mm.Committed(output.sequence, origin_of(assignment.id), output.payload, assignment.epoch))
        for callback in heard:
            if callback is not None:
                callback()
        if self._guest is not None:
            self._guest.on_deliver(output)

    def on_ordered(self, handle: int, sequence: int) -> None:
        """See `Upper`."""
        if self._guest is not None and self._guest.is_mine(handle):
            self._guest.on_ordered(handle, sequence)
        else:
            self._own_orders.landed(handle)

    def on_refused(self, handle: int, reason: str, *, is_unknown: bool) -> None:
        """See `Upper`."""
        if self._guest is not None and self._guest.is_mine(handle):
            self._guest.on_refused(handle, reason, is_unknown=is_unknown)
            return
        payload = self._own_orders.refused(handle, is_unknown=is_unknown)
        if payload is not None:
            self._order(payload)

    def _order(self, payload: bytes) -> None:
        self._own_orders.ordered(self._workload.next_handle, payload)
        self._workload.order_payload(self.node, payload)

    def on_window(self, *, is_open: bool) -> None:
        """See `Upper`."""
        if self._guest is not None:
            self._guest.on_window(is_open=is_open)

    def on_synchronised(self, *, is_synchronised: bool) -> None:
        """See `Upper`."""
        if self._guest is not None:
            self._guest.on_synchronised(is_synchronised=is_synchronised)

    @property
    def keeps_state(self) -> bool:
        """See `Upper`."""
        return self._guest is None or self._guest.keeps_state

    def on_member(self, event: str, member: Member) -> None:
        """See `Upper`."""
        if member.tag in CLIENT_MANAGER_TAGS and event in ("left", "failed"):
            self.turns.receive(mm.ClientManagerLeft(member.origin))
        elif member.tag in CLIENT_MANAGER_TAGS and event == "joined":
            self.turns.receive(mm.ClientManagerJoined(member.origin))

    def on_primary(self, epoch: int, *, is_self: bool, members: tuple[Member, ...]) -> None:
        """See `Upper`."""
        if not is_self:
            self.turns.receive(mm.Demoted(epoch))
            return
        endpoint: Any = self.node.machine
        known = tuple(m.origin for m in members if m.tag in CLIENT_MANAGER_TAGS and m.is_live)
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
        self._own_orders = OwnOrders()
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
                if isinstance(frame, link.Deliver):
                    for callback in self.giving:
                        callback(self, frame)
                self._say(number, frame)
            case mm.Order(payload):
                self._order(payload)
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
