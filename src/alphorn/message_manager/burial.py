"""Dead messages: moved to a dead letter queue, not copied, and back from there.

A dead message gets a new position whose segment points at the log entry it was published in, and a history that says
where it was and why it died. A message dies once: one that is dead already is let go, so nothing goes in circles.
Expired messages of volatile subscriptions are let go as well; their consumers came for what is new.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from alphorn.message_manager.backlog import Piece
from alphorn.message_manager.effects import Answer, Arrived, Effect, Gone, Lapsed
from alphorn.message_manager.histories import History
from alphorn.message_manager.noting import note
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.segments import Run
from alphorn.message_manager.state import State, ranges_of
from alphorn.message_manager.topic import Topic
from alphorn.model.audit import AuditStage
from alphorn.model.commands import Redrive
from alphorn.model.destinations import DEAD_MESSAGES, Destination, DestinationKind, Policy, parse_destination
from alphorn.model.errors import InvalidDestination
from alphorn.model.ranges import Range, RangeSet

EXPIRED = "expired"
DELIVERY_LIMIT = "delivery limit"
REJECTED = "rejected"


def expire(
    state: State,
    destination: Queue | Topic,
    positions: RangeSet,
    effects: list[Effect],
    held: Mapping[int, RangeSet] | None = None,
    kept: Mapping[int, RangeSet] | None = None,
) -> None:
    """The time of these messages is over, for all who had not consumed them.

    What consumers have (`kept`, by subscription) was received in time, and dies only when it comes back. What they may
    have had before (`held`) was delivered once more, and may have been used.
    """
    for number, backlog in destination.backlogs():
        theirs = held.get(number) if held else None
        for first, last in positions.common(theirs) if theirs else ():
            backlog.give_back(first, last)
        for first, last in positions if backlog.reserved else ():
            backlog.lapse(first, last)
        spared = positions.common(kept[number]) if kept and number in kept else RangeSet()
        fresh = [part for first, last in spared for part in backlog.spare(first, last)]
        if fresh:
            effects.append(Lapsed(destination.number, number, [position for part in fresh for position in part]))
        dying = positions.difference(spared) if spared else positions
        for first, last in dying.common(backlog.lapsed) if backlog.lapsed else ():
            backlog.give_back(first, last)  # a consumer had it
        parts = [part for first, last in dying for part in backlog.pending.intersection(first, last)]
        if parts:
            let_die(state, destination, number, parts, effects)
    if isinstance(destination, Topic):
        for first, last in positions:
            destination.let_go(first, last)


def let_die(
    state: State, destination: Queue | Topic, subscription: int, parts: list[Range], effects: list[Effect]
) -> None:
    """The time of these pending messages is over, and nobody has them."""
    if isinstance(destination, Topic) and not destination.subscriptions[subscription].is_durable:
        note(effects, destination, subscription, AuditStage.DEAD, parts, detail=EXPIRED)
        _let_go(destination, subscription, parts, effects)
    else:
        bury(state, destination, subscription, parts, EXPIRED, effects)


def bury(
    state: State,
    destination: Queue | Topic,
    subscription: int,
    parts: list[Range],
    reason: str,
    effects: list[Effect],
) -> None:
    """These pending messages are dead."""
    backlog = destination.backlog_of(subscription)
    assert backlog is not None
    arrivals = Arrivals(state)
    for piece in [piece for part in parts for piece in backlog.pieces(*part)]:
        for first, last in _dying(destination, piece):
            target = _dead_letter_queue(state, destination, effects)
            if target is destination:
                continue
            start = target.next_position
            arrivals.move(destination, Piece(first, last, piece.deliveries, piece.priority), target, 0)
            name, made_at = str(destination.destination), _made_at(destination, subscription)
            history = History(name, reason, piece.deliveries, state.now_ms, subscription, made_at)
            target.histories.append(start, target.next_position - 1, history)
    note(effects, destination, subscription, AuditStage.DEAD, parts, detail=reason)
    _let_go(destination, subscription, parts, effects)
    arrivals.announce(effects)


def redrive(state: State, command: Redrive, place: int, effects: list[Effect]) -> None:
    """Dead messages go back where they came from; no positions are all. The answer has how many did, or who cannot.

    Expired ones go on with their counts: a program may have used them, and must hear that they come again.
    """
    queue = state.find_queue(command.destination)
    ranges = RangeSet(ranges_of(command.positions) or [(0, queue.next_position)])
    parts = [part for first, last in ranges for part in queue.backlog.pending.intersection(first, last)]
    arrivals = Arrivals(state, is_return=True)
    missing: Counter[str] = Counter()  # where messages died that cannot go back
    gone = RangeSet()
    for piece in [piece for part in parts for piece in queue.backlog.pieces(*part)]:
        for first, last, history in queue.histories.split(piece.first, piece.last):
            if history is None:
                continue
            target = _origin(state, history)
            if target is None:
                missing[history.destination] += last - first + 1
                continue
            deliveries = history.deliveries if history.reason == EXPIRED else 0
            arrivals.move(queue, Piece(first, last, deliveries, piece.priority), target, history.subscription)
            gone.add(first, last)
    if gone:
        _let_go(queue, 0, list(gone), effects)
    arrivals.announce(effects)
    if missing:
        reason = (
            f"{len(gone)} of {len(gone) + missing.total()} dead messages went back; the others stay in "
            f"{queue.destination}, because {min(missing)} or the subscription to it is gone; receive or purge them"
        )
        effects.append(Answer(place, error=InvalidDestination.__name__, reason=reason))
    else:
        effects.append(Answer(place, len(gone)))


class Arrivals:
    """Moves messages between destinations and remembers which have arrived where.

    Last value queues keep one message of each key: of those that are moved the last, and where messages return
    (`is_return`) rather what the target has got since they left.
    """

    __slots__ = ("_found", "_is_return", "_replaced", "_starts", "_state")

    def __init__(self, state: State, *, is_return: bool = False) -> None:
        self._state = state
        self._is_return = is_return
        self._found: dict[tuple[int, int], RangeSet] = {}
        self._starts: dict[int, int] = {}  # target → the position of the first message that was moved there
        self._replaced: dict[int, RangeSet] = {}  # target → what it had before and has no more

    def move(self, source: Queue | Topic, piece: Piece, target: Queue | Topic, subscription: int) -> None:
        """Puts messages behind all others of the target; the source still has them."""
        keys = source.keys if isinstance(source, Queue) else {}
        arrival = self._state.sequence
        self._starts.setdefault(target.number, target.next_position)
        for run in source.segments.runs(piece.first, piece.last):
            first = target.next_position
            last = target.store(Run(run.sequence, run.command, run.index, run.count, first, run.size, arrival))
            backlog = target.backlog_of(subscription)
            assert backlog is not None
            if isinstance(target, Topic):
                backlog.arrive(first, last)
            backlog.prioritise(first, last, piece.priority)
            if self._is_return:
                backlog.count_deliveries(first, last, piece.deliveries)
            if keys and isinstance(target, Queue):
                self._move_keys(keys, run, target, first)
            if target.has_clock:
                self._state.awaiting.add(target.number)
            self._found.setdefault((target.number, subscription), RangeSet()).add(first, last)

    def announce(self, effects: list[Effect]) -> None:
        """Says what arrived, and what was replaced by it."""
        for number, replaced in sorted(self._replaced.items()):
            target = self._state.destinations[number]
            assert isinstance(target, Queue)
            target.note_replaced(replaced)
            effects.append(Gone(number, 0, replaced.flat()))
            note(effects, target, 0, AuditStage.DROPPED, list(replaced), detail="replaced")
        for (number, subscription), positions in sorted(self._found.items()):
            backlog = self._state.destinations[number].backlog_of(subscription)
            assert backlog is not None
            for first, last in positions:
                effects += [Arrived(number, subscription, *part) for part in backlog.ready(first, last)]

    def _move_keys(self, keys: dict[int, str], run: Run, target: Queue, first: int) -> None:
        for offset in range(run.count):
            key = keys.get(run.position + offset)
            if key is None:
                continue
            other = target.latest.get(key)
            was_there = other is not None and other < self._starts[target.number]
            if was_there and self._is_return:
                target.remove(0, first + offset, first + offset)
                continue
            target.set_key(first + offset, key)
            if other is not None:
                target.remove(0, other, other)
                if was_there:
                    self._replaced.setdefault(target.number, RangeSet()).add(other, other)


def _made_at(destination: Queue | Topic, subscription: int) -> int:
    return destination.subscriptions[subscription].made_at if isinstance(destination, Topic) else 0


def _origin(state: State, history: History) -> Queue | Topic | None:
    """Where a message died, if that is still there.

    A queue is known by its name. A topic that was deleted and created again counts its subscriptions anew, so one is
    the same only if it was made by the same log entry.
    """
    number = state.numbers.get(parse_destination(history.destination))
    found = state.destinations.get(number) if number is not None else None
    if found is None or found.backlog_of(history.subscription) is None:
        return None
    return found if _made_at(found, history.subscription) == history.made_at else None


def _dying(destination: Queue | Topic, piece: Piece) -> Iterable[Range]:
    """Those of these messages that are not dead already."""
    if isinstance(destination, Topic) or not destination.histories:
        return [(piece.first, piece.last)]
    split = destination.histories.split(piece.first, piece.last)
    return [(first, last) for first, last, history in split if history is None]


def _dead_letter_queue(state: State, destination: Queue | Topic, effects: list[Effect]) -> Queue:
    """Where the dead messages of a destination go: the system's own queue takes the place of one that is not here.

    That was deleted, or one of the two was moved. It is not made anew: its name may belong to another channel.
    """
    named = Destination(DestinationKind.QUEUE, destination.policy.dead_letter or DEAD_MESSAGES)
    system = Destination(DestinationKind.QUEUE, DEAD_MESSAGES)
    number = state.numbers.get(named, state.numbers.get(system))
    found = state.create(system, Policy(), b"", effects) if number is None else state.destinations[number]
    assert isinstance(found, Queue)
    return found


def _let_go(destination: Queue | Topic, subscription: int, parts: list[Range], effects: list[Effect]) -> None:
    for first, last in parts:
        destination.remove(subscription, first, last)
    effects.append(Gone(destination.number, subscription, [number for part in parts for number in part]))
