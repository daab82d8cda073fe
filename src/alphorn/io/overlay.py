"""Writes handed over and not yet committed, so that reads see them at once.

Writes arrive in numbered jobs. `forget(job)` drops what that job and those before it wrote, once a reader sees their
commit. A value written again by a later job stays, and a dropped number reads as absent until its drop is committed.
"""

import math
from collections import deque
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
    SealCheckpoint,
    Write,
)
from alphorn.bus.storage import CheckpointInfo

Written = dict[Any, tuple[int, Any]]  # key -> job, value


class Overlay:
    """One thread's view of what another thread is still to commit."""

    __slots__ = (
        "_drops",
        "_order",
        "assignments",
        "checkpoints",
        "chunks",
        "dropped_above",
        "dropped_checkpoints_below",
        "dropped_through",
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
        self.dropped_through: float = -1
        self.dropped_above: float = math.inf
        self.dropped_checkpoints_below = 0
        self._order: deque[tuple[int, Written, Any]] = deque()
        self._drops: deque[tuple[int, float, float, int]] = deque()  # job, through, above, checkpoints below

    def __len__(self) -> int:
        """How many values are held."""
        return len(self._order)

    def add(self, job: int, write: Write, newest_checkpoint: int) -> None:
        """Takes in one write; `newest_checkpoint` is the newest complete one before it, 0 for none."""
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
                self._drop(job, below=sequence)
            case DropAfter(sequence):
                self._drop(job, above=sequence)
            case DropThrough(sequence):
                self._drop(job, through=sequence, below=newest_checkpoint)
            case _:
                raise AssertionError(f"{type(write).__name__} is not a write this store knows")

    def is_dropped(self, sequence: int) -> bool:
        """Whether what is committed at this number no longer counts."""
        return not self.dropped_through < sequence <= self.dropped_above

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

    def _drop(self, job: int, *, through: float = -1, above: float = math.inf, below: int = 0) -> None:
        for numbered in (self.assignments, self.entries):
            for sequence in [sequence for sequence in numbered if not through < sequence <= above]:
                del numbered[sequence]
        for sequence in [sequence for sequence in self.checkpoints if sequence < below]:
            del self.checkpoints[sequence]
        for key in [key for key in self.chunks if key[0] < below]:
            del self.chunks[key]
        self._drops.append((job, through, above, below))
        self._sum_drops()

    def _sum_drops(self) -> None:
        self.dropped_through = max((drop[1] for drop in self._drops), default=-1)
        self.dropped_above = min((drop[2] for drop in self._drops), default=math.inf)
        self.dropped_checkpoints_below = max((drop[3] for drop in self._drops), default=0)
