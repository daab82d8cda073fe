"""A stand-in for the store at members that keep nothing: clients, which vote on nothing and hold no data for others.

Writes are visible at once and reported durable at once, which is a lie that only a member without a vote may tell. It
is bounded by what the machine drops; a restart finds it blank.
"""

from collections.abc import Callable

import msgspec

from alphorn.bus.entries import Assignment, digest_of
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
from alphorn.bus.storage import CheckpointInfo, Meta
from alphorn.io.checkpoint_writing import CheckpointWriting
from alphorn.io.retention import Retention, last_outside
from alphorn.model.ranges import RangeSet

_decode_meta = msgspec.msgpack.Decoder(Meta).decode


class MemoryStorage:
    """Obeys `Storage` and takes `Persist`, as the store does. `on_durable` is called before `submit` returns."""

    __slots__ = (
        "_assignments",
        "_checkpoint",
        "_chunks",
        "_entries",
        "_group_state",
        "_meta",
        "_on_durable",
        "_retention",
    )

    def __init__(self, *, on_durable: Callable[[int], None]) -> None:
        self._on_durable = on_durable
        self._meta: bytes | None = None
        self._assignments: dict[int, Assignment] = {}  # in order of their numbers, without holes
        self._entries: dict[int, bytes | memoryview] = {}
        self._group_state: tuple[int, bytes] | None = None
        self._checkpoint: CheckpointInfo | None = None
        self._chunks: dict[tuple[int, int], bytes] = {}
        self._retention = Retention()

    def submit(self, persist: Persist) -> None:
        """Applies writes."""
        for write in persist.writes:
            self._apply(write)
        self._on_durable(persist.token)

    def begin_checkpoint(self, sequence: int, epoch: int, state: bytes) -> CheckpointWriting:
        """Keeps the upper layer's state at `sequence`, once it is sealed."""
        return CheckpointWriting(sequence, epoch, state, self._put)

    def retain(self, sequence: int, needed: RangeSet) -> None:
        """The checkpoint at `sequence` needs these entries."""
        self._apply(Retain(sequence, needed.copy()))

    def put_retained(self, sequence: int, payload: bytes, on_written: Callable[[], None]) -> None:
        """Keeps an entry that is missing here."""
        self._apply(PutEntry(sequence, payload, digest_of(payload)))
        on_written()

    def end_turn(self) -> None:
        """Nothing is held for the turn."""

    def close(self) -> None:
        """Nothing is held open."""

    def describe(self) -> dict[str, object]:
        """The printable state."""
        first, last = self.assignment_bounds()
        checkpoint = self._checkpoint.sequence if self._checkpoint is not None else 0
        outside = last_outside((first, last))
        retained = [len(entry) for number, entry in self._entries.items() if number <= outside]
        return {
            "path": None,
            "first": first,
            "last": last,
            "entries": len(self._entries),
            "checkpoint": checkpoint,
            "retained": len(retained),
            "retained_bytes": sum(retained),
        }

    def meta(self) -> Meta | None:
        """See `Storage`."""
        return None if self._meta is None else _decode_meta(self._meta)

    def assignment_bounds(self) -> tuple[int, int]:
        """See `Storage`."""
        if not self._assignments:
            return 1, 0
        return next(iter(self._assignments)), next(reversed(self._assignments))

    def assignment(self, sequence: int) -> Assignment | None:
        """See `Storage`."""
        return self._assignments.get(sequence)

    def entry(self, sequence: int) -> bytes | memoryview | None:
        """See `Storage`."""
        return self._entries.get(sequence)

    def group_state(self) -> tuple[int, bytes] | None:
        """See `Storage`."""
        return self._group_state

    def checkpoint(self) -> CheckpointInfo | None:
        """See `Storage`."""
        return self._checkpoint

    def checkpoint_chunk(self, sequence: int, chunk: int) -> bytes | None:
        """See `Storage`."""
        return self._chunks.get((sequence, chunk))

    def _put(self, writes: list[Write], on_written: Callable[[], None] | None = None) -> None:
        for write in writes:
            self._apply(write)
        if on_written is not None:
            on_written()

    def _apply(self, write: Write) -> None:
        dropped = self._retention.dropped_by(write, self.assignment_bounds())
        if dropped is not None:
            self._entries = {number: entry for number, entry in self._entries.items() if number not in dropped}
        match write:
            case PutEntry(sequence, payload, _):
                self._retention.put(sequence)
                self._entries[sequence] = payload
            case PutAssignments(first, assignments):
                self._assign(first, assignments)
            case PutMeta(data):
                self._meta = data
            case DropAfter(sequence):
                _drop_newest(self._assignments, sequence)
            case DropThrough(sequence):
                self._drop_through(sequence)
            case Retain():
                pass
            case PutGroupState(sequence, data):
                self._group_state = (sequence, data)
            case PutChunk(sequence, chunk, payload):
                self._chunks[sequence, chunk] = bytes(payload)
            case SealCheckpoint(sequence, epoch, size, chunks, digest, state):
                self._checkpoint = CheckpointInfo(
                    sequence=sequence, epoch=epoch, size=size, chunks=chunks, digest=digest, state=state
                )
                self._drop_old_chunks()
            case _:
                raise AssertionError(f"storage does not know the write {write!r}")

    def _assign(self, first: int, assignments: list[Assignment]) -> None:
        start, last = self.assignment_bounds()
        is_in_order = not self._assignments or start <= first <= last + 1
        self._assignments.update(enumerate(assignments, first))
        if not is_in_order:
            self._assignments = dict(sorted(self._assignments.items()))

    def _drop_through(self, sequence: int) -> None:
        for number in [number for number in self._assignments if number <= sequence]:
            del self._assignments[number]
        self._drop_old_chunks()

    def _drop_old_chunks(self) -> None:
        if self._checkpoint is not None:
            newest = self._checkpoint.sequence
            self._chunks = {key: chunk for key, chunk in self._chunks.items() if key[0] >= newest}


def _drop_newest(assignments: dict[int, Assignment], sequence: int) -> None:
    while assignments and next(reversed(assignments)) > sequence:
        assignments.popitem()
