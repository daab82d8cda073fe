"""The outcomes of an entry's commands, for the Client Manager that ordered it."""

from collections.abc import Sequence

from alphorn.message_manager.effects import Answer, Effect
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.questions import comes_from, home_of
from alphorn.model.commands import AnyCommand, CreateDestination, Entry, KeepSignet
from alphorn.model.errors import InvalidDestination, Moved
from alphorn.model.link import Answered


def answers_to(engine: Engine, entry: Entry, effects: Sequence[Effect]) -> list[tuple[AnyCommand, Answered]]:
    """One for each request, with its command, in the entry's order; what has no outcome is plain success."""
    answers = {effect.command: effect for effect in effects if isinstance(effect, Answer)}
    return [
        (entry.commands[place], _answered(engine, request, entry.commands[place], answers.get(place) or Answer(place)))
        for place, request in enumerate(entry.requests)
        if request
    ]


def _answered(engine: Engine, request: int, command: AnyCommand, answer: Answer) -> Answered:
    policy = None
    if isinstance(command, CreateDestination) and not answer.error:
        found = engine.destinations.get(answer.number)
        if found is None:
            return _gone(engine, request, command, answer.number)
        policy = found.policy
    home = None
    if answer.error == Moved.__name__ and isinstance(command, CreateDestination):
        home = comes_from(engine, command.destination)
    elif answer.error == Moved.__name__:
        home = home_of(engine, getattr(command, "destination", 0))
    signet = engine.signet if isinstance(command, KeepSignet) else b""
    outcome = answer.number, answer.error, answer.reason, policy
    return Answered(request, *outcome, position=answer.position, home=home, signet=signet)


def _gone(engine: Engine, request: int, command: CreateDestination, number: int) -> Answered:
    """What was there, or was created, and has left by a later command of the same entry."""
    home = engine.moves.home_of(number)
    if home is not None:
        reason = f"{command.destination} is on another channel; look for it there"
        return Answered(request, home[0], Moved.__name__, reason)
    return Answered(request, 0, InvalidDestination.__name__, f"{command.destination} was just deleted; create it again")
