"""The records of a store, and their bytes. Pure: bytes to values and back.

A store is one LMDB environment with these tables. Integers are big-endian, so keys sort by number.

    table        key                      value
    meta         "version"                sealed( version u32 )
                 "meta"                   sealed( msgpack of Meta )
                 "bounds"                 sealed( first u64 | last u64 )      numbers that have an assignment
                 "applied"                sealed( run u64 | number u64 )      the last job of this run (write_ahead.py)
    assignments  number u64               sealed( msgpack array of Assignment )
    heads        number u64               head of the entry
    log          number u64               the batch, exactly as it was received, unless it is among the bodies
    state        "group"                  sealed( number u64 | the group's own state )
    checkpoints  number u64               sealed( epoch u64 | size u64 | chunks u32 | digest u64 | the group's state )
    chunk_heads  number u64 | chunk u32   head of the chunk
    chunks       number u64 | chunk u32   one chunk, exactly as it was received

    sealed(body)   0          8                    head   0        8      12         20
                   | checksum | body ...                  | digest | size | checksum |

                                                   head   0        8      12     20         28
                                                          | digest | size | page | checksum |

checksum  xxh3-64 of table name, a zero byte, key and the rest of the record: a record in the wrong place fails too
digest    xxh3-64 of the batch or chunk, made by its first sender
page      where in the file of bodies a large batch begins (bodies.py); such a batch has no record in log

A batch's head stands in a table of its own, so that the stored value is the received bytes: nothing is joined or
copied to write it, nothing is hashed a second time, and a missing batch is told from one never stored.
"""

import struct
from typing import NamedTuple

import msgspec
import xxhash

from alphorn.bus.entries import Assignment
from alphorn.bus.storage import DAMAGED, CheckpointInfo, Damaged, Meta

VERSION = 4
VERSIONS_READ = (2, 3, 4)  # in 2 every batch was in the tables, in 3 no drop was written ahead; both are read like 4

META = b"meta"
ASSIGNMENTS = b"assignments"
HEADS = b"heads"
LOG = b"log"
STATE = b"state"
CHECKPOINTS = b"checkpoints"
CHUNK_HEADS = b"chunk_heads"
CHUNKS = b"chunks"
TABLES = (META, ASSIGNMENTS, HEADS, LOG, STATE, CHECKPOINTS, CHUNK_HEADS, CHUNKS)

VERSION_KEY = b"version"
META_KEY = b"meta"
BOUNDS_KEY = b"bounds"
APPLIED_KEY = b"applied"
GROUP_KEY = b"group"

NUMBER_MAX = (1 << 64) - 1
SEALED_BYTES_MAX = 256 << 20  # a longer one is damage; reading on would leave the file

_NUMBER = struct.Struct(">Q")
_CHUNK_KEY = struct.Struct(">QI")
_CHECKSUM = struct.Struct(">Q")
_HEAD = struct.Struct(">QIQ")
_HEAD_BODY = struct.Struct(">QI")
_PLACED_HEAD = struct.Struct(">QIQQ")
_PLACED_HEAD_BODY = struct.Struct(">QIQ")
_VERSION = struct.Struct(">I")
_BOUNDS = struct.Struct(">QQ")
_APPLIED = struct.Struct(">QQ")
_CHECKPOINT = struct.Struct(">QQIQ")

_encode_assignment = msgspec.msgpack.Encoder().encode
_decode_assignment = msgspec.msgpack.Decoder(Assignment).decode
_decode_meta = msgspec.msgpack.Decoder(Meta).decode
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, struct.error)

number_key = _NUMBER.pack  # of a number in assignments, heads, log and checkpoints
chunk_key = _CHUNK_KEY.pack  # of a number and a chunk in chunk_heads and chunks


def number_of(key: bytes | memoryview) -> int:
    """The number a key begins with; raises `struct.error` for a key that has none."""
    return int(_NUMBER.unpack_from(key)[0])


def chunk_of(key: bytes | memoryview) -> int:
    """The chunk a key of chunks or chunk_heads ends with."""
    return int(_CHUNK_KEY.unpack(key)[1])


def seal(table: bytes, key: bytes, body: bytes) -> bytes:
    """A record that tells its own damage and its own place."""
    return _CHECKSUM.pack(xxhash.xxh3_64_intdigest(table + b"\0" + key + body)) + body


def unseal(table: bytes, key: bytes, record: bytes | memoryview) -> bytes | Damaged:
    """The body of a sealed record."""
    if not _CHECKSUM.size <= len(record) <= SEALED_BYTES_MAX:
        return DAMAGED
    body = bytes(record[_CHECKSUM.size :])
    (checksum,) = _CHECKSUM.unpack_from(record)
    return body if checksum == xxhash.xxh3_64_intdigest(table + b"\0" + key + body) else DAMAGED


class Head(NamedTuple):
    """What is known of a batch or chunk without looking at it."""

    digest: int
    size: int
    page: int | None = None  # where it begins in the file of bodies; None where a table has it


def pack_head(table: bytes, key: bytes, head: Head) -> bytes:
    """The head of a batch or chunk."""
    digest, size, page = head
    body = _HEAD_BODY.pack(digest, size) if page is None else _PLACED_HEAD_BODY.pack(digest, size, page)
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(table + b"\0" + key + body))


