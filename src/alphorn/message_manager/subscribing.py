"""Applies `Subscribe`, `Unsubscribe` and `Forget`, by the rules of JMS.

A durable or shared subscription is known by client and name, durable and volatile ones apart. To ask for one again with
another topic, selector or no_local ends it and begins a new one; while others share a volatile one, that is refused.
Shared and unshared durable ones cannot have one name. A volatile subscription ends with its last consumer.
Whether a durable one is in use at the moment is the dispatcher's to know, and to refuse. While a topic moves its names
are its own, where it was and where it comes to.
"""

from alphorn.message_manager.effects import Answer, Arrived, Effect, Subscribed
from alphorn.message_manager.moves import SubscriptionName
from alphorn.message_manager.selector import Selector, parse
from alphorn.message_manager.state import State
from alphorn.message_manager.topic import Subscription, Topic
from alphorn.model.commands import CONNECTION_BYTES, NOBODY, Forget, Subscribe, Unsubscribe, connection_of
from alphorn.model.errors import InvalidDestination, Misuse, PeerViolation, Unavailable

NAME_CHARACTERS_MAX = 255


def subscribe(state: State, command: Subscribe, place: int, effects: list[Effect]) -> None:
    """Gives the number of a subscription, new or not."""
    topic = _topic(state, command.destination)
    _check(command)
    selector = parse(command.selector) if command.selector.strip() else None
    known = _find(state, topic, command)
    _check_moves(state, topic, command, known)
    if known is not None:
        owner, subscription = known
        if subscription.is_shared != command.is_shared:
            raise Misuse(f"subscription {command.name} is {_shared(subscription.is_shared)}; choose another name")
        if owner is topic and _is_same(subscription, selector, command):
            subscription.no_local = command.no_local
            state.subscribe(topic, subscription, command.consumer)
            effects.append(Answer(place, subscription.number))
            return
        if any(consumer != command.consumer for consumer in subscription.consumers) and not subscription.is_durable:
            raise Misuse(f"others share subscription {command.name} with another topic or selector; use theirs")
        state.unsubscribe(owner, subscription.number, effects)
    else:
        _check_count(state, command)
    made = _make(topic, selector, command, state.sequence)
    state.subscribe(topic, made, command.consumer)
    effects.append(Subscribed(topic.number, made.number))
    _replay(state, topic, made, _start(topic, command), effects)
    effects.append(Answer(place, made.number))


def unsubscribe(state: State, command: Unsubscribe, place: int, effects: list[Effect]) -> None:
    """A subscription ends, for all who share it; or one consumer is off a volatile one."""
    topic = _topic(state, command.destination)
    subscription = topic.subscriptions.get(command.subscription)
    if subscription is None:
        raise InvalidDestination(f"{topic.destination} has no subscription {command.subscription}; it ended before")
    staying = [consumer for consumer in subscription.consumers if consumer != command.consumer]
    if not command.consumer or (not staying and not subscription.is_durable):
        state.unsubscribe(topic, command.subscription, effects)
    elif not subscription.is_durable:
        subscription.consumers = staying
        leaving = connection_of(command.consumer)
        if all(connection_of(consumer) != leaving for consumer in staying):
            state.disown(leaving, topic.number, subscription.number)


def find_named(state: State, command: Subscribe) -> tuple[int, Subscription, bool] | None:
    """The named subscription that is meant, with its topic and whether it is wanted as it is; None for a new one."""
    topic = _topic(state, command.destination)
    selector = parse(command.selector) if command.selector.strip() else None
    known = _find(state, topic, command)
    _check_moves(state, topic, command, known)
    if known is None:
        return None
    owner, subscription = known
    return owner.number, subscription, owner is topic and _is_same(subscription, selector, command)


def forget(state: State, command: Forget, place: int, effects: list[Effect]) -> None:
    """What belongs to a connection ends with it."""
    if len(command.connection) != CONNECTION_BYTES or command.connection == NOBODY:
        raise PeerViolation("no connection has this id; nothing was forgotten")
    largest = 0
    for number, producers in state.tables():
        if command.connection in producers.plain:
            largest = max(largest, state.producers_of(number).drop(command.connection, lambda key: True))
    state.producers.forget(command.connection, largest)
    state.transactions.forget(command.connection, state.now_ms)
    state.streams.forget(command.connection)
    for number, subscription in sorted(state.owned.get(command.connection, ())):
        found = state.destinations.get(number)
        if found is None:
            continue  # a topic that went a moment ago, with its subscriptions
        if subscription == 0:
            state.delete(found, effects)
        elif isinstance(found, Topic) and subscription in found.subscriptions:
            _leave(state, found, found.subscriptions[subscription], command.connection, effects)
    state.owned.pop(command.connection, None)


