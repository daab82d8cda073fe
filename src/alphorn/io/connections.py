"""Connections: what is too large for a datagram (ranges, checkpoint chunks, long promises) goes over TCP.

Each member listens at its own address and opens one connection to a peer when it has something large for it; that
connection is reused, closed when idle, and opened anew at the next use. It carries frames one way, since the request
for something large is itself small and goes as a datagram. Frames are lost when a connection breaks, cannot be opened
in time or has too much waiting; the protocol asks again.

Plain, frames follow each other and tell their own length. Sealed, each is preceded by its sealed length, 4 bytes
big-endian (io/sealing.py). A peer that sends anything else is disconnected.
"""

import asyncio
import enum
import logging
import socket
from collections.abc import Callable
from typing import cast

import msgspec

from alphorn.bus.frames import FRAME_BYTES_MAX, Parts, frame_length
from alphorn.io.addresses import Lane, parse_address
from alphorn.io.capture import Capture, Direction
from alphorn.io.sealing import OVERHEAD_BYTES, Seal
from alphorn.io.tasks import Tasks
from alphorn.model.errors import Misuse, PeerViolation

_LENGTH_BYTES = 4

_log = logging.getLogger(__name__)


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one member's connections."""

    connect_s: float = 2.0  # before opening a connection is given up
    idle_s: float = 30.0  # before an unused connection is closed; incoming ones wait twice as long
    waiting_bytes_max: int = 32 << 20  # to one peer; frames beyond it are dropped
    incoming_max: int = 256  # connections accepted at a time
    outgoing_max: int = 256  # connections opened at a time


class State(enum.Enum):
    """Of a connection this member opened."""

    CONNECTING = "connecting"
    OPEN = "open"
    CLOSED = "closed"


class _Outgoing(asyncio.Protocol):
    """One connection to a peer, and what waits for the end of the turn."""

    def __init__(self, address: str, now: float) -> None:
        self.address = address
        self.state = State.CONNECTING
        self.used_at = now
        self.pending: list[bytes | memoryview] = []
        self.pending_bytes = 0
        self.unsent_frames = 0  # taken while there was no connection yet
        self._unsent: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None

    @property
    def waiting_bytes(self) -> int:
        written = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self.pending_bytes + written

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's transports are none by inheritance
        if self.state is State.CLOSED:
            self._transport.abort()
            return
        _set_no_delay(transport)
        self.state = State.OPEN
        self._transport.write(b"".join(self._unsent))
        self._unsent, self.unsent_frames = [], 0
        self.pending_bytes = sum(map(len, self.pending))

    def data_received(self, data: bytes) -> None:
        self.close()  # Nothing is ever said on the way back.

    def connection_lost(self, error: Exception | None) -> None:
        self.state = State.CLOSED

    def write(self) -> None:
        """Joins what is pending: parts may refer to storage that changes after this turn."""
        if not self.pending:
            return
        joined = b"".join(self.pending)
        self.pending = []
        if self._transport is None:
            self._unsent.append(joined)
            return
        self.pending_bytes = 0
        self._transport.write(joined)

    def close(self) -> None:
        self.state = State.CLOSED
        self.pending, self._unsent, self.pending_bytes = [], [], 0
        if self._transport is not None:
            self._transport.abort()


