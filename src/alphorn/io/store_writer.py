"""The store's own thread: makes what the owner hands over durable, and sees to it that LMDB gets it.

Theory of operation. Everything that was handed over meanwhile becomes durable together. Large batches are written to
the file of bodies (bodies.py); what is left is mostly little, heads and assignments, and is appended to the file beside
LMDB (write_ahead.py). LMDB gets it later, many jobs in one transaction, from another thread (store_committer.py): when
that file is half full, when much is waiting in memory, when somebody waits for it, or after a while. The rare writes
that cannot be written ahead are durable with LMDB's commit, which brings in all that was before them.

- Jobs are numbered, and become durable and come into LMDB in the order of their numbers.
- The owner may write little jobs ahead itself (store.py), as long as everything the thread has got is durable. So one
  of them at a time writes ahead, and only the thread writes bodies.
- After a failed write or fsync nothing is retried, because a kernel may report a lost page as written the second time.
"""

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

import lmdb
import msgspec

from alphorn.io import store_files
from alphorn.io.bodies import is_large
from alphorn.io.disk import refusal_of
from alphorn.io.store_committer import Committer, Job, Stopwatch
from alphorn.io.store_opening import Found, Parts
from alphorn.io.write_ahead import Record, encode_record

TRANSACTION_BYTES_MAX: Final = 16 << 20  # payload of one transaction, so that no fsync keeps all others waiting
UNAPPLIED_BYTES_MAX: Final = 32 << 20  # payload that is kept in memory because LMDB has not got it
GROUP_BYTES_MAX: Final = 64 << 10  # payload that the thread writes ahead at once; more is cheaper in LMDB alone
SHARE_OF_TABLES: Final = 8  # the file of bodies leaves this fraction of the limit to them
APPLY_S: Final = 0.5  # how long writes may stand only in the file beside LMDB


_NUDGE: Final = Job(0, 0, [], (0, 0), 0, 0)  # no job: LMDB may get more


