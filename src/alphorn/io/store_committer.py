"""Brings into LMDB what was handed over: many jobs in one transaction, in the order of their numbers.

Mostly in a thread of its own (`begin`), because the next large batch should not wait for it. Only where the owner's
own writes are durable with LMDB's commit and not before is that waited for (`commit`). There is one transaction at a
time.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final

import msgspec

from alphorn.bus.machine import Write
from alphorn.io.retention import last_outside
from alphorn.io.store_opening import Found, Parts
from alphorn.io.store_writes import WriteTransaction
from alphorn.io.write_ahead import encodable
from alphorn.model.ranges import RangeSet

COMMITS_BETWEEN_READER_CHECKS: Final = 1024
COMMITS_BETWEEN_RELEASES: Final = 64


class Job(msgspec.Struct, frozen=True, gc=False):
    """Writes that become durable together, and whom to tell.

    Those of the store itself, parts of a checkpoint or entries that are put back, have no token: nobody goes on with
    anything before LMDB has them and `on_written` says so. They have a number only so that their order is kept.
    """

    number: int
    token: int  # of the owner's `Persist`; 0 for the store's own
    writes: list[tuple[Write, RangeSet | None]]  # with the entries that each one drops
    bounds: tuple[int, int]  # after these writes
    size: int  # of the payload,
    small_bytes: int  # and as much of it as is not among the bodies
    on_written: Callable[[], None] | None = None  # LMDB has it
    is_durable: bool = False  # written ahead, and reported

    @property
    def promised(self) -> list[Write]:
        """What must be durable before anything behind it is."""
        return [write for write, _ in self.writes] if self.token else []

    @property
    def may_go_ahead(self) -> bool:
        """Whether the file beside LMDB can take what is promised."""
        return encodable(self.promised)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for LMDB to have it, be it for the room that it makes."""
        return self.on_written is not None or any(dropped is not None for _, dropped in self.writes)

    def refuse(self) -> None:
        """It is not written; whoever waits for nothing but the end of the queue goes on."""
        if self.on_written is not None and not self.writes:
            self.on_written()


class Stopwatch:
    """Time that one thread spent writing."""

    __slots__ = ("cpu_s", "wall_s")

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Adds what passes within."""
        cpu, wall = time.thread_time(), time.monotonic()
        yield
        self.cpu_s += time.thread_time() - cpu
        self.wall_s += time.monotonic() - wall


class Committer:
    """All but the figures belongs to one thread, the store's own."""

    def __init__(
        self,
        parts: Parts,
        found: Found,
        *,
        on_idle: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """On the committer's thread `on_idle` is called after what was begun, `on_failure` when it could not write."""
        self._parts = parts
        self._filled = found.filled
        self._on_idle = on_idle
        self._on_failure = on_failure
        self._begun: SimpleQueue[list[Job] | None] = SimpleQueue()  # None is the last
        self._idle = threading.Event()
        self._idle.set()
        self._error: Exception | None = None
        self.committed = 0  # number of the last job that readers which begin now see
        self.under_way = 0  # how many jobs were begun with, and are not committed
        self.commits = 0
        self.retained = found.retained  # how many entries are outside the log, and their bytes
        self.time = Stopwatch()
        self._thread = threading.Thread(target=self._run, name=f"tables {parts.path.name}", daemon=True)

    def start(self) -> None:
        """Begins to take jobs."""
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether something that was begun is not finished."""
        return not self._idle.is_set()

    def begin(self, jobs: list[Job]) -> None:
        """Commits these while the caller goes on, after what it began before; raises what went wrong with that."""
        self._wait(jobs)
        self._idle.clear()
        self.under_way = len(jobs)
        self._begun.put(jobs)

    def commit(self, jobs: list[Job]) -> None:
        """Commits these, after what was begun before; raises what went wrong with either."""
        self._wait(jobs)
        self._perform(jobs)

    def end(self) -> None:
        """Finishes what was begun."""
        self._begun.put(None)
        self._thread.join()

    def _wait(self, jobs: list[Job]) -> None:
        self._idle.wait()
        if self._error is not None:
            _refuse(jobs)
            raise self._error

    def _run(self) -> None:
        while (jobs := self._begun.get()) is not None:
            try:
                self._perform(jobs)
            except Exception as error:  # whatever it is, LMDB has not got these
                self._error = error
                self._on_failure(error)
            else:
                self.under_way = 0
            self._idle.set()
            self._on_idle()

    def _perform(self, jobs: list[Job]) -> None:
        try:
            self._commit(jobs)
        except Exception:
            _refuse(jobs)
            raise
        for job in jobs:
            if job.on_written is not None:
                job.on_written()

    def _commit(self, jobs: list[Job]) -> None:
        if not jobs:
            return
        parts = self._parts
        with self.time.running(), parts.environment.begin(write=True) as txn:
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


def _refuse(jobs: list[Job]) -> None:
    for job in jobs:
        job.refuse()
