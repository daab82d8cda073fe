"""Runs of messages and positions, as clients write and read them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from alphorn.client_manager.channel import POSITION_BYTES
from alphorn.model import commands, link
from alphorn.model.commands import decode_entry
from alphorn.model.conversation import Delivered
from alphorn.model.errors import PeerViolation
from alphorn.model.messages import BATCH_BYTES_MAX, cut_batch, join_batch, split_batch
from alphorn.model.ranges import Range

POSITIONS_MAX = BATCH_BYTES_MAX // POSITION_BYTES  # of one frame: they must fit a command


def pairs_of(positions: Sequence[int]) -> list[Range]:
    """The pairs that a client wrote flat; raises `PeerViolation` for what are none, or in no order.

    In order they make a set in one go, and whatever sets are made of them can be counted.
    """
    if len(positions) > POSITIONS_MAX:
        raise PeerViolation(f"{len(positions)} positions are too many; at most {POSITIONS_MAX} go at once")
    pairs = list(zip(positions[::2], positions[1::2], strict=False))
    if len(positions) % 2 or any(not 0 <= first <= last < commands.COUNTER_MAX for first, last in pairs):
        raise PeerViolation("positions come in pairs, the first not after the last")
    if any(before[1] >= after[0] for before, after in pairwise(pairs)):
        raise PeerViolation("positions come in pairs that are in order, each position once")
    return pairs


def delivered(number: int, run: link.DeliveredRun, batch: commands.Publish) -> Delivered:
    """What a client hears of a run; the batch is cut only where the run is not all of it."""
    blob = batch.blob
    if not _is_whole(run, batch):
        blob = memoryview(cut_batch(blob, range(run.index, run.index + run.count)))
    return _delivered(number, run, batch, blob)


def looked(frame: link.Looked) -> Iterator[Delivered]:
    """What a client hears of what a look found; a batch is unpacked once, however many runs are of it."""
    entries = {sequence: decode_entry(payload).commands for sequence, payload in frame.entries}
    split: dict[tuple[int, int], list[msgspec.Raw]] = {}
    for run in frame.runs:
        batch = entries[run.sequence][run.command]
        if not isinstance(batch, commands.Publish):
            continue
        blob = batch.blob
        if not _is_whole(run, batch):
            place = (run.sequence, run.command)
            if place not in split:
                split[place] = split_batch(blob)
            blob = memoryview(join_batch(split[place][run.index : run.index + run.count]))
        yield _delivered(0, run, batch, blob)


def _is_whole(run: link.DeliveredRun, batch: commands.Publish) -> bool:
    return run.index == 0 and run.count == batch.count


def _delivered(number: int, run: link.DeliveredRun, batch: commands.Publish, blob: memoryview) -> Delivered:
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
