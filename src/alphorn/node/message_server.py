"""Runs the room `message_server/`: the internal connections of work processes, and the link to the other message
server.

The second message server of the cluster file calls the first. Whatever comes over a connection goes to the machine, and
what it wants said is written once per turn.
"""

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from functools import partial

from alphorn.io.addresses import why_not_bound
from alphorn.io.cluster_file import ClusterFile
from alphorn.io.driver import Driver
from alphorn.io.internal_stream import TAG_BYTES, Knocking, pass_of_node, pass_of_program
from alphorn.io.sealing import load_cluster_key
from alphorn.io.strangers import Strangers
from alphorn.io.streams import FrameStream, read_buffer
from alphorn.io.tasks import Tasks
from alphorn.message_server.core import MessageServer
from alphorn.message_server.machine import (
    Clogged,
    Closed,
    Hang,
    Input,
    Log,
    Met,
    Opened,
    Output,
    Part,
    Parted,
    PeerSaid,
    Said,
    Tell,
    TellPeer,
)
from alphorn.message_server.settings import Settings
from alphorn.model import internal
from alphorn.model.errors import AccessDenied, Error, Misuse, PeerViolation, Unavailable

RECONNECT_S = 0.2
CONNECT_S = 2.0  # before a call to the other message server is given up
BUFFERED_BYTES_MAX = 4 << 20
UNREAD_BYTES_MAX = 16 << 20  # written to a connection and not taken: what can be said again is dropped above that,
CLOGGED_BYTES = 32 << 20  # and a process that lets this pile up does not read
KNOCK_S = 5.0  # so long a connection to a sealed port may say nothing
CLOSE_S = 5.0  # so long the last words to a process have to leave

FOR_MANY = (internal.RelayAll, internal.Notify, internal.Arrived, internal.Departed)

