"""Reads what `checkpoint` wrote. Anything else is `Corruption`: the bytes were checked on their way, so they were
never a checkpoint.
"""

from collections.abc import Iterable, Iterator

import msgspec

from alphorn.message_manager.backlog import Backlog
from alphorn.message_manager.checkpoint import LENGTH_BYTES
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
from alphorn.message_manager.columns import from_column
from alphorn.message_manager.departing import take_out
from alphorn.message_manager.histories import History
from alphorn.message_manager.moves import Incoming, Landing, Leaving, Moves
from alphorn.message_manager.producers import Producers
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.schedule import Item, Kind
from alphorn.message_manager.selector import parse
from alphorn.message_manager.state import State
from alphorn.message_manager.streams import Pieces, SealedBody, Streams
from alphorn.message_manager.ticking import review_later
from alphorn.message_manager.topic import Subscription, Topic
from alphorn.message_manager.transaction_state import Outcome
from alphorn.message_manager.transaction_state import Record as Transaction
from alphorn.message_manager.writers import Writer
from alphorn.model.commands import MoveStage
from alphorn.model.destinations import DestinationKind, Policy, parse_destination
from alphorn.model.errors import Corruption, InvalidSelector
from alphorn.model.ranges import RangeSet

_decode = msgspec.msgpack.Decoder(Record).decode


def read(chunks: Iterable[bytes]) -> State:
    """The state that these bytes hold; raises `Corruption`."""
    state = State()
    is_whole = False
    count = 0
    try:
        for body in _bodies(chunks):
            record = _decode(body)
            if is_whole:
                raise msgspec.ValidationError("something follows its end")
            if isinstance(record, End):
                is_whole = record.records == count
                continue
            _take(state, record)
            count += 1
        if not is_whole:
            raise msgspec.ValidationError("its end is missing")
        _complete(state)
    except (msgspec.MsgspecError, InvalidSelector, LookupError, ValueError, TypeError, OverflowError) as error:
        raise Corruption(f"a checkpoint of a channel cannot be read: {error}; take it from another replica") from None
    return state


