"""Questions that the state alone answers: where a destination is, what its number means, what a queue holds."""

from collections.abc import Callable

from alphorn.message_manager.effects import Answer
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.looking import look
from alphorn.model.commands import AnyCommand, CreateDestination
from alphorn.model.errors import Error, InvalidDestination, Moved
from alphorn.model.link import Answered, Claim, FindSubscription, Home, Locate, Look, Looked, Name, Told

Question = Look | Locate | Name


def answer_question(engine: Engine, question: Question, read: Callable[[int], bytes | memoryview | None]) -> list[Told]:
    """What to say, in order; raises an `Error` that is the answer."""
    if isinstance(question, Look):
        runs, after = look(engine, question, read)
        answered = Answered(question.request, after)
        return [Looked(question.request, runs), answered] if runs else [answered]
    if isinstance(question, Locate):
        destination = question.destination
        channel = engine.moves.elsewhere.get(destination)
        if channel is not None and destination not in engine.numbers:
            reason = f"{destination} is on another channel; look for it there"
            return [Answered(question.request, channel, Moved.__name__, reason)]
        return [_locate(engine, question.request, engine.numbers.get(destination), str(destination))]
    number = question.destination
    is_there = number in engine.destinations
    if not is_there and engine.moves.home_of(number) is not None:
        raise Moved(f"destination {number} is on another channel now, or on its way there; try again")
    return [_locate(engine, question.request, number if is_there else None, f"destination number {number}")]


def refusal(engine: Engine, request: int, error: Error, number: int = 0) -> Answered:
    """Why not; where the destination has left, with its new home."""
    return Answered(request, 0, type(error).__name__, str(error), home=home_of(engine, number))


def asked_of(frame: Question | FindSubscription | Claim) -> int:
    """The number of the destination that a question is about; 0 where it names none."""
    match frame:
        case Look() | Name():
            return frame.destination
        case Claim():
            return frame.subscribe.destination
    return 0


def outcome(engine: Engine, request: int, command: AnyCommand, answer: Answer) -> Answered:
    """What became of a command, for whoever ordered it."""
    policy = None
    if isinstance(command, CreateDestination) and not answer.error:
        policy = engine.destinations[answer.number].policy
    home = home_of(engine, getattr(command, "destination", 0)) if answer.error == Moved.__name__ else None
    return Answered(request, answer.number, answer.error, answer.reason, policy, position=answer.position, home=home)


def home_of(engine: Engine, number: int) -> Home | None:
    """Where a destination that has left is."""
    home = engine.moves.home_of(number)
    return None if home is None else Home(*home)


def _locate(engine: Engine, request: int, number: int | None, name: str) -> Answered:
    if number is None:
        raise InvalidDestination(f"there is no {name}; create it, or send to it first")
    found = engine.destinations[number]
    return Answered(request, number, policy=found.policy, destination=found.destination)
