"""A Client Manager on several simulated groups: one process with a member of each channel's group.

Its members end and start together, as parts of one process do. Each has links to the Message Managers of its channel.
"""

from random import Random
from typing import Any

from alphorn.bus.machine import Deliver
from alphorn.client_manager import machine as cm
from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.desk import Settings
from alphorn.doors import native
from alphorn.model import link
from alphorn.model.conversation import Delivered, FragmentRead
from alphorn.model.ids import IdSource
from alphorn.testing.cluster_plan import LimitsPlan
from alphorn.testing.node import SimulatedNode
from alphorn.testing.rooms import CACHE_BYTES, RELINK_S, MessageManagerRoom
from alphorn.testing.streams import SimulatedStreams, StreamEnd
from alphorn.testing.upper import Turns, Upper
from alphorn.testing.workload import Workload


class Seat(Upper):
    """The process's member of one channel's group, and its links there."""

    __slots__ = (
        "_delivered",
        "_handles",
        "_ordered",
        "_room",
        "links",
        "managers",
        "node",
        "number",
        "origin",
        "streams",
        "workload",
    )

    def __init__(
        self,
        room: "ChannelsRoom",
        number: int,
        node: SimulatedNode,
        workload: Workload,
        streams: SimulatedStreams,
        managers: list[MessageManagerRoom],
    ) -> None:
        self._room = room
        self.number = number
        self.node = node
        self.workload = workload
        self.streams = streams
        self.managers = managers
        self.origin = b""
        self.begin()

    def begin(self) -> None:
        """The process is new."""
        self.links: dict[str, StreamEnd] = {}
        self._handles: dict[int, int] = {}  # the bus's to the machine's
        self._ordered: dict[int, int] = {}  # sequence → the machine's handle, until it is delivered
        self._delivered = 0

    @property
    def keeps_state(self) -> bool:
        """See `Upper`."""
        return False

    def on_started(self) -> None:
        """See `Upper`."""
        endpoint: Any = self.node.machine
        self.origin = endpoint.origin
        self._room.on_started(self)

    def on_ended(self) -> None:
        """See `Upper`. It keeps nothing: its member's disk is memory."""
        self.node.disk.lose()
        self._room.on_ended(self)

    def on_resumed(self) -> None:
        """See `Upper`."""
        if self.number == 0:
            self._room.on_resumed()

    def on_deliver(self, output: Deliver) -> None:
        """See `Upper`."""
        self._delivered = output.sequence
        handle = self._ordered.pop(output.sequence, 0)
        self._receive(cm.Committed(self.number, output.sequence, handle, bytes(output.payload)))

    def on_ordered(self, handle: int, sequence: int) -> None:
        """See `Upper`."""
        mine = self._handles.pop(handle)
        if sequence > self._delivered:
            self._ordered[sequence] = mine
        else:
            self._receive(cm.Committed(self.number, sequence, mine, b""))

    def on_refused(self, handle: int, reason: str) -> None:
        """See `Upper`."""
        self._receive(cm.Lost(self.number, self._handles.pop(handle), reason))

    def on_window(self, *, is_open: bool) -> None:
        """See `Upper`."""
        self._receive(cm.Window(self.number, is_open))

    def order(self, handle: int, payload: bytes) -> None:
        """Puts an entry into the log."""
        self._handles[self.workload.next_handle] = handle
        self.workload.order_payload(self.node, payload)

    def _receive(self, item: cm.Input) -> None:
        turns = self._room.turns
        if turns is None:
            return
        endpoint: Any = self.node.machine
        if endpoint.origin != self.origin:
            self.origin = endpoint.origin
            turns.receive(cm.Joined(self.number, self.origin))
        turns.receive(item)

    def open_link(self, turns: Turns, manager: MessageManagerRoom, wait_s: float) -> None:
        """Tries to reach a Message Manager, again and again."""

        def done(end: StreamEnd | None) -> None:
            if not turns.is_alive:
                if end is not None:
                    end.close()
            elif end is None:
                delay_s = wait_s * self.streams.stream.uniform(0.5, 1.5)
                later_s = min(2 * wait_s, RELINK_S[1])
                self.streams.schedule.after(delay_s, self.open_link, turns, manager, later_s)
            else:
                self._on_link(turns, manager, end)

        if turns.is_alive:
            here, there = (self.node.index, self.node.name), (manager.node.index, manager.node.name)
            self.streams.connect(here, there, manager.accept, done)

    def _on_link(self, turns: Turns, manager: MessageManagerRoom, end: StreamEnd) -> None:
        name, number = manager.node.name, self.number

        def on_closed(reason: str) -> None:
            if turns.is_alive:
                del self.links[name]
                turns.receive(cm.Linked(number, name, False))
                self.open_link(turns, manager, RELINK_S[0])

        end.on_frame = lambda data: turns.receive(cm.Told(number, name, link.decode_told(data[link.LENGTH_BYTES :])))
        end.on_closed = on_closed
        self.links[name] = end
        turns.receive(cm.Linked(number, name, True))