def _leave(state: State, topic: Topic, subscription: Subscription, connection: bytes, effects: list[Effect]) -> None:
    """A connection's consumers are off a volatile subscription."""
    staying = [consumer for consumer in subscription.consumers if connection_of(consumer) != connection]
    if staying:
        subscription.consumers = staying
    else:
        state.unsubscribe(topic, subscription.number, effects)


def _topic(state: State, number: int) -> Topic:
    found = state.find(number)
    if not isinstance(found, Topic):
        raise InvalidDestination(f"{found.destination} is no topic; only topics have subscriptions")
    return found


def _check(command: Subscribe) -> None:
    if len(command.consumer) != CONNECTION_BYTES + 4 or len(command.no_local) not in (0, CONNECTION_BYTES):
        raise PeerViolation("a subscription names an impossible consumer or connection; it was not made")
    if command.start < -1 or command.start_ms < 0:
        raise Misuse("a subscription starts with new messages, the earliest, a sequence number or a time")
    if (command.is_durable or command.is_shared) and not command.name:
        raise Misuse("a durable or shared subscription needs a name")
    if max(len(command.name), len(command.client)) > NAME_CHARACTERS_MAX:
        raise Misuse(f"names of subscriptions and clients have at most {NAME_CHARACTERS_MAX} characters")


def _check_count(state: State, command: Subscribe) -> None:
    """Raises `Misuse` where there are as many as there may be; those without a name end with their consumers."""
    count, most = len(state.names), command.subscriptions_max
    if command.name and most and count >= most:
        raise Misuse(
            f"subscription {command.name} is not made: its channel has {count} named ones and may have {most}; "
            "unsubscribe from some, or raise subscriptions_max in the cluster file"
        )


def _find(state: State, topic: Topic, command: Subscribe) -> tuple[Topic, Subscription] | None:
    """The subscription that is meant, if it exists."""
    if command.is_durable or command.is_shared:
        place = state.names.get(_name(command))
        if place is None:
            return None
        owner = state.destinations[place[0]]
        assert isinstance(owner, Topic)
        return owner, owner.subscriptions[place[1]]
    own = topic.own_of(command.consumer)
    return None if own is None else (topic, own)


def _name(command: Subscribe) -> SubscriptionName:
    return command.is_durable, command.client, command.name


def _check_moves(state: State, topic: Topic, command: Subscribe, known: tuple[Topic, Subscription] | None) -> None:
    """Raises `Unavailable` where a name would be there twice when a topic on its way arrives.

    The channel that a topic goes to was told its names when that was planned, and keeps them for it.
    """
    if not command.is_durable and not command.is_shared:
        return
    if topic.number in state.moves.leaving and (known is None or known[0] is not topic):
        raise Unavailable(
            f"{topic.destination} is on its way to another channel, and takes no new name of a subscription before "
            "it is there; try again then"
        )
    bringer = state.moves.bringer_of(_name(command))
    if bringer is not None:
        raise Unavailable(
            f"the subscription {command.name!r} is on its way here with {bringer}; try again when that is there, "
            "or choose another name"
        )


def _is_same(subscription: Subscription, selector: Selector | None, command: Subscribe) -> bool:
    text = selector.text if selector else ""
    return subscription.selector_text == text and bool(subscription.no_local) == bool(command.no_local)


def _make(topic: Topic, selector: Selector | None, command: Subscribe, sequence: int) -> Subscription:
    return Subscription(
        topic.next_subscription,
        command.name,
        command.client,
        selector,
        is_durable=command.is_durable,
        is_shared=command.is_shared,
        no_local=command.no_local,
        selected_from=topic.next_position,
        made_at=sequence,
    )


def _replay(state: State, topic: Topic, made: Subscription, first: int, effects: list[Effect]) -> None:
    """A new subscription begins with what is kept from a position on, as those have it who subscribed before."""
    last = topic.next_position
    for part in topic.retained.intersection(first, last):
        made.backlog.arrive(*part)
    for priority, positions in topic.particulars.priorities.items():
        for part in positions.intersection(first, last):
            made.backlog.prioritise(*part, priority)
    for due_ms, positions in topic.particulars.delayed(first, last).items():
        state.defer(topic.number, made.number, made.backlog, positions, due_ms)
    effects += [Arrived(topic.number, made.number, *part) for part in made.backlog.ready(first, last)]


def _start(topic: Topic, command: Subscribe) -> int:
    """The position to begin with."""
    if command.start_ms:
        return topic.start_at(command.start_ms)
    if command.start < 0:
        return topic.next_position
    return topic.start_after(command.start) if command.start else 0


def _shared(is_shared: bool) -> str:
    return "shared" if is_shared else "not shared"