def _bodies(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The records, wherever the bytes were cut."""
    rest = bytearray()
    for chunk in chunks:
        rest += chunk
        start = 0
        while len(rest) - start >= LENGTH_BYTES:
            begin = start + LENGTH_BYTES
            end = begin + int.from_bytes(rest[start:begin], "big")
            if end > len(rest):
                break
            yield bytes(rest[begin:end])
            start = end
        del rest[:start]
    if rest:
        raise msgspec.ValidationError("it is cut off")


def _take(state: State, record: Record) -> None:
    match record:
        case Head():
            state.sequence, state.now_ms, state.next_number = record.sequence, record.now_ms, record.next_number
            state.signet = record.signet
        case ProducerKept():
            producer = _table(state, record.table).add(record.key)
            producer.next, producer.used_ms, producer.last = record.next, record.used_ms, record.last
            producer.await_again(record.awaited, record.awaited_at)
            for error, reason, flat in record.refused:
                producer.refused[error, reason] = RangeSet.from_flat(flat)
        case RetiredKept():
            state.producers.retire(record.connection, record.through, record.used)
        case DestinationKept():
            _take_destination(state, record)
        case SubscriptionKept():
            _take_subscription(state, record)
        case LeavingKept() | IncomingKept() | PieceKept() | LandingKept():
            _take_move(state.moves, record)
        case Part(what="closed" | "recalled" | "gone" | "came" | "elsewhere" | "names" | "given" | "unclear"):
            _take_part_of_moves(state.moves, record)
        case Part(number=number, what="segments") if number in state.moves.incoming:
            state.moves.incoming[number].made.segments.extend(record.columns)
        case Part(what="forgotten"):
            numbers = from_column(record.columns[0])
            state.producers.forgotten.update(zip(map(bytes.fromhex, record.texts), numbers, strict=True))
        case Part(what="expirations"):
            rows = zip(*map(from_column, record.columns), strict=True)
            for due_ms, number, first, last in rows:
                state.schedule.push(Item(due_ms, Kind.EXPIRE, number, 0, first, last))
        case Part():
            _take_part(state, record)
        case TransactionKept():
            _take_transaction(state, record)
        case WriterKept():
            writer = state.writers.put(record.name, Writer(state.writers.staged))
            writer.published, writer.used_ms = record.published, record.used_ms
            writer.published_at, writer.into = record.published_at, dict(record.into)
            writer.earlier_at, writer.published_as = record.earlier_at, record.published_as
        case StagedKept():
            for part in record.parts:
                state.writers.newest.add(record.attempt, part)
        case ReaderKept():
            state.readers.note(record.reader)
        case OpenKept() | SealedKept():
            _take_body(state.streams, record)
        case PiecesKept():
            _newest_pieces(state.streams).extend(record.columns)


def _take_transaction(state: State, kept: TransactionKept) -> None:
    record = Transaction(
        counter=kept.counter,
        outcome=Outcome(kept.outcome),
        reason=kept.reason,
        channels=kept.channels,
        is_open=kept.is_open,
        has_come_back=kept.has_come_back,
        forgotten_ms=kept.forgotten_ms,
        reserved=kept.reserved,
        staged=kept.staged,
        refused=kept.refused,
    )
    state.transactions.put(kept.session, record)
    for part in kept.reserved:
        destination = state.destinations.get(part.destination)
        backlog = destination.backlog_of(part.subscription) if destination is not None else None
        if backlog is not None:
            for piece in part.pieces:
                backlog.reserved.add(piece.first, piece.last)


def _take_body(streams: Streams, kept: OpenKept | SealedKept) -> None:
    if isinstance(kept, OpenKept):
        body = streams.begin(kept.producer, kept.destination)
        body.due_ms, body.is_active = kept.due_ms, kept.is_active
        body.pieces.size = kept.size
        return
    pieces = Pieces()
    pieces.size = kept.size
    streams.sealed[kept.producer, kept.counter] = SealedBody(pieces, kept.sequence, kept.command)


def _newest_pieces(streams: Streams) -> Pieces:
    """Those of the body whose record came last: sealed ones follow the open ones."""
    newest = next(reversed(streams.sealed.values()), None) or next(reversed(streams.open.values()), None)
    if newest is None:
        raise msgspec.ValidationError("fragments belong to no body")
    return newest.pieces


def _table(state: State, number: int) -> Producers:
    if not number:
        return state.producers
    destination = state.destinations[number]
    if destination.producers is None:
        destination.producers = Producers()
    return destination.producers


def _take_move(moves: Moves, kept: LeavingKept | IncomingKept | PieceKept | LandingKept) -> None:
    match kept:
        case LeavingKept():
            leaving = moves.leaving[kept.number] = Leaving(kept.channel)
            leaving.number, leaving.stage, leaving.begun_at = kept.target, kept.stage, kept.begun_at
        case IncomingKept():
            policy = msgspec.convert(kept.policy, Policy)
            is_queue = kept.destination.kind is DestinationKind.QUEUE
            made = (Queue if is_queue else Topic)(kept.number, kept.destination, policy)
            incoming = moves.incoming[kept.number] = Incoming(kept.home, made)
            incoming.through, incoming.attempt = kept.through, kept.attempt
        case PieceKept():
            moves.incoming[kept.number].pieces.append(kept.records)
        case LandingKept():
            moves.landing[kept.number] = Landing(kept.home, kept.begun_at)


def _take_part_of_moves(moves: Moves, part: Part) -> None:
    columns = [from_column(column) for column in part.columns]
    match part.what:
        case "closed":
            moves.is_closed = True
        case "gone":
            rows = zip(*columns, strict=True)
            moves.gone.update({number: (channel, there, begun_at) for number, channel, there, begun_at in rows})
        case "came":
            if len(columns) == 3:  # a checkpoint of an alphorn that did not note when
                columns.append([0] * len(columns[0]))
            rows = zip(*columns, strict=True)
            moves.came.update({number: (channel, there, came_at) for number, channel, there, came_at in rows})
        case "recalled":
            rows = zip(columns[0], columns[1], map(parse_destination, part.texts), strict=True)
            moves.recalled.update({number: (channel, destination) for number, channel, destination in rows})
        case "elsewhere":
            names = [parse_destination(text) for text in part.texts]
            if len(columns) == 1:  # a checkpoint of an alphorn that did not note when
                columns.append([0] * len(columns[0]))
            moves.elsewhere.update(zip(names, zip(*columns, strict=True), strict=True))
        case "names":
            rows = zip(map(bool, columns[0]), part.texts[::2], part.texts[1::2], strict=True)
            moves.incoming[part.number].names.update(rows)
        case _:
            lent = moves.landing[part.number].lent
            found = lent.given if part.what == "given" else lent.unclear
            _extend(found.setdefault(part.subscription, RangeSet()), columns)


def _take_destination(state: State, kept: DestinationKept) -> None:
    policy = msgspec.convert(kept.policy, Policy)
    is_queue = kept.destination.kind is DestinationKind.QUEUE
    made = (Queue if is_queue else Topic)(kept.number, kept.destination, policy, kept.owner)
    made.next_position = kept.next_position
    made.retained_bytes, made.kept_from = kept.retained_bytes, kept.kept_from
    if isinstance(made, Topic):
        made.next_subscription = kept.next_subscription
    else:
        made.retained_from = made.next_position  # unless a part says that something is kept
    if kept.is_awaiting:
        state.awaiting.add(kept.number)
    state.add(made)


def _take_subscription(state: State, kept: SubscriptionKept) -> None:
    topic = state.destinations[kept.topic]
    if not isinstance(topic, Topic):
        raise msgspec.ValidationError(f"{topic.destination} has a subscription and is no topic")
    made = Subscription(
        kept.number,
        kept.name,
        kept.client,
        parse(kept.selector) if kept.selector else None,
        is_durable=kept.is_durable,
        is_shared=kept.is_shared,
        no_local=kept.no_local,
        selected_from=kept.selected_from,
        made_at=kept.made_at,
    )
    following = topic.next_subscription
    for consumer in kept.consumers:
        state.subscribe(topic, made, consumer)
    topic.next_subscription = following


def _take_part(state: State, part: Part) -> None:
    destination = state.destinations[part.number]
    if part.what == "segments":
        destination.segments.extend(part.columns)
        return
    columns = [from_column(column) for column in part.columns]
    match part.what, destination:
        case "timeline", _:
            destination.timeline.throughs += columns[0]
            destination.timeline.times += columns[1]
        case "keys", Queue():
            destination.keys.update(zip(columns[0], part.texts, strict=True))
        case "histories", Queue():
            _take_histories(destination, columns, part.texts)
        case "retained", Queue():
            destination.retained_from = columns[0][0]
        case "replaced", Queue():
            _extend(destination.replaced, columns)
        case "retained", Topic():
            _extend(destination.retained, columns)
        case "moments", Topic():
            destination.moments.positions += columns[0]
            destination.moments.times += columns[1]
        case "kept_priorities", Topic():
            for priority, first, last in zip(*columns, strict=True):
                destination.particulars.prioritise(first, last, priority)
        case "kept_delays", Topic():
            destination.particulars.delays.update(zip(*columns, strict=True))
        case _:
            backlog = destination.backlog_of(part.subscription)
            if backlog is None:
                raise msgspec.ValidationError(f"{destination.destination} has no subscription {part.subscription}")
            _take_notes(backlog, part.what, columns)


def _take_histories(queue: Queue, columns: list[list[int]], texts: list[str]) -> None:
    rows = zip(*columns, texts[::2], texts[1::2], strict=True)
    for first, last, deliveries, time, subscription, made_at, destination, reason in rows:
        history = History(destination, reason, deliveries, time, subscription, made_at)
        queue.histories.append(first, last, history)


def _take_notes(backlog: Backlog, what: str, columns: list[list[int]]) -> None:
    match what:
        case "pending":
            _extend(backlog.pending, columns)
        case "deferred":
            backlog.deferred.update(zip(*columns, strict=True))
        case "counts":
            backlog.counts.update(zip(*columns, strict=True))
        case "lapsed":
            _extend(backlog.lapsed, columns)
        case "priorities":
            for priority, first, last in zip(*columns, strict=True):
                backlog.prioritise(first, last, priority)
        case _:
            raise msgspec.ValidationError(f"nobody knows what {what} is")


def _extend(positions: RangeSet, columns: list[list[int]]) -> None:
    firsts, lasts = columns
    for first, last in zip(firsts, lasts, strict=True):
        positions.add(first, last)


def _complete(state: State) -> None:
    """What follows from what was read."""
    state.writers.settle()
    state.transactions.restore()
    for number in sorted(state.destinations):
        destination = state.destinations[number]
        destination.restore()
        review_later(state, destination)
        for subscription, backlog in destination.backlogs():
            for first, last, due_ms in _stretches(backlog.deferred):
                if due_ms < 0:
                    state.returning.append((number, subscription, first, last))
                else:
                    state.schedule.push(Item(due_ms, Kind.RELEASE, number, subscription, first, last))
        if isinstance(destination, Topic):
            for first, last, due_ms in _stretches(destination.particulars.delays):
                state.schedule.push(Item(due_ms, Kind.END_DELAY, number, 0, first, last))

    for number, leaving in sorted(state.moves.leaving.items()):
        if leaving.stage is MoveStage.BEGUN:
            take_out(state, number, leaving)


def _stretches(deferred: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    """Runs of positions with one time."""
    first = last = due_ms = 0
    for position, time in sorted(deferred.items()):
        if position == last + 1 and time == due_ms:
            last = position
            continue
        if last:
            yield first, last, due_ms
        first, last, due_ms = position, position, time
    if last:
        yield first, last, due_ms
