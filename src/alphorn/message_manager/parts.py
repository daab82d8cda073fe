"""Parts of dead letter queues: where the dead messages of a destination go when it or its dead letter queue has moved.

Dead messages stay in the log they are in. So a policy names the dead letter queue itself while that is on the same
channel, and otherwise the part of it that the channel has, `broken@channel-2`. The register of a part is the log of its
own channel: that is why an engine may make one, and no other queue, without asking anybody.

Which names are channels' comes with the commands that move a destination, that of this log first.
"""

from collections.abc import Sequence

import msgspec

from alphorn.message_manager.effects import Created, Effect
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.state import State
from alphorn.message_manager.topic import Topic
from alphorn.model.destinations import Destination, DestinationKind, Policy
from alphorn.model.errors import InvalidDestination


def follow_to_part(state: State, left: Queue | Topic, channels: Sequence[str], effects: list[Effect]) -> None:
    """A destination has left: whose dead messages went there uses the part that this channel has, or gets now."""
    if isinstance(left, Queue) and channels:
        for number in sorted(state.dead_letters.get(left.destination.name, ())):
            _choose(state, state.destinations[number], channels, effects)


def settle_dead_letters(state: State, came: Queue | Topic, channels: Sequence[str], effects: list[Effect]) -> None:
    """A destination has come: its own dead messages have their queue here, and those that wanted it find it."""
    if not channels:
        return
    _choose(state, came, channels, effects)
    if isinstance(came, Queue):
        part = _part_of(came.destination.name, channels)
        for name in (part, _unpinned(part, channels)):
            for number in sorted(state.dead_letters.get(name, ())):
                _choose(state, state.destinations[number], channels, effects)


def _choose(state: State, found: Queue | Topic, channels: Sequence[str], effects: list[Effect]) -> None:
    """The policy of a destination names the dead letter queue that is here; without a channel, where none can be."""
    named = found.policy.dead_letter
    if named is None or _queue(named).is_reserved or named == found.destination.name:
        return
    whole, part = _unpinned(named, channels), _part_of(named, channels)
    chosen = next((name for name in (whole, part, named) if _queue(name) in state.numbers), None)
    if chosen is None and _can_be_made(state, _queue(part)):
        state.create(_queue(part), Policy(), b"", effects)
        chosen = part
    chosen = chosen or whole  # either may come, and is found by this
    if chosen != named:
        found.policy = msgspec.structs.replace(found.policy, dead_letter=chosen)
        state.notice_policy(found, before=named)
        effects.append(Created(found.number, found.destination, found.policy))


def _can_be_made(state: State, part: Destination) -> bool:
    """Not where it was moved away, or comes back just now: a name is on one channel. A temporary one needs an owner."""
    try:
        part.check()
    except InvalidDestination:
        return False
    return not part.is_temporary and part not in state.moves.elsewhere and not state.moves.is_coming(part)


def _queue(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


def _unpinned(name: str, channels: Sequence[str]) -> str:
    """A name without the channel that it ends with."""
    before, _, channel = name.rpartition("@")
    return before if before and channel in channels else name


def _part_of(name: str, channels: Sequence[str]) -> str:
    return f"{_unpinned(name, channels)}@{channels[0]}"
