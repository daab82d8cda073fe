"""Hands checkpoints to the upper layer, which may take its time: a new backup first fetches what its state needs.

One checkpoint is being installed at a time. A newer one takes its place: what the upper layer was waiting for is
cancelled, and it begins anew. Before the log goes on, the store is told which entries the installed state needs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from alphorn.bus.machine import CheckpointInstalled, CheckpointRefused, Input
from alphorn.bus.storage import CheckpointInfo, Damaged
from alphorn.io.tasks import Tasks
from alphorn.model.errors import Corruption, Unavailable
from alphorn.model.ranges import RangeSet


class CheckpointStore(Protocol):
    """What is read and told here of a store."""

    def checkpoint(self) -> CheckpointInfo | Damaged | None:
        """The newest complete checkpoint."""

    def checkpoint_chunk(self, sequence: int, chunk: int) -> bytes | memoryview | Damaged | None:
        """One chunk of it."""

    def retain(self, sequence: int, needed: RangeSet) -> None:
        """Keeps the entries that an installed checkpoint needs."""


class Installed(Protocol):
    """The upper layer, as far as it is concerned here."""

    def install_checkpoint(self, sequence: int, chunks: Iterator[bytes]) -> Awaitable[None] | None:
        """Replaces the state."""

    def retained(self, sequence: int) -> RangeSet:
        """What the state needs."""


class Installing:
    """`tell` hears what became of each checkpoint; `fail` of whatever else goes wrong."""

    def __init__(
        self,
        store: CheckpointStore,
        upper: Installed,
        *,
        tell: Callable[[Input], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._upper = upper
        self._tell = tell
        self._tasks = Tasks(on_failure=fail)
        self._running: asyncio.Task[None] | None = None
        self._sequence = 0  # of the checkpoint under way, or of the last one

    def begin(self, sequence: int) -> None:
        """Installs a checkpoint, instead of one that is not finished yet."""
        self.cancel()
        self._sequence = sequence
        try:
            waiting = self._upper.install_checkpoint(sequence, self._read(sequence))
        except Unavailable:
            self._tell(CheckpointRefused(sequence))
            return
        if waiting is None:
            self._finish(sequence)
        else:
            self._running = self._tasks.start(self._wait(sequence, waiting), name=f"checkpoint {sequence}")

    def cancel(self) -> None:
        """Gives up what is under way."""
        if self._running is not None:
            self._running.cancel()
            self._running = None

    async def close(self) -> None:
        """Gives up, and waits until the upper layer has noticed."""
        await self._tasks.close()

    async def _wait(self, sequence: int, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except Unavailable:
            self._tell(CheckpointRefused(sequence))
        else:
            if sequence == self._sequence:
                self._finish(sequence)

    def _finish(self, sequence: int) -> None:
        self._store.retain(sequence, self._upper.retained(sequence))
        self._tell(CheckpointInstalled(sequence))

    def _read(self, sequence: int) -> Iterator[bytes]:
        info = self._store.checkpoint()
        if isinstance(info, CheckpointInfo) and info.sequence > sequence:
            raise Unavailable(f"the checkpoint at {sequence} was replaced by one at {info.sequence}; install that one")
        if not isinstance(info, CheckpointInfo) or info.sequence != sequence:
            raise Corruption(
                f"the checkpoint at {sequence} is not in the store any more; start this node on a blank disk"
            )
        for number in range(info.chunks):
            chunk = self._store.checkpoint_chunk(sequence, number)
            if not isinstance(chunk, bytes | memoryview):
                raise Corruption(
                    f"chunk {number} of the checkpoint at {sequence} is damaged; start this node on a blank disk"
                )
            yield bytes(chunk)
