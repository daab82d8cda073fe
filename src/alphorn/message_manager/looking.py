"""Browsing: looks at what a queue holds, in order, and changes nothing."""

from collections.abc import Callable, Iterator

from alphorn.message_manager.contents import Batch
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.segments import Run
from alphorn.message_manager.selector import Selector, parse
from alphorn.model.commands import Publish, decode_entry
from alphorn.model.errors import InvalidDestination, Moved
from alphorn.model.link import DeliveredRun, Look

LOOK_BYTES_MAX = 4 << 20  # of log entries in one answer
LOOK_RUNS_MAX = 1000

Found = tuple[DeliveredRun, memoryview]


def look(engine: Engine, frame: Look, read: Callable[[int], bytes | memoryview | None]) -> tuple[list[Found], int]:
    """Messages from `start` on, and the position to go on from (0: there is no more).

    Raises `InvalidDestination` or `InvalidSelector`.
    """
    queue = engine.destinations.get(frame.destination)
    if queue is None and engine.moves.home_of(frame.destination) is not None:
        raise Moved("this queue is on its way to another channel; look again in a moment")
    if not isinstance(queue, Queue):
        raise InvalidDestination("only queues can be browsed, and this is none any more; use a consumer for a topic")
    selector = parse(frame.selector) if frame.selector else None
    found: list[Found] = []
    left, size, last = frame.maximum, 0, 0
    for run in _runs(queue, frame.start):
        if left <= 0 or size > LOOK_BYTES_MAX or len(found) >= LOOK_RUNS_MAX:
            return found, run.position
        payload = read(run.sequence)
        if payload is None:
            continue
        entry = memoryview(bytes(payload))
        for part in _selected(queue, run, entry, selector):
            count = min(part.count, left)
            if count:
                found.append((_delivered(queue, part, count), entry))
            left -= count
            if count < part.count:
                return found, part.position + count
        size += len(entry) if run.sequence != last else 0
        last = run.sequence
    return found, 0


def _runs(queue: Queue, start: int) -> Iterator[Run]:
    for first, last in queue.backlog.pending.intersection(start, queue.next_position):
        yield from queue.segments.runs(first, last)


def _selected(queue: Queue, run: Run, entry: memoryview, selector: Selector | None) -> Iterator[Run]:
    if selector is None:
        yield run
        return
    command = decode_entry(entry).commands[run.command]
    if not isinstance(command, Publish):
        return
    batch = Batch(command)
    for place in range(run.count):
        position = run.position + place
        if batch.is_selected(run.index + place, selector, queue.backlog.priority_of(position)):
            yield Run(run.sequence, run.command, run.index + place, 1, position)


def _delivered(queue: Queue, run: Run, count: int) -> DeliveredRun:
    deliveries = 1 + queue.backlog.counts.get(run.position, 0)
    history = queue.history_of(run.position)
    return DeliveredRun(run.sequence, run.command, run.index, count, run.position, deliveries, history)
