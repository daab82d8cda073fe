"""A blocking client's way through HTTP: a thread between a WebSocket and one end of a pair of sockets.

The connection's own thread has the other end, and moves bytes as it does with a plain stream. What one side does not
take is not read from the other, so a slow side slows down the other one.
"""

import contextlib
import select
import socket
import ssl
import threading
import time

from alphorn.client.url import Address, format_address
from alphorn.doors.tunnel import Tunnel, TunnelState
from alphorn.model.errors import PeerViolation

READ_BYTES = 256 << 10
_BACKLOG_BYTES = 1 << 20  # towards either side before the other is not read any more
_GOODBYE_S = 1.0


def open_tunnel(address: Address, path: str, context: ssl.SSLContext | None, timeout: float) -> socket.socket:
    """One end of a stream to the Client Manager at the end of the tunnel; raises `OSError`, `PeerViolation`."""
    deadline = time.monotonic() + timeout
    network = socket.create_connection(address, timeout)
    try:
        network.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = _Wire(network, context, address[0])
        tunnel = Tunnel.to_server(format_address(address), path)
        wire.write(tunnel.take_output())
        pieces: list[bytes | bytearray] = []
        while tunnel.state is TunnelState.SHAKING:
            wire.flush()
            network.settimeout(max(0.001, deadline - time.monotonic()))
            data = wire.read(network.recv(READ_BYTES))
            if data is None:
                raise ConnectionResetError("the connection was closed before hands were shaken")
            pieces += tunnel.receive(data) if data else ()
        network.setblocking(False)
        mine, theirs = socket.socketpair()
    except BaseException:
        network.close()
        raise
    mine.setblocking(False)
    pump = _Pump(wire, network, tunnel, mine, pieces)
    threading.Thread(target=pump.run, name="alphorn-tunnel", daemon=True).start()
    return theirs


class _Wire:
    """Bytes to and from the network, sealed by TLS where there is a context."""

    def __init__(self, network: socket.socket, context: ssl.SSLContext | None, host: str) -> None:
        self.network = network
        self.unsent = bytearray()
        self._tls: ssl.SSLObject | None = None
        if context is not None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
            self._shake_hands(self._tls)

    def _shake_hands(self, tls: ssl.SSLObject) -> None:
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                self.network.sendall(self._outgoing.read())
                data = self.network.recv(READ_BYTES)
                if not data:
                    raise ConnectionResetError("the connection was closed during the TLS handshake") from None
                self._incoming.write(data)
            else:
                self.network.sendall(self._outgoing.read())
                return

    def read(self, data: bytes) -> bytes | None:
        """What the peer wrote, from what the network brought; None at the end."""
        if self._tls is None or not data:
            return data or None
        self._incoming.write(data)
        parts = []
        try:
            while part := self._tls.read(READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            return b"".join(parts)
        return b"".join(parts) or None

    def write(self, data: bytes) -> None:
        """Queues something for the peer."""
        if self._tls is not None and data:
            self._tls.write(data)
            data = self._outgoing.read()
        self.unsent += data

    def flush(self) -> None:
        """Sends as much of it as the network takes."""
        while self.unsent:
            try:
                count = self.network.send(self.unsent)
            except BlockingIOError:
                return
            del self.unsent[:count]


class _Pump:
    """Moves bytes until either side ends."""

    def __init__(
        self,
        wire: _Wire,
        network: socket.socket,
        tunnel: Tunnel,
        program: socket.socket,
        pieces: list[bytes | bytearray],
    ) -> None:
        self._wire = wire
        self._network = network
        self._tunnel = tunnel
        self._program = program
        self._unread = bytearray().join(pieces)  # for the program

    def run(self) -> None:
        """The thread."""
        try:
            while self._turn():
                pass
            self._say_last()
        except (OSError, PeerViolation):
            pass  # either side is gone; the other end of the pair hears it as the end of the stream
        finally:
            self._program.close()
            self._network.close()

    def _say_last(self) -> None:
        """Either side has ended: the other gets what came for it."""
        self._program.settimeout(_GOODBYE_S)
        self._network.settimeout(_GOODBYE_S)
        self._program.sendall(self._unread)
        self._tunnel.close("closed")
        self._wire.write(self._tunnel.take_output())
        self._wire.flush()

    def _turn(self) -> bool:
        """Waits for something to move, and moves it; False when there is nothing more to come."""
        poller = select.poll()
        poller.register(self._network, self._events(len(self._unread), len(self._wire.unsent)))
        poller.register(self._program, self._events(len(self._wire.unsent), len(self._unread)))
        for fd, event in poller.poll():
            if event & select.POLLOUT:
                self._write(fd)
            if event & ~select.POLLOUT and not self._read(fd):
                return False
        return self._tunnel.state is TunnelState.OPEN

    @staticmethod
    def _events(unwritten: int, unsent: int) -> int:
        """What to wait for at one side: to read while the other side takes it, to write what waits for this one."""
        return (select.POLLIN if unwritten < _BACKLOG_BYTES else 0) | (select.POLLOUT if unsent else 0)

    def _write(self, fd: int) -> None:
        if fd == self._network.fileno():
            self._wire.flush()
        elif self._unread:
            with contextlib.suppress(BlockingIOError):
                del self._unread[: self._program.send(self._unread)]

    def _read(self, fd: int) -> bool:
        if fd == self._program.fileno():
            data = self._program.recv(READ_BYTES)
            if data:
                self._wire.write(self._tunnel.wrap(data))
                self._wire.flush()
            return bool(data)
        brought = self._wire.read(self._network.recv(READ_BYTES))
        if brought is None:
            return False
        for piece in self._tunnel.receive(brought) if brought else ():
            self._unread += piece
        self._wire.write(self._tunnel.take_output())
        self._wire.flush()
        if self._unread:
            self._write(self._program.fileno())
        return True
