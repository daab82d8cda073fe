"""Questions that Client Managers ask the primary on the link, answered from what is there; nothing is changed."""

from collections.abc import Callable, Sequence

from alphorn.message_manager.claiming import check_claim
from alphorn.message_manager.dispatch import Dispatcher
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.looking import look
from alphorn.model.errors import Error, InvalidDestination, Misuse
from alphorn.model.link import Answered, Claim, FindSubscription, Locate, Look, Looked, Name, Told

Question = Look | Locate | Name | FindSubscription | Claim
Read = Callable[[int], bytes | memoryview | None]


def answers_to(frame: Question, engine: Engine, dispatcher: Dispatcher, read: Read) -> Sequence[Told]:
    """What to say to a question, in order; a refusal where it cannot be answered."""
    try:
        match frame:
            case Look():
                runs, after = look(engine, frame, read)
                answered = Answered(frame.request, after)
                return (Looked(frame.request, runs), answered) if runs else (answered,)
            case Locate(request, destination):
                return (_located(engine, request, engine.numbers.get(destination), str(destination)),)
            case Name(request, number):
                is_there = number in engine.destinations
                return (_located(engine, request, number if is_there else None, f"destination number {number}"),)
            case FindSubscription():
                return (_found(engine, dispatcher, frame),)
            case Claim():
                check_claim(engine, dispatcher, frame.subscribe)
                return (Answered(frame.request),)
    except Error as error:
        return (Answered(frame.request, 0, type(error).__name__, str(error)),)


def _located(engine: Engine, request: int, number: int | None, name: str) -> Answered:
    if number is None:
        raise InvalidDestination(f"there is no {name}; create it, or send to it first")
    found = engine.destinations[number]
    return Answered(request, number, policy=found.policy, destination=found.destination)


def _found(engine: Engine, dispatcher: Dispatcher, frame: FindSubscription) -> Answered:
    found = engine.find_subscription(frame.client, frame.name)
    if found is None:
        raise InvalidDestination(f"there is no subscription named {frame.name!r}")
    if dispatcher.is_used(*found):
        raise Misuse(f"the subscription {frame.name!r} has an active consumer; close it first")
    return Answered(frame.request, found[0] << 32 | found[1])
