"""A Client Manager on simulated groups: one process with a seat in each channel's group.

A seat is a member of its own, or that of a Message Manager in the same process. Its members end and start together, as
parts of one process do. Each has links to the Message Managers of its channel.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from alphorn.bus.config import MemberConfig, Role
from alphorn.bus.machine import Deliver
from alphorn.client_manager import machine as cm
from alphorn.client_manager.channel import ENTRY_WORK, UNDER_WAY_MAX
from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.desk import Settings
from alphorn.client_manager.hearing import Hearing
from alphorn.doors import native
from alphorn.io.cluster_file import CLIENT_MANAGER_TAG
from alphorn.model import frame_kinds, link
from alphorn.model.commands import SIGNET_BYTES
from alphorn.model.conversation import Delivered, FragmentRead
from alphorn.model.ids import IdSource
from alphorn.testing.cluster_plan import LimitsPlan
from alphorn.testing.node import SimulatedNode
from alphorn.testing.rooms import GuestUpper, MessageManagerRoom
from alphorn.testing.schedule import Schedule
from alphorn.testing.simulated_channel import SimulatedChannel
from alphorn.testing.streams import StreamEnd
from alphorn.testing.upper import Turns

RELINK_S = (0.02, 0.5)  # first and longest wait before a lost link is tried again
SIGNET = b"s" * SIGNET_BYTES
CACHE_BYTES = 20_000  # so little that bodies are often fetched from a backup


class ClientManagerRoom:
    """One Client Manager: its clients' streams, and a seat in each channel's group."""

    __slots__ = (
        "_channel_names",
        "_clients",
        "_knows_signet",
        "_limits",
        "_next_stream",
        "_schedule",
        "_seats",
        "_unheard",
        "handing",
        "largest_frame_bytes",
        "machine",
        "turns",
    )

    def __init__(
        self,
        name: str,
        channels: list[SimulatedChannel],
        limits: LimitsPlan,
        hosts: Sequence[MessageManagerRoom] = (),
        *,
        knows_signet: bool = True,
    ) -> None:
        """`hosts` are the Message Managers of its process, one of each channel; without any it has members.

        Where it does not know the signet, it asks for it at each start.
        """
        self._knows_signet = knows_signet
        self._channel_names = tuple(channel.name for channel in channels)
        self._limits = limits
        self._schedule: Schedule = channels[0].simulation.schedule
        if hosts:
            pairs = zip(channels, hosts, strict=True)
            self._seats: list[Seat] = [GuestSeat(self, channel, host) for channel, host in pairs]
        else:
            self._seats = [Seat(self, channel, _add_member(channel, name)) for channel in channels]
        self.turns: Turns | None = None
        self.handing: list[Callable[[int, int, bytes], None]] = []  # hear of channel, handle and bytes of its entries
        self.largest_frame_bytes = 0  # of all that clients have said

    @property
    def node(self) -> SimulatedNode:
        """The member whose life is the process's."""
        return self._seats[0].node

    @property
    def name(self) -> str:
        """Of the process."""
        return self.node.name

    @property
    def members(self) -> list[Any]:
        """The machines of its members."""
        return [seat.node.machine for seat in self._seats]

    @property
    def place(self) -> int:
        """In the network."""
        return self.node.index

    @property
    def places(self) -> list[int]:
        """Of its members, each in its group's network."""
        return [seat.node.index for seat in self._seats]

    @property
    def held(self) -> int:
        """The most messages that one of its consumers has."""
        machine: Any = self.machine
        return max((len(consumer.held) for consumer in machine._desk.consumers.values()), default=0)

    @property
    def carries(self) -> bool:
        """Whether it carries any destination to another channel."""
        machine: Any = self.machine
        return self.node.is_up and bool(machine.describe()["carrying"])

    def freeze(self) -> None:
        """The process stands still, with all its members."""
        for seat in self._seats:
            seat.node.pause()

    def thaw(self) -> None:
        """It goes on as if nothing had happened."""
        for seat in self._seats:
            seat.node.resume()

    def accept(self, end: StreamEnd) -> bool:
        """A client connects; False where nobody listens."""
        turns = self.turns
        if turns is None or not self.node.is_up:
            return False
        self._next_stream += 1
        number = self._next_stream
        self._clients[number] = end
        end.on_frame = lambda data: self._on_said(number, turns, data)
        end.on_closed = lambda reason: self._on_closed(number, turns, reason)
        turns.receive(cm.Opened(number))
        return True

    def on_started(self) -> None:
        """A member began: with the last one the process is whole."""
        for seat in self._seats:
            if not seat.node.is_up:
                seat.node.start_again()
                return  # it comes back here
        node = self.node
        ids = IdSource(bytes((10, 0, 0, node.index + 1)), 7000 + node.index, unix_s=node.start_unix_s)
        settings = Settings(
            name=node.name,
            pid=node.run,
            address=node.name,
            channels=len(self._seats),
            channel_names=self._channel_names,
            cache_bytes=CACHE_BYTES,
            session_bytes_max=self._limits.session_bytes_max,
            consumer_bytes_max=self._limits.consumer_bytes_max,
            channel_bytes_max=self._limits.channel_bytes_max,
            load_max=self._limits.load_max,
            entry_work=1 if self._limits.is_tight else ENTRY_WORK,
            under_way_max=1 if self._limits.is_tight else UNDER_WAY_MAX,
        )
        draft = Random(f"{node.name}/{node.run}/signet").randbytes(SIGNET_BYTES)
        self.machine = ClientManager(settings, ids, origins=[seat.origin for seat in self._seats], signet=draft)
        if self._knows_signet:
            machine: Any = self.machine
            machine._entering.identity.know(SIGNET)
        self.turns = Turns(node, self.machine, self._perform)
        self._clients: dict[int, StreamEnd] = {}
        self._unheard: dict[int, list[bytes]] = {}
        self._next_stream = 0
        for seat in self._seats:
            seat.begin(self.turns)

    def on_ended(self) -> None:
        """A member is gone, and the process with it."""
        self.turns = None
        for seat in self._seats:
            if seat.node.is_up:
                seat.node.end("its process ended")

    def slow_down(self, seconds: float, stream: Random) -> bool:
        """One of its clients takes nothing for a while; False where there is none."""
        turns = self.turns
        if turns is None or not turns.is_alive or not self._clients:
            return False
        number = stream.choice(sorted(self._clients))
        turns.receive(cm.Writable(number, False))
        self._schedule.after(seconds, turns.receive, cm.Writable(number, True))
        return True

    def on_resumed(self, seat: "Seat") -> None:
        """A member goes on after a pause, and with the first one the process."""
        if seat.node is self.node and self.turns is not None:
            self.turns.resume()

    def _on_said(self, number: int, turns: Turns, data: bytes) -> None:
        if turns is self.turns and number in self._unheard:
            self._unheard[number].append(data)  # it stays in the stream
            return
        self.largest_frame_bytes = max(self.largest_frame_bytes, len(data))
        turns.receive(cm.Said(number, native.decode_client(data[native.LENGTH_BYTES :])))

    def _on_closed(self, number: int, turns: Turns, reason: str) -> None:
        if turns is not self.turns or number not in self._clients:
            return
        self._heed(number, is_heard=True)  # what came before the end of a stream is read before that
        if self._clients.pop(number, None) is not None:
            turns.receive(cm.Closed(number, reason))

    def _heed(self, number: int, *, is_heard: bool) -> None:
        if not is_heard:
            self._unheard.setdefault(number, [])
            return
        turns = self.turns
        for data in self._unheard.pop(number, ()):
            if turns is not None and number in self._clients:
                self._on_said(number, turns, data)

    def _perform(self, output: cm.Output) -> None:
        match output:
            case cm.Reply(number, frame):
                end = self._clients.get(number)
                if end is not None and isinstance(frame, Delivered | FragmentRead):
                    end.send(b"".join(native.encode_parts(frame)))
                elif end is not None:
                    end.send(native.encode(frame))
            case cm.Order(channel, handle, payload):
                self._seats[channel].order(handle, payload)
            case cm.Ask(channel, name, asked):
                self._seats[channel].ask(name, asked)
            case cm.Gauge(number):  # simulated streams take everything
                turns = self.turns
                if number in self._clients and turns is not None:
                    self._schedule.after(0.0, turns.receive, cm.Writable(number, True))
            case cm.Heed(number, is_heard):
                self._heed(number, is_heard=is_heard)
            case cm.Hang(number, _):
                end = self._clients.pop(number, None)
                if end is not None:
                    end.close()
            case cm.Log(_, event, details):
                self.node.tell_input(event, details)


