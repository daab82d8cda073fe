"""The store's own thread: makes what the owner hands over durable, and brings it into LMDB.

Theory of operation. Everything that was handed over meanwhile becomes durable together. Large batches are written to
the file of bodies (bodies.py); what is left is mostly little, heads and assignments, and is appended to the file beside
LMDB (write_ahead.py). LMDB gets it later, many jobs in one transaction: when that file is half full, when much is
waiting in memory, or after a while. Whatever cannot be written ahead, such as a drop, is durable with LMDB's commit,
which brings in all that was before it.

- Jobs are numbered, and become durable and come into LMDB in the order of their numbers.
- The owner may write little jobs ahead itself (store.py), as long as everything the thread has got is durable. So one
  of them at a time writes ahead, and only the thread writes bodies.
- After a failed write or fsync nothing is retried, because a kernel may report a lost page as written the second time.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final

import lmdb
import msgspec

from alphorn.bus.machine import Write
from alphorn.io import store_files
from alphorn.io.bodies import is_large
from alphorn.io.disk import refusal_of
from alphorn.io.retention import last_outside
from alphorn.io.store_opening import Found, Parts
from alphorn.io.store_writes import WriteTransaction
from alphorn.io.write_ahead import Record, encodable, encode_record
from alphorn.model.ranges import RangeSet

TRANSACTION_BYTES_MAX: Final = 16 << 20  # payload of one transaction, so that no fsync keeps all others waiting
UNAPPLIED_BYTES_MAX: Final = 32 << 20  # payload that is kept in memory because LMDB has not got it
GROUP_BYTES_MAX: Final = 64 << 10  # payload that the thread writes ahead at once; more is cheaper in LMDB alone
SHARE_OF_TABLES: Final = 8  # the file of bodies leaves this fraction of the limit to them
COMMITS_BETWEEN_READER_CHECKS: Final = 1024
COMMITS_BETWEEN_RELEASES: Final = 64
APPLY_S: Final = 0.5  # how long writes may stand only in the file beside LMDB


class Job(msgspec.Struct, frozen=True, gc=False):
    """Writes that become durable together, and whom to tell."""

    number: int
    token: int  # of the owner's `Persist`; 0 for the store's own
    writes: list[tuple[Write, RangeSet | None]]  # with the entries that each one drops
    bounds: tuple[int, int]  # after these writes
    size: int  # of the payload,
    small_bytes: int  # and as much of it as is not among the bodies
    on_written: Callable[[], None] | None = None
    is_durable: bool = False  # written ahead, and reported

    @property
    def may_go_ahead(self) -> bool:
        """Whether the file beside LMDB can take it."""
        is_plain = bool(self.token) and self.on_written is None
        return is_plain and encodable([write for write, _ in self.writes])


class StoreWriter:
    """One thread for one store. `on_durable` and `on_failure` are called on it, or on the one that writes ahead."""

    def __init__(
        self,
        parts: Parts,
        found: Found,
        *,
        on_durable: Callable[[int], None],
        on_failure: Callable[[str], None],
        linger_s: float,
    ) -> None:
        self._parts = parts
        self._filled = found.filled
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._linger_s = linger_s
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()  # None is the last
        self._unapplied: list[Job] = []  # durable, and not in LMDB,
        self._apply_at = 0.0  # where they are brought then
        self._hurry = threading.Event()  # ends lingering
        self._is_closing = self._is_abandoned = False
        self.durable = 0  # number of the last job that the thread made durable,
        self.committed = 0  # and of the last that readers which begin now see
        self.failure = ""
        self.retained = found.retained  # how many entries are outside the log, and their bytes
        self.commits = 0  # of LMDB,
        self.syncs = 0  # and how often something became durable
        self.sync_cpu_s = 0.0  # writing and syncing: bodies, writes ahead, LMDB's commits
        self.sync_wall_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"store {parts.path.name}", daemon=True)

    def start(self) -> None:
        """Begins to take jobs."""
        self._thread.start()

    def put(self, job: Job) -> None:
        """Hands over the next job."""
        self._jobs.put(job)

    def hurry(self) -> None:
        """What was handed over shall not linger."""
        if self._linger_s:
            self._hurry.set()

    def end(self, *, keeps_queue: bool) -> None:
        """Finishes what was handed over, or loses it as a crash would; returns when the thread is over."""
        self._is_closing, self._is_abandoned = True, not keeps_queue
        self._hurry.set()
        self._jobs.put(None)
        self._thread.join()

    def write_ahead(self, jobs: list[Job]) -> bool:
        """Makes jobs durable in the file beside LMDB, if it has room for them; raises `OSError` when the disk fails."""
        ahead = self._parts.ahead
        assert ahead is not None
        run, first = self._parts.run, jobs[0].number
        encoded = [(job.number, encode_record(run, _record_of(job, job.number - first))) for job in jobs]
        place = ahead.place([len(record) for _, record in encoded], self.committed)
        if place is None:
            return False
        ahead.append(place, encoded)
        return True

    @property
    def unapplied(self) -> int:
        """How many jobs the thread has made durable and not brought into LMDB yet."""
        return len(self._unapplied)

    @property
    def is_ahead_half_full(self) -> bool:
        """Whether LMDB should get soon what is written ahead."""
        return self._parts.ahead is None or self._parts.ahead.is_half_full

    def report(self, jobs: list[Job]) -> None:
        """Tells whom it concerns that these are durable."""
        token = max(job.token for job in jobs)
        if token:
            self._on_durable(token)
        for job in jobs:
            if job.on_written is not None:
                job.on_written()

    def fail(self, error: Exception) -> None:
        """Stops the store for good, and says so once."""
        path, limit = self._parts.path, self._parts.map_bytes
        if isinstance(error, lmdb.MapFullError):
            self.failure = (
                f"store {path} has reached its limit of {limit} bytes; raise the limit, then start this node again"
            )
        else:
            self.failure = str(
                refusal_of("store", path, error)
                or f"store {path} could not write ({error}); see to its disk, then start this node again"
            )
        self._on_failure(self.failure)

    # The thread.

    def _run(self) -> None:
        while (jobs := self._take()) is not None:
            try:
                self._handle(jobs)
            except Exception as error:  # whatever it is, what was promised is not on disk
                self.fail(error)
                self._refuse(jobs)
                return

    def _take(self) -> list[Job] | None:
        """Everything that arrived meanwhile, up to the size of one transaction.

        Nothing when it is time to bring into LMDB what is durable, None when closing.
        """
        jobs: list[Job] = []
        size = 0
        try:
            wait = max(0.0, self._apply_at - time.monotonic()) if self._unapplied else None
            job = self._jobs.get(timeout=wait)
        except Empty:
            return jobs
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
        if self._is_abandoned or not (jobs or self._unapplied):
            return None
        self._jobs.put(None)  # the next turn ends it
        return jobs

    def _handle(self, jobs: list[Job]) -> None:
        if not self._unapplied:
            self._apply_at = time.monotonic() + APPLY_S
        with self._timed():
            fresh = self._placed([job for job in jobs if not job.is_durable])
            goes_ahead = bool(fresh) and self._may_go_ahead(fresh) and self.write_ahead(fresh)
        self._unapplied += [job for job in jobs if job.is_durable] + fresh
        if goes_ahead:
            is_due = self._is_due()  # asked before the owner hears that it may write ahead again
            self._tell(fresh)
            if not is_due:
                return
            fresh = []
        self._commit(self._unapplied)
        self._unapplied = []
        self._tell(fresh)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        cpu, wall = time.thread_time(), time.monotonic()
        yield
        self.sync_cpu_s += time.thread_time() - cpu
        self.sync_wall_s += time.monotonic() - wall

    def _may_go_ahead(self, fresh: list[Job]) -> bool:
        is_possible = self._parts.ahead is not None and all(job.may_go_ahead for job in fresh) and not _has_large(fresh)
        return is_possible and sum(job.small_bytes for job in fresh) <= GROUP_BYTES_MAX

    def _is_due(self) -> bool:
        """Whether LMDB gets everything now."""
        if self.is_ahead_half_full or time.monotonic() >= self._apply_at:
            return True
        return sum(job.size for job in self._unapplied) >= UNAPPLIED_BYTES_MAX

    def _tell(self, fresh: list[Job]) -> None:
        if fresh:
            self.syncs += 1
            self.durable = fresh[-1].number
            self.report(fresh)

    def _placed(self, jobs: list[Job]) -> list[Job]:
        """The same jobs with their bodies written, as far as there is room."""
        if not _has_large(jobs):
            return jobs
        writes = [write for job in jobs for write, _ in job.writes]
        # What is left of the limit is for LMDB: whatever is dropped takes some pages first.
        limit = self._parts.disk_space().within(self._parts.map_bytes)
        claimed = store_files.bytes_claimed(self._parts.environment)
        placed = iter(self._parts.bodies.place(writes, limit - limit // SHARE_OF_TABLES - claimed))
        return [
            msgspec.structs.replace(job, writes=[(next(placed), dropped) for _, dropped in job.writes]) for job in jobs
        ]

    def _commit(self, jobs: list[Job]) -> None:
        if not jobs:
            return
        parts = self._parts
        with self._timed(), parts.environment.begin(write=True) as txn:
            transaction = WriteTransaction(txn, parts.tables, self._filled, parts.mapped.release)
            has_dropped = False
            for job in jobs:
                for write, dropped in job.writes:
                    transaction.apply(write, dropped)
                    has_dropped = has_dropped or dropped is not None
            transaction.put_bounds(*jobs[-1].bounds)
            transaction.put_applied(parts.run, jobs[-1].number)
            transaction.finish()
            self.retained.follow(txn, parts.tables, last_outside(jobs[-1].bounds), transaction)
        self.commits += 1
        space = parts.disk_space()
        parts.bodies.give_back(transaction.dropped_bodies, space.within(parts.map_bytes) - space.held)
        if self.commits % COMMITS_BETWEEN_READER_CHECKS == 0:
            parts.environment.reader_check()  # an inspecting process that was killed must not keep pages for ever
        self.committed = jobs[-1].number
        if has_dropped or self.commits % COMMITS_BETWEEN_RELEASES == 0:
            parts.mapped.release()  # writes read pages all over the file, and the kernel maps their neighbours too

    def _refuse(self, jobs: list[Job]) -> None:
        """After a failure nothing is written; whoever waits for nothing but the end of the queue goes on."""
        job: Job | None
        for job in jobs:
            _release(job)
        while (job := self._jobs.get()) is not None:
            _release(job)


def _record_of(job: Job, before: int) -> Record:
    return Record(job.number, job.bounds, [write for write, _ in job.writes], before)


def _has_large(jobs: list[Job]) -> bool:
    return any(is_large(write) for job in jobs for write, _ in job.writes)


def _release(job: Job) -> None:
    if job.on_written is not None and not job.writes:
        job.on_written()
