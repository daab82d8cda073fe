"""A channel's state as bytes, the same on every replica that has applied the same entries.

    record = length (4 bytes, big-endian) | msgpack array of a kind in checkpoint_records.py, Head first and End last

Records are small: what grows without bound (segments, intervals, notes on positions) is cut into parts, so that
nothing needs one huge object. Where the bytes are cut in between does not matter. What follows from other things is
not stored.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from alphorn.message_manager.backlog import Backlog
from alphorn.message_manager.checkpoint_records import (
    DestinationKept,
    End,
    Head,
    IncomingKept,
    LandingKept,
    LeavingKept,
    OpenKept,
    Part,
    PieceKept,
    PiecesKept,
    ProducerKept,
    ReaderKept,
    Record,
    RetiredKept,
    SealedKept,
    StagedKept,
    SubscriptionKept,
    TransactionKept,
    WriterKept,
)
from alphorn.message_manager.columns import to_columns
from alphorn.message_manager.moves import Lent, Moves
from alphorn.message_manager.producers import Mine
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.schedule import Item, Kind
from alphorn.message_manager.state import State
from alphorn.message_manager.streams import Pieces, Streams
from alphorn.message_manager.topic import Subscription, Topic
from alphorn.model.destinations import Policy

LENGTH_BYTES = 4
CHUNK_BYTES = 512 << 10
_ROWS = 8192  # of a part
_STAGED = 1024  # batches of one record
_TEXT_BYTES = 256 << 10  # of a part


_encode = msgspec.msgpack.Encoder().encode
_DEFAULT_POLICY = Policy()
_DEFAULTS = msgspec.structs.asdict(_DEFAULT_POLICY)


def write_leaving(state: State, number: int, lent: Lent) -> Iterator[bytes]:
    """One destination that has begun to leave, as a state of its own; without its segments: they follow messages."""
    return _framed(_records_of_leaving(state, number, lent))


def _framed(records: Iterable[Record]) -> Iterator[bytes]:
    gathered = bytearray()
    count = 0
    for record in records:
        frame(gathered, record)
        count += 1
        if len(gathered) >= CHUNK_BYTES:
            yield bytes(gathered)
            gathered.clear()
    frame(gathered, End(count))
    yield bytes(gathered)


def frame(gathered: bytearray, record: Record) -> None:
    """Adds a record to the bytes before it."""
    body = _encode(record)
    gathered += len(body).to_bytes(LENGTH_BYTES, "big")
    gathered += body


def head_of(state: State) -> Head:
    """The first record; the producers of each connection follow."""
    return Head(state.sequence, state.now_ms, state.next_number, state.signet)


def records_between(state: State) -> Iterator[Record]:
    """What comes between producers and destinations."""
    forgotten = [[connection.hex()] for connection in state.producers.forgotten]
    yield from _parts(0, 0, "forgotten", ((number,) for number in state.producers.forgotten.values()), forgotten)
    for _, leaving in sorted(state.moves.leaving.items()):  # first: what else has their names is newer
        if leaving.source is not None:
            yield from records_of(leaving.source, is_awaiting=leaving.is_awaiting)


def records_after(state: State) -> Iterator[Record]:
    """What comes after the destinations; streamed bodies must be swept before."""
    items = [item for item in state.schedule.live() if item.kind is Kind.EXPIRE]
    for _, leaving in sorted(state.moves.leaving.items()):
        if leaving.source is not None:
            items += leaving.expirations
    yield from _parts_of_expirations(items)
    for session, known in state.transactions:
        yield TransactionKept(
            session,
            known.counter,
            int(known.outcome),
            known.reason,
            known.channels,
            known.is_open,
            known.has_come_back,
            known.forgotten_ms,
            known.reserved,
            known.staged,
            known.refused,
        )
    yield from _records_of_moves(state.moves)
    yield from _records_of_streams(state.streams)
    yield from _records_of_writers(state)
    for reader in state.readers:
        yield ReaderKept(reader)


def _records_of_writers(state: State) -> Iterator[Record]:
    for name, writer in state.writers:
        yield WriterKept(
            name,
            writer.published,
            writer.used_ms,
            writer.published_at,
            list(writer.into.items()),
            writer.earlier_at,
            writer.published_as,
        )
        for attempt, staged in sorted(writer.staged.items()):
            parts = [staged[part] for part in sorted(staged)]
            for start in range(0, len(parts), _STAGED):
                yield StagedKept(attempt, parts[start : start + _STAGED])


def records_of(destination: Queue | Topic, *, is_awaiting: bool, has_places: bool = True) -> Iterator[Record]:
    """A destination, which must be swept before."""
    if isinstance(destination, Queue):
        yield from _records_of_queue(destination, is_awaiting=is_awaiting)
    else:
        yield from _records_of_topic(destination, is_awaiting=is_awaiting)
    yield from _parts_of_timeline(destination)
    if has_places:
        yield from _parts_of_segments(destination)
    if destination.producers is not None:
        for _, mine in sorted(destination.producers.plain.items()):
            yield from records_of_connection(mine, destination.number)


def records_of_connection(producers: Mine, table: int = 0) -> Iterator[Record]:
    """The producers of a connection, as a destination (`table`) or the channel counts them."""
    if producers.through:
        yield RetiredKept(producers.connection, producers.through, sorted(producers.used))
    for key, producer in sorted(producers.items()):
        refused = [(*refusal, counters.flat()) for refusal, counters in producer.refused.items()]
        awaited = producer.awaited, producer.awaited_at
        yield ProducerKept(key, producer.next, producer.used_ms, refused, producer.last, table, *awaited)


def _parts_of_expirations(items: list[Item]) -> Iterator[Part]:
    rows = ((item.due_ms, item.number, item.first, item.last) for item in items)
    yield from _parts(0, 0, "expirations", rows)


def _records_of_streams(streams: Streams) -> Iterator[Record]:
    for producer, opened in sorted(streams.open.items()):
        yield OpenKept(producer, opened.destination, opened.pieces.size, opened.due_ms, opened.is_active)
        yield from _records_of_pieces(opened.pieces)
    for (producer, counter), sealed in sorted(streams.sealed.items()):
        yield SealedKept(producer, counter, sealed.pieces.size, sealed.sequence, sealed.command)
        yield from _records_of_pieces(sealed.pieces)


def _records_of_pieces(pieces: Pieces) -> Iterator[Record]:
    for start in range(0, pieces.runs, _ROWS):
        yield PiecesKept(pieces.encode(start, start + _ROWS))


def _records_of_leaving(state: State, number: int, lent: Lent) -> Iterator[Record]:
    leaving = state.moves.leaving[number]
    source = leaving.source
    assert source is not None, "only what takes nothing any more is exported"
    yield Head(state.sequence, state.now_ms, 0)
    yield from records_of(source, is_awaiting=leaving.is_awaiting, has_places=False)
    yield from _parts_of_expirations(leaving.expirations)
    yield LandingKept(number, (0, number), leaving.begun_at)
    yield from _parts_of_lent(number, lent)
    for name, writer in state.writers:
        if number in writer.into:  # nothing is added to that any more
            yield WriterKept(name, -1, writer.used_ms, 0, [(number, writer.into[number])])


def _records_of_moves(moves: Moves) -> Iterator[Record]:
    for number, leaving in sorted(moves.leaving.items()):
        yield LeavingKept(number, leaving.channel, leaving.number, leaving.stage, leaving.begun_at)
    recalled = [(number, channel, str(name)) for number, (channel, name) in sorted(moves.recalled.items())]
    yield from _parts(0, 0, "recalled", (each[:2] for each in recalled), [[name] for _, _, name in recalled])
    yield from _parts(0, 0, "closed", [(1,)] * moves.is_closed)
    yield from _parts(0, 0, "gone", ((number, *home) for number, home in sorted(moves.gone.items())))
    yield from _parts(0, 0, "came", ((number, *came) for number, came in moves.came.items()))
    names = sorted((str(destination), record) for destination, record in moves.elsewhere.items())
    yield from _parts(0, 0, "elsewhere", (record for _, record in names), [[name] for name, _ in names])
    for number, incoming in sorted(moves.incoming.items()):
        made = incoming.made
        policy = _decided(made.policy)
        yield IncomingKept(number, made.destination, policy, incoming.home, incoming.through, incoming.attempt)
        flags = ((int(is_durable),) for is_durable, _, _ in sorted(incoming.names))
        yield from _parts(number, 0, "names", flags, [list(name[1:]) for name in sorted(incoming.names)])
        yield from _parts_of_segments(made)
        for records in incoming.pieces:
            yield PieceKept(number, records)
    for number, landing in sorted(moves.landing.items()):
        yield LandingKept(number, landing.home, landing.begun_at)
        yield from _parts_of_lent(number, landing.lent)


def _parts_of_lent(number: int, lent: Lent) -> Iterator[Part]:
    for what, found in zip(Lent._fields, lent, strict=True):
        for subscription, positions in sorted(found.items()):
            yield from _parts(number, subscription, what, positions)


def _records_of_queue(queue: Queue, *, is_awaiting: bool) -> Iterator[Record]:
    number = queue.number
    yield DestinationKept(
        number,
        queue.destination,
        _decided(queue.policy),
        queue.owner,
        queue.next_position,
        0,
        queue.retained_bytes,
        is_awaiting,
        queue.kept_from,
    )
    if queue.is_retaining:
        yield from _parts(number, 0, "retained", queue.retained)
    if queue.replaced:
        yield from _parts(number, 0, "replaced", queue.replaced)
    yield from _parts_of_backlog(number, 0, queue.backlog)
    if queue.keys:
        keys = sorted(queue.keys.items())
        yield from _parts(number, 0, "keys", ((position,) for position, _ in keys), [[key] for _, key in keys])
    if queue.histories:
        histories = list(queue.histories)
        rows = (
            (first, last, known.deliveries, known.time, known.subscription, known.made_at)
            for first, last, known in histories
        )
        texts = [[known.destination, known.reason] for _, _, known in histories]
        yield from _parts(number, 0, "histories", rows, texts)


def _records_of_topic(topic: Topic, *, is_awaiting: bool) -> Iterator[Record]:
    yield DestinationKept(
        topic.number,
        topic.destination,
        _decided(topic.policy),
        topic.owner,
        topic.next_position,
        topic.next_subscription,
        topic.retained_bytes,
        is_awaiting,
        topic.kept_from,
    )
    yield from _parts(topic.number, 0, "retained", topic.retained)
    yield from _parts(topic.number, 0, "moments", zip(topic.moments.positions, topic.moments.times, strict=True))
    for priority, positions in sorted(topic.particulars.priorities.items()):
        yield from _parts(topic.number, 0, "kept_priorities", ((priority, *part) for part in positions))
    if topic.particulars.delays:
        yield from _parts(topic.number, 0, "kept_delays", sorted(topic.particulars.delays.items()))
    for _, subscription in sorted(topic.subscriptions.items()):
        yield _kept(topic, subscription)
        yield from _parts_of_backlog(topic.number, subscription.number, subscription.backlog)


def _decided(policy: Policy) -> dict[str, Any]:
    """Equal policies are equal bytes, however they were made."""
    if policy == _DEFAULT_POLICY:
        return {}
    values = ((name, getattr(policy, name)) for name in _DEFAULTS)
    return {name: value for name, value in values if value != _DEFAULTS[name]}


def _kept(topic: Topic, subscription: Subscription) -> SubscriptionKept:
    return SubscriptionKept(
        topic.number,
        subscription.number,
        subscription.name,
        subscription.client,
        subscription.consumers,
        subscription.selector_text,
        subscription.is_durable,
        subscription.is_shared,
        subscription.no_local,
        subscription.selected_from,
        subscription.made_at,
    )


def _parts_of_backlog(number: int, subscription: int, backlog: Backlog) -> Iterator[Part]:
    # Most of many destinations have nothing of these, and a checkpoint goes through all of them.
    if backlog.pending:
        yield from _parts(number, subscription, "pending", backlog.pending)
    if backlog.deferred:
        yield from _parts(number, subscription, "deferred", sorted(backlog.deferred.items()))
    if backlog.counts:
        yield from _parts(number, subscription, "counts", sorted(backlog.counts.items()))
    if backlog.lapsed:
        yield from _parts(number, subscription, "lapsed", backlog.lapsed)
    for priority in sorted(backlog.priorities):
        rows = ((priority, first, last) for first, last in backlog.priorities[priority])
        yield from _parts(number, subscription, "priorities", rows)


def _parts_of_timeline(destination: Queue | Topic) -> Iterator[Part]:
    timeline = destination.timeline
    if timeline.throughs:
        yield from _parts(destination.number, 0, "timeline", zip(timeline.throughs, timeline.times, strict=True))


def _parts_of_segments(destination: Queue | Topic) -> Iterator[Part]:
    segments = destination.segments
    for start in range(0, len(segments), _ROWS):
        yield Part(destination.number, 0, "segments", segments.encode(start, start + _ROWS))


def _parts(
    number: int,
    subscription: int,
    what: str,
    rows: Iterable[tuple[int, ...]],
    texts: list[list[str]] | None = None,
) -> Iterator[Part]:
    """Rows of numbers as parts, with the texts that belong to each row."""
    gathered: list[tuple[int, ...]] = []
    words: list[str] = []
    size = 0
    for place, row in enumerate(rows):
        gathered.append(row)
        if texts is not None:
            words += texts[place]
            size += sum(len(word) for word in texts[place])
        if len(gathered) == _ROWS or size >= _TEXT_BYTES:
            yield Part(number, subscription, what, to_columns(gathered), words)
            gathered, words, size = [], [], 0
    if gathered:
        yield Part(number, subscription, what, to_columns(gathered), words)
