"""Applies what concerns destinations as a whole: `CreateDestination`, `DeleteDestination`, `SetPolicy`, `Purge`.

Names that begin with "_" are the system's; only those it knows can be created, by whomever needs them first, and then
as the system has them.
"""

from alphorn.message_manager.effects import Answer, Created, Effect, Gone
from alphorn.message_manager.moves import Elsewhere
from alphorn.message_manager.noting import note
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.state import State
from alphorn.model.audit import AuditStage
from alphorn.model.commands import CreateDestination, DeleteDestination, Purge, SetPolicy
from alphorn.model.destinations import Destination, DestinationKind, Policy
from alphorn.model.errors import AccessDenied, InvalidDestination, Misuse, Moved, NoDeadLetterQueue, Unavailable
from alphorn.model.ranges import Range
from alphorn.model.system import SYSTEM

COMING = -1  # in place of the channel that has a destination


def create_destination(state: State, command: CreateDestination, place: int, effects: list[Effect]) -> None:
    """Gives the number of a destination, new or not. One that exists keeps its policy.

    Who names no owner only wants it to exist; who names one wants to be it.
    """
    destination, owner = command.destination, command.owner
    destination.check()
    _check_reserved(destination)
    _check_policy(destination, command.policy)
    if owner and destination.is_reserved:
        raise AccessDenied(f"{destination} belongs to the system and is never temporary")
    number = state.numbers.get(destination)
    if number is None:
        elsewhere = _elsewhere(state, command)
        if elsewhere is not None:
            channel, recorded_at = elsewhere
            reason = f"{destination} is on another channel, or on its way here; look for it there"
            effects.append(Answer(place, channel, error=Moved.__name__, reason=reason, position=recorded_at))
            return
        if destination.is_temporary and not owner:
            raise InvalidDestination(f"{destination} has ended with its connection; ask for a new one there")
        _check_dead_letter(state, destination, command.policy)
        _check_count(state, command)
        number = state.create(destination, SYSTEM.get(destination, command.policy), owner, effects).number
    elif owner and state.destinations[number].owner != owner:
        raise InvalidDestination(f"{destination} exists and is not this connection's; choose another name")
    effects.append(Answer(place, number))


def _elsewhere(state: State, command: CreateDestination) -> Elsewhere | None:
    """Which channel has a destination, or is to have it where it is new; `COMING` where it is on its way here."""
    moves, destination = state.moves, command.destination
    record = moves.elsewhere.get(destination)
    if record is not None and record[1] != command.recorded_at:
        return record
    moves.elsewhere.pop(destination, None)
    if moves.is_coming(destination):
        return COMING, 0
    is_taken = not (moves.is_closed or command.is_sent_on) or destination.is_reserved or command.otherwise < 0
    if is_taken or (destination.is_temporary and not command.owner):
        return None
    if not destination.is_temporary:  # these are looked for everywhere, so that nothing is left of one that ends
        moves.elsewhere[destination] = (command.otherwise, state.sequence)
    return command.otherwise, state.sequence


def delete_destination(state: State, command: DeleteDestination, place: int, effects: list[Effect]) -> None:
    """A destination and all it holds are gone."""
    found = state.find(command.destination)
    if found.destination.is_reserved:
        raise AccessDenied(f"{found.destination} belongs to the system and cannot be deleted")
    state.delete(found, effects)


def set_policy(state: State, command: SetPolicy, place: int, effects: list[Effect]) -> None:
    """Another policy holds from now on; what has grown too old by it goes with the next Tick."""
    found = state.find(command.destination)
    _check_policy(found.destination, command.policy)
    _check_dead_letter(state, found.destination, command.policy)
    if command.policy.audit and command.destination in state.moves.leaving:
        raise Unavailable(f"{found.destination} is on its way to another channel; audit it when it is there")
    before = found.policy.dead_letter
    found.set_policy(command.policy)
    state.notice_policy(found, before)
    if isinstance(found, Queue):
        _let_go(found, found.drop_outdated(), "outdated", effects)
    if found.has_clock:
        state.awaiting.add(found.number)
    effects.append(Created(found.number, found.destination, command.policy))


def purge(state: State, command: Purge, place: int, effects: list[Effect]) -> None:
    """Everything a queue holds is let go, also for readers of the log; the answer has how many were pending.

    Whoever purges wants messages to be gone, and has no other way to take them from readers too.
    """
    queue = state.find_queue(command.destination)
    removed = queue.remove(0, 0, queue.next_position)
    queue.outgrow(queue.next_position)
    _let_go(queue, removed, "purged", effects)
    effects.append(Answer(place, sum(last - first + 1 for first, last in removed)))


def _let_go(queue: Queue, removed: list[Range], why: str, effects: list[Effect]) -> None:
    if removed:
        effects.append(Gone(queue.number, 0, [number for part in removed for number in part]))
        note(effects, queue, 0, AuditStage.DROPPED, removed, detail=why)


def _check_reserved(destination: Destination) -> None:
    if destination.is_reserved and destination not in SYSTEM:
        raise AccessDenied(f"names that begin with _ belong to the system; call {destination} something else")


def _check_count(state: State, command: CreateDestination) -> None:
    """Raises `Misuse` where there are as many as there may be. What the system needs is not counted out."""
    count, most = len(state.directory), command.destinations_max
    if most and count >= most and not command.destination.is_reserved:
        raise Misuse(
            f"{command.destination} is not created: its channel has {count} destinations and may have {most}; "
            "delete some, or raise destinations_max in the cluster file"
        )


def _check_policy(destination: Destination, policy: Policy) -> None:
    policy.check(destination)
    if policy.dead_letter is not None:
        dead_letter = Destination(DestinationKind.QUEUE, policy.dead_letter)
        dead_letter.check()
        _check_reserved(dead_letter)


def _check_dead_letter(state: State, destination: Destination, policy: Policy) -> None:
    """Raises `NoDeadLetterQueue` where a destination's dead messages could not go where its policy says.

    They stay in this log, and a name is on one channel only: so no such queue is made here without being asked for.
    """
    if policy.dead_letter is None:
        return
    wanted = Destination(DestinationKind.QUEUE, policy.dead_letter)
    if wanted not in state.numbers and wanted not in SYSTEM and wanted != destination:
        raise NoDeadLetterQueue(f"{wanted}, for the dead messages of {destination}, is not on the same channel")
