"""Runs the room `client_manager/`: its doors, its members of the channels' groups, its links to Message Managers.

One driver runs the machine; doors, buses and links hand over what happened, and everything it wants done is done here,
in one `match`. Clients' streams are flushed once per turn. The machine tells clients to wait before anything is too
much; those who do not, or take nothing of what they are sent, are not read any more.
"""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from alphorn.bus.config import Budget
from alphorn.client_manager.channel import ENTRY_BYTES
from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.desk import KnownNode, Settings
from alphorn.client_manager.hanging import LOOK_S, Wakefulness
from alphorn.client_manager.machine import (
    Ask,
    AskServers,
    Closed,
    Gauge,
    Hang,
    Happen,
    Heed,
    Hung,
    Input,
    Log,
    Logged,
    Opened,
    Order,
    Output,
    Reply,
    Said,
    ServersStand,
    Writable,
)
from alphorn.client_manager.outflow import STUCK_S
from alphorn.doors import native
from alphorn.doors.tunnel import Tunnel
from alphorn.io.addresses import why_not_bound
from alphorn.io.cluster_file import ClusterFile
from alphorn.io.crash_points import CrashPoints
from alphorn.io.driver import Driver
from alphorn.io.internal_stream import make_ticket, pass_of_program
from alphorn.io.sealing import load_cluster_key
from alphorn.io.strangers import Strangers
from alphorn.io.streams import FrameStream, read_buffer
from alphorn.io.tasks import Tasks
from alphorn.io.topology import link_from
from alphorn.io.tunnel import TunnelStream
from alphorn.model.commands import SIGNET_BYTES
from alphorn.model.conversation import FRAME_BYTES_MAX, Delivered, FragmentRead, Goodbye, Welcome
from alphorn.model.errors import PeerViolation, Unavailable
from alphorn.model.ids import IdSource, host_bytes
from alphorn.model.messages import BATCH_BYTES_MAX
from alphorn.node.client_half import ClientHalf, Early
from alphorn.node.links import Link
from alphorn.node.message_manager import MessageManagerNode
from alphorn.node.reader import Guest, Reader, make_witness, start_all

HELLO_S = 5.0  # so long a stranger may take to shake hands and say hello,
STRANGER_FRAME_BYTES_MAX = 64 << 10  # and may say no more at once before it is welcome

assert Budget().batch_bytes_max >= BATCH_BYTES_MAX + 2 * ENTRY_BYTES, "what a client may send fits the bus"

_log = logging.getLogger(__name__)


