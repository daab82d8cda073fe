"""The simulated disk: what was handed over, what is durable, and what a crash leaves of the difference.

Reads see every write handed over. One fsync runs at a time and covers all that was handed over before it began (group
commit). A crash keeps the durable state and a random prefix of the `Persist`s an fsync was working on, each whole. A
damaged record reads `DAMAGED` until it is written again. Passes the same check as the real store (check_storage.py).
"""

import random
from collections.abc import Callable

import msgspec

from alphorn.bus.entries import Assignment
from alphorn.bus.machine import (
    DropAfter,
    DropThrough,
    Persist,
    PutAssignments,
    PutChunk,
    PutEntry,
    PutGroupState,
    PutMeta,
    Retain,
    SealCheckpoint,
    Write,
)
from alphorn.bus.storage import DAMAGED, CheckpointInfo, Damaged, Meta
from alphorn.io.retention import Retention
from alphorn.testing.schedule import Schedule

FSYNC_MIN_S = 0.0001
FSYNC_MEAN_S = 0.0005
FSYNC_SLOW_S_MAX = 0.2
Key = tuple[str, int, int]  # kind of record, number, chunk

_DROPPING = (DropAfter, DropThrough, Retain)
_decode_meta = msgspec.msgpack.Decoder(Meta).decode


class DiskState:
    """The records of one disk."""

    __slots__ = ("assignments", "checkpoint", "chunks", "damaged", "entries", "group_state", "meta", "retention")

    def __init__(self) -> None:
        self.meta: bytes | None = None
        self.assignments: dict[int, Assignment] = {}
        self.entries: dict[int, bytes] = {}
        self.group_state: tuple[int, bytes] | None = None
        self.checkpoint: CheckpointInfo | None = None
        self.chunks: dict[tuple[int, int], bytes] = {}
        self.damaged: set[Key] = set()
        self.retention = Retention()  # of the run that writes here, not of the disk

    @property
    def bounds(self) -> tuple[int, int]:
        """Of the log; entries outside it are retained."""
        return (min(self.assignments), max(self.assignments)) if self.assignments else (1, 0)

    def is_intact(self, sequence: int) -> bool:
        """Whether it has this entry and can read it."""
        return sequence in self.entries and ("entry", sequence, 0) not in self.damaged

    def copy(self) -> "DiskState":
        """An independent equal, as the next run finds it; records themselves are immutable and shared."""
        other = DiskState()
        other.meta = self.meta
        other.assignments = dict(self.assignments)
        other.entries = dict(self.entries)
        other.group_state = self.group_state
        other.checkpoint = self.checkpoint
        other.chunks = dict(self.chunks)
        other.damaged = set(self.damaged)
        return other

    def apply(self, write: Write) -> None:
        """Performs one write. What is written anew is no longer damaged."""
        dropped = self.retention.dropped_by(write, self.bounds) if isinstance(write, _DROPPING) else None
        if dropped:
            self.entries = {number: value for number, value in self.entries.items() if number not in dropped}
            self.damaged = {key for key in self.damaged if key[0] != "entry" or key[1] not in dropped}
        match write:
            case PutEntry():
                self.retention.put(write.sequence)
                self.entries[write.sequence] = bytes(write.payload)
                self.damaged.discard(("entry", write.sequence, 0))
            case PutAssignments():
                for sequence, assignment in enumerate(write.assignments, write.first):
                    self.assignments[sequence] = assignment
                    self.damaged.discard(("assignment", sequence, 0))
            case PutMeta():
                self.meta = write.data
                self.damaged.discard(("meta", 0, 0))
            case DropAfter():
                self._keep(lambda number: number <= write.sequence)
            case DropThrough():
                self._keep(lambda number: number > write.sequence)
                self._drop_old_chunks()
            case Retain():
                pass
            case PutGroupState():
                self.group_state = (write.sequence, write.data)
                self.damaged.discard(("group_state", 0, 0))
            case PutChunk():
                self.chunks[write.sequence, write.chunk] = bytes(write.payload)
                self.damaged.discard(("chunk", write.sequence, write.chunk))
            case SealCheckpoint():
                self._seal(write)
            case _:
                raise TypeError(f"the disk does not know the write {write!r}")

    def _seal(self, write: SealCheckpoint) -> None:
        self.checkpoint = CheckpointInfo(
            sequence=write.sequence,
            epoch=write.epoch,
            size=write.size,
            chunks=write.chunks,
            digest=write.digest,
            state=write.state,
        )
        self.damaged.discard(("checkpoint", 0, 0))
        self._drop_old_chunks()

    def _keep(self, is_kept: Callable[[int], bool]) -> None:
        self.assignments = {number: value for number, value in self.assignments.items() if is_kept(number)}
        self.damaged = {key for key in self.damaged if key[0] != "assignment" or is_kept(key[1])}

    def _drop_old_chunks(self) -> None:
        if self.checkpoint is not None:
            sequence = self.checkpoint.sequence
            self.chunks = {key: value for key, value in self.chunks.items() if key[0] >= sequence}
            self.damaged = {key for key in self.damaged if key[0] != "chunk" or key[1] >= sequence}


