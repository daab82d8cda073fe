"""How a store takes a checkpoint of the upper layer: chunk by chunk, over as many turns as it takes.

Chunks are written behind what is already queued, in transactions of bounded size. None of them counts before the
checkpoint is sealed: a crash in between, or a checkpoint that nobody goes on with, leaves the one before in force.
"""

from collections.abc import Callable
from typing import Protocol

import xxhash

from alphorn.bus.machine import PutChunk, Retain, SealCheckpoint, Write
from alphorn.bus.storage import CheckpointInfo
from alphorn.model.ranges import RangeSet


class Put(Protocol):
    """The store's way in."""

    def __call__(self, writes: list[Write], on_written: Callable[[], None] | None = None) -> None:
        """Takes over writes; raises `Unavailable` when the store has stopped."""


class CheckpointWriting:
    """One checkpoint on its way to the store. Raises what `put` raises."""

    __slots__ = ("_chunks", "_digest", "_epoch", "_put", "_sequence", "_size", "_state")

    def __init__(self, sequence: int, epoch: int, state: bytes, put: Put) -> None:
        self._sequence, self._epoch, self._state = sequence, epoch, state
        self._put = put
        self._digest = xxhash.xxh3_64()
        self._size = 0
        self._chunks = 0

    def add(self, payload: bytes) -> None:
        """The next chunk."""
        self._put([PutChunk(self._sequence, self._chunks, payload)])
        self._digest.update(payload)
        self._size += len(payload)
        self._chunks += 1

    def seal(self, needed: RangeSet, on_written: Callable[[CheckpointInfo], None]) -> CheckpointInfo:
        """That was all: this is the newest checkpoint, and `on_written` is called when it is durable.

        Of the entries at or before it, `needed` is what collection keeps from then on.
        """
        info = CheckpointInfo(
            sequence=self._sequence,
            epoch=self._epoch,
            size=self._size,
            chunks=self._chunks,
            digest=self._digest.intdigest(),
            state=self._state,
        )
        seal = SealCheckpoint(info.sequence, info.epoch, info.size, info.chunks, info.digest, info.state)
        self._put([seal, Retain(info.sequence, needed.copy())], lambda: on_written(info))
        return info
