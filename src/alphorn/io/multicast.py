"""Datagrams of one member: two multicast addresses of the group, data and control, and one address of its own.

Sockets are drained, not read: up to `DRAIN_MAX` datagrams per wake-up go to the owner as one list. Frames to one target
are gathered until `flush` and leave as few datagrams, without copying. When the kernel takes no more, a bounded queue
waits; beyond it, datagrams are dropped and counted. Loss, duplication and reordering are left to the protocol.

The members of one host share the group's ports, so multicast must loop back, and a member's own datagrams come back
too. A filter inside the kernel drops those by their origin before they cost receive buffer or a copy.
"""

import logging
import socket
import struct
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from alphorn.bus.frames import Parts
from alphorn.bus.machine import CONTROL_GROUP, DATA_GROUP
from alphorn.io.addresses import Interface, Lane, find_interface, group_address, parse_address
from alphorn.io.capture import Capture, Direction
from alphorn.io.sealing import OVERHEAD_BYTES, Seal
from alphorn.io.sockets import IP_MULTICAST_ALL, count_drops, grow_buffers, ignore_origin
from alphorn.model.errors import Misuse
from alphorn.model.ids import ORIGIN_BYTES

DRAIN_ROUNDS_MAX = 4  # of a socket that is emptied on purpose: more than the window lets be under way
DRAIN_MAX = 64  # datagrams per wake-up: large enough to amortise it, small enough to let the other sockets speak
GATHER_PARTS_MAX = 512  # parts of one datagram; the kernel's limit is 1024
TARGETS_MAX = 4096  # members whose addresses and counters are remembered
RECEIVE_BYTES = 65_535
PLAIN_ORIGIN_OFFSET = 30  # of the origin in a frame's header
SEALED_ORIGIN_OFFSET = 0

_log = logging.getLogger(__name__)


class MulticastSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one member's datagram sockets need to know. `group`, `data` and `control` must agree on all members."""

    group: int
    host: str  # IPv4 address that others reach this member at; its interface carries the multicast
    port: int = 0  # of this member's own address, UDP and TCP; 0 takes a free one
    interface: str = ""  # by name, where `host` is not the first address of its interface
    data: str = ""  # "address:port" of the bulk lane; empty derives it from the group
    control: str = ""  # of the control lane
    ttl: int = 1  # routers that multicast may cross, plus one
    receives_data: bool = True  # False spares a member that wants no bulk all of it; it may still send
    buffer_bytes: int = 16 << 20  # of each socket, each way; raise net.core.rmem_max and wmem_max with it
    queue_bytes_max: int = 8 << 20  # of datagrams that wait for the kernel


class _Target:
    """Somewhere to send, what waits for the end of the turn, and what went there."""

    __slots__ = ("address", "bytes", "datagrams", "lane", "name", "parts", "size")

    def __init__(self, name: str, lane: Lane, address: tuple[str, int]) -> None:
        self.name = name
        self.lane = lane
        self.address = address
        self.parts: list[bytes | memoryview] = []
        self.size = 0
        self.datagrams = 0
        self.bytes = 0


class _Source:
    """One socket to receive from."""

    __slots__ = ("bytes", "datagrams", "is_filtered", "lane", "name", "socket")

    def __init__(self, name: str, lane: Lane, sock: socket.socket) -> None:
        self.name = name
        self.lane = lane
        self.socket = sock
        self.is_filtered = False
        self.datagrams = 0
        self.bytes = 0


