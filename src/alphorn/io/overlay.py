"""Writes handed over and not yet committed, so that reads see them at once.

Writes arrive in numbered jobs. `forget(job)` drops what that job and those before it wrote, once a reader sees their
commit. A value written again by a later job stays, and a dropped number reads as absent until its drop is committed.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from alphorn.bus.entries import Assignment
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
from alphorn.bus.storage import CheckpointInfo
from alphorn.model.ranges import RangeSet

Written = dict[Any, tuple[int, Any]]  # key -> job, value


class Overlay:
    """One thread's view of what another thread is still to commit."""

    __slots__ = (
        "_drops",
        "_order",
        "assignments",
        "checkpoints",
        "chunks",
        "dropped_checkpoints_below",
        "entries",
        "group_states",
        "metas",
    )

    def __init__(self) -> None:
        self.metas: dict[None, tuple[int, bytes]] = {}
        self.group_states: dict[None, tuple[int, tuple[int, bytes]]] = {}
        self.assignments: dict[int, tuple[int, Assignment]] = {}
        self.entries: dict[int, tuple[int, bytes | memoryview]] = {}
        self.checkpoints: dict[int, tuple[int, CheckpointInfo]] = {}
        self.chunks: dict[tuple[int, int], tuple[int, bytes | memoryview]] = {}
        self.dropped_checkpoints_below = 0
        self._order: deque[tuple[int, Written, Any]] = deque()
        self._drops: deque[tuple[int, RangeSet, int]] = deque()  # job, entries, checkpoints below

    def __len__(self) -> int:
        """How many values are held."""
        return len(self._order)

    def add(self, job: int, write: Write, newest_checkpoint: int, dropped: RangeSet | None) -> None:
        """Takes in one write.

        `newest_checkpoint` is the newest complete one before it, 0 for none; `dropped` the entries that it drops.
        """
        entries = dropped or RangeSet()
        match write:
            case PutEntry(sequence, payload, _):
                self._put(job, self.entries, sequence, payload)
            case PutAssignments(first, assignments):
                for sequence, assignment in enumerate(assignments, first):
                    self._put(job, self.assignments, sequence, assignment)
            case PutMeta(data):
                self._put(job, self.metas, None, data)
            case PutGroupState(sequence, data):
                self._put(job, self.group_states, None, (sequence, data))
            case PutChunk(sequence, chunk, payload):
                self._put(job, self.chunks, (sequence, chunk), payload)
            case SealCheckpoint(sequence, epoch, size, chunks, digest, state):
                info = CheckpointInfo(
                    sequence=sequence, epoch=epoch, size=size, chunks=chunks, digest=digest, state=state
                )
                self._put(job, self.checkpoints, sequence, info)
                self._drop(job, entries, below=sequence)
            case DropAfter(sequence):
                self._drop_assignments(lambda number: number > sequence)
                self._drop(job, entries)
            case DropThrough(sequence):
                self._drop_assignments(lambda number: number <= sequence)
                self._drop(job, entries, below=newest_checkpoint)
            case Retain():
                self._drop(job, entries)
            case _:
                raise AssertionError(f"{type(write).__name__} is not a write this store knows")

    def is_dropped(self, sequence: int) -> bool:
        """Whether the entry that is committed at this number no longer counts."""
        return any(sequence in entries for _, entries, _ in self._drops)

    def forget(self, job: int) -> None:
        """Readers see the commit of this job."""
        order = self._order
        while order and order[0][0] <= job:
            written_by, values, key = order.popleft()
            if key in values and values[key][0] == written_by:
                del values[key]
        if self._drops and self._drops[0][0] <= job:
            while self._drops and self._drops[0][0] <= job:
                self._drops.popleft()
            self._sum_drops()

    def _put(self, job: int, values: Written, key: Any, value: Any) -> None:
        values[key] = (job, value)
        self._order.append((job, values, key))

    def _drop_assignments(self, is_dropped: Callable[[int], bool]) -> None:
        for sequence in [sequence for sequence in self.assignments if is_dropped(sequence)]:
            del self.assignments[sequence]

    def _drop(self, job: int, entries: RangeSet, *, below: int = 0) -> None:
        for sequence in [sequence for sequence in self.entries if sequence in entries]:
            del self.entries[sequence]
        for sequence in [sequence for sequence in self.checkpoints if sequence < below]:
            del self.checkpoints[sequence]
        for key in [key for key in self.chunks if key[0] < below]:
            del self.chunks[key]
        self._drops.append((job, entries, below))
        self._sum_drops()

    def _sum_drops(self) -> None:
        self.dropped_checkpoints_below = max((below for _, _, below in self._drops), default=0)
