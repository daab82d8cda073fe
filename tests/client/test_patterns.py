"""Consumers of patterns at the client: many inboxes as one, what the server is told, and coming back."""

import pytest

from alphorn.client import transactions
from alphorn.client.inbox import AckMode, Inbox
from alphorn.client.pattern_inbox import PatternInbox
from alphorn.model import conversation as c
from alphorn.model.destinations import parse_destination
from alphorn.model.errors import InvalidDestination, Misuse, TransactionRolledBack
from alphorn.model.joining import JOINED_FROM
from alphorn.model.patterns import subscription_for
from tests.client.test_core import Script, bodies, delivered

A, B = JOINED_FROM + 1, JOINED_FROM + 2


class Patterns(Script):
    """A core with one consumer of a pattern, which the server has answered."""

    def __init__(self, mode: AckMode = AckMode.AUTO, **wishes: object) -> None:
        super().__init__()
        self.session = self.core.open_session(mode)
        wish = c.ConsumePattern(0, 0, 0, "glob:*", 100, **wishes)  # type: ignore[arg-type]
        self.box: PatternInbox = self.core.patterns.open(self.session, wish, self.answers.append)
        [_, self.wish] = self.said()
        assert isinstance(self.wish, c.ConsumePattern)

    def join(self, number: int, name: str, place: int = 0, *, is_new: bool = False) -> Inbox:
        self.hear(c.Joined(self.box.number, number, place or number, name, is_new))
        return self.box.joined[number]

    def begin(self) -> None:
        self.hear(c.Done(self.wish.request))

    def told(self, kind: type) -> list:  # type: ignore[type-arg]
        return [frame for frame in self.said() if isinstance(frame, kind)]


def test_messages_of_all_destinations_come_out_of_one_consumer_and_say_where_they_are_from() -> None:
    script = Patterns()
    a, b = script.join(A, "queue:a"), script.join(B, "topic:b")
    script.begin()
    assert isinstance(script.answers[0], c.Done)
    script.hear(delivered(a, 1, 2), delivered(b, 7, 1))
    taken = script.box.take(10)
    assert [(message.destination, message.body) for message in taken] == [
        ("queue:a", 1),
        ("queue:a", 2),
        ("topic:b", 7),
    ]
    assert bodies(script.box) == []
    assert {(frame.consumer, tuple(frame.positions)) for frame in script.told(c.Acknowledge)} == {
        (A, (1, 2)),
        (B, (7, 7)),
    }


def test_destinations_take_turns_so_that_none_waits_behind_one_that_always_has_more() -> None:
    script = Patterns()
    a, b = script.join(A, "queue:a"), script.join(B, "queue:b")
    script.hear(delivered(a, 1, 1), delivered(a, 2, 1), delivered(a, 3, 1), delivered(b, 10, 1))
    assert [bodies(script.box, 1) for _ in range(4)] == [[1], [10], [2], [3]]


def test_what_is_in_hand_when_the_turn_changes_is_not_acknowledged() -> None:
    script = Patterns()
    a, b = script.join(A, "queue:a"), script.join(B, "queue:b")
    script.hear(delivered(a, 1, 1), delivered(b, 10, 1))
    assert bodies(script.box, 1) == [1]
    assert script.told(c.Acknowledge) == []
    assert bodies(script.box, 1) == [10]
    [acknowledged] = script.told(c.Acknowledge)
    assert (acknowledged.consumer, acknowledged.positions) == (A, [1, 1])
    assert script.box.in_hand == 1
    script.box.unhand()
    assert [frame.consumer for frame in script.told(c.Return)] == [B]


def test_a_message_is_rejected_at_the_destination_that_it_came_from() -> None:
    script = Patterns(AckMode.INDIVIDUAL)
    a, b = script.join(A, "queue:a"), script.join(B, "queue:b")
    script.hear(delivered(a, 1, 1), delivered(b, 1, 1))
    first, second = script.box.take(2)
    first.acknowledge()
    script.box.give_back(second._arrival, second._index)
    told = script.said()
    assert [(type(frame), frame.consumer) for frame in told] == [(c.Acknowledge, A), (c.Return, B)]  # type: ignore[attr-defined]


