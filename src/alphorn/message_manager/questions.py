"""What the state alone answers: where a destination is, what a number means, what a queue holds, how a wish ended."""

from collections.abc import Callable

from alphorn.message_manager.engine import Engine
from alphorn.message_manager.looking import look
from alphorn.model.errors import InvalidDestination
from alphorn.model.frame_kinds import Told
from alphorn.model.link import Answered, FragmentsLocated, Locate, LocateFragments, Look, Looked, Name

Question = Look | Locate | Name | LocateFragments


def answer_question(engine: Engine, question: Question, read: Callable[[int], bytes | memoryview | None]) -> list[Told]:
    """What to say, in order; raises an `Error` that is the answer."""
    if isinstance(question, Look):
        runs, after = look(engine, question, read)
        answered = Answered(question.request, after)
        return [Looked(question.request, runs), answered] if runs else [answered]
    if isinstance(question, LocateFragments):
        if question.sequence > engine.sequence:
            return []  # this one is primary no more, and whoever is will be asked
        places = engine.locate_fragments(question.producer, question.counter, question.index)
        return [FragmentsLocated(question.request, places)]
    if isinstance(question, Locate):
        return [_locate(engine, question.request, engine.numbers.get(question.destination), str(question.destination))]
    number = question.destination
    is_there = number in engine.destinations
    return [_locate(engine, question.request, number if is_there else None, f"destination number {number}")]


def _locate(engine: Engine, request: int, number: int | None, name: str) -> Answered:
    if number is None:
        raise InvalidDestination(f"there is no {name}; create it, or send to it first")
    found = engine.destinations[number]
    return Answered(request, number, policy=found.policy, destination=found.destination)
