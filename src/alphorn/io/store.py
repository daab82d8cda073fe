"""The store: one group's log, assignments, promises and checkpoints on stable storage.

Theory of operation. The owner's thread calls `submit` and the reads of `Storage`. The store's own thread takes
everything that was submitted meanwhile, performs it in one LMDB transaction, and reports it durable after the commit's
fsync: under load many writes share one fsync.

Without load, where the owner allows it (`ahead_bytes_max`), a turn that wrote little makes that durable itself, when it
ends, by one short write to a file of its own (write_ahead.py): handing over to a thread and back, and a commit of LMDB,
take much longer. The thread brings such writes into LMDB later, many at once. After a slow write it does everything for
a while, so that a bad disk does not keep the owner from answering.

- A read sees every write submitted before it: first in the overlay of uncommitted writes, then in LMDB.
- All reads of one turn use one read transaction (store_reader.py). Views into LMDB are valid until `end_turn`, and
  never after `close`.
- After a failed write or fsync nothing is retried, because a kernel may report a lost page as written the second time:
  the store stops for good, says so once, and takes no further writes.
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
from queue import SimpleQueue
from typing import Final

import lmdb
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
from alphorn.io.checkpoint_writing import CheckpointWriting
from alphorn.io.overlay import Overlay
from alphorn.io.residency import MappedFile
from alphorn.io.retention import Emptied, Retention, last_outside
from alphorn.io.store_opening import EMPTY_BOUNDS, Opening
from alphorn.io.store_reader import TurnReader
from alphorn.io.store_writes import WriteTransaction, count_retained
from alphorn.io.write_ahead import Record, WriteAhead, encodable, encode_record
from alphorn.model.errors import Unavailable
from alphorn.model.ranges import RangeSet

MAP_BYTES: Final = 64 << 30  # most that one store may take on disk; address space is taken at once, disk as needed
TRANSACTION_BYTES_MAX: Final = 16 << 20  # payload of one transaction, so that no fsync keeps all others waiting
COMMITS_BETWEEN_READER_CHECKS: Final = 1024
COMMITS_BETWEEN_RELEASES: Final = 64
APPLY_S: Final = 0.5  # how long writes may stand only in the file beside LMDB
SLOW_S: Final = 0.05  # after a write ahead that took longer,
DISTRUST_S: Final = 1.0  # for so long nothing is written ahead


class _Job(msgspec.Struct, frozen=True, gc=False):
    """Writes that become durable together, and whom to tell."""

    number: int
    token: int  # of the owner's `Persist`; 0 for the store's own, and for what is durable already
    writes: list[tuple[Write, RangeSet | None]]  # with the entries that each one drops
    bounds: tuple[int, int]  # after these writes
    size: int
    on_written: Callable[[], None] | None = None


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
        """Opens the store, or creates it; raises `Misuse` when it is in use or of another version, or `Corruption`."""
        self.path = Path(path)
        self._map_bytes = map_bytes
        self._linger_s, self._ahead_bytes_max = linger_s, ahead_bytes_max
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._owner = store_files.take_ownership(self.path)
        try:
            self._environment = store_files.open_environment(self.path, map_bytes)
            try:
                self._tables = store_files.open_tables(self.path, self._environment)
                opening = Opening(self.path, self._environment, self._tables)
                self._run_id = opening.recover(map_bytes)
                self._bounds, self._newest_checkpoint = opening.bounds(), opening.newest_checkpoint()
                self._retained = opening.count_retained(self._bounds)
                self._ahead = WriteAhead(self.path, self._run_id) if ahead_bytes_max else None
            except BaseException:
                self._environment.close()
                raise
        except BaseException:
            os.close(self._owner)
            raise
        self._mapped = MappedFile(self.path / store_files.DATA_FILE)
        self._reader = TurnReader(self._environment, self._tables, self._mapped)
        self._overlay = Overlay()
        self._retention = Retention()
        self._emptied = Emptied()  # the thread's
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()  # None is the last
        self._submitted = 0  # number of the last job taken over,
        self._queued = 0  # of the last that was given to the thread to become durable,
        self._committed = 0  # and of the last that readers which begin now see
        self._small: list[_Job] = []  # of this turn, to be written ahead when it ends
        self._unapplied: list[_Job] = []  # written ahead, and given to the thread,
        self._apply_at = 0.0  # at the latest, then
        self._distrusted_until = 0.0
        self._is_closing = False
        self._hurry = threading.Event()  # ends lingering
        self._is_abandoned = False
        self._failure = ""
        self._commits = 0
        self._commit_cpu_s = 0.0  # inside LMDB's commits, where pages are written and synced
        self._commit_wall_s = 0.0
        self._writer = threading.Thread(target=self._run, name=f"store {self.path.name}", daemon=True)
        self._writer.start()

    def submit(self, persist: Persist) -> None:
        """Takes over writes; `on_durable` follows. Payloads must not change before that.

        Raises `Unavailable`, with nothing done, when the store has stopped.
        """
        self._enqueue(persist.token, persist.writes)
        if persist.is_urgent and self._linger_s:
            self._hurry.set()  # after the job is there: whoever wakes up by this finds it

    def begin_checkpoint(self, sequence: int, epoch: int, state: bytes) -> CheckpointWriting:
        """Takes the upper layer's state at `sequence` chunk by chunk; it is the newest checkpoint once it is sealed."""
        return CheckpointWriting(sequence, epoch, state, partial(self._enqueue, 0))

    def retain(self, sequence: int, needed: RangeSet) -> None:
        """The checkpoint at `sequence`, which came from another member or an earlier run, needs these entries."""
        self._enqueue(0, [Retain(sequence, needed.copy())])

    def put_retained(self, sequence: int, payload: bytes, on_written: Callable[[], None]) -> None:
        """Writes an entry that is missing or damaged here; `on_written` when it is durable."""
        if self.entry(sequence) is None:
            count, size = self._retained
            self._retained = count + 1, size + len(payload)  # a figure for people; the next drop counts again
        self._enqueue(0, [PutEntry(sequence, payload, digest_of(payload))], on_written)

    def end_turn(self) -> None:
        """Gives back the turn's read transaction: views handed out before are no longer valid.

        What is small is written ahead; `on_durable` is called before this returns.
        """
        self._reader.end()
        self._overlay.forget(self._committed)
        if self._small:
            self._write_ahead()
        elif self._unapplied and time.monotonic() >= self._apply_at:
            self._hand_over()

    def flush(self) -> None:
        """Waits until everything submitted is durable and reported; raises `Unavailable` when the store stopped."""
        done = threading.Event()
        self._enqueue(0, [], done.set)
        done.wait()
        if self._failure:
            raise Unavailable(self._failure)

    def close(self) -> None:
        """Writes what is queued, ends the thread and gives the store to whoever opens it next. Views die with it."""
        self._end(keeps_queue=True)

    def abandon(self) -> None:
        """As `close`, but loses what is queued, as a crash would."""
        self._end(keeps_queue=False)

    def used_bytes(self) -> int:
        """How much of its limit is in use now: the pages of all tables; freed ones are used again and do not count."""
        with self._environment.begin() as txn:
            return store_files.bytes_used(txn, self._tables)

    def describe(self) -> dict[str, object]:
        """The store's printable state."""
        first, last = self._bounds
        return {
            "path": str(self.path),
            "first": first,
            "last": last,
            "checkpoint": self._newest_checkpoint,
            "retained": self._retained[0],
            "retained_bytes": self._retained[1],
            "queued": self._submitted - self._committed,
            "uncommitted": len(self._overlay),
            "ahead": len(self._unapplied),
            "commits": self._commits,
            "commit_cpu_s": self._commit_cpu_s,
            "commit_wall_s": self._commit_wall_s,
            "failure": self._failure,
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
            committed = self._committed
            self._reader.begin()
            self._overlay.forget(committed)
        return self._reader

    def _enqueue(self, token: int, writes: list[Write], on_written: Callable[[], None] | None = None) -> None:
        if self._failure:
            raise Unavailable(self._failure)
        if self._is_closing:
            raise Unavailable(f"store {self.path} is closed; open it again to write")
        if not self._reader.is_open:
            self._overlay.forget(self._committed)
        number, size = self._submitted + 1, 0
        judged = []
        for write in writes:
            dropped = self._retention.dropped_by(write, self._bounds)
            judged.append((write, dropped))
            self._overlay.add(number, write, self._newest_checkpoint, dropped)
            size += self._note(write)
        self._submitted = number
        job = _Job(number, token, judged, self._bounds, size, on_written)
        if token and on_written is None and self._may_go_ahead(writes, size):
            self._small.append(job)
            return
        self._hand_over()
        self._queued = number
        self._jobs.put(job)

    def _may_go_ahead(self, writes: list[Write], size: int) -> bool:
        """Whether these writes are few, and nothing before them waits for the thread to become durable."""
        if self._ahead is None or self._committed < self._queued or not encodable(writes):
            return False
        if size + sum(job.size for job in self._small) > self._ahead_bytes_max:
            return False
        return time.monotonic() >= self._distrusted_until

    def _write_ahead(self) -> None:
        """Makes this turn's writes durable; where there is no room for them, the thread does."""
        assert self._ahead is not None
        encoded = []
        for job in self._small:
            record = Record(job.number, job.bounds, [write for write, _ in job.writes])
            encoded.append((job.number, encode_record(self._run_id, record)))
        place = self._ahead.place([len(record) for _, record in encoded], self._committed)
        if place is None:
            self._hand_over()
            return
        begun = time.monotonic()
        try:
            self._ahead.append(place, encoded)
        except OSError as error:  # nothing is retried, as after a failed commit
            self._small.clear()
            self._fail(error)
            return
        ended = time.monotonic()
        self._distrusted_until = ended + DISTRUST_S if ended - begun > SLOW_S else 0.0
        jobs, self._small = self._small, []
        self._apply_at = self._apply_at if self._unapplied else ended + APPLY_S
        self._unapplied += [msgspec.structs.replace(job, token=0) for job in jobs]
        if self._ahead.is_half_full or ended >= self._apply_at:
            self._hand_over()
        self._report(jobs)

    def _hand_over(self) -> None:
        """Gives everything to the thread that it has not got yet, in order."""
        for job in (*self._unapplied, *self._small):
            self._jobs.put(job)
        if self._small:
            self._queued = self._small[-1].number
        self._unapplied.clear()
        self._small.clear()

    def _end(self, *, keeps_queue: bool) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._is_abandoned = not keeps_queue
        self._hand_over()
        self._hurry.set()
        self._jobs.put(None)
        self._writer.join()
        self.end_turn()
        if self._ahead is not None:
            self._ahead.close()
        self._mapped.close()
        self._environment.close()
        os.close(self._owner)

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

    # The store's own thread.

    def _run(self) -> None:
        while jobs := self._take():
            try:
                self._commit(jobs)
            except Exception as error:  # whatever it is, what was promised is not on disk
                self._fail(error)
                self._refuse(jobs)
                return
            self._report(jobs)

    def _take(self) -> list[_Job]:
        """Everything that arrived meanwhile, up to the size of one transaction; nothing when closing."""
        jobs, size = [], 0
        job = self._jobs.get()
        if self._linger_s:
            self._hurry.wait(self._linger_s)
            if not self._is_closing:
                self._hurry.clear()
        while job is not None and not self._is_abandoned:
            jobs.append(job)
            size += job.size
            if size >= TRANSACTION_BYTES_MAX or self._jobs.empty():
                return jobs
            job = self._jobs.get()
        if jobs and job is None:
            self._jobs.put(None)  # the next turn ends it
        return jobs if not self._is_abandoned else []

    def _refuse(self, jobs: list[_Job]) -> None:
        """After a failure nothing is written; whoever waits for nothing but the end of the queue goes on."""
        job: _Job | None
        for job in jobs:
            _release(job)
        while (job := self._jobs.get()) is not None:
            _release(job)

    def _commit(self, jobs: list[_Job]) -> None:
        with self._environment.begin(write=True) as txn:
            transaction = WriteTransaction(txn, self._tables, self._emptied, self._mapped.release)
            has_dropped = False
            for job in jobs:
                for write, dropped in job.writes:
                    transaction.apply(write, dropped)
                    has_dropped = has_dropped or dropped is not None
            transaction.put_bounds(*jobs[-1].bounds)
            transaction.put_applied(self._run_id, jobs[-1].number)
            transaction.finish()
            if has_dropped:
                self._retained = count_retained(txn, self._tables, last_outside(jobs[-1].bounds))
            cpu, wall = time.thread_time(), time.monotonic()
        self._commit_cpu_s += time.thread_time() - cpu
        self._commit_wall_s += time.monotonic() - wall
        self._commits += 1
        if self._commits % COMMITS_BETWEEN_READER_CHECKS == 0:
            self._environment.reader_check()  # an inspecting process that was killed must not keep pages for ever
        self._committed = jobs[-1].number
        if has_dropped or self._commits % COMMITS_BETWEEN_RELEASES == 0:
            self._mapped.release()  # writes read pages all over the file, and the kernel maps their neighbours too

    def _report(self, jobs: list[_Job]) -> None:
        token = max(job.token for job in jobs)
        if token:
            self._on_durable(token)
        for job in jobs:
            if job.on_written is not None:
                job.on_written()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, lmdb.MapFullError):
            cause = f"has reached its limit of {self._map_bytes} bytes; raise the limit, then start this node again"
        else:
            cause = f"could not write ({error}); see to the disk, then start this node again"
        self._failure = f"store {self.path} {cause}"
        self._on_failure(self._failure)


def _release(job: _Job) -> None:
    if job.on_written is not None and not job.writes:
        job.on_written()
