"""Applies what brings a destination to this channel: `Expect`, `Carried`, `Arrive` and `Settle`.

Several may carry the same destination after a failure, each from what is here on. Messages come in order of their
positions, so whatever ends at or before the last one is here already; pieces of the rest belong to one attempt, and a
new attempt begins anew.
"""

from alphorn.message_manager import restoring
from alphorn.message_manager.effects import Answer, Created, Effect, Landed, Settled
from alphorn.message_manager.moves import Incoming
from alphorn.message_manager.parts import settle_dead_letters
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.schedule import Item
from alphorn.message_manager.segments import Run
from alphorn.message_manager.state import State
from alphorn.message_manager.ticking import review_later
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import Arrive, Carried, Expect, Settle
from alphorn.model.destinations import DestinationKind
from alphorn.model.errors import Corruption, InvalidDestination, Misuse, Unavailable


def expect(state: State, command: Expect, place: int, effects: list[Effect]) -> None:
    """Gives the number of a destination on its way here, new or not, and the position it was carried through."""
    command.destination.check()
    home, outdated = (command.channel, command.number), 0
    for number, incoming in state.moves.incoming.items():
        if incoming.made.destination == command.destination:
            if incoming.home != home:
                if incoming.home[0] == home[0] and incoming.home[1] > home[1]:
                    raise Misuse(f"a newer {command.destination} is on its way here; this one was deleted")
                # What came is of another one that had this name and was deleted before it left. This one has a number
                # of its own, so that what is still carried of that one does not get among its messages.
                outdated = number
                break
            effects.append(Answer(place, number, position=incoming.through))
            return
    for number, came in state.moves.came.items():
        if came[:2] == home:
            effects.append(Answer(place, number, position=-1))
            return
    if command.destination in state.numbers:
        raise Misuse(f"there is another {command.destination} where it was to go; delete one of them first")
    if state.moves.is_closed:  # what came after it was drained would be lost when it is removed
        raise Misuse(f"the channel where {command.destination} was to go takes none; open it first, or choose another")
    _check_names(state, command)
    state.moves.incoming.pop(outdated, None)
    number = state.next_number
    state.next_number += 1
    is_queue = command.destination.kind is DestinationKind.QUEUE
    made = (Queue if is_queue else Topic)(number, command.destination, command.policy)
    state.moves.incoming[number] = Incoming(home, made, command.names)
    effects.append(Answer(place, number))


def carried(state: State, command: Carried, place: int, effects: list[Effect]) -> None:
    """Messages of a destination on its way here; those that are here already change nothing."""
    incoming = _find(state, command.destination)
    last = command.position + command.count - 1
    skip = max(0, incoming.through + 1 - command.position)
    if skip >= command.count:
        return
    count = command.count - skip
    size = len(command.blob) * count // command.count
    incoming.made.segments.append(Run(state.sequence, place, skip, count, command.position + skip, size))
    incoming.through = last


def arrive(state: State, command: Arrive, place: int, effects: list[Effect]) -> None:
    """A piece of the rest; the last one brings the destination into the directory."""
    number = command.destination
    if number in state.moves.came:
        return  # another attempt was first
    incoming = _find(state, number)
    if command.piece == 0:
        incoming.attempt, incoming.pieces = command.attempt, []
    if command.attempt != incoming.attempt or command.piece != len(incoming.pieces):
        raise Unavailable("another attempt carries this destination; leave it to that one")
    incoming.pieces.append(command.records)
    if command.is_last:
        _land(state, number, incoming, command.channels, effects)


def settle_landing(state: State, command: Settle, place: int, effects: list[Effect]) -> None:
    """Whoever had messages of a destination that has come here has said so."""
    if state.moves.landing.pop(command.destination, None) is not None:
        effects.append(Settled(command.destination))


def _check_names(state: State, command: Expect) -> None:
    """Raises `Misuse` where a name is taken here, or by another topic on its way."""
    for name in command.names:
        if name in state.names or state.moves.bringer_of(name) not in (None, command.destination):
            raise Misuse(
                f"client {name[1]!r} has a subscription {name[2]!r} where {command.destination} was to go; "
                "end one of the two first"
            )


def _find(state: State, number: int) -> Incoming:
    incoming = state.moves.incoming.get(number)
    if incoming is None:
        raise InvalidDestination(f"no destination {number} is on its way here; expect it first")
    return incoming


def _land(state: State, number: int, incoming: Incoming, channels: list[str], effects: list[Effect]) -> None:
    """Everything that was known of the destination there is known here, under its number here."""
    pieces, incoming.pieces, incoming.attempt = incoming.pieces, [], b""
    there = restoring.read(record for records in pieces for record in records)
    source_number = incoming.home[1]
    found, landing = there.destinations.get(source_number), there.moves.landing.get(source_number)
    if found is None or landing is None:
        raise Corruption(f"what was carried of {incoming.made.destination} is something else")
    found.number, found.segments = number, incoming.made.segments
    _check_whole(found)
    found.segments.arrive(state.sequence)
    found.kept_from = state.sequence  # numbers of the other log mean nothing here
    found.count_bytes()
    state.add(found)
    if found.producers is not None:
        for connection in list(found.producers.plain):
            found.producers.drop(connection, state.producers.is_over)  # those that were closed while it was on its way
    if isinstance(found, Topic):
        for subscription in found.subscriptions.values():
            state.name(found, subscription)
    for item in there.schedule.live():
        state.schedule.push(Item(item.due_ms, item.kind, number, *item[3:]))
    state.returning += [(number, each[1], each[2], each[3]) for each in there.returning]
    if there.awaiting:
        state.awaiting.add(number)
    del state.moves.incoming[number]
    state.moves.elsewhere.pop(found.destination, None)
    state.moves.landing[number] = landing
    landing.home = incoming.home
    state.moves.came[number] = (*incoming.home, state.sequence)
    _bring_writers(state, there, source_number, number)
    found.sweep()
    review_later(state, found)
    settle_dead_letters(state, found, channels, effects)
    effects.append(Created(number, found.destination, found.policy))
    effects.append(Landed(number))


def _bring_writers(state: State, there: State, source_number: int, number: int) -> None:
    """What writers have published of the destination there they do not publish of it here."""
    for name, writer in there.writers:
        if source_number in writer.into:
            state.writers.use(name).note(number, writer.into[source_number])


def _check_whole(found: Queue | Topic) -> None:
    """Raises `Corruption` where a message that may still be given out was not carried."""
    for positions in found.needed():
        count = sum(run.count for first, last in positions for run in found.segments.runs(first, last))
        if count != len(positions):
            raise Corruption(
                f"{len(positions) - count} messages of {found.destination} were not carried; carry it anew"
            )