def test_a_destination_that_is_gone_leaves_and_the_others_go_on() -> None:
    script = Patterns()
    a, b = script.join(A, "queue:a"), script.join(B, "queue:b")
    script.hear(delivered(a, 1, 2), delivered(b, 10, 1))
    assert bodies(script.box, 1) == [1]
    script.hear(c.ConsumerClosed(A, "InvalidDestination", "queue:a was deleted"))
    assert script.box.is_open
    assert bodies(script.box) == [10]
    assert list(script.box.joined) == [B]
    again = script.join(JOINED_FROM + 3, "queue:a")
    script.hear(delivered(again, 1, 1))
    assert bodies(script.box) == [1]


def test_a_destination_that_refuses_ends_the_whole_consumer_with_its_reason() -> None:
    script = Patterns()
    script.join(A, "queue:a")
    script.hear(c.ConsumerClosed(A, "Misuse", "another has it"))
    assert isinstance(script.box.failure, Misuse)
    [closing] = script.told(c.ClosePattern)
    script.begin()
    assert isinstance(script.answers[0], Misuse), "who waits for the beginning hears it too"
    script.hear(c.Done(closing.request))
    assert script.core.describe()["consumers"] == []


def test_a_pattern_that_the_server_refuses_is_over() -> None:
    script = Patterns()
    script.hear(c.Failed(script.wish.request, "InvalidDestination", "no pattern"))
    assert isinstance(script.answers[0], InvalidDestination)
    assert not script.box.is_open
    script.cut()
    assert script.told(c.ConsumePattern) == []


@pytest.mark.requirement("API-10", "API-12", "WLD-4")
def test_a_connection_that_comes_back_consumes_where_it_was_and_asks_for_the_rest() -> None:
    script = Patterns(subscription="s", is_durable=True, start=-1)
    script.join(A, "topic:a", place=70)
    script.begin()
    script.hear(delivered(script.box.joined[A], 5, 3))
    assert bodies(script.box, 1) == [5]
    script.cut()
    said = script.said()
    kinds = [type(frame) for frame in said]
    assert c.Resolve not in kinds, "a name that is looked up could be created anew"
    [consume] = [frame for frame in said if isinstance(frame, c.Consume)]
    assert (consume.consumer, consume.place, consume.held) == (A, 70, [5, 7])
    assert consume.is_durable
    assert consume.subscription == subscription_for("s", parse_destination("topic:a"))
    [wish] = [frame for frame in said if isinstance(frame, c.ConsumePattern)]
    assert kinds.index(c.Consume) < kinds.index(c.ConsumePattern)
    assert (wish.joined, wish.start) == ([70], 0), "what joins besides came in the meantime"
    script.hear(c.Failed(consume.request, "InvalidDestination", "gone meanwhile"))
    assert script.box.is_open
    assert script.box.joined == {}


def test_a_wish_that_was_not_answered_is_repeated_as_it_was_with_what_has_joined() -> None:
    script = Patterns(start=-1)
    script.join(A, "queue:a", place=70)
    script.cut()
    [wish] = script.told(c.ConsumePattern)
    assert (wish.request, wish.joined, wish.start) == (script.wish.request, [70], -1)
    script.hear(c.Done(wish.request))
    assert isinstance(script.answers[0], c.Done)


def test_closing_names_all_that_joined_and_is_repeated_after_a_reconnection() -> None:
    script = Patterns()
    a = script.join(A, "queue:a")
    script.begin()
    script.hear(delivered(a, 1, 2))
    script.core.close_inbox(script.box, script.answers.append)
    [closing] = script.told(c.ClosePattern)
    assert closing.unseen == {A: [1, 2]}
    script.hear(c.Joined(script.box.number, B, B, "queue:b", True))
    assert list(script.core._inboxes) == [A], "what joins while it closes is not taken in"
    script.cut()
    said = script.said()
    assert [type(frame) for frame in said] == [c.OpenSession, c.Consume, c.ClosePattern]
    script.hear(c.Done(closing.request))
    assert script.core.describe()["consumers"] == []


