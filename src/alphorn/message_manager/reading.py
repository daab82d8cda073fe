"""Answers readers of the log, on any replica: what is kept where, how much of it, and the messages themselves in bulk.

A reader goes by arrivals: the numbers of the log entries that put messages into destinations. Two readers that ask for
the same numbers get the same messages, from whichever replica, for as long as these are kept: what the policy of a
queue or a topic retains, and of a queue what is not consumed besides. What was sent twice or refused was never in a
destination, so no reader sees it.

An answer names how far it reaches. It never reaches beyond what this replica has applied, which is committed.
"""

import heapq
from collections.abc import Callable, Iterator

from xxhash import xxh3_64_intdigest

from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.segments import Run
from alphorn.message_manager.topic import Topic
from alphorn.model import frame_kinds, link, log_link
from alphorn.model.commands import Entry, Publish
from alphorn.model.log_hash import MASK, base_of, hash_of

RUNS_MAX = 20_000  # looked at for one answer, so that a replica has its turns back soon
SEARCHED_MAX = 500  # log entries read for one answer
BYTES_MAX = 16 << 20  # of messages in one answer, whatever was asked for
HASHED_RUNS_MAX = 1_000  # read for one answer, a log entry for each where they are small
HASHED_BYTES_MAX = 1 << 20  # of batches; an answer ends with the one that reaches this
BATCH_BITS = 16  # a batch has no more messages than these count
_BY_POSITION = 1 << 30  # no entry has so many commands that these ordinals meet

Found = tuple[int, int, Run]  # arrival, destination, where
Place = log_link.Place


class Reading:
    """The reader's side of one replica."""

    __slots__ = ("_entry", "messages")

    def __init__(self, entry: Callable[[int], Entry | None]) -> None:
        self._entry = entry
        self.messages = 0  # that readers got here

    def answer(self, engine: Engine, frame: link.AnyAsked) -> frame_kinds.Told | None:
        """The answer to a reader; None where the frame is none of theirs."""
        match frame:
            case log_link.Survey():
                return _survey(engine, frame)
            case log_link.Measure():
                return _measure(engine, frame)
            case log_link.Scan():
                return self._scan(engine, frame)
            case log_link.Search():
                return self._search(engine, frame)
            case log_link.Hash():
                return self._hash(engine, frame)
            case _:
                return None

    def _scan(self, engine: Engine, frame: log_link.Scan) -> log_link.Scanned:
        end = _end(engine, frame.first, frame.end)
        bytes_max = min(max(1, frame.bytes_max), BYTES_MAX)
        batches: list[log_link.ScannedBatch] = []
        size = held = 0
        entry: Entry | None = None
        for arrival, number, run in _found(engine, frame.destinations, frame.first, end):
            if run.sequence != held:
                held, entry = run.sequence, self._entry(run.sequence)
            # What is damaged here another replica has.
            if entry is None or size >= bytes_max or len(batches) >= RUNS_MAX:
                end = _place_of((arrival, number, run))
                break
            batch = _batch(number, run, entry)
            batches.append(batch)
            size += len(batch.blob)
        self.messages += sum(batch.count for batch in batches)
        return log_link.Scanned(frame.request, end, _kept_from(engine, frame.destinations), batches)

    def _search(self, engine: Engine, frame: log_link.Search) -> log_link.Searched:
        """Timelines say from where on; what lies there says when it was sent."""
        end = engine.sequence + 1
        starts = [_start_of(engine, number, frame) for number in frame.destinations]
        first = max(frame.first, min(starts, default=end))
        last = 0
        for looked, (arrival, _, run) in enumerate(_found(engine, frame.destinations, (first, 0, 0), (end, 0, 0))):
            if looked >= SEARCHED_MAX and arrival != last:
                return log_link.Searched(frame.request, arrival, False)
            last = arrival
            entry = self._entry(run.sequence)
            command = entry.commands[run.command] if entry is not None else None
            if isinstance(command, Publish) and command.timestamp >= frame.time_ms:
                return log_link.Searched(frame.request, arrival, True)
        return log_link.Searched(frame.request, max(first, end), True)

    def _hash(self, engine: Engine, frame: log_link.Hash) -> log_link.Hashed:
        """Costs by batches and their bytes; an entry that holds several runs in a row is read once."""
        end = _end(engine, frame.first, frame.end)
        messages = total = size = base = 0
        held: Entry | None = None
        last = (0, 0, 0)  # of the run before: arrival, entry and command
        for looked, found in enumerate(_of_destination(engine, frame.destination, frame.first, end)):
            arrival, _, run = found
            if run.sequence != last[1]:
                held = self._entry(run.sequence)
            # What cannot be read here, nor all that follows it, this replica says nothing of.
            if held is None or size >= HASHED_BYTES_MAX or looked >= HASHED_RUNS_MAX:
                end = _place_of(found)
                break
            if last != (arrival, run.sequence, run.command):
                last, batch = (arrival, run.sequence, run.command), _publish_of(run, held)
                base = base_of(arrival, batch.producer, batch.counter, batch.flags, batch.timestamp, batch.blob)
                size += len(batch.blob)
            messages += run.count
            total += hash_of(base, run.index, run.count)
        return log_link.Hashed(frame.request, end, messages, total & MASK)