class Datagrams:
    """The sockets of one member. `open`, then `start` once the run's origin is known, then `send`, `flush`, `close`.

    `on_datagrams` gets whole lists, already opened where a seal is used. Nothing here blocks.
    """

    def __init__(
        self,
        settings: MulticastSettings,
        *,
        on_datagrams: Callable[[list[bytes]], None],
        is_sealed: bool = False,
        capture: Capture | None = None,
    ) -> None:
        self._settings = settings
        self._on_datagrams = on_datagrams
        self._is_sealed = is_sealed
        self._capture = capture
        self._seal: Seal | None = None
        self._origin = b""
        self._loop: AbstractEventLoop | None = None
        self._sources: list[_Source] = []
        self._groups = {
            DATA_GROUP: (Lane.DATA, settings.data or group_address(settings.group, Lane.DATA)),
            CONTROL_GROUP: (Lane.CONTROL, settings.control or group_address(settings.group, Lane.CONTROL)),
        }
        self._targets: dict[str, _Target] = {}
        self._dirty: list[_Target] = []
        self._waiting: deque[tuple[_Target, bytes]] = deque()
        self._waiting_bytes = 0
        self.interface: Interface = find_interface(settings.host, settings.interface)
        self.datagram_bytes = self.interface.datagram_bytes(overhead_bytes=OVERHEAD_BYTES if is_sealed else 0)
        self.send_drops = 0  # the queue was full, or the kernel refused: the network or its configuration is at fault
        self.receive_errors = 0
        self.buffer_bytes = settings.buffer_bytes  # what the kernel gave, where that is less

    @property
    def port(self) -> int:
        """The port of this member's own address."""
        return int(self._member_socket.getsockname()[1])

    def open(self) -> None:
        """Makes and binds the sockets; raises `OSError` when the port is taken and `Misuse` for what cannot work."""
        settings = self._settings
        try:
            member = self._make_socket()
            source = _Source(settings.host, Lane.MEMBER, member)
            self._sources.append(source)
            member.bind((settings.host, settings.port))
            source.name = f"{settings.host}:{member.getsockname()[1]}"
            self._prepare_sending(member)
            for name, (lane, address) in self._groups.items():
                if lane is Lane.CONTROL or settings.receives_data:
                    self._sources.append(_Source(name, lane, self._join(address)))
        except BaseException:
            self.close()
            raise
        self._sources.sort(key=lambda source: source.lane)  # bulk first
        self._member_socket = member
        if self.buffer_bytes < settings.buffer_bytes:
            _log.warning(
                "event=small_socket_buffers wanted=%d got=%d advice='raise net.core.rmem_max and net.core.wmem_max'",
                settings.buffer_bytes,
                self.buffer_bytes,
            )

    def start(self, loop: AbstractEventLoop, *, origin: bytes, seal: Seal | None = None) -> None:
        """Begins to receive. `origin` is this run's, whose datagrams are ignored."""
        assert (seal is not None) == self._is_sealed
        assert len(origin) == ORIGIN_BYTES
        self._loop, self._origin, self._seal = loop, origin, seal
        offset = SEALED_ORIGIN_OFFSET if seal else PLAIN_ORIGIN_OFFSET
        for source in self._sources:
            if source.lane is not Lane.MEMBER:
                source.is_filtered = ignore_origin(source.socket, origin, offset)
            loop.add_reader(source.socket, self._drain if source.lane is Lane.DATA else self._drain_after_bulk, source)

    def send(self, to: str, parts: Parts, size: int) -> None:
        """Adds a frame of `size` bytes to what leaves at `flush`; what it refers to must stay as it is until then."""
        target = self._targets.get(to) or self._add_target(to)
        if target is None:
            self.send_drops += 1
            return
        held = target.size
        if held and (held + size > self.datagram_bytes or len(target.parts) >= GATHER_PARTS_MAX):
            self._transmit(target)
            held = 0
        if not target.parts:
            self._dirty.append(target)
        target.parts.extend(parts)
        target.size = held + size

    def flush(self) -> None:
        """Sends everything gathered."""
        dirty, self._dirty = self._dirty, []
        for target in dirty:
            if target.parts:
                self._transmit(target)

    def drain_all(self) -> None:
        """Hands over what has arrived, bulk before control: so nobody asks for batches that are here already."""
        for source in self._sources:
            for _ in range(DRAIN_ROUNDS_MAX):
                if self._drain(source) < DRAIN_MAX:
                    break

    def close(self) -> None:
        """Closes the sockets; what waits is lost."""
        for source in self._sources:
            if self._loop is not None:
                self._loop.remove_reader(source.socket)
                self._loop.remove_writer(source.socket)
            source.socket.close()
        self._sources.clear()
        self._waiting.clear()
        self._waiting_bytes = 0

    def describe(self) -> dict[str, object]:
        """Counters by address, each way. `kernel_drops` are datagrams for which the receive buffer had no room."""
        return {
            "interface": self.interface.name,
            "datagram_bytes": self.datagram_bytes,
            "buffer_bytes": self.buffer_bytes,
            "sent": {t.name: {"datagrams": t.datagrams, "bytes": t.bytes} for t in self._targets.values()},
            "received": {
                source.name: {
                    "datagrams": source.datagrams,
                    "bytes": source.bytes,
                    "kernel_drops": self._kernel_drops(source),
                }
                for source in self._sources
            },
            "send_drops": self.send_drops,
            "receive_errors": self.receive_errors,
            "waiting_bytes": self._waiting_bytes,
        }

    def _add_target(self, to: str) -> _Target | None:
        lane, address = self._groups.get(to, (Lane.MEMBER, to))
        try:
            target = _Target(to, lane, parse_address(address))
        except Misuse:  # A peer may name any address; nothing can be sent to this one.
            return None
        if len(self._targets) >= TARGETS_MAX:
            self.flush()
            self._targets.pop(next(name for name in self._targets if name not in self._groups))
        self._targets[to] = target
        return target

    def _transmit(self, target: _Target) -> None:
        parts: Sequence[bytes | memoryview] = target.parts
        target.parts, target.size = [], 0
        if self._capture is not None:
            self._capture.record(Direction.SENT, target.name, parts)
        if self._seal is not None:
            parts = self._seal.seal(target.lane, parts)
        if self._waiting:
            self._wait(target, b"".join(parts))
            return
        try:
            sent = self._member_socket.sendmsg(parts, (), 0, target.address)
        except (BlockingIOError, InterruptedError):
            self._wait(target, b"".join(parts))
        except OSError:
            self.send_drops += 1
        else:
            target.datagrams += 1
            target.bytes += sent

    def _wait(self, target: _Target, datagram: bytes) -> None:
        if self._waiting_bytes + len(datagram) > self._settings.queue_bytes_max:
            self.send_drops += 1
            return
        if not self._waiting:
            assert self._loop is not None
            self._loop.add_writer(self._member_socket, self._send_waiting)
        self._waiting.append((target, datagram))
        self._waiting_bytes += len(datagram)

    def _send_waiting(self) -> None:
        while self._waiting:
            target, datagram = self._waiting[0]
            try:
                self._member_socket.sendto(datagram, target.address)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.send_drops += 1
            else:
                target.datagrams += 1
                target.bytes += len(datagram)
            self._waiting.popleft()
            self._waiting_bytes -= len(datagram)
        assert self._loop is not None
        self._loop.remove_writer(self._member_socket)

    def _drain_after_bulk(self, source: _Source) -> None:
        bulk = self._sources[0]
        if bulk.lane is Lane.DATA:
            self._drain(bulk)
        self._drain(source)

    def _drain(self, source: _Source) -> int:
        receive = source.socket.recv
        datagrams: list[bytes] = []
        try:
            for _ in range(DRAIN_MAX):
                datagrams.append(receive(RECEIVE_BYTES))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # An earlier datagram was refused by its target; what follows is not affected.
            self.receive_errors += 1
        count = len(datagrams)
        source.datagrams += count
        source.bytes += sum(map(len, datagrams))
        if self._seal is not None:
            unseal, lane = self._seal.open, source.lane
            datagrams = [opened for sealed in datagrams if (opened := unseal(lane, sealed)) is not None]
        elif not source.is_filtered:
            end, origin = PLAIN_ORIGIN_OFFSET + ORIGIN_BYTES, self._origin
            datagrams = [datagram for datagram in datagrams if datagram[PLAIN_ORIGIN_OFFSET:end] != origin]
        if not datagrams:
            return count
        if self._capture is not None:
            for datagram in datagrams:
                self._capture.record(Direction.RECEIVED, source.name, (datagram,))
        self._on_datagrams(datagrams)
        return count

    def _kernel_drops(self, source: _Source) -> int:
        drops = count_drops(source.socket)
        own = self._targets.get(source.name)
        # The kernel counts what its filter refused as drops too: exactly this member's own datagrams.
        return max(0, drops - own.datagrams) if own is not None and source.is_filtered else drops

    def _make_socket(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self.buffer_bytes = min(self.buffer_bytes, grow_buffers(sock, self._settings.buffer_bytes))
        return sock

    def _prepare_sending(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, self._membership("0.0.0.0"))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, self._settings.ttl)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)

    def _join(self, address: str) -> socket.socket:
        host, port = parse_address(address)
        sock = self._make_socket()
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))  # To the group's address, so that nothing else for this port comes in.
            sock.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)  # Nor from interfaces others have joined on.
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, self._membership(host))
        except OSError as error:
            sock.close()
            raise Misuse(f"group {address} cannot be joined on {self.interface.name} ({error.strerror})") from error
        return sock

    def _membership(self, group_host: str) -> bytes:
        return struct.pack(
            "@4s4si", socket.inet_aton(group_host), socket.inet_aton(self._settings.host), self.interface.index
        )
