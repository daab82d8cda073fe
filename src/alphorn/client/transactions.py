"""The transactions of a session, on the client's side: nothing leaves before `commit`, and then all of it at once.

What producers send waits in their outboxes; what consumers were handed stays held. `commit` puts both into one frame,
which is repeated on another stream until its answer comes: so a client that was cut off finds out what became of it.
`roll_back` drops what waits and gives back what is held; servers need not hear of the rest.

Whoever commits may be interrupted and not hear the answer. A transaction that was not done dooms the next one, which
may rest on it, unless the program has heard so.

A consumer or producer that the program closes before the transaction is over leaves with it. A consumer that the
server closes takes its messages along: then the transaction can only be rolled back.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from alphorn.client.flow import SessionState
from alphorn.client.inbox import Inbox
from alphorn.client.outbox import Outbox
from alphorn.client.pattern_inbox import PatternInbox
from alphorn.client.refusals import again
from alphorn.doors.native import LENGTH_BYTES
from alphorn.model.conversation import CommitTransaction, Done, Resolve, Return
from alphorn.model.errors import Error, Misuse, TransactionRolledBack, UnknownOutcome
from alphorn.model.messages import BATCH_BYTES_MAX

if TYPE_CHECKING:
    from alphorn.client.core import Core
    from alphorn.client.requests import Answer, OnAnswer


def commit(core: "Core", session: SessionState, now_ms: int, on_answer: "OnAnswer") -> None:
    """All that the session sent and received since its last transaction is done, or nothing: the answer tells."""
    transaction = session.transaction
    assert transaction is not None
    if transaction.is_committing:
        on_answer(Misuse("this session commits already; one thread at a time ends its transactions"))
        return
    if stale := [outbox for outbox in _outboxes(session) if outbox.waiting and outbox.is_stale]:
        _find_again(core, session, stale, lambda: commit(core, session, now_ms, on_answer))
        return
    publishes: list[Any] = []
    for outbox in _outboxes(session):
        publishes += [msgspec.Raw(frame[LENGTH_BYTES:]) for frame in outbox.pack(now_ms)]
    size = sum(len(bytes(publish)) for publish in publishes)
    if size > BATCH_BYTES_MAX and transaction.doom is None:
        transaction.doom = TransactionRolledBack(
            f"a transaction of {size} bytes is too large; at most {BATCH_BYTES_MAX} go at once, so commit more often"
        )
    if transaction.doom is not None:
        error = again(transaction.doom)
        roll_back(core, session)
        transaction.doom = error
        on_answer(error)
        return
    inboxes = [inbox for inbox in session.inboxes.values() if inbox.has_consumed]
    consumed = [(inbox.number, inbox.consume.place, inbox.consume_handed()) for inbox in inboxes]
    if not publishes and not consumed:
        _end(core, session)
        on_answer(Done(0))
        return

    def on_committed(answer: "Answer | Error") -> None:
        transaction.is_committing = False
        transaction.counter += 1
        error = _reason(core, answer)
        for outbox in _outboxes(session):
            outbox.on_transaction(error)
        for inbox, (_, _, positions) in zip(inboxes, consumed, strict=True):
            inbox.on_acknowledged(positions)
        for inbox in session.inboxes.values() if error is not None else ():
            inbox.recover()
        _end(core, session)
        transaction.doom = error
        on_answer(answer if error is None else error)

    transaction.is_committing = True
    counter = transaction.counter
    core.request(lambda request: CommitTransaction(request, session.number, counter, publishes, consumed), on_committed)


def note_told(session: SessionState) -> None:
    """The program has heard why its transaction was not done; the next one knows nothing of it."""
    assert session.transaction is not None
    session.transaction.doom = None


def _find_again(core: "Core", session: SessionState, stale: list[Outbox], then: Callable[[], None]) -> None:
    """Destinations that were deleted are looked for, and created, before something is sent there."""
    transaction = session.transaction
    assert transaction is not None
    transaction.is_committing = True
    left = len(stale)

    def on_answer(outbox: Outbox, answer: "Answer | Error") -> None:
        nonlocal left
        outbox.on_found(outbox.place if isinstance(answer, Error) else core.remember_place(outbox.destination, answer))
        left -= 1
        if not left:
            transaction.is_committing = False
            then()

    for outbox in stale:
        core.request(partial(_resolve, outbox.destination), partial(on_answer, outbox))


def _resolve(destination: str, request: int) -> Resolve:
    return Resolve(request, destination)


def roll_back(core: "Core", session: SessionState) -> None:
    """Nothing of the open transaction is done: what was sent is dropped, what was received comes back."""
    transaction = session.transaction
    assert transaction is not None
    if transaction.is_committing:
        raise Misuse("this session's transaction is being committed; wait for its outcome")
    drop_sent(session)
    for inbox in session.inboxes.values():
        inbox.recover()
    _end(core, session)


def drop_sent(session: SessionState) -> None:
    """What waits to be sent never will be."""
    error = TransactionRolledBack("the transaction that this message was part of was rolled back; send it again")
    for outbox in _outboxes(session):
        outbox.drop_waiting(error)
        outbox.on_transaction(error)


def postpone_closing(core: "Core", inbox: Inbox) -> bool:
    """Whether a consumer must stay until its session's transaction is over; it gets and hands out nothing more."""
    session = core.sessions.get(inbox.session)
    transaction = session.transaction if session is not None else None
    if transaction is None or not (inbox.has_consumed or transaction.is_committing):
        return False
    if inbox not in transaction.leaving:
        transaction.leaving.append(inbox)
        for part in list(inbox.joined.values()) if isinstance(inbox, PatternInbox) else [inbox]:
            unseen = part.let_go_unseen()
            core.regulate(part)  # first, or it would get again what it gives back
            if unseen:
                core.request(partial(return_unseen, part.number, unseen), lambda answer: None)
        if isinstance(inbox, PatternInbox):
            inbox.close()
    return True


def return_unseen(consumer: int, positions: list[int], request: int) -> Return:
    """What the program was never handed comes back."""
    return Return(request, consumer, positions, is_unseen=True)


def note_lost(session: SessionState | None, inbox: Inbox) -> None:
    """A consumer is gone; if it takes messages of the open transaction along, that cannot be committed any more."""
    transaction = session.transaction if session is not None else None
    if transaction is not None and inbox.has_consumed and inbox not in transaction.leaving:
        reason = inbox.failure or "its consumer was closed"
        transaction.doom = TransactionRolledBack(f"messages from {inbox.destination} are gone: {reason}")


def _outboxes(session: SessionState) -> list[Outbox]:
    return [outbox for outbox in session.outboxes.values() if isinstance(outbox, Outbox)]


def _reason(core: "Core", answer: "Answer | Error") -> Error | None:
    """Why a transaction was not done; None when it was."""
    if not isinstance(answer, Error):
        return None
    if core.failure is not None:
        return UnknownOutcome(f"whether the transaction was committed cannot be found out any more: {answer}")
    return answer


def _end(core: "Core", session: SessionState) -> None:
    """The next transaction begins; who was to leave with the last one does so."""
    transaction = session.transaction
    assert transaction is not None
    transaction.doom = None
    leaving, transaction.leaving = transaction.leaving, []
    if core.failure is not None:
        return
    for inbox in leaving:
        core.close_inbox(inbox, lambda answer: None)
    for outbox in [outbox for outbox in _outboxes(session) if not outbox.is_open]:
        core.close_outbox(outbox)
