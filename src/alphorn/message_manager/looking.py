"""Browsing: looks at what a queue holds, in order, and changes nothing.

A look costs by the messages that it looks at, be they shown or not, and by the bytes of the log that it reads for
them. Both are bounded: where a bound is reached the look ends with the position to go on from, also where it has found
nothing so far. It gets on by a message at least.
"""

from collections.abc import Callable, Iterator

from alphorn.message_manager.contents import Batch
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.segments import Run
from alphorn.message_manager.selector import parse
from alphorn.model.commands import Publish, decode_entry
from alphorn.model.errors import InvalidDestination, Moved
from alphorn.model.link import DeliveredRun, Look, Looked

LOOK_MESSAGES_MAX = 2_000  # looked at for one answer, so that a primary has its turns back soon
LOOK_BYTES_MAX = 1 << 20  # of log entries read for one answer; no other is begun when this is reached

Read = Callable[[int], bytes | memoryview | None]


def look(engine: Engine, frame: Look, read: Read) -> tuple[Looked, int]:
    """Messages from `start` on, and the position to go on from (0: there is no more).

    Messages that are not due are not shown. Raises `InvalidDestination` or `InvalidSelector`.
    """
    queue = _queue_of(engine, frame.destination)
    selector = parse(frame.selector) if frame.selector else None
    backlog, entries = queue.backlog, _Entries(read)
    runs: list[DeliveredRun] = []
    shown = looked = 0
    for run in _messages(queue, frame.start):
        position = run.position
        if shown >= frame.maximum or looked >= LOOK_MESSAGES_MAX:
            return entries.shown(frame.request, runs), position
        looked += 1
        if position in backlog.deferred:
            continue
        if entries.is_full_for(run.sequence):
            return entries.shown(frame.request, runs), position
        if not entries.open(run.sequence):
            continue
        if selector is not None:
            batch = entries.batch(run)
            if not batch.is_selected(run.index, selector, backlog.priority_of(position)):
                continue
        shown += 1
        _show(runs, _delivered(queue, run))
    return entries.shown(frame.request, runs), 0


def _queue_of(engine: Engine, number: int) -> Queue:
    queue = engine.destinations.get(number)
    if queue is None and engine.moves.home_of(number) is not None:
        raise Moved("this queue is on its way to another channel; look again in a moment")
    if not isinstance(queue, Queue):
        raise InvalidDestination("only queues can be browsed, and this is none any more; use a consumer for a topic")
    return queue


def _messages(queue: Queue, start: int) -> Iterator[Run]:
    """All that are pending, each by itself; one at a time, because a queue may have very many."""
    while (stretch := queue.backlog.pending.next_range(start)) is not None:
        for run in queue.segments.runs(*stretch):
            for place in range(run.count):
                yield Run(run.sequence, run.command, run.index + place, 1, run.position + place)
        start = stretch[1] + 1


def _delivered(queue: Queue, run: Run) -> DeliveredRun:
    deliveries = 1 + queue.backlog.counts.get(run.position, 0)
    history = queue.history_of(run.position)
    return DeliveredRun(run.sequence, run.command, run.index, run.count, run.position, deliveries, history)


def _show(runs: list[DeliveredRun], run: DeliveredRun) -> None:
    grown = runs[-1].grown_by(run) if runs else None
    if grown is None:
        runs.append(run)
    else:
        runs[-1] = grown


class _Entries:
    """The log entries that one look needs: each is read once and unpacked once."""

    __slots__ = ("_batches", "_payloads", "_read", "_size")

    def __init__(self, read: Read) -> None:
        self._read = read
        self._payloads: dict[int, memoryview | None] = {}
        self._batches: dict[int, list[Batch | None]] = {}
        self._size = 0  # bytes read

    def is_full_for(self, sequence: int) -> bool:
        """Whether this entry would be one too many; those that are here are none."""
        return self._size >= LOOK_BYTES_MAX and sequence not in self._payloads

    def open(self, sequence: int) -> bool:
        """Whether this entry can be read now."""
        if sequence not in self._payloads:
            payload = self._read(sequence)
            self._payloads[sequence] = None if payload is None else memoryview(bytes(payload))
            self._size += len(payload or b"")
        return self._payloads[sequence] is not None

    def batch(self, run: Run) -> Batch:
        """The batch that holds a run of an entry that is open."""
        batches = self._batches.get(run.sequence)
        if batches is None:
            payload = self._payloads[run.sequence]
            assert payload is not None
            commands = decode_entry(payload).commands
            batches = [Batch(command) if isinstance(command, Publish) else None for command in commands]
            self._batches[run.sequence] = batches
        batch = batches[run.command]
        assert batch is not None, "a segment points to a command that holds no messages"
        return batch

    def shown(self, request: int, runs: list[DeliveredRun]) -> Looked:
        """These runs, with the entries that hold them."""
        used = dict.fromkeys(run.sequence for run in runs)
        entries = [(sequence, payload) for sequence in used if (payload := self._payloads[sequence]) is not None]
        return Looked(request, runs, entries)