def test_a_session_that_closes_takes_its_patterns_along() -> None:
    script = Patterns()
    a = script.join(A, "queue:a")
    script.begin()
    script.hear(delivered(a, 1, 1))
    script.core.close_session(script.session, script.answers.append)
    assert not script.box.is_open
    [closing] = script.told(c.CloseSession)
    assert closing.unseen == {A: [1, 1]}
    script.cut()
    assert script.told(c.ConsumePattern) == []


def test_the_end_of_the_connection_is_the_end_of_a_consumer_without_any_destination() -> None:
    script = Patterns()
    script.begin()
    script.hear(c.Goodbye("Misuse", "no"))
    assert isinstance(script.box.failure, Misuse)


class Transacted(Patterns):
    """The same in a transacted session, with a message in hand and two more behind it, and closed by the program."""

    def __init__(self) -> None:
        super().__init__(AckMode.TRANSACTED)
        self.a, self.b = self.join(A, "queue:a"), self.join(B, "queue:b")
        self.begin()
        self.hear(delivered(self.a, 1, 2), delivered(self.b, 7, 1))
        assert bodies(self.box, 1) == [1]
        self.core.close_inbox(self.box, self.answers.append)
        self.outcomes: list[object] = []

    def commit(self) -> None:
        transactions.commit(self.core, self.session, 1000, self.outcomes.append)


def test_a_consumer_of_a_pattern_closed_by_the_program_leaves_with_its_transaction() -> None:
    script = Transacted()
    assert isinstance(script.answers[-1], c.Done)
    assert not script.box.is_open
    assert [(frame.consumer, frame.positions, frame.is_unseen) for frame in script.told(c.Return)] == [
        (A, [2, 2], True),
        (B, [7, 7], True),
    ]
    script.commit()
    [commit] = script.told(c.CommitTransaction)
    assert commit.consumed == [(A, A, [1, 1])]
    script.hear(c.Done(commit.request))
    assert script.outcomes == [c.Done(commit.request)]
    [closing] = script.told(c.ClosePattern)
    assert closing.unseen == {A: [], B: []}
    script.hear(c.Done(closing.request))
    assert script.core.describe()["consumers"] == []
    script.cut()
    assert script.told(c.ConsumePattern) == []


def test_a_rollback_returns_what_a_closed_consumer_of_a_pattern_was_handed() -> None:
    script = Transacted()
    script.told(c.Return)
    transactions.roll_back(script.core, script.session)
    said = [frame for frame in script.said() if isinstance(frame, c.Recover | c.ClosePattern)]
    assert [type(frame) for frame in said] == [c.Recover, c.ClosePattern]
    assert isinstance(said[0], c.Recover)
    assert (said[0].consumer, said[0].seen, said[0].unseen) == (A, [1, 1], [])


def test_a_closed_consumer_of_a_pattern_comes_back_for_its_transaction_alone() -> None:
    script = Transacted()
    script.told(c.Return)
    script.cut()
    assert [(frame.consumer, frame.held) for frame in script.said() if isinstance(frame, c.Consume)] == [
        (A, [1, 2]),
        (B, [7, 7]),
    ], "what was given back without an answer is named as well"
    script.commit()
    [commit] = script.told(c.CommitTransaction)
    assert commit.consumed == [(A, A, [1, 1])]


def test_a_consumer_of_a_pattern_that_was_handed_nothing_closes_at_once() -> None:
    script = Patterns(AckMode.TRANSACTED)
    a = script.join(A, "queue:a")
    script.begin()
    script.hear(delivered(a, 1, 2))
    script.core.close_inbox(script.box, script.answers.append)
    [closing] = script.told(c.ClosePattern)
    assert closing.unseen == {A: [1, 2]}


def test_a_destination_that_the_server_takes_from_a_closed_consumer_dooms_the_transaction() -> None:
    script = Transacted()
    script.hear(c.ConsumerClosed(A, "InvalidDestination", "queue:a was deleted"))
    script.commit()
    [error] = script.outcomes
    assert isinstance(error, TransactionRolledBack)
