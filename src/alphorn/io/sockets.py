"""Socket options of Linux that the standard library does not name: larger buffers, a filter, the count of drops."""

import contextlib
import ctypes
import socket
import struct

IP_MULTICAST_ALL = 49

_SO_ATTACH_FILTER = 26
_SO_MEMINFO, _MEMINFO, _MEMINFO_DROPS = 55, struct.Struct("9I"), 8
_FORCED = {socket.SO_RCVBUF: 33, socket.SO_SNDBUF: 32}
_UDP_HEADER_BYTES = 8


def grow_buffers(sock: socket.socket, wanted: int) -> int:
    """Asks for `wanted` bytes of buffer each way and returns the lesser of what the kernel gave."""
    given = wanted
    for option, forced in _FORCED.items():
        sock.setsockopt(socket.SOL_SOCKET, option, wanted)
        # The kernel reports twice what it was asked for, the other half being its own bookkeeping.
        if sock.getsockopt(socket.SOL_SOCKET, option) // 2 < wanted:
            with contextlib.suppress(PermissionError):  # Only an administrator may pass the system's limit.
                sock.setsockopt(socket.SOL_SOCKET, forced, wanted)
        given = min(given, sock.getsockopt(socket.SOL_SOCKET, option) // 2)
    return given


def forget_unsent(sock: socket.socket) -> None:
    """When this is closed, what was written to it and has not reached the other side never will."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def notice_absence(sock: socket.socket, seconds: float) -> None:
    """A connection ends when the other side's machine has not answered for so long, be it that nothing is sent.

    So does one whose other side takes nothing for so long.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(seconds / 3)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(seconds / 6)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def count_drops(sock: socket.socket) -> int:
    """Datagrams the kernel dropped at this socket: no room in its buffer, or refused by its filter."""
    return int(_MEMINFO.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[_MEMINFO_DROPS])


def ignore_origin(sock: socket.socket, origin: bytes, offset: int) -> bool:
    """Lets the kernel drop datagrams with `origin` at `offset`, or too short to have one; False where it cannot.

    A program of the classic packet filter: 0x20 loads a word and 0x28 a half, 0x15 jumps over as many instructions as
    said when equal or not, 6 returns how much of the datagram to keep.
    """
    first, second, third = struct.unpack(">IIH", origin)
    start = _UDP_HEADER_BYTES + offset
    program = [
        (0x20, 0, 0, start),
        (0x15, 0, 5, first),
        (0x20, 0, 0, start + 4),
        (0x15, 0, 3, second),
        (0x28, 0, 0, start + 8),
        (0x15, 0, 1, third),
        (6, 0, 0, 0),
        (6, 0, 0, 0xFFFF_FFFF),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    filter_program = struct.pack("HL", len(program), ctypes.addressof(code))
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_program)
    except OSError:
        return False
    return True
