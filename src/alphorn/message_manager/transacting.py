"""Applies transactions: all that a session sent and received is done, or nothing.

One entry does it where one channel is involved (`TransactionCommit`). Otherwise each channel prepares: it checks
everything and sets it aside, so that whatever its home decides can be done. What is consumed must still be pending,
whoever holds it: so of two transactions that consume the same message one is rolled back, whatever was lost between.
A value that a newer one has replaced meanwhile was received all the same: it may be consumed, once as well.

Every step may come twice, and late. The session's newest transaction answers for itself; older ones are over.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from alphorn.message_manager.burial import expire
from alphorn.message_manager.effects import Answer, Effect, Finished, Gone
from alphorn.message_manager.noting import note
from alphorn.message_manager.publishing import check_batch, fullness_of, headers_for, refusal_of, room_of, store
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.segments import Run
from alphorn.message_manager.settling import acknowledge, give_back
from alphorn.message_manager.state import State, ranges_of
from alphorn.message_manager.topic import Topic
from alphorn.message_manager.transaction_state import Outcome, Record, Reserved, Staged
from alphorn.model.audit import AuditStage
from alphorn.model.commands import (
    CONNECTION_BYTES,
    COUNTER_MAX,
    Acknowledge,
    Command,
    Publish,
    Return,
    TransactionCommit,
    TransactionDecide,
    TransactionFinish,
    TransactionPrepare,
    TransactionSettle,
)
from alphorn.model.errors import Error, Misuse, PeerViolation, TransactionRolledBack
from alphorn.model.messages import Flag, headers_of
from alphorn.model.ranges import Range, RangeSet

CHANNELS_MAX = 1024
_SESSION_BYTES = CONNECTION_BYTES + 4
_LATE = "it was not prepared in time"

Group = TransactionCommit | TransactionPrepare  # commands that say what becomes of those after them
Members = Sequence[Command]


def commit_at_once(
    state: State, command: TransactionCommit, members: Members, place: int, effects: list[Effect]
) -> None:
    """Does all of it, or says why not; a transaction that is known already is answered as before."""
    known = _known(state, command)
    _check_whole(command, members)
    if known is None:
        try:
            _check(state, members)
        except Error as error:
            known = _roll_back(state, command, [], str(error))
        else:
            known = state.transactions.put(command.session, Record(counter=command.counter, outcome=Outcome.DONE))
            for at, member in enumerate(members, place + 1):
                _do(state, member, at, effects)
    _answer(known, place, effects)


def prepare(state: State, command: TransactionPrepare, members: Members, place: int, effects: list[Effect]) -> None:
    """Sets all of it aside, or says why not."""
    if not 0 < len(command.channels) <= CHANNELS_MAX:
        raise PeerViolation("a transaction names no channels, or impossibly many; nothing was prepared")
    known = _known(state, command)
    _check_whole(command, members)
    if known is None:
        try:
            _check(state, members, is_thorough=True)
        except Error as error:
            known = _roll_back(state, command, command.channels, str(error))
        else:
            record = Record(counter=command.counter, channels=command.channels, reserved=[], staged=[])
            for at, member in enumerate(members, place + 1):
                _set_aside(state, record, member, at, effects)
            known = state.transactions.put(command.session, record)
    _answer(known, place, effects)


def decide(state: State, command: TransactionDecide, place: int, effects: list[Effect]) -> None:
    """The first decision holds; this answers which it is, and finishes what was prepared here.

    Only what is prepared at home can be committed: so nothing is that was rolled back or forgotten before.
    """
    _check_name(command.session, command.counter)
    record = state.transactions.find(command.session)
    if record is None or record.counter < command.counter:
        record = _roll_back(state, command, command.channels, _LATE)
    if record.counter > command.counter:
        effects.append(Answer(place, Outcome.ROLLED_BACK))
        return
    if record.outcome is Outcome.PREPARED:
        record.is_open = command.is_commit
        _finish(state, command.session, record, place, effects, is_commit=command.is_commit)
    effects.append(Answer(place, int(record.outcome), reason=record.reason))


def finish(state: State, command: TransactionFinish, place: int, effects: list[Effect]) -> None:
    """Does as was decided. The answer is 1 where what was consumed has come back by it."""
    _check_name(command.session, command.counter)
    record = state.transactions.find(command.session)
    if record is None or record.counter < command.counter:
        if command.is_commit:
            raise PeerViolation("this transaction was not prepared here; nothing was done")
        record = _roll_back(state, command, [], _LATE)
    elif record.counter == command.counter and record.outcome is Outcome.PREPARED:
        _finish(state, command.session, record, place, effects, is_commit=command.is_commit)
    effects.append(Answer(place, int(record.counter == command.counter and record.has_come_back)))


def settle(state: State, command: TransactionSettle, place: int, effects: list[Effect]) -> None:
    """Every channel has finished."""
    record = state.transactions.find(command.session)
    if record is not None and record.counter == command.counter and record.is_open:
        record.is_open = False
        state.transactions.put(command.session, record)


def _known(state: State, command: Group) -> Record | None:
    """The record of a transaction that came before; None for a new one. Raises `Misuse` for one that is over."""
    _check_name(command.session, command.counter)
    record = state.transactions.find(command.session)
    if record is None or record.counter < command.counter:
        if record is not None and command.counter <= record.refused:
            return Record(counter=command.counter, outcome=Outcome.ROLLED_BACK, reason=_LATE)
        if record is not None and record.outcome is Outcome.PREPARED:
            raise Misuse(f"transaction {record.counter} of this session is not decided yet; wait for its outcome")
        if state.producers.is_over(command.session):
            raise Misuse(f"the session of transaction {command.counter} was closed; nothing of it is done any more")
        return None
    if record.counter > command.counter:
        raise Misuse(f"transaction {command.counter} of this session is over; {record.counter} came after it")
    return record


def _answer(record: Record, place: int, effects: list[Effect]) -> None:
    if record.outcome is Outcome.ROLLED_BACK:
        effects.append(Answer(place, error=TransactionRolledBack.__name__, reason=record.reason))
    else:
        effects.append(Answer(place, int(record.outcome)))


def _check_whole(command: Group, members: Members) -> None:
    if command.count != len(members):
        raise PeerViolation(f"a transaction of {command.count} commands has {len(members)}; nothing was done")


def _check_name(session: bytes, counter: int) -> None:
    if len(session) != _SESSION_BYTES or not 0 < counter < COUNTER_MAX:
        raise PeerViolation("a transaction names an impossible session or counter; nothing was done")


def _roll_back(
    state: State, command: Group | TransactionDecide | TransactionFinish, channels: list[int], reason: str
) -> Record:
    """A transaction of which nothing was done here is over. One before it that is still prepared here stays so."""
    record = Record(counter=command.counter, outcome=Outcome.ROLLED_BACK, reason=reason, channels=channels)
    known = state.transactions.find(command.session)
    if known is not None and known.outcome is Outcome.PREPARED:
        known.refused = max(known.refused, command.counter)
        return record
    return state.transactions.put(command.session, record)


def _check(state: State, members: Members, *, is_thorough: bool = False) -> None:
    """Raises an `Error` where not all of it can be done; `is_thorough` where it is to be done later."""
    sent: Counter[int] = Counter()
    consumed = _Consumption()
    for member in members:
        if isinstance(member, Acknowledge | Publish):
            _check_stays(state, member.destination, is_thorough=is_thorough)
        if isinstance(member, Acknowledge):
            destination, backlog = state.find_backlog(member.destination, member.subscription)
            for first, last in ranges_of(member.positions):
                pending = backlog.pending.intersection(first, last)
                if pending != [(first, last)] and not _were_replaced(destination, RangeSet([(first, last)]), pending):
                    raise TransactionRolledBack(
                        f"of messages {first} to {last} of {destination.destination} not all are there any more; "
                        "they expired, or others consumed them"
                    )
                for part in pending:
                    consumed.add(member.destination, member.subscription, *part)
        elif isinstance(member, Publish):
            check_batch(member)
            if member.flags & Flag.STREAM:
                raise PeerViolation("bodies that come in fragments are not part of transactions")
            sent[member.destination] += member.count
            found, count = state.destinations.get(member.destination), sent[member.destination]
            refusal = refusal_of(state, member.destination, count, consumed.counts, producer=member.producer)
            if refusal is not None or found is None:
                raise TransactionRolledBack(refusal[1] if refusal else "the destination is gone")
            if count > room_of(state, found, consumed.counts):
                raise TransactionRolledBack(fullness_of(found, state.occupied(found)))
            if is_thorough:
                headers_of(member.blob)
            else:
                headers_for(found, member)
        else:
            raise PeerViolation("a transaction sends and consumes messages, and nothing else")


def _were_replaced(destination: Queue | Topic, wanted: RangeSet, pending: list[Range]) -> bool:
    """Whether newer values took the place of all those that are not there any more, and nobody consumed them."""
    gone = wanted.difference(RangeSet(pending))
    return isinstance(destination, Queue) and not gone.difference(destination.replaced)


class _Consumption:
    """How many messages of which backlogs a transaction consumes; each counts once, however often it is named."""

    __slots__ = ("_positions", "counts")

    def __init__(self) -> None:
        self._positions: dict[tuple[int, int], RangeSet] = {}
        self.counts: Counter[tuple[int, int]] = Counter()  # by destination and subscription

    def add(self, destination: int, subscription: int, first: int, last: int) -> None:
        """These are consumed."""
        known = self._positions.setdefault((destination, subscription), RangeSet())
        again = sum(end - start + 1 for start, end in known.intersection(first, last))
        self.counts[destination, subscription] += last - first + 1 - again
        known.add(first, last)


def _check_stays(state: State, number: int, *, is_thorough: bool) -> None:
    """Raises where a destination is not here any more, or may have left before it is decided."""
    leaving = state.moves.leaving.get(number)
    if state.moves.home_of(number) is not None or (is_thorough and leaving is not None):
        raise TransactionRolledBack("a destination of it is on its way to another channel, or there; do it again")


def _do(state: State, member: Command, at: int, effects: list[Effect]) -> None:
    if isinstance(member, Acknowledge):
        acknowledge(state, member, at, effects)
    elif isinstance(member, Publish):
        _store(state, Staged(state.sequence, at, member), effects)


def _store(state: State, staged: Staged, effects: list[Effect]) -> None:
    batch = staged.batch
    destination = state.destinations.get(batch.destination)
    if destination is None:
        return  # deleted since it was prepared, with all that it held
    position, size = destination.next_position, len(batch.blob)
    run = Run(staged.sequence, staged.place, 0, batch.count, position, size, arrival=state.sequence)
    store(state, destination, batch, run, headers_for(destination, batch), effects)


def _set_aside(state: State, record: Record, member: Command, at: int, effects: list[Effect]) -> None:
    if isinstance(member, Publish):
        own = msgspec.structs.replace(member, blob=memoryview(bytes(member.blob)))
        state.transactions.stage(record, Staged(state.sequence, at, own))
    elif isinstance(member, Acknowledge):
        destination, _ = state.find_backlog(member.destination, member.subscription)
        for first, last in ranges_of(member.positions):
            pieces, keys = destination.reserve(member.subscription, first, last)
            record.reserved.append(Reserved(member.destination, member.subscription, member.consumer, pieces, keys))
        effects.append(Gone(member.destination, member.subscription, list(member.positions)))


def _finish(
    state: State, session: bytes, record: Record, place: int, effects: list[Effect], *, is_commit: bool
) -> None:
    reserved, record.reserved = record.reserved, []
    staged = state.transactions.unstage(record)
    record.outcome = Outcome.DONE if is_commit else Outcome.ROLLED_BACK
    if not is_commit:
        record.reason, record.has_come_back = "it was not decided in time, or a channel could not do its part", True
    for part in reserved:
        _end_reservation(state, part, place, effects, is_commit=is_commit)
    for batch in staged if is_commit else ():
        _store(state, batch, effects)
    state.transactions.put(session, record)
    involved = {part.destination for part in reserved}.union(each.batch.destination for each in staged)
    for number in sorted(involved):
        found = state.directory.get(number)
        if found is not None and found.policy.max_length:
            effects.append(Finished(number))


def _end_reservation(state: State, part: Reserved, place: int, effects: list[Effect], *, is_commit: bool) -> None:
    destination = state.destinations.get(part.destination)
    backlog = destination.backlog_of(part.subscription) if destination is not None else None
    if destination is None or backlog is None:
        return  # deleted meanwhile, with all that it held
    if is_commit:
        for piece in part.pieces:
            backlog.use_up(piece)
        consumed = [(piece.first, piece.last) for piece in part.pieces]
        note(effects, destination, part.subscription, AuditStage.ACKNOWLEDGED, consumed, consumer=part.consumer)
        return
    lapsed, back = RangeSet(), RangeSet()
    for piece in part.pieces:
        back.add(piece.first, piece.last)
        for first, last in backlog.unreserve(piece):
            lapsed.add(first, last)
    if isinstance(destination, Queue):
        destination.restore_keys(part.keys)
    if lapsed:
        expire(state, destination, lapsed, effects, {part.subscription: lapsed})
    give_back(state, Return(part.destination, part.subscription, part.consumer, back.flat()), place, effects)
