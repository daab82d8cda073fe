"""Transactions that nobody ends: what the primary gives out meanwhile, and whom it asks."""

import pytest

from alphorn.message_manager.absent import HOLD_S
from alphorn.message_manager.doubts import AGAIN_S, DOUBT_S
from alphorn.message_manager.machine import ClientManagerLeft, LinkClosed, Promoted
from alphorn.model import frame_kinds, link
from alphorn.model.commands import (
    Acknowledge,
    Publish,
    TransactionDecide,
    TransactionFinish,
    TransactionPrepare,
    TransactionSettle,
    key_of,
)
from tests.client_manager.managing import encode
from tests.message_manager.stage import Stage, first_time, key
from tests.message_manager.test_core import CONNECTION, CONSUMER, FIRST, ME, OTHER, QUEUE, SECOND, Serving

SESSION = key_of(CONNECTION, 7)


def doubts(serving: Serving) -> list[tuple[int, frame_kinds.Told]]:
    """What was asked of which Client Manager since the last look."""
    found = [(to, frame) for to, frame in serving.told if isinstance(frame, link.InDoubt)]
    serving.told.clear()
    return found


@pytest.fixture
def serving() -> Serving:
    """Two Client Managers, and a transaction that consumes the only message."""
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.introduce(2, SECOND)
    serving.publish(1)
    serving.apply(TransactionPrepare(SESSION, 1, [0, 2], 1), Acknowledge(QUEUE, 0, CONSUMER, [1, 1]))
    return serving


@pytest.mark.requirement("HA-20", "TX-12")
def test_a_primary_asks_one_client_manager_after_the_other_until_somebody_ends_the_transaction(
    serving: Serving,
) -> None:
    serving.pass_time(DOUBT_S - 0.1)
    assert doubts(serving) == []
    serving.pass_time(0.2)
    asked = doubts(serving)
    serving.pass_time(AGAIN_S)
    asked += doubts(serving)
    assert sorted(asked, key=lambda one: one[0]) == [(to, link.InDoubt(SESSION, 1, [0, 2])) for to in (1, 2)]
    serving.apply(TransactionFinish(SESSION, 1, False))
    serving.pass_time(10 * AGAIN_S)
    assert doubts(serving) == []


@pytest.mark.requirement("HA-20", "MM-11")
def test_what_a_lost_client_manager_had_not_committed_is_rolled_back_and_its_consumers_are_forgotten() -> None:
    serving = Serving()
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.publish(1)
    assert serving.delivered(1) == [(1, 1)]
    uncommitted = Publish(QUEUE, key_of(CONNECTION, 2), 1, 1, 0, 1000, memoryview(encode([["uncommitted"]])))
    serving.apply(TransactionPrepare(SESSION, 1, [0, 2], 2), Acknowledge(QUEUE, 0, CONSUMER, [1, 1]), uncommitted)
    serving.receive(LinkClosed(1))
    serving.receive(ClientManagerLeft(FIRST))
    serving.pass_time(HOLD_S)
    [queue] = serving.status()["destinations"]
    assert (queue["consumers"], queue["depth"]) == (0, 0)
    serving.introduce(2, SECOND, OTHER[:16])
    serving.ask(2, link.Attach(8, OTHER, QUEUE, 0, "", 10, []))
    serving.pass_time(DOUBT_S)
    assert (2, link.InDoubt(SESSION, 1, [0, 2])) in doubts(serving)
    serving.apply(TransactionFinish(SESSION, 1, False))
    assert serving.delivered(2) == [(1, 2)]


def test_a_decision_is_brought_to_every_channel_by_its_home(serving: Serving) -> None:
    serving.apply(TransactionDecide(SESSION, 1, [0, 2], True))
    serving.pass_time(DOUBT_S)
    assert len(doubts(serving)) == 1
    serving.apply(TransactionSettle(SESSION, 1))
    serving.pass_time(DOUBT_S)
    assert doubts(serving) == []


def test_a_new_primary_waits_anew_and_then_asks(serving: Serving) -> None:
    serving.pass_time(DOUBT_S - 1)
    serving.receive(Promoted(2, ME, ()))
    serving.introduce(1, FIRST)
    serving.pass_time(2)
    assert doubts(serving) == []
    serving.pass_time(DOUBT_S - 2)
    assert len(doubts(serving)) == 1


def test_without_a_client_manager_nobody_is_asked_and_the_question_is_not_lost() -> None:
    serving = Serving()
    serving.apply(TransactionPrepare(SESSION, 1, [0, 2], 0))
    serving.pass_time(DOUBT_S)
    serving.introduce(1, FIRST)
    serving.pass_time(AGAIN_S)
    assert len(doubts(serving)) == 1


@pytest.mark.requirement("TX-3", "HA-2")
def test_what_is_prepared_is_with_nobody_after_a_change_of_primary_whoever_claims_it() -> None:
    stage = Stage()
    queue = stage.queue()
    stage.attach("a", queue, prefetch=3)
    stage.publish(queue, 4)
    assert stage.deliver() == {"a": first_time(1, 3)}
    stage.order(TransactionPrepare(SESSION, 1, [0, 2], 1), Acknowledge(queue, 0, key("a"), [1, 2]))
    assert stage.deliver() == {"a": first_time(4, 4)}  # there is room again
    stage.become_primary(1)
    stage.attach("a", queue, prefetch=10, held=[1, 4])
    stage.attach("b", queue, prefetch=10)
    stage.dispatcher.introduce(1)
    assert stage.deliver() == {}
    stage.order(TransactionFinish(SESSION, 1, False))
    [(_, again)] = stage.deliver().items()
    assert again == [(1, 2), (2, 2)]
