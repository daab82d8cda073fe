"""Global ids: 16 bytes that no two things in a cluster ever share.

     0         4      6           10     11              16
     | host    | port | start     | kind | counter        |

host     IPv4 address of the minting node; on private networks two bytes of site id and the last two of the address
port     the node's own port, so two nodes on one host differ
start    when the node started, in eighths of a second since 2024; a restart never mints an earlier id again
kind     what the id names (`Kind`)
counter  one more for each id of a kind; when it overflows the node takes a new start

The first ten bytes are the `Origin`: one run of one node. Big-endian throughout, so ids sort by origin, then kind, then
age; as plain `bytes` they compare and hash in C.
"""

import enum
import ipaddress
import struct
from typing import NewType

from alphorn.model.errors import Misuse

Origin = NewType("Origin", bytes)
GlobalId = NewType("GlobalId", bytes)

ORIGIN_BYTES = 10
ID_BYTES = 16
COUNTER_MAX = (1 << 40) - 1
START_EPOCH_UNIX_S = 1_704_067_200  # 2024-01-01T00:00:00Z
START_UNITS_PER_S = 8
START_MAX = (1 << 32) - 1

_ORIGIN = struct.Struct(">4sHI")
_TAIL = struct.Struct(">BIB")  # kind, high 32 bits of the counter, low 8 bits


class Kind(enum.IntEnum):
    """What a global id names."""

    NODE = 1
    BATCH = 2
    MESSAGE = 3
    SESSION = 4
    DESTINATION = 5
    CONSUMER = 6
    PRODUCER = 7
    TRANSACTION = 8
    CONNECTION = 9


def host_bytes(address: str, *, site: int | None = None) -> bytes:
    """The four host bytes of an IPv4 address, or of a site id and the address's place in its private network."""
    packed = ipaddress.IPv4Address(address).packed
    if site is None:
        return packed
    if not 0 <= site <= 0xFFFF:
        raise Misuse(f"site id {site} does not fit two bytes; choose one from 0 to 65535")
    return site.to_bytes(2, "big") + packed[2:]


def start_units(unix_s: float) -> int:
    """A wall-clock time as a start field."""
    return int((unix_s - START_EPOCH_UNIX_S) * START_UNITS_PER_S)


def make_origin(host: bytes, port: int, start: int) -> Origin:
    """One run of one node."""
    if not 0 <= start <= START_MAX:
        raise Misuse(f"start time {start} does not fit the id format; check this machine's clock")
    return Origin(_ORIGIN.pack(host, port, start))


def make_id(origin: Origin, kind: Kind, counter: int) -> GlobalId:
    """The id of the counter-th thing of its kind that `origin` named."""
    return GlobalId(origin + _TAIL.pack(kind, counter >> 8, counter & 0xFF))


def origin_of(global_id: bytes) -> Origin:
    """Who minted this id."""
    return Origin(global_id[:ORIGIN_BYTES])


def counter_of(global_id: bytes) -> int:
    """The how-manieth of its kind this id is."""
    return int.from_bytes(global_id[11:], "big")


def kind_of(global_id: bytes) -> Kind:
    """What this id names; raises `ValueError` for a kind this version does not know."""
    return Kind(global_id[10])


def describe_id(global_id: bytes) -> str:
    """An id as people read it: host:port@start/kind#counter."""
    host, port, start = _ORIGIN.unpack_from(global_id)
    try:
        kind = kind_of(global_id).name.lower()
    except ValueError:
        kind = str(global_id[10])
    return f"{describe_host(host)}:{port}@{start:x}/{kind}#{counter_of(global_id)}"


def describe_origin(origin: bytes) -> str:
    """An origin as people read it: host:port@start."""
    host, port, start = _ORIGIN.unpack(origin)
    return f"{describe_host(host)}:{port}@{start:x}"


def describe_host(host: bytes) -> str:
    """Four host bytes in dotted form."""
    return ".".join(str(part) for part in host)


class IdSource:
    """Mints the ids of one node.

    `previous_start` is the start of the node's last run, where the node remembers it: the new start is always later,
    whatever the clock says.
    """

    __slots__ = ("_counters", "_host", "_port", "origin")

    def __init__(self, host: bytes, port: int, *, unix_s: float, previous_start: int = -1) -> None:
        self._host = host
        self._port = port
        self._counters: dict[Kind, int] = {}
        self.origin = make_origin(host, port, max(start_units(unix_s), previous_start + 1))

    @property
    def start(self) -> int:
        """The start field of this run."""
        return int.from_bytes(self.origin[6:10], "big")

    def next(self, kind: Kind) -> GlobalId:
        """A new id of this kind."""
        counter = self._counters.get(kind, 0) + 1
        if counter > COUNTER_MAX:
            self.origin = make_origin(self._host, self._port, self.start + 1)
            self._counters.clear()
            counter = 1
        self._counters[kind] = counter
        return make_id(self.origin, kind, counter)