class _Incoming(asyncio.Protocol):
    """One connection from a peer: bytes in, whole frames out."""

    def __init__(self, owner: "Connections") -> None:
        self._owner = owner
        self._buffer = bytearray()
        self.used_at = 0.0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._owner._on_connected(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            frames = self._owner._cut(self._buffer)
        except PeerViolation as violation:
            self._owner._on_violation(self, violation)
            return
        if frames:
            self._owner._on_frames_cut(self, frames)

    def connection_lost(self, error: Exception | None) -> None:
        self._buffer.clear()
        self._owner._on_disconnected(self)


class Connections:
    """The connections of one member, both ways. `send` never blocks; `flush` writes once per turn."""

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        on_frames: Callable[[list[bytes]], None],
        capture: Capture | None = None,
    ) -> None:
        self._settings = settings
        self._on_frames = on_frames
        self._capture = capture
        self._seal: Seal | None = None
        self._tasks = Tasks()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._outgoing: dict[str, _Outgoing] = {}
        self._incoming: set[_Incoming] = set()
        self._dirty: list[_Outgoing] = []
        self._address = ""
        self.sent_frames = self.sent_bytes = 0
        self.received_frames = self.received_bytes = 0
        self.drops = 0  # frames given up: a peer is slow, away, or its address cannot be reached
        self.violations = 0  # peers disconnected for what they sent

    async def start(self, listener: socket.socket, *, address: str, seal: Seal | None = None) -> None:
        """Begins to accept on a bound socket, which is closed with the rest."""
        loop = asyncio.get_running_loop()
        self._seal, self._address = seal, address
        self._server = await loop.create_server(lambda: _Incoming(self), sock=listener)
        self._sweeper = loop.call_later(self._settings.idle_s / 2, self._close_idle)

    def send(self, to: str, parts: Parts, size: int) -> None:
        """Adds a frame to what is written at `flush`. It may be lost."""
        connection = self._outgoing.get(to)
        if connection is None or connection.state is State.CLOSED:
            connection = self._open(to)
        if connection is None or connection.waiting_bytes + size > self._settings.waiting_bytes_max:
            self.drops += 1
            return
        if self._capture is not None:
            self._capture.record(Direction.SENT, to, parts)
        if self._seal is not None:
            parts = self._seal.seal(Lane.STREAM, parts)
            size += OVERHEAD_BYTES
            parts = (size.to_bytes(_LENGTH_BYTES, "big"), *parts)
            size += _LENGTH_BYTES
        if not connection.pending:
            self._dirty.append(connection)
        if connection.state is State.CONNECTING:
            connection.unsent_frames += 1
        connection.pending.extend(parts)
        connection.pending_bytes += size
        connection.used_at = asyncio.get_running_loop().time()
        self.sent_frames += 1
        self.sent_bytes += size

    def flush(self) -> None:
        """Writes everything gathered, once per connection."""
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.write()

    async def close(self) -> None:
        """Closes everything; what waits is lost."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        await self._tasks.close()
        for outgoing in self._outgoing.values():
            outgoing.close()
        for incoming in list(self._incoming):
            assert incoming.transport is not None
            incoming.transport.abort()
        if self._server is not None:
            await self._server.wait_closed()

    def describe(self) -> dict[str, object]:
        """Connections and counters."""
        return {
            "outgoing": {address: connection.state.value for address, connection in self._outgoing.items()},
            "incoming": len(self._incoming),
            "sent": {"frames": self.sent_frames, "bytes": self.sent_bytes},
            "received": {"frames": self.received_frames, "bytes": self.received_bytes},
            "drops": self.drops,
            "violations": self.violations,
        }

    def _open(self, to: str) -> _Outgoing | None:
        self._outgoing.pop(to, None)
        if len(self._outgoing) >= self._settings.outgoing_max:
            return None
        try:
            parse_address(to)
        except Misuse:  # A peer may name any address; nothing can be sent to this one.
            return None
        connection = _Outgoing(to, asyncio.get_running_loop().time())
        self._outgoing[to] = connection
        self._tasks.start(self._connect(connection), name=f"connect {to}")
        return connection

    async def _connect(self, connection: _Outgoing) -> None:
        host, port = parse_address(connection.address)
        try:
            async with asyncio.timeout(self._settings.connect_s):
                await asyncio.get_running_loop().create_connection(lambda: connection, host, port)
        except (OSError, TimeoutError) as error:
            _log.info("event=connect_failed peer=%s error=%r", connection.address, error)
            self.drops += connection.unsent_frames
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        now, idle_s = loop.time(), self._settings.idle_s
        for address, outgoing in list(self._outgoing.items()):
            if outgoing.state is State.CLOSED or outgoing.used_at + idle_s <= now:
                outgoing.close()
                del self._outgoing[address]
        for incoming in self._incoming:
            if incoming.used_at + 2 * idle_s <= now:
                assert incoming.transport is not None
                incoming.transport.abort()
        self._sweeper = loop.call_later(idle_s / 2, self._close_idle)

    def _on_connected(self, incoming: _Incoming) -> None:
        assert incoming.transport is not None
        incoming.used_at = asyncio.get_running_loop().time()
        if len(self._incoming) >= self._settings.incoming_max:
            incoming.transport.abort()
        else:
            self._incoming.add(incoming)

    def _on_disconnected(self, incoming: _Incoming) -> None:
        self._incoming.discard(incoming)

    def _on_violation(self, incoming: _Incoming, violation: PeerViolation) -> None:
        assert incoming.transport is not None
        self.violations += 1
        peer = incoming.transport.get_extra_info("peername")
        _log.warning("event=peer_disconnected peer=%s reason=%s", peer, violation)
        incoming.transport.abort()

    def _on_frames_cut(self, incoming: _Incoming, frames: list[bytes]) -> None:
        incoming.used_at = asyncio.get_running_loop().time()
        self.received_frames += len(frames)
        self.received_bytes += sum(map(len, frames))
        if self._capture is not None:
            for frame in frames:
                self._capture.record(Direction.RECEIVED, self._address, (frame,))
        self._on_frames(frames)

    def _cut(self, buffer: bytearray) -> list[bytes]:
        """Takes the whole frames off the front of `buffer`; raises `PeerViolation` for what is none."""
        frames: list[bytes] = []
        start, end = 0, len(buffer)
        with memoryview(buffer) as view:
            while length := self._next_length(buffer, start):
                if start + length > end:
                    break
                frames.append(self._open_frame(view[start : start + length]))
                start += length
        del buffer[:start]
        return frames

    def _open_frame(self, view: memoryview) -> bytes:
        with view:
            if self._seal is None:
                return bytes(view)
            frame = self._seal.open(Lane.STREAM, bytes(view[_LENGTH_BYTES:]))
        if frame is None:
            raise PeerViolation("a sealed frame does not open with this cluster's key, or was sent before")
        return frame

    def _next_length(self, buffer: bytearray, start: int) -> int:
        if self._seal is None:
            return frame_length(buffer, start)
        if len(buffer) - start < _LENGTH_BYTES:
            return 0
        length = int.from_bytes(buffer[start : start + _LENGTH_BYTES], "big")
        if not OVERHEAD_BYTES <= length <= FRAME_BYTES_MAX + OVERHEAD_BYTES:
            raise PeerViolation(f"a sealed frame of {length} bytes; one has {OVERHEAD_BYTES} to {FRAME_BYTES_MAX} more")
        return length + _LENGTH_BYTES


def _set_no_delay(transport: asyncio.BaseTransport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
