"""Runs of messages and positions, as clients write and read them."""

from collections.abc import Sequence

from alphorn.model import commands, link
from alphorn.model.conversation import Delivered
from alphorn.model.errors import PeerViolation
from alphorn.model.messages import cut_batch
from alphorn.model.ranges import Range


def pairs_of(positions: Sequence[int]) -> list[Range]:
    """The pairs that a client wrote flat; raises `PeerViolation` for what are none."""
    pairs = list(zip(positions[::2], positions[1::2], strict=False))
    if len(positions) % 2 or any(not 0 <= first <= last for first, last in pairs):
        raise PeerViolation("positions come in pairs, the first not after the last")
    return pairs


def delivered(number: int, run: link.DeliveredRun, batch: commands.Publish) -> Delivered:
    """What a client hears of a run; the batch is cut only where the run is not all of it."""
    is_whole = run.index == 0 and run.count == batch.count
    blob = batch.blob if is_whole else memoryview(cut_batch(batch.blob, range(run.index, run.index + run.count)))
    return Delivered(
        number,
        run.position,
        run.delivery_count,
        run.sequence,
        run.index,
        batch.producer,
        batch.counter + run.index,
        batch.timestamp,
        run.history,
        blob,
    )
