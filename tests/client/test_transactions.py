"""Transactions in the client's core: nothing leaves before commit, and then all of it, until the answer comes."""

import pytest

from alphorn.client import transactions
from alphorn.client.flow import SessionState
from alphorn.client.inbox import AckMode, Inbox
from alphorn.client.outbox import Outbox
from alphorn.client.packing import pack_body
from alphorn.client.requests import REMEMBERED_S, Answer
from alphorn.model import conversation as c
from alphorn.model.errors import Error, InvalidDestination, Misuse, TransactionRolledBack, Unavailable, UnknownOutcome
from tests.client.test_core import Script, bodies, delivered, kinds


class Transacted(Script):
    """A transacted session with a producer, and a consumer that was given four messages."""

    def __init__(self) -> None:
        super().__init__()
        self.session: SessionState = self.core.open_session(AckMode.TRANSACTED)
        self.outbox: Outbox = self.core.open_outbox(self.session, 7, is_persistent=True)
        self.inbox: Inbox = self.open_consumer()
        self.hear(c.Done(self.said_of(c.Consume).request), delivered(self.inbox, 1, 4))
        self.outcomes: list[Answer | Error] = []

    def open_consumer(self) -> Inbox:
        consume = c.Consume(0, 0, 0, 7, 100)
        return self.core.open_inbox(self.session, consume, "queue:q", self.answers.append)

    def said_of(self, kind: type) -> c.AnyClientFrame:  # type: ignore[type-arg]
        [found] = [frame for frame in self.said() if isinstance(frame, kind)]
        return found  # type: ignore[return-value]

    def send(self, body: object) -> int:
        return self.outbox.add_plain(pack_body(body))

    def commit(self) -> None:
        transactions.commit(self.core, self.session, 1000, self.outcomes.append)

    def commit_frame(self) -> c.CommitTransaction:
        self.commit()
        frame = self.said_of(c.CommitTransaction)
        assert isinstance(frame, c.CommitTransaction)
        return frame


@pytest.fixture
def script() -> Transacted:
    return Transacted()


@pytest.mark.requirement("TX-1", "TX-4", "API-13")
def test_everything_leaves_in_one_frame_and_nothing_before(script: Transacted) -> None:
    assert bodies(script.inbox, 2) == [1, 2]
    counter = script.send("x")
    assert script.said() == []
    assert not script.core.has_output
    frame = script.commit_frame()
    assert (frame.session, frame.counter) == (script.session.number, 1)
    assert frame.consumed == [(script.inbox.number, 7, [1, 2])]
    [publish] = frame.publishes
    assert (publish.producer, publish.counter, publish.count, publish.place) == (script.outbox.number, 1, 1, 7)
    assert script.outbox.outcome(counter) is False
    script.hear(c.Done(frame.request))
    assert script.outbox.outcome(counter) is True
    assert script.outcomes == [c.Done(frame.request)]
    assert script.inbox.held.flat() == [3, 4]


@pytest.mark.requirement("API-11", "API-12")
def test_a_transaction_without_an_answer_is_asked_again_with_what_it_consumes_held(script: Transacted) -> None:
    bodies(script.inbox, 2)
    script.send("x")
    frame = script.commit_frame()
    script.cut()
    script.resolve()
    opened, consume, again = script.said()
    assert isinstance(consume, c.Consume)
    assert consume.held == [1, 4]
    assert isinstance(again, c.CommitTransaction)
    assert (again.request, again.counter, again.consumed) == (frame.request, frame.counter, frame.consumed)
    assert kinds([opened]) == ["OpenSession"]
    script.hear(c.Done(consume.request), c.Done(again.request))
    assert len(script.outcomes) == 1


def test_every_transaction_of_a_session_has_a_larger_counter(script: Transacted) -> None:
    for counter in (1, 2):
        script.send("x")
        frame = script.commit_frame()
        assert frame.counter == counter
        script.hear(c.Done(frame.request))


def test_a_transaction_with_nothing_in_it_asks_nobody(script: Transacted) -> None:
    script.commit()
    assert script.said() == []
    assert script.outcomes == [c.Done(0)]


def test_what_is_rolled_back_is_not_sent_and_comes_again_in_order(script: Transacted) -> None:
    bodies(script.inbox, 2)
    counter = script.send("x")
    transactions.roll_back(script.core, script.session)
    [recover] = script.said()
    assert isinstance(recover, c.Recover)
    assert (recover.seen, recover.unseen) == ([1, 2], [3, 4])
    script.hear(c.Done(recover.request))
    assert isinstance(script.outbox.outcome(counter), TransactionRolledBack)
    assert script.outbox.has_room
    script.send("y")
    assert script.commit_frame().publishes[0].counter == 2


def test_a_refused_transaction_gives_back_what_is_prefetched_and_begins_anew(script: Transacted) -> None:
    bodies(script.inbox, 2)
    counter = script.send("x")
    frame = script.commit_frame()
    script.hear(c.Failed(frame.request, "TransactionRolledBack", "queue:q is full"))
    [error] = script.outcomes
    assert isinstance(error, TransactionRolledBack)
    assert isinstance(script.outbox.outcome(counter), TransactionRolledBack)
    [back] = script.said()
    assert isinstance(back, c.Recover)
    assert (back.seen, back.unseen) == ([], [3, 4])  # the server sees to what was consumed
    script.hear(c.Done(back.request), delivered(script.inbox, 1, 2, delivery_count=2))
    assert bodies(script.inbox) == [1, 2]


