"""Applies `Tick`: delays begin and end, messages expire, destinations let go of what they kept long enough.

Only what is due is looked at, however many destinations there are. What the same Tick does to many is done in the
order of their numbers.

A message that a consumer has when its time is over was received in time: acknowledging it counts. It dies when it comes
back, and client libraries give back at once what no program has seen, so nothing waits for ever with an idle consumer.
What a consumer may have had before counts as delivered, since nobody can tell whether its program has used it.
"""

from alphorn.message_manager.burial import expire
from alphorn.message_manager.effects import Arrived, Effect
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.schedule import Item, Kind
from alphorn.message_manager.state import State, ranges_of
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import Tick
from alphorn.model.ranges import RangeSet

Expired = dict[int, RangeSet]  # destination → positions
Released = dict[tuple[int, int], RangeSet]  # destination and subscription → positions


def tick(state: State, command: Tick, place: int, effects: list[Effect]) -> None:
    """It is later now; a time that is not later changes nothing."""
    now_ms = command.now_ms
    held, kept = _by_place(command.held), _by_place(command.kept)
    if now_ms <= state.now_ms:
        return
    items = state.schedule.take_due(now_ms)  # judged by the time before
    state.now_ms = now_ms
    _begin_delays(state)
    expired: Expired = {}
    released: Released = {}
    reviewed = set(state.awaiting)
    for item in items:
        match item.kind:
            case Kind.RELEASE:
                released.setdefault((item.number, item.subscription), RangeSet()).add(item.first, item.last)
            case Kind.EXPIRE:
                expired.setdefault(item.number, RangeSet()).add(item.first, item.last)
            case Kind.REVIEW:
                reviewed.add(item.number)
            case Kind.END_DELAY:
                _end_delay(state, item)
    for number in sorted(reviewed):
        _review(state, state.destinations[number], is_marked=number in state.awaiting, expired=expired)
    state.awaiting.clear()
    for number in sorted(expired):
        expire(state, state.destinations[number], expired[number], effects, held.get(number), kept.get(number))
    for number, subscription in sorted(released):
        _release(state, number, subscription, released[number, subscription], effects)
    state.producers.forget_idle(now_ms)
    for number, producers in state.tables():
        idle_ms = producers.next_idle()
        if idle_ms is not None and idle_ms <= now_ms:
            state.producers_of(number).forget_idle(now_ms)
    state.transactions.forget_old(now_ms)
    state.streams.tick(now_ms)
    state.writers.on_tick(now_ms)


def _by_place(named: list[tuple[int, int, list[int]]]) -> dict[int, dict[int, RangeSet]]:
    """Positions by destination and subscription; raises `PeerViolation`."""
    found: dict[int, dict[int, RangeSet]] = {}
    for number, subscription, positions in named:
        found.setdefault(number, {})[subscription] = RangeSet(ranges_of(positions))
    return found


def expiring(state: State, now_ms: int) -> Expired:
    """What a Tick of this time would find expired; nothing is changed."""
    found: Expired = {}
    reviewed = set(state.awaiting)
    for item in state.schedule.due(now_ms):
        if item.kind is Kind.EXPIRE and item.number in state.directory:
            found.setdefault(item.number, RangeSet()).add(item.first, item.last)
        elif item.kind is Kind.REVIEW:
            reviewed.add(item.number)
    for number in reviewed.intersection(state.directory):
        destination = state.directory[number]
        ttl_ms = int(destination.policy.ttl * 1000)
        through = destination.timeline.through(now_ms - ttl_ms) if ttl_ms else 0
        if through:
            found.setdefault(number, RangeSet()).add(1, through)
    return found


def review_later(state: State, destination: Queue | Topic) -> None:
    """Sees to it that a destination's timeline is looked at in time."""
    due_ms = state.review_due(destination)
    if due_ms is not None:
        state.schedule.push(Item(due_ms, Kind.REVIEW, destination.number))


def _begin_delays(state: State) -> None:
    for number, subscription, first, last in state.returning:
        found = state.destinations.get(number)
        backlog = found.backlog_of(subscription) if found else None
        if backlog is None:
            continue
        delayed: dict[int, RangeSet] = {}
        for position in range(first, last + 1):
            delay_ms = -backlog.deferred.get(position, 0)
            if delay_ms > 0:
                delayed.setdefault(delay_ms, RangeSet()).add(position, position)
        for delay_ms, positions in delayed.items():
            state.defer(number, subscription, backlog, positions, state.now_ms + delay_ms)
    state.returning.clear()


def _review(state: State, destination: Queue | Topic, *, is_marked: bool, expired: Expired) -> None:
    """Looks at what has grown too old in a destination whose policy says how old messages may be."""
    timeline, policy, now_ms = destination.timeline, destination.policy, state.now_ms
    if not destination.has_clock:
        timeline.drop(destination.next_position)
        return
    if is_marked:
        timeline.mark(destination.next_position - 1, now_ms, destination.span_ms)
    needless = destination.next_position - 1  # marks through here serve nobody
    if policy.ttl:
        through = timeline.through(now_ms - int(policy.ttl * 1000))
        if through:
            expired.setdefault(destination.number, RangeSet()).add(1, through)
        needless = min(needless, through)
    if destination.is_retaining:
        if policy.retain_s:
            destination.outgrow(timeline.through(now_ms - int(policy.retain_s * 1000)))
        destination.let_go_of_bytes()
        needless = min(needless, destination.retained_from - 1)
    timeline.drop(needless)
    review_later(state, destination)


def _end_delay(state: State, item: Item) -> None:
    topic = state.destinations[item.number]
    assert isinstance(topic, Topic)
    topic.particulars.end_delays(item.first, item.last, state.now_ms)


def _release(state: State, number: int, subscription: int, positions: RangeSet, effects: list[Effect]) -> None:
    backlog = state.destinations[number].backlog_of(subscription)
    if backlog is None:
        return
    for first, last in positions:
        for start, end in backlog.release(first, last, state.now_ms):
            effects.append(Arrived(number, subscription, start, end))
