"""The outcomes of an entry's commands, for the Client Manager that ordered it."""

from collections.abc import Sequence

from alphorn.message_manager.effects import Answer, Effect
from alphorn.message_manager.engine import Engine
from alphorn.model.commands import AnyCommand, CreateDestination, Entry
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
        policy = engine.destinations[answer.number].policy
    return Answered(request, answer.number, answer.error, answer.reason, policy)
