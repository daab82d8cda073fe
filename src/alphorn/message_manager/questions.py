"""What the state alone answers: where a destination is, what a number means, what a queue holds, how a wish ended."""

from collections.abc import Callable

from alphorn.message_manager.directory import COMING
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.looking import look
from alphorn.model.destinations import Destination
from alphorn.model.errors import Error, InvalidDestination, Moved
from alphorn.model.frame_kinds import Told
from alphorn.model.link import (
    Answered,
    AskPending,
    Attach,
    Claim,
    FindSubscription,
    FragmentsLocated,
    Locate,
    LocateFragments,
    Look,
    Name,
)
from alphorn.model.moving_link import Home

Question = Look | Locate | Name | LocateFragments | AskPending
Wish = Question | FindSubscription | Claim | Attach


def answer_question(engine: Engine, question: Question, read: Callable[[int], bytes | memoryview | None]) -> list[Told]:
    """What to say, in order; raises an `Error` that is the answer."""
    if isinstance(question, Look):
        looked, after = look(engine, question, read)
        answered = Answered(question.request, after)
        return [looked, answered] if looked.runs else [answered]
    if isinstance(question, LocateFragments):
        if question.sequence > engine.sequence:
            return []  # this one is primary no more, and whoever is will be asked
        places = engine.locate_fragments(question.producer, question.counter, question.index)
        return [FragmentsLocated(question.request, places)]
    if isinstance(question, AskPending):
        return _ask_pending(engine, question)
    if isinstance(question, Locate):
        destination = question.destination
        record = engine.moves.elsewhere.get(destination)
        if record is not None and record[1] != question.recorded_at and destination not in engine.numbers:
            reason = f"{destination} is on another channel; look for it there"
            home = comes_from(engine, destination)
            return [Answered(question.request, record[0], Moved.__name__, reason, position=record[1], home=home)]
        if engine.moves.is_coming(destination):
            return [Answered(question.request, COMING, Moved.__name__, f"{destination} is on its way here; wait")]
        return [_locate(engine, question.request, engine.numbers.get(destination), str(destination))]
    number = question.destination
    is_there = number in engine.destinations
    if not is_there and engine.moves.home_of(number) is not None:
        raise Moved(f"destination {number} is on another channel now, or on its way there; try again")
    return [_locate(engine, question.request, number if is_there else None, f"destination number {number}")]


def _ask_pending(engine: Engine, question: AskPending) -> list[Told]:
    source = engine.destinations.get(question.destination)
    has_left = source is None and engine.moves.home_of(question.destination) is not None
    if has_left or question.sequence > engine.sequence:
        return []  # this one is primary no more; or the consumer turns elsewhere, with what it has
    backlog = None if source is None else source.backlog_of(question.subscription)
    is_there = backlog is not None and bool(backlog.kept.intersection(question.first, question.last))
    return [Answered(question.request, int(is_there))]


def refusal(engine: Engine, asked: Wish, error: Error) -> Answered:
    """Why not; where the destination that was asked for has left, with its new home."""
    number = 0
    match asked:
        case Look() | Name() | Attach():
            number = asked.destination
        case Claim():
            number = asked.subscribe.destination
    return Answered(asked.request, 0, type(error).__name__, str(error), home=home_of(engine, number))


def home_of(engine: Engine, number: int) -> Home | None:
    """Where a destination that has left is."""
    home = engine.moves.home_of(number)
    return None if home is None else Home(*home)


def comes_from(engine: Engine, destination: Destination) -> Home | None:
    """Where a destination is, or was, that is on its way here."""
    home = engine.moves.comes_from(destination)
    return None if home is None else Home(*home, 0)


def _locate(engine: Engine, request: int, number: int | None, name: str) -> Answered:
    if number is None:
        raise InvalidDestination(f"there is no {name}; create it, or send to it first")
    found = engine.destinations[number]
    return Answered(request, number, policy=found.policy, destination=found.destination)
