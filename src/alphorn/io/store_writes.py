"""Writes of the bus, performed inside one LMDB transaction.

Puts are gathered per table and given to LMDB in one call each, because each call gives up and takes back the
interpreter, which costs up to a switch interval when the event loop is busy. Deletions go in key order and in bulk:
the pages of whole batches become free side by side, so the next batches find runs long enough for them.
"""

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

import lmdb
import xxhash

from alphorn.bus.machine import (
    DropAfter,
    DropThrough,
    PutAssignments,
    PutChunk,
    PutEntry,
    PutGroupState,
    PutMeta,
    Retain,
    SealCheckpoint,
    Write,
)
from alphorn.bus.storage import DAMAGED, CheckpointInfo
from alphorn.io import records
from alphorn.io.bodies import PutPlaced
from alphorn.io.retention import Filled
from alphorn.io.store_files import Tables
from alphorn.model.ranges import RangeSet

Item = tuple[bytes, bytes | memoryview]
DELETIONS_BETWEEN_RELEASES = 256  # each may map 64 KiB


class WriteTransaction:
    """Takes writes in order; `finish` hands the last of them to LMDB. Commit and abort are the caller's.

    Whatever is deleted is read before, and the kernel maps what lies around it too; `release` gives such pages back.
    `filled` is what the transactions before have left. `dropped_bodies` are page and size of those whose heads are
    deleted; `came` and `went` are number and size of entries that were put, and whose heads are deleted.
    """

    __slots__ = ("_deleted", "_filled", "_gathered", "_release", "_tables", "_txn", "came", "dropped_bodies", "went")

    def __init__(
        self,
        txn: "lmdb.Transaction[bytes]",
        tables: Tables,
        filled: Filled,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._txn = txn
        self._tables = tables
        self._filled = filled
        self._release = release
        self._deleted = 0
        self.dropped_bodies: list[tuple[int, int]] = []
        self.came: list[tuple[int, int]] = []
        self.went: list[tuple[int, int]] = []
        self._gathered: dict[bytes, list[Item]] = {name: [] for name in records.TABLES}

    def apply(self, write: Write, dropped: RangeSet | None) -> None:
        """Performs one write; `dropped` are the entries that go with it (retention.py)."""
        gathered = self._gathered
        match write:
            case PutEntry(sequence, payload, digest):
                self._put_head(sequence, records.Head(digest, len(payload)))
                gathered[records.LOG].append((records.number_key(sequence), payload))
            case PutPlaced(sequence, size, digest, page):
                self._put_head(sequence, records.Head(digest, size, page))
            case PutAssignments(first, assignments):
                for sequence, assignment in enumerate(assignments, first):
                    key = records.number_key(sequence)
                    gathered[records.ASSIGNMENTS].append((key, records.pack_assignment(key, assignment)))
            case PutMeta(data):
                gathered[records.META].append((records.META_KEY, records.pack_meta(data)))
            case PutGroupState(sequence, data):
                gathered[records.STATE].append((records.GROUP_KEY, records.pack_group_state(sequence, data)))
            case PutChunk(sequence, chunk, payload):
                key = records.chunk_key(sequence, chunk)
                head = records.Head(xxhash.xxh3_64_intdigest(payload), len(payload))
                gathered[records.CHUNKS].append((key, payload))
                gathered[records.CHUNK_HEADS].append((key, records.pack_head(records.CHUNK_HEADS, key, head)))
            case SealCheckpoint():
                self._seal(write)
            case DropAfter(sequence):
                self._drop_numbers(records.ASSIGNMENTS, sequence + 1, records.NUMBER_MAX)
            case DropThrough(sequence):
                self._drop_numbers(records.ASSIGNMENTS, 0, sequence)
                self._drop_checkpoints_below(self._newest_checkpoint())
            case Retain():
                pass
            case _:
                raise AssertionError(f"{type(write).__name__} is not a write this store knows")
        for first, last in dropped or ():
            self._drop_entry(first, last)

    def put_bounds(self, first: int, last: int) -> None:
        """Records the numbers that have an assignment."""
        self._gathered[records.META].append((records.BOUNDS_KEY, records.pack_bounds(first, last)))

    def put_applied(self, run: int, number: int) -> None:
        """Records that everything through this job of a run is in this transaction or before it."""
        self._gathered[records.META].append((records.APPLIED_KEY, records.pack_applied(run, number)))

    def finish(self) -> None:
        """Puts what was gathered."""
        for name, items in self._gathered.items():
            if items:
                self._txn.cursor(self._tables[name]).putmulti(items)
                items.clear()

    def _put_head(self, sequence: int, head: records.Head) -> None:
        if self._filled.fill(sequence):
            self._drop_entry(sequence, sequence)
        self.came.append((sequence, head.size))
        key = records.number_key(sequence)
        self._gathered[records.HEADS].append((key, records.pack_head(records.HEADS, key, head)))

    def _seal(self, write: SealCheckpoint) -> None:
        info = CheckpointInfo(
            sequence=write.sequence,
            epoch=write.epoch,
            size=write.size,
            chunks=write.chunks,
            digest=write.digest,
            state=write.state,
        )
        self._gathered[records.CHECKPOINTS].append((records.number_key(write.sequence), records.pack_checkpoint(info)))
        self._drop_checkpoints_below(write.sequence)
        # A transfer that was given up may have left more chunks of the same checkpoint than it has now.
        surplus = records.chunk_key(write.sequence, write.chunks)
        end = records.chunk_key(write.sequence, 0xFFFFFFFF)
        self._delete((records.CHUNKS, records.CHUNK_HEADS), surplus, lambda key: key <= end)

    def _newest_checkpoint(self) -> int:
        self.finish()
        cursor = self._txn.cursor(self._tables[records.CHECKPOINTS])
        return records.number_of(cursor.key()) if cursor.last() else 0

    def _drop_entry(self, first: int, last: int) -> None:
        for name in (records.HEADS, records.LOG):
            self._drop_numbers(name, first, last)

    def _drop_numbers(self, name: bytes, first: int, last: int) -> None:
        end = records.number_key(last)
        self._delete((name,), records.number_key(first), lambda key: key <= end)

    def _drop_checkpoints_below(self, sequence: int) -> None:
        end = records.number_key(sequence)
        names = (records.CHECKPOINTS, records.CHUNK_HEADS, records.CHUNKS)
        self._delete(names, b"\0", lambda key: key[:8] < end)

    def _delete(self, names: tuple[bytes, ...], start: bytes, is_within: Callable[[bytes], bool]) -> None:
        self.finish()
        for name in names:
            cursor = self._txn.cursor(self._tables[name])
            found = cursor.set_range(start)
            while found and is_within(cursor.key()):
                if name == records.HEADS:
                    self._drop_head(cursor.key(), cursor.value())
                found = cursor.delete() and bool(cursor.key())
                self._deleted += 1
                if self._deleted % DELETIONS_BETWEEN_RELEASES == 0:
                    self._release()

    def _drop_head(self, key: bytes, record: bytes) -> None:
        self.went.append((records.number_of(key), records.size_in_head(record)))
        if not records.is_placed(record):
            return
        head = records.unpack_head(records.HEADS, key, record)
        if head is not DAMAGED and head.page is not None:
            self.dropped_bodies.append((head.page, head.size))


def sizes_between(txn: "lmdb.Transaction[Any]", tables: Tables, first: int, last: int) -> list[tuple[int, int]]:
    """Number and size of the entries in this range, by their heads; damaged ones count as empty."""
    end = records.number_key(min(last, records.NUMBER_MAX))
    with txn.cursor(tables[records.HEADS]) as cursor:
        if not cursor.set_range(records.number_key(first)):
            return []
        heads = takewhile(lambda item: bytes(item[0]) <= end, cursor)
        return [(records.number_of(bytes(key)), records.size_in_head(head)) for key, head in heads]


class Retained:
    """How many entries are outside the log, and their bytes.

    There may be very many, and each commit that drops some changes few: so they are counted when the store is opened,
    and followed from then on.
    """

    __slots__ = ("_through", "bytes", "count")

    def __init__(self, through: int, sizes: list[tuple[int, int]]) -> None:
        """Entries through this number are outside the log, and these are there."""
        self._through = through
        self.count, self.bytes = len(sizes), sum(size for _, size in sizes)

    def follow(self, txn: "lmdb.Transaction[Any]", tables: Tables, through: int, done: WriteTransaction) -> None:
        """These writes were done, after which the entries through this number are outside the log."""
        before, self._through = self._through, through
        self._add(1, [entry for entry in done.came if entry[0] <= before])
        self._add(-1, [entry for entry in done.went if entry[0] <= before])
        if through > before:
            self._add(1, sizes_between(txn, tables, before + 1, through))
        elif through < before:  # the log was empty, so that everything was outside, and has begun anew
            self._add(-1, sizes_between(txn, tables, through + 1, before))

    def _add(self, sign: int, sizes: list[tuple[int, int]]) -> None:
        self.count += sign * len(sizes)
        self.bytes += sign * sum(size for _, size in sizes)


def bodies_of(txn: "lmdb.Transaction[Any]", tables: Tables) -> Iterator[tuple[int, int]]:
    """Page and size of every body; one whose head is damaged is lost, and has no place."""
    with txn.cursor(tables[records.HEADS]) as cursor:
        for key, record in cursor:
            if records.is_placed(record):
                head = records.unpack_head(records.HEADS, bytes(key), record)
                if head is not DAMAGED and head.page is not None:
                    yield head.page, head.size
