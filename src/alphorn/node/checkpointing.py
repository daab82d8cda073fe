"""Takes checkpoints of the upper layer's state in slices, so that a large state keeps nobody waiting.

The upper layer fixes its state at the mark and gives it in pieces. As many are taken at once as `SLICE_S` allows; the
rest follows in slices of that length, one in each pass of the event loop, between which everything else gets its turn
and the log goes on. A mark that comes before the last piece was taken finishes the open checkpoint first, at once.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from alphorn.bus.storage import CheckpointInfo
from alphorn.io.checkpoint_writing import CheckpointWriting
from alphorn.model.ranges import RangeSet

SLICE_S = 0.002  # far less than anybody waits for a heartbeat


class CheckpointTaker(Protocol):
    """A store, as far as it is told here."""

    def begin_checkpoint(self, sequence: int, epoch: int, state: bytes) -> CheckpointWriting:
        """Takes the chunks of a checkpoint."""


class CheckpointGiver(Protocol):
    """The upper layer, as far as it is concerned here."""

    def give_checkpoint(self, sequence: int) -> Iterable[bytes]:
        """The state as it is now."""

    def retained(self, sequence: int) -> RangeSet:
        """What that state needs."""


class Checkpointing:
    """One checkpoint at a time. `fail` hears of what goes wrong in a slice of its own."""

    def __init__(
        self,
        store: CheckpointTaker,
        upper: CheckpointGiver,
        *,
        chunk_bytes: int,
        on_written: Callable[[CheckpointInfo], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._upper = upper
        self._chunk_bytes = chunk_bytes  # equal everywhere, so that a transfer may change servers half-way
        self._on_written = on_written
        self._fail = fail
        self._pieces: Iterator[bytes] | None = None  # of the open checkpoint
        self._next: asyncio.Handle | None = None
        self._taken = 0
        self._slices = 0  # that they took

    def describe(self) -> dict[str, object]:
        """The printable state."""
        return {"taken": self._taken, "slices": self._slices, "is_open": self._pieces is not None}

    def begin(self, sequence: int, epoch: int, state: bytes) -> None:
        """The state of this moment is the checkpoint at `sequence`."""
        self.finish()
        self._sequence = sequence
        self._held = bytearray()
        self._pieces = iter(self._upper.give_checkpoint(sequence))
        self._writing = self._store.begin_checkpoint(sequence, epoch, state)
        self._slice()

    def finish(self) -> None:
        """Takes what is left of an open checkpoint, however long it takes."""
        while self._pieces is not None:
            self._step(self._pieces)
        self._cancel()

    def abandon(self) -> None:
        """Nobody needs the open checkpoint any more: the one before stays in force."""
        self._pieces = None
        self._cancel()

    def _slice(self) -> None:
        self._next = None
        self._slices += 1
        end = time.perf_counter() + SLICE_S
        while self._pieces is not None:
            self._step(self._pieces)
            if time.perf_counter() >= end:
                break
        if self._pieces is not None:
            self._next = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        try:
            self._slice()
        except Exception as error:
            self.abandon()
            self._fail(error)

    def _step(self, pieces: Iterator[bytes]) -> None:
        """Takes one piece; after the last one the checkpoint is sealed."""
        piece = next(pieces, None)
        if piece is not None:
            self._held += piece
            while len(self._held) >= self._chunk_bytes:
                self._give_chunk()
            return
        if self._held:
            self._give_chunk()
        self._pieces = None
        self._taken += 1
        self._writing.seal(self._upper.retained(self._sequence), self._on_written)

    def _give_chunk(self) -> None:
        self._writing.add(bytes(self._held[: self._chunk_bytes]))
        del self._held[: self._chunk_bytes]

    def _cancel(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
