"""Applies `Fragment` and `Abandon`, and judges the `Publish` that makes fragments a message.

Counters come first, as for messages: a fragment that was seen before is stored once, a gap is refused and changes
nothing. A fragment that does not continue its body is refused for good, and the body is given up: what its producer
still has under way is refused as well, so nothing is ever put together from parts of two attempts.
"""

from alphorn.message_manager.access import refusal_to_publish
from alphorn.message_manager.effects import Answer, Effect
from alphorn.message_manager.producers import Refusal
from alphorn.message_manager.state import State
from alphorn.model.commands import CONNECTION_BYTES, COUNTER_MAX, Abandon, Fragment, Publish
from alphorn.model.errors import InvalidDestination, Moved, PeerViolation, Unavailable
from alphorn.model.messages import FRAGMENT_BYTES_MAX, headers_of

PLACES_MAX = 256  # in one answer
_KEY_BYTES = CONNECTION_BYTES + 4


def fragment(state: State, command: Fragment, place: int, effects: list[Effect]) -> None:
    """Adds a piece to a body, or begins one."""
    if command.index < 0 or not 0 < len(command.blob) <= FRAGMENT_BYTES_MAX:
        raise PeerViolation("a fragment has an impossible index or size; it was not taken")
    if _is_seen(state, command, place, effects):
        return
    producers = state.producers_of(command.destination)
    producer = producers.find(command.producer) or producers.add(command.producer)
    producer.note(command.destination)
    producer.used_ms, producer.awaited = state.now_ms, 0
    refusal = _refusal(state, command)
    if refusal is not None:
        state.streams.give_up(command.producer)
        producer.refuse(command.counter, command.counter, refusal)
        effects.append(Answer(place, error=refusal[0], reason=refusal[1]))
        return
    producer.next = command.counter + 1
    streams = state.streams
    if command.index == 0:
        body = streams.begin(command.producer, command.destination)
    else:
        body = streams.open[command.producer]
        body.is_active = True
    body.pieces.append(state.sequence, place, len(command.blob))


def abandon(state: State, command: Abandon, place: int, effects: list[Effect]) -> None:
    """A body will not be finished: its fragments are needed no more."""
    if _is_seen(state, command, place, effects):
        return
    producers = state.producers_of(command.destination)
    producer = producers.find(command.producer) or producers.add(command.producer)
    producer.note(command.destination)
    producer.used_ms, producer.awaited = state.now_ms, 0
    producer.next = command.counter + 1
    state.streams.give_up(command.producer)


def refusal_of_stream(state: State, command: Publish) -> Refusal | None:
    """Why this message cannot have the body that came before it; None when all is well.

    Raises `PeerViolation` for a batch that says it has such a body and is not of that form.
    """
    headers = headers_of(command.blob)
    streamed = headers[0].stream if len(headers) == 1 else None
    if streamed is None:
        raise PeerViolation("a batch says that its body came in fragments, and is not such a message")
    body = state.streams.open.get(command.producer)
    if body is None and streamed.fragments == streamed.size == 0:
        return None  # there was nothing to send
    if body is None:
        return Unavailable.__name__, _given_up("the message")
    pieces = body.pieces
    if (pieces.count, pieces.size) != (streamed.fragments, streamed.size) or body.destination != command.destination:
        reason = (
            f"the message's body has {streamed.fragments} fragments and {streamed.size} bytes, and {pieces.count} "
            f"with {pieces.size} bytes came for this destination; send it again from the beginning"
        )
        return PeerViolation.__name__, reason
    return None


def _is_seen(state: State, command: Fragment | Abandon, place: int, effects: list[Effect]) -> bool:
    """Whether the counter came before, which is answered as it was then. Raises where earlier ones are missing."""
    counter, key = command.counter, command.producer
    if not 0 < counter < COUNTER_MAX or len(key) != _KEY_BYTES:
        raise PeerViolation("a fragment names an impossible counter or producer; it was not taken")
    if state.moves.home_of(command.destination) is not None:
        raise Moved(f"destination {command.destination} is on another channel now, or on its way there; try again")
    producer = state.producers_of(command.destination).find(key)
    expected = 1 if producer is None else producer.next
    after = counter - 1 if command.after < 0 else command.after
    if after >= expected:
        raise Unavailable(f"fragments {expected} to {after} of this producer are missing; send again from there")
    if producer is None and after == 0 and state.producers.is_forgotten(key):
        raise Unavailable("the connection that sent this fragment has ended, or has closed its sender; send it anew")
    if producer is not None and 0 < producer.awaited < counter:
        raise Unavailable(f"message {producer.awaited} of this producer was postponed; send again from there")
    if counter >= expected:
        return False
    refusal = producer.refusal_of(counter, counter) if producer is not None else None
    if refusal is not None:
        effects.append(Answer(place, error=refusal[0], reason=refusal[1]))
    return True


def _refusal(state: State, command: Fragment) -> Refusal | None:
    destination = state.destinations.get(command.destination)
    if destination is None:
        reason = f"there is no destination {command.destination} any more; look up its name again"
        return InvalidDestination.__name__, reason
    if (denied := refusal_to_publish(destination.destination, command.producer)) is not None:
        return denied
    if command.destination in state.moves.leaving:
        return Unavailable.__name__, f"{destination.destination} is on its way to another channel; send it again later"
    if command.index == 0:
        return None
    body = state.streams.open.get(command.producer)
    if body is None:
        return Unavailable.__name__, _given_up(f"fragment {command.index}")
    if command.index != body.pieces.count or command.destination != body.destination:
        reason = (
            f"fragment {command.index} came where {body.pieces.count} comes next for destination {body.destination}; "
            "the body was given up, send it again from the beginning"
        )
        return PeerViolation.__name__, reason
    return None


def _given_up(what: str) -> str:
    return f"{what} belongs to a body that was not begun, or was given up; send it again from the beginning"
