"""How a simulated upper layer gives its checkpoints: in slices, between which the log goes on, as node/ does it.

A mark that comes before the last piece was taken finishes the open checkpoint first. An installed checkpoint, or the
end of the process, is the end of one that is open.
"""

from typing import TYPE_CHECKING

from alphorn.bus.entries import digest_of
from alphorn.bus.machine import Persist, PutChunk, Retain, SealCheckpoint, TakeCheckpoint, Write
from alphorn.testing.installing import UPPER_TOKEN
from alphorn.testing.replica import Given

if TYPE_CHECKING:
    from alphorn.testing.node import SimulatedNode

SLICE_PIECES_MAX = 30
BETWEEN_S_MAX = 0.02


class SimulatedCheckpointing:
    """The upper layer of one member, as far as it gives checkpoints."""

    __slots__ = ("_given", "_mark", "_node", "least_s")

    def __init__(self, node: "SimulatedNode") -> None:
        self._node = node
        self._mark: TakeCheckpoint | None = None  # of the open checkpoint
        self._given: Given | None = None
        self.least_s = 0.0  # how long each takes at least

    def abandon(self) -> None:
        """Nobody takes the rest of an open checkpoint."""
        if self._given is not None:
            self._given.close()
        self._mark = self._given = None

    def begin(self, mark: TakeCheckpoint) -> None:
        """The state as it is now is the checkpoint, with the group's own state at the same number."""
        if self._mark is not None and self._given is not None:
            self._take_all(self._mark, self._given)
        self._mark, self._given = mark, self._node.replica.give()
        if not self._given.is_whole:
            self._go_on(self._node.run, mark)
        elif lasts_s := max(self.least_s, self._node.around.draw_checkpoint_s()):
            self._node.around.schedule.after(lasts_s, self._go_on, self._node.run, mark)
        else:
            self._take_all(mark, self._given)

    def _go_on(self, run: int, mark: TakeCheckpoint) -> None:
        node, given = self._node, self._given
        if run != node.run or mark is not self._mark or given is None or not node.is_up:
            return
        stream = node.around.streams_machines
        if node.is_running:
            for _ in range(stream.randint(1, SLICE_PIECES_MAX)):
                if not given.take():
                    self._seal(mark, given)
                    return
        node.around.schedule.after(stream.uniform(0.0, BETWEEN_S_MAX), self._go_on, run, mark)

    def _take_all(self, mark: TakeCheckpoint, given: Given) -> None:
        while given.take():
            pass
        self._seal(mark, given)

    def _seal(self, mark: TakeCheckpoint, given: Given) -> None:
        """Writes all of it, cut into chunks."""
        self._mark = self._given = None
        data, needed = given.encode()
        step = self._node.around.budget.chunk_bytes
        chunks = [data[start : start + step] for start in range(0, len(data), step)]
        writes: list[Write] = [PutChunk(mark.sequence, place, chunk) for place, chunk in enumerate(chunks)]
        writes.append(SealCheckpoint(mark.sequence, mark.epoch, len(data), len(chunks), digest_of(data), mark.state))
        writes.append(Retain(mark.sequence, needed))
        self._node.persist(Persist(UPPER_TOKEN, writes))
        self._node.installing.mend()
