"""Reads a destination that is to leave, for whoever carries it to another channel: its messages, page by page."""

from collections.abc import Callable

import msgspec

from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.segments import Run
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import Publish, decode_entry
from alphorn.model.errors import InvalidDestination, Unavailable
from alphorn.model.messages import join_batch, split_batch
from alphorn.model.moving_link import CarriedRun, Exported
from alphorn.model.ranges import RangeSet

PAGE_BYTES = 1 << 20
PAGE_RUNS_MAX = 1000

Read = Callable[[int], bytes | memoryview | None]


def leaving_source(engine: Engine, number: int) -> Queue | Topic:
    """A destination that is to leave or leaves; raises `InvalidDestination`."""
    leaving = engine.moves.leaving.get(number)
    source = leaving.source or engine.destinations.get(number) if leaving is not None else None
    if source is None:
        raise InvalidDestination(f"destination {number} is not to be moved (any more); nothing is left to carry")
    return source


def export_page(engine: Engine, number: int, start: int, request: int, read: Read) -> Exported:
    """Messages that may still be given out, from a position on; raises an `Error` where they cannot be read now."""
    source = leaving_source(engine, number)
    needed = RangeSet()
    for positions in source.needed():
        needed.update(RangeSet(positions.intersection(start, source.next_position)))
    page: list[CarriedRun] = []
    size, batches = 0, _Batches(read)
    for first, last in needed:
        for run in source.segments.runs(first, last):
            if size >= PAGE_BYTES or len(page) == PAGE_RUNS_MAX:
                return Exported(request, page, run.position, source.next_position - 1)
            page.append(batches.carried(run))
            size += len(page[-1].blob)
    return Exported(request, page, 0, source.next_position - 1)


class _Batches:
    """The batches of one page. Many runs may be of one that was consumed here and there; it is unpacked once."""

    __slots__ = ("_batch", "_messages", "_place", "_read")

    def __init__(self, read: Read) -> None:
        self._read = read
        self._place = (0, 0)
        self._messages: list[msgspec.Raw] | None = None

    def carried(self, run: Run) -> CarriedRun:
        """A run with its messages; raises `Unavailable` where they cannot be read now."""
        if self._place != (run.sequence, run.command):
            self._batch, self._messages = self._open(run), None
            self._place = (run.sequence, run.command)
        batch, blob = self._batch, self._batch.blob
        if run.count < batch.count:
            if self._messages is None:
                self._messages = split_batch(blob)
            blob = memoryview(join_batch(self._messages[run.index : run.index + run.count]))
        counter = batch.counter + run.index
        return CarriedRun(run.position, batch.producer, counter, run.count, batch.flags, batch.timestamp, blob)

    def _open(self, run: Run) -> Publish:
        payload = self._read(run.sequence)
        batch = None if payload is None else decode_entry(bytes(payload)).commands[run.command]
        if not isinstance(batch, Publish):
            raise Unavailable(f"log entry {run.sequence} cannot be read now; ask again")
        return batch