def test_what_comes_to_a_consumer_that_leaves_with_its_transaction_goes_back_uncounted(script: Transacted) -> None:
    bodies(script.inbox, 2)
    script.core.close_inbox(script.inbox, script.answers.append)
    script.said()
    script.hear(delivered(script.inbox, 5, 2))
    [back] = script.said()
    assert isinstance(back, c.Return)
    assert (back.positions, back.is_unseen) == ([5, 6], True)
    script.hear(c.Done(back.request))
    transactions.roll_back(script.core, script.session)
    assert kinds(script.said()) == ["Recover", "CloseConsumer"]
    script.hear(delivered(script.inbox, 7, 2))
    assert script.said() == []


def test_a_consumer_that_leaves_with_its_transaction_gets_nothing_on_another_stream_either(script: Transacted) -> None:
    bodies(script.inbox, 2)
    script.core.close_inbox(script.inbox, script.answers.append)
    script.cut()
    script.resolve()
    again = script.said()
    [consume] = [frame for frame in again if isinstance(frame, c.Consume)]
    assert consume.held == [1, 4]  # what it gives back is repeated after this
    assert again[-1] == c.Regulate(script.inbox.number, True)


def test_a_consumer_closed_by_the_program_leaves_with_its_transaction(script: Transacted) -> None:
    bodies(script.inbox, 2)
    script.core.close_inbox(script.inbox, script.answers.append)
    regulate, back = script.said()
    assert regulate == c.Regulate(script.inbox.number, True), "or it would get again what it gives back"
    assert isinstance(back, c.Return)
    assert (back.positions, back.is_unseen) == ([3, 4], True)
    frame = script.commit_frame()
    assert frame.consumed == [(script.inbox.number, 7, [1, 2])]
    script.hear(c.Done(frame.request))
    assert kinds(script.said()) == ["CloseConsumer"]


def test_a_producer_closed_by_the_program_leaves_with_its_transaction(script: Transacted) -> None:
    script.send("x")
    script.core.close_outbox(script.outbox)
    frame = script.commit_frame()
    assert len(frame.publishes) == 1
    script.hear(c.Done(frame.request))
    assert script.session.outboxes == {}


def test_a_consumer_that_the_server_closes_dooms_the_transaction(script: Transacted) -> None:
    bodies(script.inbox, 1)
    script.send("x")
    script.hear(c.ConsumerClosed(script.inbox.number, InvalidDestination.__name__, "queue:q was deleted"))
    script.commit()
    [error] = script.outcomes
    assert isinstance(error, TransactionRolledBack)
    assert "queue:q was deleted" in str(error)
    assert "CommitTransaction" not in kinds(script.said())
    transactions.note_told(script.session)
    script.send("y")
    assert script.commit_frame().publishes[0].counter == 2


def test_a_second_commit_while_one_is_under_way_is_refused(script: Transacted) -> None:
    script.send("x")
    script.commit_frame()
    script.commit()
    assert isinstance(script.outcomes[0], Misuse)
    with pytest.raises(Misuse, match="wait for its outcome"):
        transactions.roll_back(script.core, script.session)


@pytest.mark.parametrize("is_told", [True, False])
def test_that_a_transaction_was_not_done_dooms_the_next_one_unless_the_program_has_heard_it(
    script: Transacted, is_told: bool
) -> None:
    script.send("x")
    frame = script.commit_frame()
    script.hear(c.Failed(frame.request, "TransactionRolledBack", "queue:q is full"))
    if is_told:
        transactions.note_told(script.session)
    script.said()
    script.send("y")
    script.commit()
    assert ("CommitTransaction" in kinds(script.said())) is is_told
    assert len(script.outcomes) == (1 if is_told else 2)
    assert all(isinstance(outcome, TransactionRolledBack) for outcome in script.outcomes)


def test_what_was_not_heard_of_a_transaction_that_looked_for_its_destination_dooms_the_next_one(
    script: Transacted,
) -> None:
    script.outbox.destination = "queue:q"
    script.outbox.on_vanished()
    bodies(script.inbox, 1)
    script.send("x")
    script.commit()
    resolve = script.said_of(c.Resolve)
    assert isinstance(resolve, c.Resolve)
    script.hear(c.ConsumerClosed(script.inbox.number, InvalidDestination.__name__, "queue:q was deleted"))
    script.hear(c.Resolved(resolve.request, 9, "queue:q"))
    script.send("y")
    script.commit()
    assert [isinstance(outcome, TransactionRolledBack) for outcome in script.outcomes] == [True, True]


def test_rolling_back_ends_what_dooms_a_transaction(script: Transacted) -> None:
    script.send("x")
    frame = script.commit_frame()
    script.hear(c.Failed(frame.request, "TransactionRolledBack", "queue:q is full"))
    transactions.roll_back(script.core, script.session)
    script.send("y")
    assert script.commit_frame().publishes[0].counter == 2


def test_the_outcome_is_unknown_when_the_library_gives_up(script: Transacted) -> None:
    script.send("x")
    script.commit_frame()
    script.core.fail(Unavailable("nobody answers"))
    [error] = script.outcomes
    assert isinstance(error, UnknownOutcome)


def test_the_outcome_is_unknown_when_the_cluster_has_forgotten_the_connection(script: Transacted) -> None:
    script.send("x")
    script.commit_frame()
    script.core.on_disconnected("cut")
    script.core.on_connected(REMEMBERED_S + 1)
    [error] = script.outcomes
    assert isinstance(error, UnknownOutcome)
    script.said()


def test_acknowledging_a_single_message_means_nothing_in_a_transaction(script: Transacted) -> None:
    [message] = script.inbox.take(1)
    message.acknowledge()
    assert script.said() == []
    assert script.commit_frame().consumed == [(script.inbox.number, 7, [1, 1])]
