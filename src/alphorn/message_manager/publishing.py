"""Applies `Publish`. A plain batch costs the same whatever the number of its messages.

Counters decide first: what was seen before is stored once, a gap is refused and changes nothing, and what is refused
for good keeps its counters, so that the producer can go on with the next ones. A destination that blocks when it is
full takes the messages it has room for, in order, and postpones the rest: their producer sends the batch again.
"""

from collections.abc import Mapping

from alphorn.message_manager.access import refusal_to_publish
from alphorn.message_manager.burial import expire
from alphorn.message_manager.effects import Answer, Arrived, Effect, Gone
from alphorn.message_manager.noting import note, note_stored
from alphorn.message_manager.particulars import PLAIN, Particulars, particulars_of, select
from alphorn.message_manager.producers import Refusal
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.schedule import Item, Kind
from alphorn.message_manager.segments import Run
from alphorn.message_manager.state import State
from alphorn.message_manager.streaming import refusal_of_stream
from alphorn.message_manager.topic import Subscription, Topic
from alphorn.model.audit import AuditStage
from alphorn.model.commands import CONNECTION_BYTES, COUNTER_MAX, Publish, connection_of
from alphorn.model.errors import (
    Blocked,
    InvalidDestination,
    Moved,
    PeerViolation,
    Postponed,
    Unavailable,
    UnknownOutcome,
)
from alphorn.model.messages import BATCH_MESSAGES_MAX, Flag, PackedHeader, count_of, headers_of
from alphorn.model.ranges import Range, RangeSet

# Whether such messages were stored when they came first, nobody can tell any more.
FORGOTTEN = (
    "the cluster has forgotten this producer, because it was closed or its connection was cut off for more than a "
    "minute; make another with session.producer"
)
_KEY_BYTES = CONNECTION_BYTES + 4
_ROOM_MAX = COUNTER_MAX  # where there is no limit: more than anybody can send

Consumed = Mapping[tuple[int, int], int]  # destination and subscription → how many messages leave it
_NOTHING: Consumed = {}


def publish(state: State, command: Publish, place: int, effects: list[Effect]) -> None:
    """Stores a batch, or refuses it: by an `Answer` for good, by raising when nothing at all was changed."""
    check_batch(command)
    count, counter, key = command.count, command.counter, command.producer
    destination = state.destinations.get(command.destination)
    if destination is None and state.moves.home_of(command.destination) is not None:
        raise Moved(f"destination {command.destination} is on another channel now, or on its way there; try again")
    producers = state.producers_of(command.destination)
    producer = producers.find(key)
    expected = 1 if producer is None else producer.next
    after = counter - 1 if command.after < 0 else command.after
    if producer is None and (after > 0 or state.producers.is_forgotten(key)):
        raise UnknownOutcome(FORGOTTEN)
    if after >= expected:
        raise Unavailable(f"messages {expected} to {after} of this producer are missing; send again from there")
    if producer is not None and 0 < producer.awaited < counter:
        raise Unavailable(f"message {producer.awaited} of this producer was postponed; send again from there")
    skip = max(0, expected - counter)
    refusal = None
    if skip and producer is not None:
        refusal = producer.refusal_of(counter, min(counter + count, expected) - 1)
        if skip >= count:
            if refusal is not None:
                effects.append(Answer(place, error=refusal[0], reason=refusal[1]))
            return
    if refusal is None:
        refusal = refusal_of(state, command.destination, count - skip, producer=key)
    is_streamed = bool(command.flags & Flag.STREAM)
    if is_streamed and refusal is None:
        refusal = refusal_of_stream(state, command)
    taken = count - skip
    if destination is not None and refusal is None:
        taken = min(taken, room_of(state, destination))
        if taken <= 0:
            (producer or producers.add(key)).await_again(counter + skip, command.destination)
            raise Postponed(fullness_of(destination, state.occupied(destination)))
    headers = (
        headers_for(destination, command)[skip : skip + taken] if destination is not None and refusal is None else []
    )
    producer = producer or producers.add(key)
    producer.used_ms, producer.awaited = state.now_ms, 0
    producer.note(command.destination)
    if refusal is not None or destination is None:
        assert refusal is not None
        if is_streamed:
            state.streams.give_up(key)
        producer.refuse(max(expected, counter), counter + count - 1, refusal)
        effects.append(Answer(place, error=refusal[0], reason=refusal[1]))
        return
    producer.next = counter + skip + taken
    size = len(command.blob)
    if taken < count:
        size = size * taken // count
    if is_streamed:
        size += state.streams.seal((key, counter), state.sequence, place)
    run = Run(state.sequence, place, skip, taken, destination.next_position, size)
    store(state, destination, command, run, headers, effects)
    if skip + taken < count:
        producer.await_again(producer.next, command.destination)
        reason = fullness_of(destination, state.occupied(destination))
        effects.append(Answer(place, producer.next, Postponed.__name__, reason))


