"""A file beside LMDB, in which small writes are durable after one write to the disk, before LMDB has them.

A commit of LMDB rewrites a page of every table on the way to its root and syncs twice, which is much for a few hundred
bytes. Here they are appended, in one synchronous write, and LMDB takes them later, many at once.

The file is a ring of slots of one page. A record begins at a slot, and nothing that is still needed lies in a page that
is written, so a write that a power cut tears can spoil only itself:

     0          8     16       24       28
     | checksum | run | number | length | msgpack: first | last | writes | before

checksum  xxh3-64 of everything after it, body included
run       drawn anew whenever the store is opened: records of an earlier run, and bytes made to look like one, are void
number    of the job; LMDB names the run and the last number it has ("applied"), and only later ones count
before    how many records of the same append are before this one; 0 where a release wrote it that had no such field

An append writes several records at once, and a drive writes the pages of one write in any order. So a power cut may
leave a record and not the one before it, and whether that is damage is told by `before`: an append begins when the one
before it is durable, and LMDB takes records of an append only when all of it is durable. A number is lost where one of
these says that it was durable. Otherwise it and all after it belong to the append that was cut off, of which nobody was
told: what is there of it up to the first gap is taken, the rest is void with its run.
"""

import errno
import os
import struct
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec
import xxhash

from alphorn.bus.entries import Assignment
from alphorn.bus.machine import DropThrough, PutAssignments, PutEntry, PutGroupState, PutMeta, Write
from alphorn.io.bodies import PutPlaced
from alphorn.io.direct_file import PAGE_BYTES, open_direct, page_buffer
from alphorn.io.store_files import sync_directory
from alphorn.model.errors import Corruption

AHEAD_FILE = "ahead"
SLOT_BYTES = PAGE_BYTES
SLOTS = 512

_HEAD = struct.Struct(">QQQI")
_CHECKED_FROM = 8


class Record(msgspec.Struct, frozen=True, gc=False):
    """One job's writes, and the bounds of the assignments after them."""

    number: int
    bounds: tuple[int, int]
    writes: list[Write]
    before: int = 0  # records of the same append that precede it

    @property
    def append_first(self) -> int:
        """The number of the first record that was appended together with this one."""
        return self.number - self.before


class _Entry(msgspec.Struct, frozen=True, array_like=True, tag=1):
    sequence: int
    payload: memoryview
    digest: int


class _Assignments(msgspec.Struct, frozen=True, array_like=True, tag=2):
    first: int
    assignments: list[Assignment]


class _Meta(msgspec.Struct, frozen=True, array_like=True, tag=3):
    data: bytes


class _GroupState(msgspec.Struct, frozen=True, array_like=True, tag=4):
    sequence: int
    data: bytes


class _Placed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    sequence: int
    size: int
    digest: int
    page: int


class _DropThrough(msgspec.Struct, frozen=True, array_like=True, tag=6):
    sequence: int
    is_retaining: bool


_Packed = _Entry | _Assignments | _Meta | _GroupState | _Placed | _DropThrough
_ENCODABLE = (PutEntry, PutPlaced, PutAssignments, PutMeta, PutGroupState, DropThrough)


class _Body(msgspec.Struct, frozen=True, array_like=True):
    first: int
    last: int
    writes: list[_Packed]
    before: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Body).decode


def encodable(writes: list[Write]) -> bool:
    """Whether these can be written ahead: what a turn of a member that keeps up writes."""
    return all(isinstance(write, _ENCODABLE) for write in writes)


def encode_record(run: int, record: Record) -> bytes:
    """A record's bytes, without what fills its last slot."""
    body = _encode(_Body(*record.bounds, [_packed(write) for write in record.writes], record.before))
    rest = _HEAD.pack(0, run, record.number, len(body))[_CHECKED_FROM:] + body
    return xxhash.xxh3_64_digest(rest) + rest


def describe_write(write: Write) -> str:
    """A write as people read it."""
    match write:
        case PutEntry(sequence, payload, _):
            return f"entry {sequence} of {len(payload)} bytes"
        case PutPlaced(sequence, size, _, page):
            return f"entry {sequence} of {size} bytes at page {page}"
        case PutAssignments(first, assignments):
            return f"assignments {first} to {first + len(assignments) - 1}"
        case PutGroupState(sequence, _):
            return f"group state at {sequence}"
        case DropThrough(sequence):
            return f"drop through {sequence}"
    return "meta"


