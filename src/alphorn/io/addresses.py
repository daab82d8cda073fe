"""Where datagrams go: the lanes of a group, the addresses they take by default, and the interface they leave by.

By default the group's id is in its addresses, so that groups below 131,072 never share one. They lie in the
organisation-local range 239.192.0.0/14 (RFC 2365), which no link-local multicast address is confused with:

     239.192.0.0 + ((group & 0x1FFFF) << 1 | lane)  port 21000 + 2 * ((group >> 17) % 5000) + lane
"""

import enum
import errno
import fcntl
import ipaddress
import socket
import struct
import sys

import msgspec

from alphorn.model.errors import Misuse

DATAGRAM_BYTES_MAX = 60_000  # where the interface allows it; UDP's own limit is not far above
UDP_HEADERS_BYTES = 28  # IPv4 and UDP
PORT_BASE = 21_000
PORT_PAIRS = 5_000

_RANGE_START = int(ipaddress.IPv4Address("239.192.0.0"))
_ADDRESS_BITS = 17
_SIOCGIFADDR = 0x8915
_SIOCGIFMTU = 0x8921


class Lane(enum.IntEnum):
    """The ways into a member. Each has its own socket, so frames of one lane may overtake those of another."""

    DATA = 0  # the group's bulk address
    CONTROL = 1  # the group's address for everything small
    MEMBER = 2  # one member's own datagrams
    STREAM = 3  # one member's connections


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface of this machine."""

    name: str
    index: int
    mtu: int

    def datagram_bytes(self, *, overhead_bytes: int) -> int:
        """What fits one unfragmented datagram when sealing adds `overhead_bytes`."""
        return min(DATAGRAM_BYTES_MAX, self.mtu - UDP_HEADERS_BYTES - overhead_bytes)


def group_address(group: int, lane: Lane) -> str:
    """The default "host:port" of a group's data or control lane."""
    assert lane in (Lane.DATA, Lane.CONTROL)
    host = ipaddress.IPv4Address(_RANGE_START + ((group & (1 << _ADDRESS_BITS) - 1) << 1 | lane))
    return f"{host}:{PORT_BASE + 2 * ((group >> _ADDRESS_BITS) % PORT_PAIRS) + lane}"


def parse_address(address: str) -> tuple[str, int]:
    """An IPv4 "host:port" in its parts; raises `Misuse`. Names are refused, since resolving one may block."""
    host, _, port = address.rpartition(":")
    try:
        ipaddress.IPv4Address(host)
        number = int(port)
    except ValueError:
        number = 0
    if not 0 < number <= 0xFFFF:
        raise Misuse(f"address {address!r} cannot be sent to; write an IPv4 address and a port, like 10.0.0.7:21100")
    return host, number


def find_interface(host: str, name: str = "") -> Interface:
    """The interface called `name`, or the one that has the address `host`; raises `Misuse`."""
    if not name:
        try:
            name = "lo" if ipaddress.IPv4Address(host).is_loopback else _interface_with(host)
        except ipaddress.AddressValueError:
            raise Misuse(f"host {host!r} is no IPv4 address; write one of this machine, like 10.0.0.7") from None
    try:
        index = socket.if_nametoindex(name)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = _ask(probe, _SIOCGIFMTU, name)
    except OSError as error:
        raise Misuse(f"interface {name!r} is not on this machine; choose one that `ip link` lists") from error
    return Interface(name=name, index=index, mtu=int.from_bytes(answer[16:20], sys.byteorder))


def why_not_bound(error: OSError) -> str:
    """Why nobody can listen at an address, and the way out."""
    match error.errno:
        case errno.EADDRINUSE:
            return "another program uses the port; end that, or choose another port"
        case errno.EADDRNOTAVAIL:
            return "no interface of this machine has that address; write one that it has"
        case errno.EACCES:
            return "this user may not use so low a port; choose one above 1023"
    return f"{error.strerror}; choose another address"


def _ask(probe: socket.socket, request: int, name: str) -> bytes:
    return fcntl.ioctl(probe, request, struct.pack("16s240x", name.encode()))


def _interface_with(host: str) -> str:
    wanted = socket.inet_aton(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = _ask(probe, _SIOCGIFADDR, name)
            except OSError:  # The interface has no IPv4 address.
                continue
            if answer[20:24] == wanted:
                return name
    raise Misuse(f"no interface of this machine has {host} as its first address; use one that `ip -4 addr` shows first")
