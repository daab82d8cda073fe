"""The store: one group's log, assignments, promises and checkpoints on stable storage.

Theory of operation. The owner's thread calls `submit` and the reads of `Storage`. The store's own thread makes durable
what was submitted meanwhile, all of it together, and brings it into LMDB (store_writer.py).

Without load, where the owner allows it (`ahead_bytes_max`), a turn that wrote little makes that durable itself, when it
ends, by one short write to a file of its own (write_ahead.py): handing over to a thread and back takes much longer.
After a slow write the thread does everything for a while, so that a bad disk does not keep the owner from answering.

- A read sees every write submitted before it: first in the overlay of uncommitted writes, then in LMDB.
- All reads of one turn use one read transaction (store_reader.py). Views into LMDB are valid until `end_turn`, and
  never after `close`.
- After a failed write or fsync the store stops for good, says so once, and takes no further writes.
- Every record is checked as it is read (records.py). One that fails reads as `DAMAGED`.
- Assignments are contiguous; their bounds are a record of their own, so that one whose key is damaged is missed.
- Entries outside these bounds are retained for the upper layer (retention.py); they read like those of the log.
"""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from alphorn.bus.entries import Assignment, digest_of
from alphorn.bus.machine import (
    DropAfter,
    DropThrough,
    Persist,
    PutAssignments,
    PutChunk,
    PutEntry,
    Retain,
    SealCheckpoint,
    Write,
)
from alphorn.bus.storage import DAMAGED, CheckpointInfo, Damaged, Meta
from alphorn.io import records, store_files
from alphorn.io.bodies import is_large
from alphorn.io.checkpoint_writing import CheckpointWriting
from alphorn.io.disk import DiskSpace
from alphorn.io.overlay import Overlay
from alphorn.io.retention import Retention
from alphorn.io.store_committer import Job
from alphorn.io.store_opening import EMPTY_BOUNDS, open_store
from alphorn.io.store_reader import TurnReader
from alphorn.io.store_writer import APPLY_S, StoreWriter
from alphorn.model.errors import Unavailable
from alphorn.model.ranges import RangeSet

MAP_BYTES: Final = 64 << 30  # most that one store may take on disk; address space is taken at once, disk as needed
SLOW_S: Final = 0.05  # after a write ahead that took longer,
DISTRUST_S: Final = 1.0  # for so long the owner writes nothing ahead