def store(
    state: State,
    destination: Queue | Topic,
    command: Publish,
    run: Run,
    headers: list[PackedHeader],
    effects: list[Effect],
) -> None:
    """Puts messages into their destination, after all others; `headers` are those of the run, where they matter."""
    note_stored(effects, destination, command, run)
    if isinstance(destination, Queue):
        _to_queue(state, destination, command, run, headers, effects)
    else:
        _to_topic(state, destination, command, run, headers, effects)


def check_batch(command: Publish) -> None:
    """Raises `PeerViolation` for a batch that cannot be right."""
    count, counter, key = command.count, command.counter, command.producer
    is_possible = 0 < count <= BATCH_MESSAGES_MAX and command.after < counter < COUNTER_MAX and counter > 0
    if not is_possible or len(key) != _KEY_BYTES:
        raise PeerViolation("a batch names an impossible count, counter or producer; it was not taken")
    if count_of(command.blob) != count:
        raise PeerViolation(f"a batch says {count} messages and holds {count_of(command.blob)}; it was not taken")


def refusal_of(
    state: State, number: int, count: int, consumed: Consumed = _NOTHING, *, producer: bytes
) -> Refusal | None:
    """Why a destination does not take so many messages of a producer now, where these are consumed before."""
    destination = state.destinations.get(number)
    if destination is None:
        reason = f"there is no destination {number} any more; look up its name again"
        return InvalidDestination.__name__, reason
    if (denied := refusal_to_publish(destination.destination, producer)) is not None:
        return denied
    policy = destination.policy
    if policy.max_length and policy.overflow == "reject" and count > _room(state, destination, consumed):
        return Blocked.__name__, f"{_fullness(destination, state.occupied(destination))}; send when some were consumed"
    return None


def needs_headers(destination: Queue | Topic, flags: int) -> bool:
    """Whether anything in the messages of a batch matters here, besides that they are there."""
    is_selective = isinstance(destination, Topic) and destination.selective
    return is_selective or bool(flags & destination.watched)


def room_of(state: State, destination: Queue | Topic, consumed: Consumed = _NOTHING) -> int:
    """How many messages more it takes now, where these are consumed before.

    What belongs to the system is never postponed.
    """
    policy = destination.policy
    if policy.max_length and policy.overflow == "block" and not destination.destination.is_reserved:
        return _room(state, destination, consumed)
    return _ROOM_MAX


def fullness_of(destination: Queue | Topic, occupied: int) -> str:
    """Why it takes no more, as a sentence; `occupied` are all messages that count against its limit."""
    return f"{_fullness(destination, occupied)}; it waits for consumers"


def _fullness(destination: Queue | Topic, occupied: int) -> str:
    limit = destination.policy.max_length
    is_plain = destination.count >= min(limit, occupied)
    others = "" if is_plain else ", some of them in transactions that are not decided yet"
    return f"{destination.destination} is full with {limit} messages{others}"


def _room(state: State, destination: Queue | Topic, consumed: Consumed) -> int:
    """What is left of its limit. A message that is consumed makes room only in the subscription that had it."""
    occupied = state.occupied(destination)
    if consumed:
        number = destination.number
        counts = [backlog.occupied - consumed.get((number, each), 0) for each, backlog in destination.backlogs()]
        occupied -= destination.occupied - max(counts, default=0)
    return destination.policy.max_length - occupied


def headers_for(destination: Queue | Topic, command: Publish) -> list[PackedHeader]:
    """The messages' headers where anything in them matters here."""
    return headers_of(command.blob) if needs_headers(destination, command.flags) else []


def _to_queue(
    state: State, queue: Queue, command: Publish, run: Run, headers: list[PackedHeader], effects: list[Effect]
) -> None:
    first, last = run.position, queue.store(run)
    policy = queue.policy
    if queue.has_clock:
        state.awaiting.add(queue.number)
    if policy.priority is not None:
        queue.backlog.prioritise(first, last, policy.priority)
    if not headers:
        effects.append(Arrived(queue.number, 0, first, last))
        return
    particulars = particulars_of(headers, command.flags & queue.watched)
    replaced = RangeSet()
    for place, key in particulars.keys:
        older = queue.set_key(first + place, key)
        if older is not None:
            for start, end in queue.remove(0, older, older):
                replaced.add(start, end)
    replaced.remove(first, last)  # nobody heard of those
    if replaced:
        queue.note_replaced(replaced)
        effects.append(Gone(queue.number, 0, replaced.flat()))
        note(effects, queue, 0, AuditStage.DROPPED, list(replaced), detail="replaced")
    _note(state, queue, 0, first, particulars)
    _expire(state, queue, first, particulars, effects)
    _announce(queue, 0, first, last, effects)