def _survey(engine: Engine, frame: log_link.Survey) -> log_link.Surveyed:
    names, prefixes = frozenset(frame.names), tuple(frame.prefixes)
    found = []
    for number, source in sorted(engine.destinations.items()):
        name = str(source.destination)
        if name in names or (prefixes and name.startswith(prefixes)):
            found.append(
                log_link.SurveyedDestination(
                    number,
                    name,
                    source.is_retaining if isinstance(source, Topic) else True,
                    _kept_from_of(engine, source),
                    _first(engine, number),
                    engine.moves.came_at(number),
                    source.is_retaining,
                )
            )
    return log_link.Surveyed(frame.request, engine.sequence, found)


def _measure(engine: Engine, frame: log_link.Measure) -> log_link.Measured:
    end = _end(engine, frame.first, frame.end)
    marks: list[tuple[Place, int, int]] = []
    messages = size = 0
    last = 0
    for looked, (arrival, number, run) in enumerate(_found(engine, frame.destinations, frame.first, end)):
        place = (arrival, number, run.position) if arrival == last else (arrival, 0, 0)
        if looked >= RUNS_MAX:
            end = place
            break
        if _is_full(messages, frame.messages_step) or _is_full(size, frame.bytes_step):
            marks.append((place, messages, size))
            messages = size = 0
        messages += run.count
        size += run.size
        last = arrival
    if messages:
        marks.append((end, messages, size))
    return log_link.Measured(frame.request, end, marks, _kept_from(engine, frame.destinations))


def _is_full(amount: int, step: int) -> bool:
    return 0 < step <= amount


def _end(engine: Engine, first: Place, end: Place) -> Place:
    """How far an answer may reach: not beyond what is applied, and never before where it begins."""
    return max(first, min(end, (engine.sequence + 1, 0, 0)))


def _found(engine: Engine, destinations: list[int], first: Place, end: Place) -> Iterator[Found]:
    """What is there from a place to before another, in order."""
    streams = [_of_destination(engine, number, first, end) for number in dict.fromkeys(destinations)]
    return streams[0] if len(streams) == 1 else heapq.merge(*streams, key=_place_of)


def _place_of(found: Found) -> Place:
    arrival, number, run = found
    return arrival, number, run.position


def _of_destination(engine: Engine, number: int, first: Place, end: Place) -> Iterator[Found]:
    source = engine.destinations.get(number)
    if source is None:
        return
    low, high = _position(source, first), _position(source, end) - 1
    for start, stop in source.readable(low, high) if low <= high else ():
        for run in source.segments.runs(start, stop):
            yield run.arrival, number, run


def _position(source: Queue | Topic, place: Place) -> int:
    """The first position of a destination that is not before a place."""
    arrival, number, position = place
    found = source.segments.from_arrival(arrival if source.number >= number else arrival + 1)
    if found is None:
        return source.next_position
    return max(found, position) if source.number == number else found


def _first(engine: Engine, number: int) -> int:
    for arrival, _, _ in _of_destination(engine, number, (0, 0, 0), (engine.sequence + 1, 0, 0)):
        return arrival
    return engine.sequence + 1


def _kept_from(engine: Engine, destinations: list[int]) -> int:
    """What is not there any more has moved or was deleted, and whoever reads on is to notice.

    What is not there yet, on a replica that lags, has nothing so far.
    """
    made = [number for number in destinations if engine.was_made(number)]
    if any(number not in engine.destinations or engine.moves.home_of(number) is not None for number in made):
        return engine.sequence + 1
    return max((_kept_from_of(engine, engine.destinations[number]) for number in made), default=0)


def _kept_from_of(engine: Engine, source: Queue | Topic) -> int:
    """What came from another channel arrived with the entry that brought it, and nothing of it before."""
    return max(source.kept_from, engine.moves.came_at(source.number))


def _start_of(engine: Engine, number: int, frame: log_link.Search) -> int:
    """The first arrival that may have come at a time or later; messages of the future count when they are there."""
    source = engine.destinations.get(number)
    if source is None:
        return engine.sequence + 1
    position = max(1, source.timeline.first_from(frame.time_ms))
    run = next(source.segments.runs(position, source.next_position), None)
    return engine.sequence + 1 if run is None else run.arrival


def _publish_of(run: Run, entry: Entry) -> Publish:
    publish = entry.commands[run.command]
    assert isinstance(publish, Publish), "a segment points to a command that holds no messages"
    return publish


def _batch(number: int, run: Run, entry: Entry) -> log_link.ScannedBatch:
    publish = _publish_of(run, entry)
    # Within the entry that holds them messages are told apart by command and index; where several entries' messages
    # arrive together, by position.
    is_own = run.arrival == run.sequence
    ordinal = (run.command << BATCH_BITS | run.index) if is_own else _BY_POSITION | run.position & (_BY_POSITION - 1)
    return log_link.ScannedBatch(
        number,
        run.arrival,
        run.position,
        ordinal,
        run.index,
        run.count,
        publish.producer,
        publish.counter,
        publish.flags,
        publish.timestamp,
        xxh3_64_intdigest(publish.blob),
        publish.blob,
    )