class ClientManagerNode:
    """One Client Manager, from its clients' sockets to the log."""

    def __init__(self, file: ClusterFile, name: str, *, founding: bool, beside: Sequence[object] = ()) -> None:
        self._file = file
        self._me = file.node(name)
        self._cluster_key = load_cluster_key(file.key_path) if file.key_path is not None else None
        self._streams: dict[int, FrameStream] = {}
        self._dirty: set[FrameStream] = set()
        self._strangers = Strangers(HELLO_S, self._dismiss)
        self._gauged: list[int] = []
        self._next_stream = 0
        self._unheard: set[int] = set()  # streams that are not read for now
        self._wakefulness = Wakefulness()
        self._shared = read_buffer()
        self._servers: list[asyncio.Server] = []
        self._tasks = Tasks()
        self._crash_points = CrashPoints()
        self._half: ClientHalf | None = None
        self._early = Early()
        self._happen = self._early.happen
        hosts = [node for node in beside if isinstance(node, MessageManagerNode)]
        self._hosts = {host.table.name: host for host in hosts}
        used = [number for number, channel in enumerate(file.channels) if not channel.removed]
        self._channels = [self._make_seat(number, hosts) for number in used]
        self._by_number = {channel.number: channel for channel in self._channels}
        self._witnesses = [
            make_witness(self, file, self._me, number, founding=founding) for number in used if self._me.witness
        ]

    async def start(self) -> None:
        """Takes part, and opens its door once it is a member of every channel's group."""
        loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[str] = loop.create_future()
        host, _, port = self._me.clients.rpartition(":")
        await self._listen(self._me.clients, self._accept)
        if self._me.http:
            await self._listen(self._me.http, self._accept_tunnel)
        try:
            await start_all([*self._witnesses, *self._channels])
        except BaseException:
            self._close_doors()
            raise
        self._machine = ClientManager(
            self._settings(),
            IdSource(host_bytes(host), int(port), unix_s=time.time()),
            origins=[self._origin(number) for number in range(len(self._file.channels))],
            signet=secrets.token_bytes(SIGNET_BYTES),
            make_pass=self._make_pass,
        )
        self._machine.watch_steps(self._crash_points.reach)
        self._driver: Driver[Input, Output] = Driver(
            self._machine, perform=self._perform, end_turn=self._end_turn, on_failure=self._on_failure
        )
        self._driver.start()
        self._tasks.start(self._stay_awake(), name="staying awake")
        for channel in self._channels:
            channel.listen()
            for node in self._file.message_managers(self._file.channels[channel.number].name):
                beside = self._hosts.get(node.name)
                address = link_from(self._file, self._me, node, channel.number)
                keeper = Link(self, channel.number, node.name, address, accept=beside.accept if beside else None)
                channel.links[node.name] = keeper
                self._tasks.start(keeper.keep(), name=f"link to {node.name}")
        for server in self._servers:
            await server.start_serving()

    async def stop(self) -> None:
        """Says goodbye to clients, who turn to another Client Manager, and leaves the groups in good order."""
        self._close_doors()
        for stream in list(self._streams.values()):
            stream.send(native.encode(Goodbye("Unavailable", f"{self._me.name} stops; another one serves you")))
            stream.close("the node stops")
        self._driver.close()
        await self._tasks.close()
        for channel in self._channels:
            await channel.stop()
        for witness in self._witnesses:
            await witness.stop()

    def publish_log(self, lines: list[str]) -> None:
        """Puts this node's log lines onto the `_LOG` topic, when the channel works."""
        self.receive(Logged(lines, int(time.time() * 1000)))

    def meet(self, half: ClientHalf) -> None:
        """It has an internal connection from now on."""
        self._half = half
        self._happen = half.happen
        self._early.pass_on(half)

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return {
            "client_manager": self._machine.describe(),
            "streams": len(self._streams),
            "unsent_bytes": sum(stream.unsent_bytes for stream in self._streams.values()),
            "channels": [channel.bus.describe() for channel in self._channels],
        }

    def die_at(self, step: str, count: int) -> None:
        """For tests: kills the process at this step."""
        self._crash_points.arm(step, count)

    def receive(self, item: Input) -> None:
        """Something happened."""
        self._driver.receive(item)

    def halt(self, reason: str) -> None:
        """This node cannot go on."""
        if not self.stopped.done():
            self.stopped.set_result(reason)

    def _origin(self, number: int) -> bytes:
        """Of this node's member of a channel; of one that is removed there is none."""
        return self._by_number[number].origin if number in self._by_number else b""

    def _make_pass(self, name: str) -> tuple[bytes, bytes]:
        """A program's ticket, and the secret that follows from it."""
        if self._cluster_key is None:
            return b"", b""
        ticket = make_ticket(name)
        return ticket, pass_of_program(self._cluster_key, ticket).key

    def _settings(self) -> Settings:
        return Settings(
            name=self._me.name,
            pid=os.getpid(),
            address=self._me.clients,
            channels=len(self._file.channels),
            removed=frozenset(number for number, channel in enumerate(self._file.channels) if channel.removed),
            channel_names=tuple(channel.name for channel in self._file.channels),
            addresses=tuple(node.clients for node in self._file.client_managers),
            prepares_all=self._file.prepare == "all",
            wall_offset_ms=int(1000 * (time.time() - asyncio.get_running_loop().time())),
            servers=tuple(
                (channel.name, tuple((node.name, node.link) for node in self._file.message_managers(channel.name)))
                for channel in self._file.channels
            ),
            nodes=tuple(
                KnownNode(
                    node.name, node.kind, node.clients or node.link or node.internal or node.witness, node.channel
                )
                for node in self._file.nodes
            ),
            message_servers=tuple((node.name, node.internal) for node in self._file.message_servers),
            session_bytes_max=self._me.session_bytes_max,
            consumer_bytes_max=self._me.consumer_bytes_max,
            channel_bytes_max=self._file.channel_bytes_max,
            destinations_max=self._file.destinations_max,
            subscriptions_max=self._file.subscriptions_max,
            staged_bytes_max=self._file.writer_bytes_max,
        )

    def _make_seat(self, number: int, hosts: Sequence[MessageManagerNode]) -> Reader:
        channel = self._file.channels[number].name
        for host in hosts:
            if host.table.channel == channel:
                return Guest(self, self._file, self._me, number, host)
        return Reader(self, self._file, self._me, number)

    # --- clients ---

    async def _listen(self, address: str, accept: Callable[[], FrameStream]) -> None:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            self._servers.append(await loop.create_server(accept, host, int(port), start_serving=False))
        except OSError as error:
            self._close_doors()
            reason = f"{self._me.name} cannot listen for clients at {address}: {why_not_bound(error)}"
            raise Unavailable(reason) from None

    def _close_doors(self) -> None:
        for server in self._servers:
            server.close()

    def _accept(self, make: Callable[..., FrameStream] = FrameStream) -> FrameStream:
        self._next_stream += 1
        number = self._next_stream
        stream = make(
            on_open=lambda stream: self._on_open(number, stream),
            on_frames=lambda stream, frames: self._on_frames(number, stream, frames),
            on_closed=lambda stream, reason: self._on_closed(number, reason),
            on_oversized=_send_away,
            on_writable=lambda stream, is_writable: self._on_writable(number, stream, is_writable=is_writable),
            frame_bytes_max=STRANGER_FRAME_BYTES_MAX,
            buffered_bytes_max=self._me.consumer_bytes_max // 4,
            shared=self._shared,
            absent_s=STUCK_S,
        )
        self._strangers.add(number, stream)
        return stream

    def _dismiss(self, number: int, stream: FrameStream) -> None:
        """Who has not said hello in time must go."""
        if number in self._streams:
            _send_away(stream, f"a connection begins with hello, within {HELLO_S:.0f} seconds")
        else:
            stream.abort("no hands were shaken in time")

    def _accept_tunnel(self) -> FrameStream:
        return self._accept(partial(TunnelStream, Tunnel.to_client()))

    def _on_open(self, number: int, stream: FrameStream) -> None:
        self._streams[number] = stream
        self.receive(Opened(number))

    def _on_frames(self, number: int, stream: FrameStream, frames: list[memoryview]) -> None:
        self._strangers.forget(number)
        self._look()
        try:
            said = [Said(number, native.decode_client(frame)) for frame in frames]
        except PeerViolation as error:
            _send_away(stream, str(error))
            return
        self._driver.receive_all(self._heard(number, stream, said))

    def _heard(self, number: int, stream: FrameStream, said: list[Said]) -> Iterator[Said]:
        """What a client says, until it has asked for so much that the rest waits in its stream."""
        for taken, item in enumerate(said):
            if not self._machine.heeding.is_heard(number):
                stream.hold_back(len(said) - taken)
                return
            yield item

    def _on_writable(self, number: int, stream: FrameStream, *, is_writable: bool) -> None:
        """What a client says that takes no answers is not read: its answers would pile up."""
        if not is_writable:
            stream.pause_reading()
        elif number not in self._unheard:
            stream.resume_reading()
        self.receive(Writable(number, is_writable))

    def _on_closed(self, number: int, reason: str) -> None:
        self._strangers.forget(number)
        self._unheard.discard(number)
        if self._streams.pop(number, None) is not None:
            self.receive(Closed(number, reason))

    async def _stay_awake(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        if seconds := self._wakefulness.look(asyncio.get_running_loop().time()):
            self.receive(Hung(seconds))

    # --- what the machine wants ---

    def _perform(self, output: Output) -> None:
        match output:
            case Reply(number, frame):
                stream = self._streams.get(number)
                if stream is None:
                    return
                if isinstance(frame, Delivered | FragmentRead):
                    stream.send(*native.encode_parts(frame))
                else:
                    stream.send(native.encode(frame))
                    if isinstance(frame, Welcome):
                        stream.allow(FRAME_BYTES_MAX)
                self._dirty.add(stream)
            case Order(number, handle, payload):
                self._by_number[number].order(handle, payload)
                if self._crash_points.is_armed:
                    self._crash_points.reach_handed(payload)
            case Ask(number, name, asked):
                self._by_number[number].links[name].send(asked)
            case Gauge(number):
                self._gauged.append(number)
            case AskServers(number):
                self._tasks.start(self._ask_servers(number), name="how message servers stand")
            case Heed(number, is_heard):
                self._heed(number, is_heard=is_heard)
            case Hang(number, reason, at_once):
                self._unheard.discard(number)
                stream = self._streams.pop(number, None)
                if stream is not None and at_once:
                    stream.abort(reason)
                elif stream is not None:
                    stream.close(reason)
            case Happen(event):
                self._happen(event)
            case Log(level, event, details):
                _log.log(_LEVELS[level], "event=%s node=%s %s", event, self._me.name, details)
            case _:
                raise AssertionError(f"the node does not know the output {output!r}")

    async def _ask_servers(self, number: int) -> None:
        rows = await self._half.look() if self._half is not None else []
        self.receive(ServersStand(number, rows))

    def _heed(self, number: int, *, is_heard: bool) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        if not is_heard:
            self._unheard.add(number)
            stream.pause_reading()
        else:
            self._unheard.discard(number)
            if stream.is_writable:
                stream.resume_reading()

    def _end_turn(self) -> None:
        for stream in self._dirty:
            stream.flush()
        self._dirty.clear()
        self._answer_gauges()
        for channel in self._channels:
            for keeper in channel.links.values():
                keeper.flush()

    def _answer_gauges(self) -> None:
        """A stream that is full says by itself when it is not any more."""
        gauged, self._gauged = self._gauged, []
        for number in gauged:
            stream = self._streams.get(number)
            if stream is not None and stream.is_writable:
                self.receive(Writable(number, True))

    def _on_failure(self, error: BaseException) -> None:
        _log.error("event=machine_failed node=%s", self._me.name, exc_info=error)
        self.halt(f"{type(error).__name__}: {error}")


_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _send_away(stream: FrameStream, reason: str) -> None:
    stream.send(native.encode(Goodbye(PeerViolation.__name__, reason)))
    stream.close(reason)