def _to_topic(
    state: State, topic: Topic, command: Publish, run: Run, headers: list[PackedHeader], effects: list[Effect]
) -> None:
    first, last = run.position, run.position + run.count - 1
    wanted = _selected(topic, command, run, headers)
    if not topic.is_retaining:
        topic.kept_from = state.sequence + 1
        if not wanted:
            topic.next_position = last + 1
            return
    topic.store(run)
    particulars = particulars_of(headers, command.flags & topic.watched) if headers else PLAIN
    if topic.is_retaining:
        topic.retain(run, command.timestamp)
        _note_kept(state, topic, first, last, particulars)
    if topic.has_clock:
        state.awaiting.add(topic.number)
    for subscription, ranges in wanted:
        for start, end in ranges:
            subscription.backlog.arrive(start, end)
            if topic.policy.priority is not None:
                subscription.backlog.prioritise(start, end, topic.policy.priority)
        if headers:
            _note(state, topic, subscription.number, first, particulars)
    _expire(state, topic, first, particulars, effects)
    for subscription, ranges in wanted:
        if headers:
            _announce(topic, subscription.number, first, last, effects)
        else:
            effects += [Arrived(topic.number, subscription.number, start, end) for start, end in ranges]


def _selected(
    topic: Topic, command: Publish, run: Run, headers: list[PackedHeader]
) -> list[tuple[Subscription, list[Range]]]:
    """The subscriptions that take any of these messages, with the positions they take."""
    whole = [(run.position, run.position + run.count - 1)]
    if not topic.selective:
        return [(subscription, whole) for subscription in topic.subscriptions.values()]
    found = []
    known: dict[str, list[Range]] = {"": whole}
    connection = connection_of(command.producer)
    for subscription in topic.subscriptions.values():
        if subscription.no_local == connection:
            continue
        text = subscription.selector_text
        if subscription.selector is not None and text not in known:
            places = select(subscription.selector, headers, command, run.index, topic.policy.priority)
            known[text] = [(run.position + start, run.position + end) for start, end in places]
        if known[text]:
            found.append((subscription, known[text]))
    return found


def _note(state: State, destination: Queue | Topic, subscription: int, first: int, particulars: Particulars) -> None:
    """Priorities and delays of new messages, as far as the backlog has them."""
    backlog = destination.backlog_of(subscription)
    assert backlog is not None
    for start, end, priority in particulars.priorities:
        for part in backlog.pending.intersection(first + start, first + end):
            backlog.prioritise(*part, priority)
    for start, end, deliver_at in particulars.delays:
        if deliver_at > state.now_ms:
            parts = backlog.pending.intersection(first + start, first + end)
            state.defer(destination.number, subscription, backlog, parts, deliver_at)


def _note_kept(state: State, topic: Topic, first: int, last: int, particulars: Particulars) -> None:
    """Priorities and delays of new messages that a topic keeps."""
    if topic.policy.priority is not None:
        topic.particulars.prioritise(first, last, topic.policy.priority)
    for start, end, priority in particulars.priorities:
        topic.particulars.prioritise(first + start, first + end, priority)
    for start, end, deliver_at in particulars.delays:
        if deliver_at > state.now_ms:
            state.delay_kept(topic, first + start, first + end, deliver_at)


def _expire(
    state: State, destination: Queue | Topic, first: int, particulars: Particulars, effects: list[Effect]
) -> None:
    """What came too late is expired now, the rest when its time comes."""
    late = RangeSet()
    for start, end, due_ms in particulars.expirations:
        if due_ms <= state.now_ms:
            late.add(first + start, first + end)
        else:
            state.schedule.push(Item(due_ms, Kind.EXPIRE, destination.number, 0, first + start, first + end))
    if late:
        expire(state, destination, late, effects)


def _announce(destination: Queue | Topic, subscription: int, first: int, last: int, effects: list[Effect]) -> None:
    backlog = destination.backlog_of(subscription)
    assert backlog is not None
    for start, end in backlog.ready(first, last):
        effects.append(Arrived(destination.number, subscription, start, end))