class ChannelsRoom:
    """One Client Manager: its clients' streams, and a seat in each channel's group."""

    __slots__ = ("_clients", "_limits", "_next_stream", "channel_names", "machine", "seats", "turns")

    def __init__(self, channel_names: tuple[str, ...], limits: LimitsPlan) -> None:
        self.channel_names = channel_names
        self._limits = limits
        self.seats: list[Seat] = []
        self.turns: Turns | None = None

    @property
    def node(self) -> SimulatedNode:
        """The member whose life is the process's."""
        return self.seats[0].node

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

    def on_started(self, seat: Seat) -> None:
        """A member began: with the last one the process is whole."""
        for other in self.seats:
            if not other.node.is_up:
                other.node.start_again()
                return  # it comes back here
        if self.turns is not None:
            return
        node = self.node
        ids = IdSource(bytes((10, 0, 0, node.index + 1)), 7000 + node.index, unix_s=node.unix_s)
        settings = Settings(
            name=node.name,
            pid=node.run,
            address=node.name,
            channels=len(self.seats),
            channel_names=self.channel_names,
            cache_bytes=CACHE_BYTES,
            session_bytes_max=self._limits.session_bytes_max,
            consumer_bytes_max=self._limits.consumer_bytes_max,
        )
        self.machine = ClientManager(settings, ids, origins=[each.origin for each in self.seats])
        self.turns = Turns(node, self.machine, self._perform)
        self._clients: dict[int, StreamEnd] = {}
        self._next_stream = 0
        for each in self.seats:
            each.begin()
            for manager in each.managers:
                each.open_link(self.turns, manager, RELINK_S[0])

    def on_ended(self, seat: Seat) -> None:
        """A member is gone, and the process with it."""
        self.turns = None
        for other in self.seats:
            if other.node.is_up:
                other.node.end("its process ended")

    def slow_down(self, seconds: float, stream: Random) -> bool:
        """One of its clients takes nothing for a while; False where there is none."""
        turns = self.turns
        if turns is None or not turns.is_alive or not self._clients:
            return False
        number = stream.choice(sorted(self._clients))
        turns.receive(cm.Writable(number, False))
        self.seats[0].streams.schedule.after(seconds, turns.receive, cm.Writable(number, True))
        return True

    def on_resumed(self) -> None:
        """The process goes on after a pause."""
        if self.turns is not None:
            self.turns.resume()

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
            case cm.Order(channel, handle, payload):
                self.seats[channel].order(handle, payload)
            case cm.Ask(channel, name, asked):
                end = self.seats[channel].links.get(name)
                if end is not None:
                    end.send(link.encode(asked))
            case cm.Gauge(number):  # simulated streams take everything
                turns = self.turns
                if number in self._clients and turns is not None:
                    self.seats[0].streams.schedule.after(0.0, turns.receive, cm.Writable(number, True))
            case cm.Hang(number, _):
                end = self._clients.pop(number, None)
                if end is not None:
                    end.close()
            case cm.Log(_, event, details):
                self.node.tell_input(event, details)
