"""What Client Managers ask about the state, answered by the primary without changing anything."""

from collections.abc import Callable

from alphorn.message_manager.claiming import check_claim
from alphorn.message_manager.dispatch import Dispatcher
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.looking import look
from alphorn.model import link
from alphorn.model.errors import Error, InvalidDestination, Misuse

Question = link.Look | link.Locate | link.Name | link.FindSubscription | link.Claim
Read = Callable[[int], bytes | memoryview | None]


def answer(engine: Engine, dispatcher: Dispatcher, read: Read, question: Question) -> list[link.Told]:
    """What to tell whoever asked; the last is always the outcome."""
    try:
        match question:
            case link.Look():
                return _look(engine, question, read)
            case link.Locate(request, destination):
                return [_located(engine, request, engine.numbers.get(destination), str(destination))]
            case link.Name(request, place):
                found = place if place in engine.destinations else None
                return [_located(engine, request, found, f"destination number {place}")]
            case link.FindSubscription():
                return [_find(engine, dispatcher, question)]
            case link.Claim(request, subscribe):
                check_claim(engine, dispatcher, subscribe)
                return [link.Answered(request)]
    except Error as error:
        return [link.Answered(question.request, 0, type(error).__name__, str(error))]


def _look(engine: Engine, frame: link.Look, read: Read) -> list[link.Told]:
    runs, after = look(engine, frame, read)
    found: list[link.Told] = [link.Looked(frame.request, runs)] if runs else []
    return [*found, link.Answered(frame.request, after)]


def _located(engine: Engine, request: int, place: int | None, name: str) -> link.Answered:
    if place is None:
        raise InvalidDestination(f"there is no {name}; create it, or send to it first")
    found = engine.destinations[place]
    return link.Answered(request, place, policy=found.policy, destination=found.destination)


def _find(engine: Engine, dispatcher: Dispatcher, frame: link.FindSubscription) -> link.Answered:
    found = engine.find_subscription(frame.client, frame.name)
    if found is None:
        raise InvalidDestination(f"there is no subscription named {frame.name!r}")
    if dispatcher.is_used(*found):
        raise Misuse(f"the subscription {frame.name!r} has an active consumer; close it first")
    return link.Answered(frame.request, found[0] << 32 | found[1])