class Store:
    """Obeys `Storage`; takes `Persist`.

    `on_durable(token)` and `on_failure(sentence)` are called on the store's own thread or within `end_turn`, the
    callback of a checkpoint on its own; everything else is called by one thread, the owner's. `map_bytes` is the
    most the store may take on disk; at that size it fails as a full disk does.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        on_durable: Callable[[int], None],
        on_failure: Callable[[str], None],
        map_bytes: int = MAP_BYTES,
        linger_s: float = 0.0,
        ahead_bytes_max: int = 0,
    ) -> None:
        """Opens the store, or creates it; raises as `open_store` does."""
        self.path = Path(path)
        self._ahead_bytes_max = 0 if linger_s else ahead_bytes_max  # what lingers is the thread's
        self._parts, found = open_store(self.path, map_bytes, has_ahead=bool(ahead_bytes_max))
        self._bounds, self._newest_checkpoint = found.bounds, found.newest_checkpoint
        self._reader = TurnReader(self._parts)
        self._overlay = Overlay()
        self._retention = Retention()
        self._submitted = 0  # number of the last job taken over,
        self._queued = 0  # and of the last that was given to the thread to become durable
        self._turn: list[Job] = []  # of this turn, to be written ahead when it ends
        self._unapplied: list[Job] = []  # written ahead, and given to the thread,
        self._apply_at = 0.0  # at the latest, then
        self._distrusted_until = 0.0
        self._is_closed = False
        self._writer = StoreWriter(self._parts, found, on_durable=on_durable, on_failure=on_failure, linger_s=linger_s)
        self._writer.start()

    def submit(self, persist: Persist) -> None:
        """Takes over writes; `on_durable` follows. Payloads must not change before that.

        Raises `Unavailable`, with nothing done, when the store has stopped.
        """
        self._enqueue(persist.token, persist.writes)
        if persist.is_urgent:
            self._writer.hurry()  # after the job is there: whoever wakes up by this finds it

    def begin_checkpoint(self, sequence: int, epoch: int, state: bytes) -> CheckpointWriting:
        """Takes the upper layer's state at `sequence` chunk by chunk; it is the newest checkpoint once it is sealed."""
        return CheckpointWriting(sequence, epoch, state, partial(self._enqueue, 0))

    def retain(self, sequence: int, needed: RangeSet) -> None:
        """The checkpoint at `sequence`, which came from another member or an earlier run, needs these entries."""
        self._enqueue(0, [Retain(sequence, needed.copy())])

    def put_retained(self, sequence: int, payload: bytes, on_written: Callable[[], None]) -> None:
        """Writes an entry that is missing or damaged here; `on_written` when it is durable."""
        self._enqueue(0, [PutEntry(sequence, payload, digest_of(payload))], on_written)

    def end_turn(self) -> None:
        """Gives back the turn's read transaction: views handed out before are no longer valid.

        What is small is written ahead; `on_durable` is called before this returns.
        """
        self._reader.end()
        self._overlay.forget(self._writer.committed)
        if self._turn:
            self._write_ahead()
        elif self._unapplied and time.monotonic() >= self._apply_at:
            self._hand_over()

    def flush(self) -> None:
        """Waits until everything submitted is durable and reported; raises `Unavailable` when the store stopped."""
        done = threading.Event()
        self._enqueue(0, [], done.set)
        done.wait()
        if self._writer.failure:
            raise Unavailable(self._writer.failure)

    def close(self) -> None:
        """Writes what is queued, ends the thread and gives the store to whoever opens it next. Views die with it."""
        self._end(keeps_queue=True)

    def abandon(self) -> None:
        """As `close`, but loses what is queued, as a crash would."""
        self._end(keeps_queue=False)

    def used_bytes(self) -> int:
        """How much of its limit is in use now: pages of tables and bodies, without those that are free."""
        with self._parts.environment.begin() as txn:
            return store_files.bytes_used(txn, self._parts.tables) + self._parts.bodies.used_bytes

    def disk_space(self) -> DiskSpace:
        """What its files take on disk, free pages included, and what the file system has left."""
        return self._parts.disk_space()

    def describe(self) -> dict[str, object]:
        """The store's printable state."""
        (first, last), writer = self._bounds, self._writer
        return {
            "path": str(self.path),
            "first": first,
            "last": last,
            "checkpoint": self._newest_checkpoint,
            "queued": self._submitted - writer.committed,
            "uncommitted": len(self._overlay),
            "ahead": len(self._unapplied) + writer.unapplied,
            **writer.describe(),
        }

    # Storage, the read side.

    def meta(self) -> Meta | Damaged | None:
        """See `Storage`."""
        if pending := self._overlay.metas.get(None):
            return records.decode_meta(pending[1])
        record = self._read.get(records.META, records.META_KEY)
        return record if record is None or record is DAMAGED else records.unpack_meta(record)

    def assignment_bounds(self) -> tuple[int, int]:
        """See `Storage`."""
        return self._bounds

    def assignment(self, sequence: int) -> Assignment | Damaged | None:
        """See `Storage`."""
        if pending := self._overlay.assignments.get(sequence):
            return pending[1]
        first, last = self._bounds
        if not first <= sequence <= last:
            return None
        key = records.number_key(sequence)
        record = self._read.get(records.ASSIGNMENTS, key)
        return DAMAGED if record is None or record is DAMAGED else records.unpack_assignment(key, record)

    def entry(self, sequence: int) -> bytes | memoryview | Damaged | None:
        """See `Storage`."""
        if pending := self._overlay.entries.get(sequence):
            return pending[1]
        if self._overlay.is_dropped(sequence):
            return None
        return self._read.get_checked(records.HEADS, records.LOG, records.number_key(sequence))

    def group_state(self) -> tuple[int, bytes] | Damaged | None:
        """See `Storage`."""
        if pending := self._overlay.group_states.get(None):
            return pending[1]
        record = self._read.get(records.STATE, records.GROUP_KEY)
        return record if record is None or record is DAMAGED else records.unpack_group_state(record)

    def checkpoint(self) -> CheckpointInfo | Damaged | None:
        """See `Storage`."""
        if not self._newest_checkpoint:
            return None
        if pending := self._overlay.checkpoints.get(self._newest_checkpoint):
            return pending[1]
        key = records.number_key(self._newest_checkpoint)
        record = self._read.get(records.CHECKPOINTS, key)
        return DAMAGED if record is None or record is DAMAGED else records.unpack_checkpoint(key, record)

    def checkpoint_chunk(self, sequence: int, chunk: int) -> bytes | memoryview | Damaged | None:
        """See `Storage`."""
        if pending := self._overlay.chunks.get((sequence, chunk)):
            return pending[1]
        if sequence < self._overlay.dropped_checkpoints_below:
            return None
        return self._read.get_checked(records.CHUNK_HEADS, records.CHUNKS, records.chunk_key(sequence, chunk))

    @property
    def _read(self) -> TurnReader:
        """This turn's reads, behind the overlay."""
        if not self._reader.is_open:
            # In this order: what counts as committed here must be visible to the reader that begins next.
            committed = self._writer.committed
            self._reader.begin()
            self._overlay.forget(committed)
        return self._reader

    def _enqueue(
        self,
        token: int,
        writes: list[Write],
        on_written: Callable[[], None] | None = None,
    ) -> None:
        if self._writer.failure:
            raise Unavailable(self._writer.failure)
        if self._is_closed:
            raise Unavailable(f"store {self.path} is closed; open it again to write")
        if not self._reader.is_open:
            self._overlay.forget(self._writer.committed)
        number, size, small_bytes = self._submitted + 1, 0, 0
        judged = []
        for write in writes:
            if isinstance(write, PutEntry):
                self._retention.put(write.sequence)
            dropped = self._retention.dropped_by(write, self._bounds)
            judged.append((write, dropped))
            self._overlay.add(number, write, self._newest_checkpoint, dropped)
            taken = self._note(write)
            size += taken
            small_bytes += 0 if is_large(write) else taken
        self._submitted = number
        job = Job(number, token, judged, self._bounds, size, small_bytes, on_written)
        if self._may_go_ahead(job):
            self._turn.append(job)
            return
        self._hand_over()
        self._queued = number
        self._writer.put(job)

    def _may_go_ahead(self, job: Job) -> bool:
        """Whether this is the owner's and little, and nothing before it waits for the thread to become durable."""
        if not self._ahead_bytes_max or not job.token:
            return False
        if self._writer.durable < self._queued or not job.may_go_ahead:
            return False
        if job.size + sum(job.size for job in self._turn) > self._ahead_bytes_max:
            return False
        return time.monotonic() >= self._distrusted_until

    def _write_ahead(self) -> None:
        """Makes this turn's writes durable; where there is no room for them, the thread does."""
        begun = time.monotonic()
        try:
            is_written = self._writer.write_ahead(self._turn)
        except OSError as error:  # nothing is retried, as after a failed commit
            self._turn.clear()
            self._writer.fail(error)
            return
        if not is_written:
            self._hand_over()
            return
        ended = time.monotonic()
        self._distrusted_until = ended + DISTRUST_S if ended - begun > SLOW_S else 0.0
        jobs, self._turn = self._turn, []
        self._apply_at = self._apply_at if self._unapplied else ended + APPLY_S
        self._unapplied += [msgspec.structs.replace(job, is_durable=True) for job in jobs]
        is_awaited = any(job.is_awaited for job in jobs)
        if is_awaited or self._writer.is_ahead_half_full or ended >= self._apply_at:
            self._hand_over()
        self._writer.report(jobs)

    def _hand_over(self) -> None:
        """Gives everything to the thread that it has not got yet, in order."""
        for job in (*self._unapplied, *self._turn):
            self._writer.put(job)
        if self._turn:
            self._queued = self._turn[-1].number
        self._unapplied.clear()
        self._turn.clear()

    def _end(self, *, keeps_queue: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._hand_over()
        self._writer.end(keeps_queue=keeps_queue)
        self.end_turn()
        self._parts.close()

    def _note(self, write: Write) -> int:
        """Follows bounds and newest checkpoint; gives the bytes of the payload."""
        first, last = self._bounds
        match write:
            case PutEntry(_, payload, _) | PutChunk(_, _, payload):
                return len(payload)
            case PutAssignments(start, assignments) if assignments:
                end = start + len(assignments) - 1
                self._bounds = (start, end) if first > last else (min(first, start), max(last, end))
            case DropAfter(sequence) if sequence < last:
                self._bounds = (first, sequence) if first <= sequence else EMPTY_BOUNDS
            case DropThrough(sequence) if sequence >= first:
                self._bounds = (sequence + 1, last) if sequence < last else EMPTY_BOUNDS
            case SealCheckpoint(sequence):
                self._newest_checkpoint = max(self._newest_checkpoint, sequence)
        return 0
