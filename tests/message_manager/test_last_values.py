"""Queues of last values: what becomes of a value that somebody has when a newer one takes its place."""

import pytest

from alphorn.message_manager import queue as queue_module
from alphorn.message_manager.engine import Engine
from alphorn.model.commands import Redrive, Return, SetPolicy, TransactionCommit, TransactionDecide, TransactionPrepare
from alphorn.model.destinations import Policy
from alphorn.model.messages import Packed
from tests.message_manager.bench import ALICE, Bench, batch, errors
from tests.message_manager.test_transacting import CHANNELS, OTHER, SESSION, commit, consumed, error_of, prepare

QUEUE = 1
NEWER = [(2, 2)]


def value(body: str, key: str = "k") -> Packed:
    return Packed(body, key=key)


@pytest.fixture
def bench() -> Bench:
    """A consumer has the value at position 1, which the one at 2 has replaced since."""
    bench = Bench()
    bench.create("queue:q", last_value=True)
    bench.publish(QUEUE, value("old"))
    bench.publish(QUEUE, value("new"))
    assert bench.pending(QUEUE) == NEWER
    return bench


def restarted(bench: Bench) -> Bench:
    other = Bench()
    other.engine = Engine.restore(bench.engine.checkpoint())
    assert b"".join(other.engine.checkpoint()) == b"".join(bench.engine.checkpoint())
    return other


def decide(bench: Bench, *, is_commit: bool) -> None:
    bench.apply(TransactionDecide(SESSION, 1, CHANNELS, is_commit))


@pytest.mark.requirement("TX-2")
def test_a_transaction_may_consume_a_value_that_was_replaced_since_it_was_received(bench: Bench) -> None:
    for each in (restarted(bench), bench):
        assert error_of(commit(each, consumed(QUEUE, 1, 1))) == ""
        assert each.pending(QUEUE) == NEWER


@pytest.mark.parametrize("is_commit", [True, False])
def test_so_may_one_over_several_channels_and_whatever_is_decided_the_newer_value_stays(
    bench: Bench, *, is_commit: bool
) -> None:
    assert error_of(prepare(bench, consumed(QUEUE, 1, 1))) == ""
    decide(bench, is_commit=is_commit)
    assert bench.pending(QUEUE) == NEWER
    assert bench.queue(QUEUE).occupied == 1


def test_a_value_that_is_still_there_and_one_that_was_replaced_are_consumed_together(bench: Bench) -> None:
    assert error_of(commit(bench, consumed(QUEUE, 1, 2))) == ""
    assert bench.pending(QUEUE) == []


def test_of_two_transactions_that_received_a_replaced_value_one_is_rolled_back(bench: Bench) -> None:
    for each in (restarted(bench), bench):
        assert error_of(commit(each, consumed(QUEUE, 1, 1))) == ""
        assert error_of(commit(restarted(each), consumed(QUEUE, 1, 1), session=OTHER)) == "TransactionRolledBack"


@pytest.mark.parametrize("is_commit", [True, False])
def test_what_one_has_prepared_to_consume_is_not_for_another(bench: Bench, *, is_commit: bool) -> None:
    prepare(bench, consumed(QUEUE, 1, 1))
    assert error_of(commit(bench, consumed(QUEUE, 1, 1), session=OTHER)) == "TransactionRolledBack"
    decide(bench, is_commit=is_commit)
    assert error_of(commit(bench, consumed(QUEUE, 1, 1), counter=2, session=OTHER)) == "TransactionRolledBack"


def test_a_replaced_value_that_was_acknowledged_is_consumed(bench: Bench) -> None:
    bench.acknowledge(QUEUE, 1, 1)
    assert error_of(commit(bench, consumed(QUEUE, 1, 1))) == "TransactionRolledBack"


def test_a_replaced_value_that_comes_back_is_given_to_nobody(bench: Bench) -> None:
    bench.apply(Return(QUEUE, 0, consumed(QUEUE).consumer, [1, 1]))
    assert bench.candidates(QUEUE) == [2]


def test_what_expired_or_was_purged_is_not_taken_for_replaced(bench: Bench) -> None:
    bench.acknowledge(QUEUE, 2, 2)
    assert error_of(commit(bench, consumed(QUEUE, 1, 2))) == "TransactionRolledBack"
    assert error_of(commit(bench, consumed(QUEUE, 3, 3), counter=2)) == "TransactionRolledBack"


def test_a_value_that_was_replaced_by_its_own_batch_was_never_received(bench: Bench) -> None:
    bench.publish(QUEUE, value("never seen"), value("seen"))
    assert bench.pending(QUEUE) == [(4, 4)]
    assert error_of(commit(bench, consumed(QUEUE, 3, 3))) == "TransactionRolledBack"
    assert error_of(commit(bench, consumed(QUEUE, 1, 2), counter=2)) == ""


def test_a_replaced_value_makes_no_room_where_it_is_consumed() -> None:
    bench = Bench()
    bench.create("queue:q", last_value=True, max_length=1)
    bench.publish(QUEUE, value("old"))
    bench.apply(SetPolicy(QUEUE, Policy(last_value=True, max_length=2)))
    bench.publish(QUEUE, value("new"))
    bench.apply(SetPolicy(QUEUE, Policy(last_value=True, max_length=1)))
    more = batch(QUEUE, [value("other", "other")], key=OTHER)
    assert error_of(commit(bench, consumed(QUEUE, 1, 1), more)) == "TransactionRolledBack"


def test_so_may_a_value_be_consumed_that_became_outdated_with_the_policy() -> None:
    bench = Bench()
    bench.create("queue:q", groups=True)
    bench.publish(QUEUE, value("old"), value("new"))
    bench.apply(SetPolicy(QUEUE, Policy(last_value=True)))
    assert error_of(commit(restarted(bench), consumed(QUEUE, 1, 1))) == ""
    bench.apply(SetPolicy(QUEUE, Policy()))
    assert error_of(commit(bench, consumed(QUEUE, 1, 1))) == "TransactionRolledBack"


def test_so_may_a_dead_value_be_consumed_that_one_which_died_later_has_replaced() -> None:
    bench = Bench()
    dead = bench.create("queue:dead", last_value=True)
    queue = bench.create("queue:q", groups=True, dead_letter="dead")
    bench.publish(queue, value("first"), value("second"))
    for position in (1, 2):
        bench.give_back(queue, position, position, is_dead=True)
    assert bench.pending(dead) == NEWER
    assert error_of(commit(bench, consumed(dead, 1, 1))) == ""
    assert not errors(bench.apply(Redrive(dead, [])))


def test_only_so_much_is_known_of_what_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "REPLACED_MAX", 2)
    bench = Bench()
    bench.create("queue:q", last_value=True)
    for key in "abc":
        bench.publish(QUEUE, value("old", key))
        bench.publish(QUEUE, value("stays", f"{key} too"))
    for key in "abc":
        bench.publish(QUEUE, value("new", key))
    found = [
        error_of(bench.apply(TransactionCommit(SESSION, counter, 1), consumed(QUEUE, position, position)))
        for counter, position in enumerate((1, 3, 5), 1)
    ]
    assert found == ["TransactionRolledBack", "", ""]


def test_a_value_that_is_replaced_while_it_is_prepared_is_consumed_or_gone(bench: Bench) -> None:
    bench.apply(TransactionPrepare(SESSION, 1, CHANNELS, 1), consumed(QUEUE, 2, 2))
    bench.publish(QUEUE, value("newest"), connection=ALICE)
    decide(bench, is_commit=False)
    assert bench.pending(QUEUE) == [(3, 3)]
