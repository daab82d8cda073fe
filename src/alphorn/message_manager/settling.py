"""Applies what becomes of messages that were given out: `Acknowledge` and `Return`.

Who holds a message is the dispatcher's to know; here, what is not pending any more is passed over, so that saying a
thing twice does no harm.
"""

from alphorn.message_manager.burial import DELIVERY_LIMIT, REJECTED, bury, let_die
from alphorn.message_manager.effects import Arrived, Deferred, Effect, Gone
from alphorn.message_manager.noting import note
from alphorn.message_manager.particulars import TIME_MS_MAX
from alphorn.message_manager.state import State, ranges_of
from alphorn.model.audit import AuditStage
from alphorn.model.commands import Acknowledge, Return
from alphorn.model.ranges import Range, RangeSet


def acknowledge(state: State, command: Acknowledge, place: int, effects: list[Effect]) -> None:
    """These messages are consumed."""
    destination, _ = state.find_backlog(command.destination, command.subscription)
    gone: list[int] = []
    for first, last in ranges_of(command.positions):
        for part in destination.remove(command.subscription, first, last):
            gone += part
    if gone:
        effects.append(Gone(destination.number, command.subscription, gone))
        consumed = ranges_of(gone)
        note(effects, destination, command.subscription, AuditStage.ACKNOWLEDGED, consumed, consumer=command.consumer)


def give_back(state: State, command: Return, place: int, effects: list[Effect]) -> None:
    """These messages come back, counted once more if they were seen: for others, now or later, or as dead.

    Those whose time was over meanwhile die now.
    """
    destination, backlog = state.find_backlog(command.destination, command.subscription)
    returned = RangeSet()
    for first, last in RangeSet(ranges_of(command.positions)):
        for start, end in backlog.give_back(first, last, is_counted=not command.is_unseen):
            returned.add(start, end)
    unseen = "unseen" if command.is_unseen else ""
    back = list(returned)
    note(
        effects, destination, command.subscription, AuditStage.RETURNED, back, consumer=command.consumer, detail=unseen
    )
    policy = destination.policy
    number, subscription = destination.number, command.subscription
    if command.is_dead:
        if returned:
            bury(state, destination, subscription, list(returned), REJECTED, effects)
        return
    if backlog.lapsed and (over := returned.common(backlog.lapsed)):
        let_die(state, destination, subscription, list(over), effects)
        returned = returned.difference(over)
    if policy.delivery_limit and not command.is_unseen:
        dead = _beyond(backlog.counts, returned, policy.delivery_limit)
        if dead:
            bury(state, destination, subscription, dead, DELIVERY_LIMIT, effects)
            returned = returned.difference(RangeSet(dead))
    delay_ms = command.delay_ms if command.delay_ms >= 0 else int(policy.redelivery_delay * 1000)
    if delay_ms and returned and not command.is_unseen:
        state.defer(number, subscription, backlog, returned, -min(delay_ms, TIME_MS_MAX))
        effects.append(Deferred(number, subscription, returned.flat(), command.consumer))
        return
    ready = RangeSet(part for first, last in returned for part in backlog.ready(first, last))
    effects += [Arrived(number, subscription, first, last, command.consumer) for first, last in ready]
    if waiting := returned.difference(ready):  # since it came back before, from another who had it
        effects.append(Deferred(number, subscription, waiting.flat(), command.consumer))


def _beyond(counts: dict[int, int], returned: RangeSet, limit: int) -> list[Range]:
    found = RangeSet()
    for first, last in returned:
        for position in range(first, last + 1):
            if counts[position] >= limit:
                found.add(position, position)
    return list(found)