class SimulatedDisk:
    """One member's disk; obeys `Storage`. `on_durable(persist)` is called as each hand-over becomes durable."""

    __slots__ = (
        "_on_durable",
        "_on_error",
        "_pending",
        "_run",
        "_schedule",
        "_stream",
        "_sync_mean_s",
        "_syncing",
        "durable",
        "hang_s",
        "is_failing",
        "is_found",
        "is_full",
        "is_old",
        "life",
        "slow_chance",
        "syncs",
        "visible",
    )

    def __init__(
        self,
        schedule: Schedule,
        stream: random.Random,
        *,
        on_durable: Callable[[list[Persist]], None],
        on_error: Callable[[str], None],
        sync_mean_s: float = FSYNC_MEAN_S,
    ) -> None:
        self._schedule = schedule
        self._stream = stream
        self._on_durable = on_durable
        self._on_error = on_error
        self._sync_mean_s = sync_mean_s
        self._pending: list[Persist] = []
        self._syncing = 0  # how many of the pending ones the running fsync covers
        self._run = 0
        self.visible = DiskState()
        self.durable = DiskState()
        self.slow_chance = 0.01
        self.hang_s = 0.0  # so much longer the next fsync takes
        self.is_failing = False  # the next fsync reports an error
        self.is_full = False
        self.is_old = False  # it is an image from before its member said something, and the log may still count on that
        self.is_found = False  # it was lost once, and came back after another had taken its place
        self.life = 0  # how often it was replaced
        self.syncs = 0

    @property
    def is_busy(self) -> bool:
        """Whether anything that was handed over is not durable yet."""
        return bool(self._pending)

    def persist(self, persist: Persist) -> None:
        """Takes over writes; they are readable at once and durable later."""
        for write in persist.writes:
            self.visible.apply(write)
        self._pending.append(persist)
        if not self._syncing:
            self._begin_sync()

    def crash(self, *, keeps_prefix: bool, tears: bool) -> list[Persist]:
        """Power is gone. Gives the hand-overs that survived although no fsync had confirmed them."""
        survivors: list[Persist] = []
        if keeps_prefix and self._syncing:
            survivors = self._pending[: self._stream.randint(0, self._syncing)]
            for persist in survivors:
                self._harden(persist)
        if tears and survivors:
            self._tear(survivors[-1])
        self._forget_pending()
        self.durable.retention = Retention()
        self.visible = self.durable.copy()
        return survivors

    def lose(self) -> None:
        """The disk is replaced by a blank one."""
        self._forget_pending()
        self.life += 1
        self.is_old = self.is_found = False
        self.visible, self.durable = DiskState(), DiskState()

    def restore(self, image: DiskState, *, is_found: bool = False) -> None:
        """The disk is replaced by an older image of itself; or by the one (`is_found`) that it had replaced."""
        self._forget_pending()
        self.life += 1
        self.is_old, self.is_found = True, is_found
        self.visible, self.durable = image.copy(), image.copy()

    def damage(self, key: Key) -> None:
        """A stored record rots: it reads `DAMAGED` until it is written again."""
        self.visible.damaged.add(key)
        self.durable.damaged.add(key)

    def repair(self) -> None:
        """Takes back everything that makes the disk slow, full or failing."""
        self.is_failing = self.is_full = False
        self.slow_chance = self.hang_s = 0.0

    # Storage, the read side.

    def meta(self) -> Meta | Damaged | None:
        """See `Storage`."""
        if ("meta", 0, 0) in self.visible.damaged:
            return DAMAGED
        return None if self.visible.meta is None else _decode_meta(self.visible.meta)

    def assignment_bounds(self) -> tuple[int, int]:
        """See `Storage`."""
        return self.visible.bounds

    def assignment(self, sequence: int) -> Assignment | Damaged | None:
        """See `Storage`."""
        if ("assignment", sequence, 0) in self.visible.damaged:
            return DAMAGED
        return self.visible.assignments.get(sequence)

    def entry(self, sequence: int) -> bytes | memoryview | Damaged | None:
        """See `Storage`."""
        if ("entry", sequence, 0) in self.visible.damaged:
            return DAMAGED
        return self.visible.entries.get(sequence)

    def group_state(self) -> tuple[int, bytes] | Damaged | None:
        """See `Storage`."""
        return DAMAGED if ("group_state", 0, 0) in self.visible.damaged else self.visible.group_state

    def checkpoint(self) -> CheckpointInfo | Damaged | None:
        """See `Storage`."""
        return DAMAGED if ("checkpoint", 0, 0) in self.visible.damaged else self.visible.checkpoint

    def checkpoint_chunk(self, sequence: int, chunk: int) -> bytes | memoryview | Damaged | None:
        """See `Storage`."""
        if ("chunk", sequence, chunk) in self.visible.damaged:
            return DAMAGED
        return self.visible.chunks.get((sequence, chunk))

    def _begin_sync(self) -> None:
        self._syncing = len(self._pending)
        hang_s, self.hang_s = self.hang_s, 0.0
        self._schedule.after(hang_s + self._draw_latency(), self._end_sync, self._run)

    def _draw_latency(self) -> float:
        if self.slow_chance and self._stream.random() < self.slow_chance:
            return self._stream.uniform(FSYNC_MIN_S, FSYNC_SLOW_S_MAX)
        return FSYNC_MIN_S + self._stream.expovariate(1.0) * self._sync_mean_s

    def _end_sync(self, run: int) -> None:
        if run != self._run:
            return  # the power went meanwhile
        if self.is_full or self.is_failing:
            self._on_error("no space left on device" if self.is_full else "fsync failed")
            return
        self.syncs += 1
        done, self._pending = self._pending[: self._syncing], self._pending[self._syncing :]
        self._syncing = 0
        for persist in done:
            self._harden(persist)
        if self._pending:
            self._begin_sync()
        self._on_durable(done)

    def _harden(self, persist: Persist) -> None:
        for write in persist.writes:
            self.durable.apply(write)

    def _tear(self, persist: Persist) -> None:
        entries = [write.sequence for write in persist.writes if isinstance(write, PutEntry)]
        kept = [sequence for sequence in entries if sequence in self.durable.entries]
        if kept:
            self.durable.damaged.add(("entry", kept[-1], 0))

    def _forget_pending(self) -> None:
        self._run += 1
        self._pending = []
        self._syncing = 0
