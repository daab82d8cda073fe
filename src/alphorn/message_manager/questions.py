"""What Client Managers ask the primary about destinations and subscriptions, each answered at once."""

from alphorn.message_manager.claiming import check_claim
from alphorn.message_manager.dispatch import Dispatcher
from alphorn.message_manager.engine import Engine
from alphorn.model import link
from alphorn.model.errors import Error, InvalidDestination, Misuse, Moved

Question = link.Locate | link.Name | link.FindSubscription | link.Claim


def answer_question(engine: Engine, dispatcher: Dispatcher, frame: Question) -> link.Answered:
    """The answer, be it a refusal."""
    request = frame.request
    try:
        match frame:
            case link.Locate(_, destination):
                if destination in engine.moves.elsewhere and destination not in engine.numbers:
                    reason = f"{destination} is on another channel; look for it there"
                    return link.Answered(request, engine.moves.elsewhere[destination], Moved.__name__, reason)
                return _locate(engine, request, engine.numbers.get(destination), str(destination))
            case link.Name(_, number):
                place = number if number in engine.destinations else None
                if place is None and engine.moves.home_of(number) is not None:
                    raise Moved(f"destination {number} is on another channel now, or on its way there; try again")
                return _locate(engine, request, place, f"destination number {number}")
            case link.FindSubscription():
                return _find(engine, dispatcher, frame)
            case link.Claim():
                check_claim(engine, dispatcher, frame.subscribe)
                return link.Answered(request)
    except Error as error:
        return refusal(engine, request, error, _asked_of(frame))


def refusal(engine: Engine, request: int, error: Error, number: int = 0) -> link.Answered:
    """Why not; where the destination has left, with its new home."""
    return link.Answered(request, 0, type(error).__name__, str(error), home=home_of(engine, number))


def home_of(engine: Engine, number: int) -> link.Home | None:
    """Where a destination that has left is."""
    home = engine.moves.home_of(number)
    return None if home is None else link.Home(*home)


def _asked_of(frame: Question) -> int:
    match frame:
        case link.Name(_, number):
            return number
        case link.Claim(_, subscribe):
            return subscribe.destination
    return 0


def _locate(engine: Engine, request: int, number: int | None, name: str) -> link.Answered:
    if number is not None:
        found = engine.destinations[number]
        return link.Answered(request, number, policy=found.policy, destination=found.destination)
    raise InvalidDestination(f"there is no {name}; create it, or send to it first")


def _find(engine: Engine, dispatcher: Dispatcher, frame: link.FindSubscription) -> link.Answered:
    found = engine.find_subscription(frame.client, frame.name)
    if found is None:
        raise InvalidDestination(f"there is no subscription named {frame.name!r}")
    if dispatcher.is_used(*found):
        raise Misuse(f"the subscription {frame.name!r} has an active consumer; close it first")
    return link.Answered(frame.request, found[0] << 32 | found[1])