def unpack_head(table: bytes, key: bytes, record: bytes | memoryview) -> Head | Damaged:
    """What a head says."""
    page: int | None = None
    if len(record) == _HEAD.size:
        digest, size, checksum = _HEAD.unpack(record)
        body = _HEAD_BODY.pack(digest, size)
    elif len(record) == _PLACED_HEAD.size:
        digest, size, page, checksum = _PLACED_HEAD.unpack(record)
        body = _PLACED_HEAD_BODY.pack(digest, size, page)
    else:
        return DAMAGED
    is_good = checksum == xxhash.xxh3_64_intdigest(table + b"\0" + key + body)
    return Head(digest, size, page) if is_good else DAMAGED


def size_in_head(record: bytes | memoryview) -> int:
    """The size that a head tells, without looking whether the head is damaged; for figures."""
    return int(_HEAD_BODY.unpack_from(record)[1]) if len(record) in (_HEAD.size, _PLACED_HEAD.size) else 0


def is_placed(record: bytes | memoryview) -> bool:
    """Whether a head is one of a batch in the file of bodies; it may be damaged."""
    return len(record) == _PLACED_HEAD.size


def pack_version(version: int) -> bytes:
    """The version record."""
    return seal(META, VERSION_KEY, _VERSION.pack(version))


def unpack_version(record: bytes | memoryview) -> int | Damaged:
    """The version of the format a store is written in."""
    body = unseal(META, VERSION_KEY, record)
    return int.from_bytes(body, "big") if isinstance(body, bytes) and len(body) == _VERSION.size else DAMAGED


def pack_meta(data: bytes) -> bytes:
    """The meta record from an encoded `Meta`."""
    return seal(META, META_KEY, data)


def unpack_meta(record: bytes | memoryview) -> Meta | Damaged:
    """The `Meta` of a meta record."""
    body = unseal(META, META_KEY, record)
    return decode_meta(body) if isinstance(body, bytes) else DAMAGED


def decode_meta(data: bytes) -> Meta | Damaged:
    """A `Meta` from its encoding."""
    try:
        return _decode_meta(data)
    except _MALFORMED:
        return DAMAGED


def pack_bounds(first: int, last: int) -> bytes:
    """The bounds record."""
    return seal(META, BOUNDS_KEY, _BOUNDS.pack(first, last))


def unpack_bounds(record: bytes | memoryview) -> tuple[int, int] | Damaged:
    """First and last number with an assignment."""
    body = unseal(META, BOUNDS_KEY, record)
    if not isinstance(body, bytes) or len(body) != _BOUNDS.size:
        return DAMAGED
    first, last = _BOUNDS.unpack(body)
    return first, last


def pack_applied(run: int, number: int) -> bytes:
    """The record of the last job that the tables have."""
    return seal(META, APPLIED_KEY, _APPLIED.pack(run, number))


def unpack_applied(record: bytes | memoryview) -> tuple[int, int] | Damaged:
    """Run and number of the last job that the tables have."""
    body = unseal(META, APPLIED_KEY, record)
    if not isinstance(body, bytes) or len(body) != _APPLIED.size:
        return DAMAGED
    run, number = _APPLIED.unpack(body)
    return run, number


def pack_assignment(key: bytes, assignment: Assignment) -> bytes:
    """An assignment record."""
    return seal(ASSIGNMENTS, key, _encode_assignment(assignment))


def unpack_assignment(key: bytes, record: bytes | memoryview) -> Assignment | Damaged:
    """The assignment of a record."""
    body = unseal(ASSIGNMENTS, key, record)
    if not isinstance(body, bytes):
        return DAMAGED
    try:
        return _decode_assignment(body)
    except _MALFORMED:
        return DAMAGED


def pack_group_state(sequence: int, data: bytes) -> bytes:
    """The group state record."""
    return seal(STATE, GROUP_KEY, _NUMBER.pack(sequence) + data)


def unpack_group_state(record: bytes | memoryview) -> tuple[int, bytes] | Damaged:
    """The group's own state and the number it belongs to."""
    body = unseal(STATE, GROUP_KEY, record)
    if not isinstance(body, bytes) or len(body) < _NUMBER.size:
        return DAMAGED
    return number_of(body), body[_NUMBER.size :]


def pack_checkpoint(info: CheckpointInfo) -> bytes:
    """The record that makes a checkpoint complete."""
    body = _CHECKPOINT.pack(info.epoch, info.size, info.chunks, info.digest) + info.state
    return seal(CHECKPOINTS, number_key(info.sequence), body)


def unpack_checkpoint(key: bytes, record: bytes | memoryview) -> CheckpointInfo | Damaged:
    """The checkpoint of a record."""
    body = unseal(CHECKPOINTS, key, record)
    if not isinstance(body, bytes) or len(body) < _CHECKPOINT.size or len(key) != _NUMBER.size:
        return DAMAGED
    epoch, size, chunks, digest = _CHECKPOINT.unpack_from(body)
    return CheckpointInfo(
        sequence=number_of(key), epoch=epoch, size=size, chunks=chunks, digest=digest, state=body[_CHECKPOINT.size :]
    )