class StoreWriter:
    """One thread for one store. `on_durable` and `on_failure` are called on it, or on one that writes beside it."""

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
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._linger_s = linger_s
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()  # None is the last
        self._committer = Committer(parts, found, on_idle=lambda: self._jobs.put(_NUDGE), on_failure=self.fail)
        self._unapplied: list[Job] = []  # durable, and not in LMDB,
        self._unapplied_bytes = 0
        self._is_awaited = False  # there are some that somebody waits for,
        self._apply_at = 0.0  # where they are brought then,
        self._is_postponed = False  # or when it has got those before
        self._hurry = threading.Event()  # ends lingering
        self._is_closing = self._is_abandoned = False
        self._failing = threading.Lock()
        self._time = Stopwatch()
        self.durable = 0  # number of the last job that the thread made durable
        self.failure = ""
        self.syncs = 0  # how often something became durable
        self._thread = threading.Thread(target=self._run, name=f"store {parts.path.name}", daemon=True)

    def start(self) -> None:
        """Begins to take jobs."""
        self._committer.start()
        self._thread.start()

    @property
    def committed(self) -> int:
        """The number of the last job that readers which begin now see."""
        return self._committer.committed

    def describe(self) -> dict[str, object]:
        """For people; times are of writing and syncing, bodies and writes ahead and LMDB's commits."""
        committer, time = self._committer, self._time
        return {
            "retained": committer.retained.count,
            "retained_bytes": committer.retained.bytes,
            "commits": committer.commits,
            "syncs": self.syncs,
            "sync_cpu_s": time.cpu_s + committer.time.cpu_s,
            "sync_wall_s": time.wall_s + committer.time.wall_s,
            "failure": self.failure,
        }

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
        return len(self._unapplied) + self._committer.under_way

    @property
    def is_ahead_half_full(self) -> bool:
        """Whether LMDB should get soon what is written ahead."""
        return self._parts.ahead is None or self._parts.ahead.is_half_full

    def report(self, jobs: list[Job]) -> None:
        """Tells whom it concerns that these are durable."""
        token = max(job.token for job in jobs)
        if token:
            self._on_durable(token)

    def fail(self, error: Exception) -> None:
        """Stops the store for good, and says so once."""
        path, limit = self._parts.path, self._parts.map_bytes
        with self._failing:
            if self.failure:
                return
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
        self._work()
        self._committer.end()

    def _work(self) -> None:
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
            is_timed = self._unapplied and not self._is_postponed
            job = self._jobs.get(timeout=max(0.0, self._apply_at - time.monotonic()) if is_timed else None)
        except Empty:
            return jobs
        if self._linger_s:
            self._hurry.wait(self._linger_s)
            if not self._is_closing:
                self._hurry.clear()
        while job is not None and not self._is_abandoned:
            if job is not _NUDGE:
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
        self._add_unapplied([job for job in jobs if job.is_durable])
        with self._time.running():
            fresh = self._placed([job for job in jobs if not job.is_durable])
            goes_ahead = bool(fresh) and self._may_go_ahead(fresh) and self.write_ahead(fresh)
        self._add_unapplied(fresh)
        if fresh and not goes_ahead:
            self._committer.commit(self._take_unapplied())
            self._tell(fresh)
            return
        # The file beside LMDB is looked at before the owner hears that it may write ahead again.
        is_pressing = self._is_pressing(has_ahead=bool(fresh))
        is_handed_over = bool(jobs) and not fresh  # by the owner, which has made them durable and wants them there
        is_due = is_pressing or self._is_postponed or is_handed_over or self._is_due()
        self._tell(fresh)
        self._is_postponed = is_due and self._committer.is_busy and not is_pressing
        if is_due and self._unapplied and not self._is_postponed:
            self._committer.begin(self._take_unapplied())

    def _add_unapplied(self, jobs: list[Job]) -> None:
        self._unapplied += jobs
        self._unapplied_bytes += sum(job.size for job in jobs)
        self._is_awaited = self._is_awaited or any(job.is_awaited for job in jobs)

    def _take_unapplied(self) -> list[Job]:
        jobs, self._unapplied = self._unapplied, []
        self._unapplied_bytes, self._is_awaited = 0, False
        return jobs

    def _may_go_ahead(self, fresh: list[Job]) -> bool:
        is_possible = self._parts.ahead is not None and all(job.may_go_ahead for job in fresh) and not _has_large(fresh)
        return is_possible and sum(job.small_bytes for job in fresh if job.token) <= GROUP_BYTES_MAX

    def _is_due(self) -> bool:
        """Whether LMDB gets everything now, or as soon as it has got what was begun."""
        return self._is_awaited or time.monotonic() >= self._apply_at

    def _is_pressing(self, *, has_ahead: bool) -> bool:
        """Whether that is waited for."""
        if self._is_closing or (has_ahead and self.is_ahead_half_full):
            return True
        return self._unapplied_bytes >= UNAPPLIED_BYTES_MAX

    def _tell(self, fresh: list[Job]) -> None:
        if fresh:
            self.syncs += 1
            self.durable = fresh[-1].number
            self.report(fresh)

    def _placed(self, jobs: list[Job]) -> list[Job]:
        """The same jobs with their bodies written, as far as there is room."""
        if not _has_large(jobs):
            return jobs
        placed = self._place(jobs)
        if _has_large(placed) and (self._unapplied or self._committer.is_busy):
            self._committer.commit(self._take_unapplied())  # what was dropped makes room when LMDB knows it
            placed = self._place(placed)
        return placed

    def _place(self, jobs: list[Job]) -> list[Job]:
        writes = [write for job in jobs for write, _ in job.writes]
        # What is left of the limit is for LMDB: whatever is dropped takes some pages first.
        limit = self._parts.disk_space().within(self._parts.map_bytes)
        claimed = store_files.bytes_claimed(self._parts.environment)
        placed = iter(self._parts.bodies.place(writes, limit - limit // SHARE_OF_TABLES - claimed))
        return [
            msgspec.structs.replace(job, writes=[(next(placed), dropped) for _, dropped in job.writes]) for job in jobs
        ]

    def _refuse(self, jobs: list[Job]) -> None:
        """After a failure nothing is written; whoever waits for nothing but the end of the queue goes on."""
        job: Job | None
        for job in jobs:
            job.refuse()
        while (job := self._jobs.get()) is not None:
            job.refuse()


def _record_of(job: Job, before: int) -> Record:
    return Record(job.number, job.bounds, job.promised, before)


def _has_large(jobs: list[Job]) -> bool:
    return any(is_large(write) for job in jobs for write, _ in job.writes)