_log = logging.getLogger(__name__)
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class MessageServerNode:
    """One message server."""

    def __init__(self, file: ClusterFile, name: str, *, founding: bool, beside: Sequence[object] = ()) -> None:
        self._file = file
        self.table = file.node(name)
        servers = file.message_servers
        self._place = [node.name for node in servers].index(name)
        self._peer = next((node for node in servers if node.name != name), None)
        self._cluster_key = load_cluster_key(file.key_path) if file.key_path is not None else None
        self._streams: dict[int, FrameStream] = {}
        self._seals: dict[int, Knocking] = {}
        self._peer_stream: FrameStream | None = None
        self._peer_seal: Knocking | None = None
        self._dirty: dict[FrameStream, int] = {}  # bytes for each in this turn
        self._encoded: dict[int, tuple[object, bytes]] = {}  # frames of this turn that are for many, by id
        self._next_connection = 0
        self._strangers = Strangers(KNOCK_S, lambda number, stream: stream.abort("it did not knock in time"))
        self._shared = read_buffer()
        self._tasks = Tasks()

    async def start(self) -> None:
        """Listens, and calls the other message server where that is its part."""
        loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[str] = loop.create_future()
        offset = time.time() - loop.time()
        settings = Settings(
            name=self.table.name,
            run=time.time_ns().to_bytes(8, "big") + os.urandom(8),
            peer=self._peer.name if self._peer is not None else "",
            nodes={node.name: node.kind for node in self._file.nodes},
        )
        self._machine = MessageServer(settings, now=loop.time(), wall=lambda now: now + offset)
        self._driver: Driver[Input, Output] = Driver(
            self._machine, perform=self._perform, end_turn=self._end_turn, on_failure=self._on_failure
        )
        host, _, port = self.table.internal.rpartition(":")
        try:
            self._server = await loop.create_server(self._accept, host, int(port))
        except OSError as error:
            place = f"{self.table.name} cannot listen for work processes at {self.table.internal}"
            raise Unavailable(f"{place}: {why_not_bound(error)}") from None
        self._driver.start()
        if self._peer is not None and self._place > 0:
            self._tasks.start(self._keep_peer(self._peer.internal), name=f"link to {self._peer.name}")

    async def stop(self) -> None:
        """Closes everything; processes turn to the other message server."""
        self._server.close()
        self._driver.close()
        await self._tasks.close()
        for stream in [*self._streams.values(), *([self._peer_stream] if self._peer_stream else [])]:
            stream.close("the message server stops")

    def publish_log(self, lines: list[str]) -> None:
        """Nowhere: it orders nothing. They are in its log file."""

    def meet(self, half: object) -> None:
        """It has nothing to tell of its own."""

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return {"message_server": self._machine.describe(), "streams": len(self._streams)}

    def die_at(self, step: str, count: int) -> None:
        """For tests; it takes no such step."""

    # --- connections ---

    def _accept(self) -> FrameStream:
        self._next_connection += 1
        number = self._next_connection
        return FrameStream(
            on_open=lambda stream: self._on_open(number, stream),
            on_frames=lambda stream, frames: self._on_frames(number, stream, frames),
            on_closed=lambda stream, reason: self._on_closed(number, stream),
            on_oversized=lambda stream, reason: self._dismiss(number, stream, PeerViolation(reason)),
            frame_bytes_max=internal.FRAME_BYTES_MAX + TAG_BYTES,
            buffered_bytes_max=BUFFERED_BYTES_MAX,
            shared=self._shared,
        )

    def _on_open(self, number: int, stream: FrameStream) -> None:
        self._streams[number] = stream
        if self._cluster_key is None:
            self._driver.receive(Opened(number))
        else:
            self._seals[number] = Knocking(pass_of_node(self._cluster_key), is_server=True)
            self._strangers.add(number, stream)

    def _on_frames(self, number: int, stream: FrameStream, frames: list[memoryview]) -> None:
        try:
            opened = self._opened(number, stream, frames)
            heard = [internal.decode_heard(frame) for frame in opened]
            first = heard[0] if heard else None
            if isinstance(first, internal.Meet):
                self._check_peer(number, first)
        except Error as error:
            _log.warning("event=stranger_dismissed node=%s peer=%s reason=%s", self.table.name, stream.peer, error)
            self._dismiss(number, stream, error)
            return
        if isinstance(first, internal.Meet):
            self._become_peer(number, stream)
        if stream is self._peer_stream:
            self._driver.receive_all(PeerSaid(frame) for frame in heard if isinstance(frame, internal.AnyPeerFrame))
        else:
            self._driver.receive_all(
                Said(number, frame) for frame in heard if isinstance(frame, internal.AnyProcessFrame)
            )

    def _opened(
        self, number: int, stream: FrameStream, frames: Sequence[bytes | memoryview]
    ) -> Sequence[bytes | memoryview]:
        """Frames in the clear; the first of a sealed connection is a knock."""
        seal = self._peer_seal if stream is self._peer_stream and self._peer_seal else self._seals.get(number)
        if seal is None:
            return frames
        if not seal.is_done:
            key = self._cluster_key
            assert key is not None
            stream.send(seal.knock())
            name = seal.hear(frames[0], lambda ticket: pass_of_program(key, ticket))
            stream.flush()
            frames = frames[1:]
            self._strangers.forget(number)
            self._driver.receive(Opened(number, name))
        return [seal.open(frame) for frame in frames]

    def _dismiss(self, number: int, stream: FrameStream, error: Error) -> None:
        """Nobody can read what it says: it hears why, where it can, and that is all."""
        seal = self._seals.get(number)
        if stream is not self._peer_stream and (seal is None or seal.is_done):
            data = internal.encode(internal.Refused(type(error).__name__, str(error)))
            stream.send(data if seal is None else seal.seal(data))
        self._close(stream, str(error))

    @staticmethod
    def _close(stream: FrameStream, reason: str) -> None:
        """Closes when everything is written, and then in any case."""
        stream.close(reason)
        asyncio.get_running_loop().call_later(CLOSE_S, stream.abort, reason)

    def _on_closed(self, number: int, stream: FrameStream) -> None:
        self._strangers.forget(number)
        self._seals.pop(number, None)
        if stream is self._peer_stream:
            self._peer_stream = self._peer_seal = None
            self._driver.receive(Parted())
        if self._streams.pop(number, None) is not None:
            self._driver.receive(Closed(number))

    # --- the other message server ---

    def _check_peer(self, number: int, meet: internal.Meet) -> None:
        """Raises an `Error` for who is not the other message server; a link that there is goes on."""
        seal, me = self._seals.get(number), self.table.name
        if seal is not None and seal.is_by_ticket:
            raise AccessDenied(f"a ticket lets a program in, and {me} meets no message server by it; join as a program")
        if self._peer is None or meet.server != self._peer.name:
            raise Misuse(f"{meet.server!r} is not the other message server of {me}; see the cluster file")

    def _become_peer(self, number: int, stream: FrameStream) -> None:
        """The other message server has called; it is no work process on this connection."""
        self._streams.pop(number, None)
        self._driver.receive(Closed(number))
        self._set_peer(stream, self._seals.get(number))

    def _set_peer(self, stream: FrameStream, seal: Knocking | None) -> None:
        older, self._peer_stream, self._peer_seal = self._peer_stream, stream, seal
        if older is not None and older is not stream:
            self._driver.receive(Parted())
            older.abort("there is a newer link")
        self._driver.receive(Met())

    async def _keep_peer(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        while True:
            closed: asyncio.Future[str] = loop.create_future()
            try:
                async with asyncio.timeout(CONNECT_S):
                    await loop.create_connection(partial(self._call, closed), host, int(port))
                reason = await closed
                _log.info("event=link_lost to=%s reason=%s", address, reason)
            except OSError:
                pass
            await asyncio.sleep(RECONNECT_S)

    def _call(self, closed: "asyncio.Future[str]") -> FrameStream:
        def on_open(stream: FrameStream) -> None:
            if self._cluster_key is None:
                self._set_peer(stream, None)
            else:
                seal = Knocking(pass_of_node(self._cluster_key), is_server=False)
                calling.append(seal)
                stream.send(seal.knock())
                stream.flush()

        def on_frames(stream: FrameStream, frames: list[memoryview]) -> None:
            try:
                if calling and not calling[0].is_done:
                    calling[0].hear(frames[0])
                    frames = frames[1:]
                    self._set_peer(stream, calling[0])
                plain = [calling[0].open(frame) if calling else frame for frame in frames]
                heard = [internal.decode_heard(frame) for frame in plain]
            except Error as error:
                stream.abort(str(error))
                return
            self._driver.receive_all(PeerSaid(frame) for frame in heard if isinstance(frame, internal.AnyPeerFrame))

        def on_closed(stream: FrameStream, reason: str) -> None:
            if stream is self._peer_stream:
                self._peer_stream = self._peer_seal = None
                self._driver.receive(Parted())
            if not closed.done():
                closed.set_result(reason)

        calling: list[Knocking] = []
        return FrameStream(
            on_open=on_open,
            on_frames=on_frames,
            on_closed=on_closed,
            frame_bytes_max=internal.FRAME_BYTES_MAX + TAG_BYTES,
            buffered_bytes_max=BUFFERED_BYTES_MAX,
            shared=self._shared,
        )

    # --- what the machine wants ---

    def _perform(self, output: Output) -> None:
        match output:
            case Tell(number, frame):
                stream = self._streams.get(number)
                if stream is not None and not self._is_unread(number, stream, frame):
                    self._write(stream, self._seals.get(number), self._encode(frame))
            case TellPeer(frame):
                stream = self._peer_stream
                if stream is not None and not (
                    isinstance(frame, internal.Carry) and stream.unsent_bytes > UNREAD_BYTES_MAX
                ):
                    self._write(stream, self._peer_seal, internal.encode(frame))
            case Hang(number, reason):
                stream = self._streams.pop(number, None)
                if stream is not None:
                    self._close(stream, reason)
            case Part(reason):
                if self._peer_stream is not None:
                    self._peer_stream.abort(reason)
            case Log(level, event, details):
                _log.log(_LEVELS[level], "event=%s node=%s %s", event, self.table.name, details)
            case _:
                raise AssertionError(f"the node does not know the output {output!r}")

    def _is_unread(self, number: int, stream: FrameStream, frame: internal.ServerFrame) -> bool:
        """Whether a frame is dropped, because so much waits already. The sender of a message says it again."""
        unsent = stream.unsent_bytes + self._dirty.get(stream, 0)
        if unsent > CLOGGED_BYTES and not isinstance(frame, internal.Refused):
            self._driver.receive(Clogged(number))
            return True
        return unsent > UNREAD_BYTES_MAX and isinstance(frame, internal.Relay)

    def _encode(self, frame: internal.ServerFrame) -> bytes:
        if not isinstance(frame, FOR_MANY):
            return internal.encode(frame)
        found = self._encoded.get(id(frame))
        if found is None:
            found = self._encoded[id(frame)] = frame, internal.encode(frame)
        return found[1]

    def _write(self, stream: FrameStream, seal: Knocking | None, data: bytes) -> None:
        stream.send(data if seal is None else seal.seal(data))
        self._dirty[stream] = self._dirty.get(stream, 0) + len(data)

    def _end_turn(self) -> None:
        for stream in self._dirty:
            stream.flush()
        self._dirty.clear()
        self._encoded.clear()

    def _on_failure(self, error: BaseException) -> None:
        _log.error("event=machine_failed node=%s", self.table.name, exc_info=error)
        if not self.stopped.done():
            self.stopped.set_result(f"{type(error).__name__}: {error}")