class WriteAhead:
    """The file, open for one run. `append` returns when the records are durable, and raises `OSError` when not."""

    __slots__ = ("_buffer", "_file", "_kept", "_next", "run")

    def __init__(self, path: Path, run: int) -> None:
        self.run = run
        self._kept: deque[tuple[int, int, int]] = deque()  # number, first slot and slots of what may still be needed
        self._next = 0
        self._buffer = page_buffer(SLOTS * SLOT_BYTES)
        self._file = _open_zeroed(path / AHEAD_FILE)

    def place(self, sizes: list[int], committed: int) -> int | None:
        """The first slot for records of these sizes, side by side; None when there is no room.

        Records through `committed` are in LMDB for good and make room.
        """
        while self._kept and self._kept[0][0] <= committed:
            self._kept.popleft()
        wanted = sum(map(_slots, sizes))
        oldest = self._kept[0][1] if self._kept else None
        if oldest is None:
            return 0 if wanted <= SLOTS else None
        if self._next > oldest:
            if self._next + wanted <= SLOTS:
                return self._next
            return 0 if wanted < oldest else None
        return self._next if self._next + wanted < oldest else None

    @property
    def is_half_full(self) -> bool:
        """Whether LMDB should take what is here soon."""
        if not self._kept:
            return False
        return (self._next - self._kept[0][1]) % SLOTS > SLOTS // 2

    def append(self, place: int, encoded: list[tuple[int, bytes]]) -> None:
        """Writes records, each with its number, from a slot that `place` gave for them."""
        slot, buffer = place, self._buffer
        for number, record in encoded:
            count = _slots(len(record))
            begin, end = (slot - place) * SLOT_BYTES, (slot - place + count) * SLOT_BYTES
            buffer[begin : begin + len(record)] = record
            buffer[begin + len(record) : end] = bytes(end - begin - len(record))
            self._kept.append((number, slot, count))
            slot += count
        size = (slot - place) * SLOT_BYTES
        written = os.pwrite(self._file, memoryview(buffer)[:size], place * SLOT_BYTES)
        if written != size:
            raise OSError(errno.ENOSPC, f"only {written} of {size} bytes were written ahead")
        self._next = slot

    def close(self) -> None:
        """Closes the file; what is in it stays."""
        os.close(self._file)


def read_ahead(path: Path, run: int, applied: int) -> list[Record]:
    """What is durable in a store's file and not in LMDB, in order; raises `Corruption` where some of it is missing.

    Of an append that was cut off, the records before its first gap are given too. Whoever brings them into LMDB begins
    another run by the same commit: so those behind the gap cannot count later, when their predecessors are there again.
    """
    try:
        data = (path / AHEAD_FILE).read_bytes()
    except FileNotFoundError:
        return []
    found: dict[int, Record] = {}
    for start in range(0, len(data) - _HEAD.size, SLOT_BYTES):
        record = _record_at(data, start, run)
        if record is not None and record.number > applied:
            found[record.number] = record
    records: list[Record] = []
    while (following := found.get(applied + len(records) + 1)) is not None:
        records.append(following)
    if applied + len(records) < _durable_through(found.values(), applied):
        raise Corruption(
            f"store {path} has lost writes that were durable, a record of its file {AHEAD_FILE!r} is damaged; move the "
            "directory away and start this node on a blank one, so that it rejoins as a member that lost its disk"
        )
    return records


def _durable_through(found: Iterable[Record], applied: int) -> int:
    """How far at least the numbers were durable, by what is left of them."""
    return max((r.number if r.append_first <= applied else r.append_first - 1 for r in found), default=applied)


def _record_at(data: bytes, start: int, run: int) -> Record | None:
    checksum, its_run, number, length = _HEAD.unpack_from(data, start)
    end = start + _HEAD.size + length
    if its_run != run or end > len(data):
        return None
    if checksum != xxhash.xxh3_64_intdigest(memoryview(data)[start + _CHECKED_FROM : end]):
        return None
    body = _decode(memoryview(data)[start + _HEAD.size : end])
    return Record(number, (body.first, body.last), [_unpacked(write) for write in body.writes], body.before)


def _slots(size: int) -> int:
    return -(-size // SLOT_BYTES)


def _packed(write: Write) -> _Packed:
    match write:
        case PutEntry(sequence, payload, digest):
            return _Entry(sequence, memoryview(payload), digest)
        case PutAssignments(first, assignments):
            return _Assignments(first, assignments)
        case PutMeta(data):
            return _Meta(data)
        case PutGroupState(sequence, data):
            return _GroupState(sequence, data)
        case PutPlaced(sequence, size, digest, page):
            return _Placed(sequence, size, digest, page)
        case DropThrough(sequence, is_retaining):
            return _DropThrough(sequence, is_retaining)
    raise AssertionError(f"{type(write).__name__} is not written ahead")


def _unpacked(write: _Packed) -> Write:
    match write:
        case _Entry(sequence, payload, digest):
            return PutEntry(sequence, bytes(payload), digest)
        case _Assignments(first, assignments):
            return PutAssignments(first, assignments)
        case _Meta(data):
            return PutMeta(data)
        case _GroupState(sequence, data):
            return PutGroupState(sequence, data)
        case _Placed(sequence, size, digest, page):
            return PutPlaced(sequence, size, digest, page)
        case _DropThrough(sequence, is_retaining):
            return DropThrough(sequence, is_retaining)


def _open_zeroed(file: Path) -> int:
    """Opens the file for durable writes, at its full size: so no write has to allocate or to change its inode.

    What an earlier run has written is void by now.
    """
    size = SLOTS * SLOT_BYTES
    if not file.exists() or file.stat().st_size != size:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if (written := os.pwrite(descriptor, bytes(size), 0)) != size:
                raise OSError(errno.ENOSPC, f"only {written} of {size} bytes of a new file were written")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(file.parent)
    return open_direct(file, 0)
