"""One member's whole transport: datagrams and connections behind one `send`.

A frame for a group address is multicast. A frame for a member goes as a datagram when it fits one, else over a
connection. Both listen on the same port number. Nothing is promised: frames may be lost, repeated or reordered, and
that is all.
"""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from alphorn.bus.frames import Parts
from alphorn.bus.machine import CONTROL_GROUP, DATA_GROUP
from alphorn.io.addresses import why_not_bound
from alphorn.io.capture import Capture
from alphorn.io.connections import Connections, ConnectionSettings
from alphorn.io.multicast import Datagrams, MulticastSettings
from alphorn.io.sealing import Seal, load_cluster_key
from alphorn.model.errors import Misuse

_PORT_ATTEMPTS = 16


class TransportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a member's transport needs to know."""

    multicast: MulticastSettings
    connections: ConnectionSettings = ConnectionSettings()
    cluster_key: Path | None = None  # seals everything; must be the same file on all members
    capture: Path | None = None  # records every frame sent and received


class Transport:
    """`open`, then `start` once the run's origin is known; then `send` any number of frames and `flush` once per turn.

    `on_frames` gets lists of byte strings, each one or more whole frames, in the loop's own thread.
    """

    def __init__(self, settings: TransportSettings, *, on_frames: Callable[[list[bytes]], None]) -> None:
        self._settings = settings
        self._cluster_key = load_cluster_key(settings.cluster_key) if settings.cluster_key is not None else None
        self._capture = Capture(settings.capture) if settings.capture is not None else None
        self._seal: Seal | None = None
        self._listener: socket.socket | None = None
        self._datagrams = self._make_datagrams(on_frames)
        self._on_frames = on_frames
        self._connections = Connections(settings.connections, on_frames=on_frames, capture=self._capture)

    @property
    def address(self) -> str:
        """Where others reach this member, once open."""
        return f"{self._settings.multicast.host}:{self._datagrams.port}"

    @property
    def datagram_bytes(self) -> int:
        """The largest frame that can be multicast from here."""
        return self._datagrams.datagram_bytes

    @property
    def buffer_bytes(self) -> int:
        """What the kernel gave each socket to receive into."""
        return self._datagrams.buffer_bytes

    def open(self) -> None:
        """Takes the ports. Raises `Misuse` when one is taken, or for an interface or group that cannot be used."""
        host, port = self._settings.multicast.host, self._settings.multicast.port
        for attempt in range(_PORT_ATTEMPTS):
            try:
                self._datagrams.open()
                self._listener = _listen(host, self._datagrams.port)
                return
            except OSError as error:
                self._datagrams.close()
                self._datagrams = self._make_datagrams(self._on_frames)
                if port or attempt == _PORT_ATTEMPTS - 1:
                    place = f"{host}:{port}"
                    raise Misuse(f"{place} cannot be opened: {why_not_bound(error)}") from error

    async def start(self, origin: bytes) -> None:
        """Begins to receive; `origin` is this run's."""
        assert self._listener is not None
        group = self._settings.multicast.group
        if self._cluster_key is not None:
            self._seal = Seal(self._cluster_key, group=group, origin=origin)
        self._datagrams.start(asyncio.get_running_loop(), origin=origin, seal=self._seal)
        listener, self._listener = self._listener, None
        await self._connections.start(listener, address=self.address, seal=self._seal)

    def send(self, to: str, parts: Parts) -> None:
        """Sends one frame at the next `flush`; until then what it refers to must stay as it is."""
        size = len(parts[0])
        for part in parts[1:]:
            size += len(part)
        if size <= self._datagrams.datagram_bytes:
            self._datagrams.send(to, parts, size)
        else:
            assert to not in (DATA_GROUP, CONTROL_GROUP), f"a frame of {size} bytes cannot be multicast"
            self._connections.send(to, parts, size)

    def flush(self) -> None:
        """Hands everything gathered to the kernel."""
        self._datagrams.flush()
        self._connections.flush()

    def hear(self) -> None:
        """Hands over the datagrams that have arrived, without waiting to be woken for them."""
        self._datagrams.drain_all()

    async def close(self) -> None:
        """Closes all sockets; what waits is lost."""
        self._datagrams.close()
        if self._listener is not None:
            self._listener.close()
        await self._connections.close()
        if self._capture is not None:
            self._capture.close()

    def describe(self) -> dict[str, object]:
        """All counters."""
        return {
            "datagrams": self._datagrams.describe(),
            "connections": self._connections.describe(),
            "seal": self._seal.describe() if self._seal is not None else None,
            "capture": {"records": self._capture.records, "skipped": self._capture.skipped} if self._capture else None,
        }

    def _make_datagrams(self, on_frames: Callable[[list[bytes]], None]) -> Datagrams:
        return Datagrams(
            self._settings.multicast,
            on_datagrams=on_frames,
            is_sealed=self._cluster_key is not None,
            capture=self._capture,
        )


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
