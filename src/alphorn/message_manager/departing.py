"""Applies `Move`: a destination leaves this channel, step by step.

Messages are copied while it is only planned, so that little is left to do once it has begun. That a planned move begins
cannot fail, because Client Managers go by the log alone: so what would forbid it is refused from the plan on. Whatever
concerns it and comes after that is refused as moved and changes nothing here, because whoever sent it goes on there.
"""

from alphorn.message_manager.effects import Answer, Effect, Left, Planned
from alphorn.message_manager.moves import Leaving
from alphorn.message_manager.parts import follow_to_part
from alphorn.message_manager.producers import Producers
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.schedule import Kind
from alphorn.message_manager.state import State
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import Move, MoveStage
from alphorn.model.errors import AccessDenied, InvalidDestination, Misuse, Moved, Unavailable


def move(state: State, command: Move, place: int, effects: list[Effect]) -> None:
    """The next step; one that was taken before changes nothing."""
    match command.stage:
        case MoveStage.PLANNED:
            _plan(state, command, effects)
        case MoveStage.BEGUN:
            _begin(state, command, place, effects)
        case MoveStage.ENDED:
            _end(state, command)
        case MoveStage.CLOSED | MoveStage.OPENED:
            state.moves.is_closed = command.stage is MoveStage.CLOSED
        case MoveStage.CANCELLED:
            state.moves.incoming.pop(command.destination, None)
            state.moves.recalled.pop(command.destination, None)
            leaving = state.moves.leaving.get(command.destination)
            if leaving is not None and leaving.source is None:
                del state.moves.leaving[command.destination]


def take_out(state: State, number: int, leaving: Leaving) -> None:
    """Takes a destination out of the directory, with all that belongs to it."""
    found = state.destinations[number]
    found.sweep()  # the last time: it is written as it is from now on, and must be the same on every replica
    leaving.expirations = [item for item in state.schedule.live() if item.kind is Kind.EXPIRE and item.number == number]
    leaving.is_awaiting = number in state.awaiting
    leaving.source = found
    state.awaiting.discard(number)
    state.forget_policy(found)
    if isinstance(found, Topic):
        for subscription in found.subscriptions.values():
            state.unname(found, subscription)
    del state.destinations[number]
    if state.numbers.get(found.destination) == number:  # when a checkpoint is read another may have its name by now
        del state.numbers[found.destination]


def _plan(state: State, command: Move, effects: list[Effect]) -> None:
    leaving = state.moves.leaving.get(command.destination)
    if leaving is not None:
        if leaving.channel != command.channel:
            raise Misuse("this destination is on its way to another channel already; wait until it is there")
        return
    found = state.find(command.destination)
    if found.destination.is_reserved:
        raise AccessDenied(f"{found.destination} belongs to the system and stays where it is")
    if found.owner:
        raise Misuse(f"{found.destination} is temporary and ends with its connection; it cannot be moved")
    if command.destination in state.moves.landing:
        raise Moved(f"{found.destination} has just come here; move it when its consumers have followed")
    if state.has_streams(command.destination):
        way = "consume them, and retain none of them" if found.is_retaining else "consume them first"
        raise Unavailable(f"messages of {found.destination} have streamed bodies, which do not move; {way}")
    _check_free(state, command.destination, found)
    state.moves.leaving[command.destination] = Leaving(command.channel)
    effects.append(Planned(command.destination))


def _check_free(state: State, number: int, found: Queue | Topic) -> None:
    """Raises an `Error` where something is bound to this channel's log that does not move."""
    if state.transactions.involve(number):
        raise Unavailable(
            f"a transaction over several channels with {found.destination} is not decided yet; move it when it is"
        )
    if state.writers.have_staged(number):
        raise Unavailable(f"a writer has staged messages for {found.destination}; publish or drop them first")
    if found.policy.audit:
        raise Misuse(f"{found.destination} is audited, by the log that it is in; end its audit before it is moved")


def _begin(state: State, command: Move, place: int, effects: list[Effect]) -> None:
    leaving = state.moves.leaving.get(command.destination)
    if leaving is None:
        raise InvalidDestination("this destination is not to be moved (any more); plan it first")
    if leaving.source is None:
        found = state.destinations[command.destination]
        leaving.stage, leaving.number, leaving.begun_at = MoveStage.BEGUN, command.number, state.sequence
        if found.producers is None:
            found.producers = _copy(state.producers, found)
        for _, producer in state.producers:
            if producer.awaited_at == command.destination:
                producer.await_again(0, 0)  # it comes again there
        take_out(state, command.destination, leaving)
        state.moves.elsewhere[found.destination] = (command.channel, state.sequence)
        follow_to_part(state, found, command.channels, effects)
        effects.append(Left(command.destination))
    effects.append(Answer(place, leaving.number))


def _end(state: State, command: Move) -> None:
    leaving = state.moves.leaving.get(command.destination)
    if leaving is not None and leaving.source is not None:
        del state.moves.leaving[command.destination]
        state.moves.gone[command.destination] = (leaving.channel, leaving.number, leaving.begun_at)


def _copy(producers: Producers, destination: Queue | Topic) -> Producers:
    """The counters of all that may have sent to a destination; they count on there by themselves."""
    table = Producers()
    for key, producer in producers:
        if producer.last in (destination.number, -1):
            table.put(key, producer.copy(destination.number))
    return table