def _add_member(channel: SimulatedChannel, name: str) -> SimulatedNode:
    me = MemberConfig(number=0, name=name, address=name, roles=Role.NONE, tag=CLIENT_MANAGER_TAG)
    return channel.simulation.add_node(me)


class Seat(GuestUpper):
    """The process's member of one channel's group, and its links there."""

    _begins_at_once = True
    __slots__ = ("_channel", "_hearing", "_links", "_room", "node", "number", "origin")

    def __init__(self, room: ClientManagerRoom, channel: SimulatedChannel, node: SimulatedNode) -> None:
        self._room = room
        self._channel = channel
        self.number = channel.number
        self.node = node
        self.origin = b""
        self._sit_down()

    def _sit_down(self) -> None:
        self.node.upper = self

    def begin(self, turns: Turns) -> None:
        """The process is whole, and new."""
        self._links: dict[str, StreamEnd] = {}
        self._hearing = Hearing(self.number, has_begun=self._begins_at_once)
        for manager in self._channel.message_managers:
            self._open_link(turns, manager, RELINK_S[0])

    @property
    def keeps_state(self) -> bool:
        """See `Upper`."""
        return False

    def on_started(self) -> None:
        """See `Upper`."""
        endpoint: Any = self.node.machine
        self.origin = endpoint.origin
        self._room.on_started()

    def on_ended(self) -> None:
        """See `Upper`. It keeps nothing: its member's disk is memory."""
        self.node.disk.lose()
        self._room.on_ended()

    def on_resumed(self) -> None:
        """See `Upper`."""
        self._room.on_resumed(self)

    def is_mine(self, handle: int) -> bool:
        """See `GuestUpper`."""
        return self._hearing.is_mine(handle)

    def on_restored(self, sequence: int) -> None:
        """See `GuestUpper`."""
        self._receive(*self._hearing.pass_over(sequence))

    def on_deliver(self, output: Deliver) -> None:
        """See `Upper`."""
        epoch = output.assignment.epoch
        self._receive(*self._hearing.on_deliver(output.sequence, output.payload, epoch))

    def on_ordered(self, handle: int, sequence: int) -> None:
        """See `Upper`."""
        self._receive(*self._hearing.on_ordered(handle, sequence))

    def on_refused(self, handle: int, reason: str, *, is_unknown: bool) -> None:
        """See `Upper`."""
        self._receive(*self._hearing.on_refused(handle, reason, is_unknown=is_unknown))

    def on_window(self, *, is_open: bool) -> None:
        """See `Upper`."""
        self._receive(cm.Window(self.number, is_open))

    def order(self, handle: int, payload: bytes) -> None:
        """Puts an entry into the log."""
        workload = self._channel.workload
        for callback in self._room.handing:
            callback(self.number, workload.next_handle, payload)
        self._hearing.order(workload.next_handle, handle)
        workload.order_payload(self.node, payload)

    def ask(self, name: str, asked: frame_kinds.Asked) -> None:
        """Says something to a Message Manager, where there is a link to it."""
        end = self._links.get(name)
        if end is not None:
            end.send(link.encode(asked))

    def _receive(self, *items: cm.Input) -> None:
        turns = self._room.turns
        assert turns is not None, "its members start and end together"
        endpoint: Any = self.node.machine
        if endpoint.origin != self.origin:
            self.origin = endpoint.origin
            turns.receive(cm.Joined(self.number, self.origin))
        for item in items:
            turns.receive(item)

    # --- links ---

    def _open_link(self, turns: Turns, manager: MessageManagerRoom, wait_s: float) -> None:
        """Tries to reach a Message Manager, again and again."""
        streams = self._channel.streams

        def done(end: StreamEnd | None) -> None:
            if not turns.is_alive:
                if end is not None:
                    end.close()
            elif end is None:
                delay_s = wait_s * streams.stream.uniform(0.5, 1.5)
                later_s = min(2 * wait_s, RELINK_S[1])
                streams.schedule.after(delay_s, self._open_link, turns, manager, later_s)
            else:
                self._on_link(turns, manager, end)

        if turns.is_alive:
            here, there = (self.node.index, self.node.name), (manager.node.index, manager.node.name)
            streams.connect(here, there, manager.accept, done)

    def _on_link(self, turns: Turns, manager: MessageManagerRoom, end: StreamEnd) -> None:
        name, number = manager.node.name, self.number

        def on_closed(reason: str) -> None:
            if turns.is_alive:
                del self._links[name]
                turns.receive(cm.Linked(number, name, False))
                self._open_link(turns, manager, RELINK_S[0])

        end.on_frame = lambda data: turns.receive(cm.Told(number, name, link.decode_told(data[link.LENGTH_BYTES :])))
        end.on_closed = on_closed
        self._links[name] = end
        turns.receive(cm.Linked(number, name, True))


class GuestSeat(Seat):
    """The seat of a Client Manager beside a Message Manager, as `alphorn.node.reader.Guest`."""

    _begins_at_once = False
    __slots__ = ("_host",)

    def __init__(self, room: ClientManagerRoom, channel: SimulatedChannel, host: MessageManagerRoom) -> None:
        self._host = host
        super().__init__(room, channel, host.node)

    def _sit_down(self) -> None:
        self._host.lodge(self)

    @property
    def keeps_state(self) -> bool:
        """See `Upper`: before it has begun it misses nothing."""
        return not self._hearing.has_begun

    def on_ended(self) -> None:
        """See `Upper`. The disk is the host's."""
        self._room.on_ended()

    def on_synchronised(self, *, is_synchronised: bool) -> None:
        """See `Upper`."""
        self._hearing.has_begun = self._hearing.has_begun or is_synchronised
