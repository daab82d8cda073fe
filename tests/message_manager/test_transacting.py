"""Transactions in the engine: all or nothing, whatever comes twice, late, or never."""

import pytest

from alphorn.message_manager.effects import Answer, Arrived, Effect, Gone
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.transaction_state import BRIEF_MS, FORGOTTEN_MS, Outcome
from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    DeleteDestination,
    Forget,
    Purge,
    Tick,
    TransactionCommit,
    TransactionDecide,
    TransactionFinish,
    TransactionPrepare,
    TransactionSettle,
    key_of,
)
from alphorn.model.messages import Packed
from tests.message_manager.bench import ALICE, BOB, CAROL, Bench, batch

SESSION, OTHER = key_of(ALICE, 7), key_of(CAROL, 7)
CONSUMER = key_of(BOB, 1)
CHANNELS = [0, 3]


def consumed(destination: int, *positions: int, subscription: int = 0) -> Acknowledge:
    return Acknowledge(destination, subscription, CONSUMER, list(positions))


def commit(bench: Bench, *members: AnyCommand, counter: int = 1, session: bytes = SESSION) -> list[Effect]:
    return bench.apply(TransactionCommit(session, counter, len(members)), *members)


def prepare(bench: Bench, *members: AnyCommand, counter: int = 1, session: bytes = SESSION) -> list[Effect]:
    return bench.apply(TransactionPrepare(session, counter, CHANNELS, len(members)), *members)


def decide(bench: Bench, *, is_commit: bool, counter: int = 1) -> Answer:
    return bench.answer(TransactionDecide(SESSION, counter, CHANNELS, is_commit))


def finish(bench: Bench, *, is_commit: bool, counter: int = 1, session: bytes = SESSION) -> list[Effect]:
    return bench.apply(TransactionFinish(session, counter, is_commit))


def error_of(effects: list[Effect]) -> str:
    [answer] = [effect for effect in effects if isinstance(effect, Answer)]
    return answer.error


def counts(bench: Bench, queue: int) -> dict[int, int]:
    return dict(bench.queue(queue).backlog.counts)


@pytest.fixture
def bench() -> Bench:
    """Two queues; the first one holds three messages."""
    bench = Bench()
    assert (bench.create("queue:a"), bench.create("queue:b")) == (1, 2)
    bench.publish(1, "x", "y", "z", connection=CAROL)
    return bench


def copy_of(bench: Bench) -> bytes:
    return b"".join(bench.engine.checkpoint())


# --- one channel ---


@pytest.mark.requirement("TX-1", "TX-4", "TX-5")
def test_one_entry_does_all_of_a_transaction(bench: Bench) -> None:
    effects = commit(bench, consumed(1, 1, 2), batch(2, ["moved"]))
    assert effects == [Gone(1, 0, [1, 2]), Arrived(2, 0, 1, 1), Answer(0, int(Outcome.DONE))]
    run = bench.queue(2).segments.find(1)
    assert run is not None
    assert (run.sequence, run.command) == (bench.engine.sequence, 2)  # where the batch is in the entry


@pytest.mark.requirement("TX-8")
@pytest.mark.parametrize(
    "member",
    [consumed(1, 3, 4), consumed(9, 1, 1), consumed(1, 1, 1, subscription=5), batch(9, ["x"]), batch(2, ["x"], 0)],
    ids=["not there", "no queue", "no subscription", "no target", "no counter"],
)
def test_a_part_that_cannot_be_done_leaves_everything_undone(bench: Bench, member: AnyCommand) -> None:
    effects = commit(bench, consumed(1, 1, 2), batch(2, ["moved"]), member)
    assert error_of(effects) == "TransactionRolledBack"
    assert len(effects) == 1
    assert bench.pending(1) == [(1, 3)]
    assert bench.pending(2) == []


def test_of_two_transactions_that_consume_the_same_message_one_is_rolled_back(bench: Bench) -> None:
    commit(bench, consumed(1, 2, 2), batch(2, ["once"]))
    effects = commit(bench, consumed(1, 1, 3), batch(2, ["twice"]), session=OTHER)
    assert error_of(effects) == "TransactionRolledBack"
    assert bench.queue(2).count == 1


@pytest.mark.requirement("API-12")
def test_a_transaction_that_comes_twice_is_done_once_and_answered_alike(bench: Bench) -> None:
    for _ in range(2):
        assert error_of(commit(bench, consumed(1, 1, 1), batch(2, ["moved"]))) == ""
    for _ in range(2):
        assert error_of(commit(bench, consumed(1, 1, 1), batch(2, ["again"]), counter=2)) == "TransactionRolledBack"
    assert bench.queue(2).count == 1


def test_a_late_transaction_of_the_past_is_refused(bench: Bench) -> None:
    commit(bench, batch(2, ["second"]), counter=2)
    assert error_of(commit(bench, batch(2, ["first"]), counter=1)) == "Misuse"
    assert bench.queue(2).count == 1


def test_a_full_queue_takes_as_much_as_the_transaction_takes_out_of_it() -> None:
    bench = Bench()
    full = bench.create("queue:full", max_length=2, overflow="reject")
    bench.publish(full, "x", "y", connection=CAROL)
    assert error_of(commit(bench, batch(full, ["z"]))) == "TransactionRolledBack"
    assert error_of(commit(bench, consumed(full, 1, 1), batch(full, ["z"]), counter=2)) == ""


@pytest.mark.parametrize("count", [-1, 2, 100])
def test_a_transaction_of_the_wrong_length_does_nothing_at_all(bench: Bench, count: int) -> None:
    effects = bench.apply(TransactionCommit(SESSION, 1, count), batch(2, ["x"]))
    assert error_of(effects) == "PeerViolation"
    assert bench.queue(2).count == 0


def test_nothing_but_messages_is_part_of_a_transaction(bench: Bench) -> None:
    assert error_of(commit(bench, Purge(1))) == "TransactionRolledBack"
    assert bench.pending(1) == [(1, 3)]


def test_commands_behind_a_transaction_are_done_as_ever(bench: Bench) -> None:
    bench.apply(TransactionCommit(SESSION, 1, 1), consumed(1, 1, 1), consumed(1, 2, 2))
    assert bench.pending(1) == [(3, 3)]


# --- several channels ---


@pytest.mark.requirement("TX-2", "TX-3", "TX-8", "TX-16")
def test_what_is_prepared_is_given_to_nobody_and_delays_nobody(bench: Bench) -> None:
    effects = prepare(bench, consumed(1, 1, 2), batch(2, ["moved"]))
    assert effects == [Gone(1, 0, [1, 2]), Answer(0, int(Outcome.PREPARED))]
    assert bench.candidates(1) == [3]
    assert bench.candidates(2) == []
    bench.publish(2, "after", connection=CAROL)
    assert bench.candidates(2) == [1]


@pytest.mark.requirement("TX-9", "TX-10")
def test_what_was_prepared_is_done_when_that_is_decided(bench: Bench) -> None:
    prepare(bench, consumed(1, 1, 2), batch(2, ["moved"]))
    sequence = bench.engine.sequence
    assert finish(bench, is_commit=True) == [Arrived(2, 0, 1, 1), Answer(0, 0)]
    run = bench.queue(2).segments.find(1)
    assert run is not None
    assert (run.sequence, run.command) == (sequence, 2)
    assert bench.pending(1) == [(3, 3)]
    assert not bench.engine.unresolved


@pytest.mark.requirement("TX-12", "TX-13")
def test_what_was_prepared_comes_back_counted_when_it_is_rolled_back(bench: Bench) -> None:
    prepare(bench, consumed(1, 1, 2), batch(2, ["moved"]))
    effects = finish(bench, is_commit=False)
    assert effects == [Arrived(1, 0, 1, 2, CONSUMER), Answer(0, 1)]
    assert bench.pending(1) == [(1, 3)]
    assert counts(bench, 1) == {1: 1, 2: 1}
    assert bench.queue(2).count == 0


@pytest.mark.requirement("TX-7")
@pytest.mark.parametrize("is_commit", [True, False])
def test_each_step_reaches_every_destination_of_the_channel_that_takes_part_and_no_other(
    bench: Bench, *, is_commit: bool
) -> None:
    bench.create("queue:c")
    bench.publish(2, "u", connection=CAROL)
    bench.publish(3, "v", connection=CAROL)
    before = bench.queue(3).describe()
    members = [consumed(1, 1, 1), consumed(2, 1, 1), batch(1, ["new"]), batch(2, ["new"], 2)]
    assert error_of(prepare(bench, *members)) == ""
    assert [bench.candidates(queue) for queue in (1, 2)] == [[2, 3], []]
    decide(bench, is_commit=is_commit)
    finish(bench, is_commit=is_commit)
    assert [bench.candidates(queue) for queue in (1, 2)] == ([[2, 3, 4], [2]] if is_commit else [[1, 2, 3], [1]])
    assert bench.queue(3).describe() == before


def test_the_first_decision_holds_for_ever(bench: Bench) -> None:
    prepare(bench, consumed(1, 1, 1), batch(2, ["moved"]))
    assert decide(bench, is_commit=True).number == Outcome.DONE
    assert decide(bench, is_commit=False).number == Outcome.DONE
    assert bench.queue(2).count == 1


def test_to_ask_for_a_decision_that_is_absent_makes_it_a_rollback(bench: Bench) -> None:
    assert decide(bench, is_commit=False).number == Outcome.ROLLED_BACK
    assert error_of(prepare(bench, consumed(1, 1, 1))) == "TransactionRolledBack"
    assert decide(bench, is_commit=True).number == Outcome.ROLLED_BACK
    assert bench.pending(1) == [(1, 3)]


def test_only_what_is_prepared_at_home_can_be_decided_to_be_done(bench: Bench) -> None:
    assert decide(bench, is_commit=True).number == Outcome.ROLLED_BACK


def test_a_rollback_that_overtakes_its_preparation_stands(bench: Bench) -> None:
    finish(bench, is_commit=False)
    assert error_of(prepare(bench, consumed(1, 1, 1))) == "TransactionRolledBack"
    assert bench.pending(1) == [(1, 3)]


@pytest.mark.requirement("TX-8")
@pytest.mark.parametrize("is_home", [False, True], ids=["elsewhere", "at home"])
def test_the_rollback_of_the_next_transaction_leaves_a_prepared_one_as_it_is(bench: Bench, *, is_home: bool) -> None:
    prepare(bench, consumed(1, 1, 2), batch(2, ["moved"]))
    assert error_of(prepare(bench, consumed(1, 3, 3), counter=2)) == "Misuse"
    if is_home:
        assert decide(bench, is_commit=False, counter=2).number == Outcome.ROLLED_BACK
    else:
        assert finish(bench, is_commit=False, counter=2) == [Answer(0, 0)]
    assert list(bench.engine.unresolved) == [SESSION], "somebody still has to see to the first one"
    bench.engine = Engine.restore([copy_of(bench)])
    assert bench.pending(1) == [(3, 3)]
    finish(bench, is_commit=False)
    assert bench.pending(1) == [(1, 3)]
    assert error_of(prepare(bench, consumed(1, 3, 3), counter=2)) == "TransactionRolledBack", "that holds for ever"
    assert decide(bench, is_commit=True, counter=2).number == Outcome.ROLLED_BACK
    assert error_of(prepare(bench, consumed(1, 3, 3), counter=3)) == ""


def test_every_step_may_come_twice(bench: Bench) -> None:
    for _ in range(2):
        assert error_of(prepare(bench, consumed(1, 1, 2), batch(2, ["moved"]))) == ""
    for _ in range(2):
        finish(bench, is_commit=True)
    assert error_of(prepare(bench, consumed(1, 1, 2), batch(2, ["moved"]))) == ""
    assert bench.queue(2).count == 1
    assert bench.pending(1) == [(3, 3)]


def test_nobody_else_can_consume_what_is_prepared(bench: Bench) -> None:
    prepare(bench, consumed(1, 1, 2))
    assert error_of(commit(bench, consumed(1, 2, 2), session=OTHER)) == "TransactionRolledBack"
    bench.acknowledge(1, 1, 2)
    bench.apply(Purge(1))
    finish(bench, is_commit=False)
    assert bench.pending(1) == [(1, 2)]


def test_a_session_waits_for_its_own_transaction_only(bench: Bench) -> None:
    prepare(bench, consumed(1, 1, 1))
    assert error_of(prepare(bench, consumed(1, 2, 2), counter=2)) == "Misuse"
    assert error_of(prepare(bench, consumed(1, 2, 2), session=OTHER)) == ""


def test_a_queue_counts_what_prepared_transactions_will_bring() -> None:
    bench = Bench()
    full = bench.create("queue:full", max_length=2, overflow="reject")
    assert error_of(prepare(bench, batch(full, ["x", "y"]))) == ""
    assert error_of(commit(bench, batch(full, ["z"]), session=OTHER)) == "TransactionRolledBack"


def test_what_expires_while_it_is_prepared_is_dead_when_it_comes_back(bench: Bench) -> None:
    bench.publish(1, Packed("late", expiration=5_000), connection=CAROL)
    prepare(bench, consumed(1, 4, 4))
    bench.tick(6_000)
    assert [str(name) for name in bench.engine.numbers] == ["queue:a", "queue:b"]
    finish(bench, is_commit=False)
    assert bench.pending(1) == [(1, 3)]
    assert bench.named("queue:_DMQ").count == 1
    assert [known.deliveries for _, _, known in bench.named("queue:_DMQ").histories] == [1], "its consumer had it"


def test_what_expires_while_it_is_prepared_and_is_then_done_was_consumed(bench: Bench) -> None:
    bench.publish(1, Packed("late", expiration=5_000), connection=CAROL)
    prepare(bench, consumed(1, 4, 4))
    bench.tick(6_000)
    finish(bench, is_commit=True)
    assert [str(name) for name in bench.engine.numbers] == ["queue:a", "queue:b"]


def test_the_delivery_limit_counts_transactions_that_were_rolled_back() -> None:
    bench = Bench()
    queue = bench.create("queue:a", delivery_limit=1)
    bench.publish(queue, "x")
    prepare(bench, consumed(queue, 1, 1))
    finish(bench, is_commit=False)
    assert bench.pending(queue) == []
    assert bench.named("queue:_DMQ").count == 1


def test_priorities_and_groups_are_as_before_when_messages_come_back() -> None:
    bench = Bench()
    queue = bench.create("queue:a", groups=True)
    bench.publish(queue, Packed("x"), Packed("y", priority=9, key="k"))
    prepare(bench, consumed(queue, 1, 2))
    finish(bench, is_commit=False)
    assert bench.candidates(queue) == [2, 1]
    assert bench.queue(queue).keys == {2: "k"}


def test_an_older_value_does_not_come_back_over_a_newer_one() -> None:
    bench = Bench()
    queue = bench.create("queue:a", last_value=True)
    bench.publish(queue, Packed("old", key="k"))
    prepare(bench, consumed(queue, 1, 1))
    bench.publish(queue, Packed("new", key="k"))
    finish(bench, is_commit=False)
    assert bench.candidates(queue) == [2]


def test_a_destination_may_be_deleted_under_a_prepared_transaction(bench: Bench) -> None:
    prepare(bench, consumed(1, 1, 1), batch(2, ["moved"]))
    bench.apply(DeleteDestination(1), DeleteDestination(2))
    assert error_of(finish(bench, is_commit=True)) == ""


def test_subscriptions_get_what_a_transaction_publishes_when_it_is_done() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    prepare(bench, batch(topic, [Packed("x", properties={"n": 1}), Packed("y", properties={"n": 2})]))
    subscription = bench.subscribe(topic, selector="n = 2")
    finish(bench, is_commit=True)
    assert bench.pending(topic, subscription) == [(2, 2)]


# --- what survives ---


@pytest.mark.requirement("TX-3", "TX-14")
def test_a_restored_replica_knows_every_prepared_transaction(bench: Bench) -> None:
    bench.publish(1, Packed("late", expiration=5_000, priority=7), connection=CAROL)
    prepare(bench, consumed(1, 1, 1), consumed(1, 4, 4), batch(2, [Packed("moved", priority=3)]))
    commit(bench, consumed(1, 2, 2), session=OTHER)
    bench.tick(6_000)
    before = copy_of(bench)
    twin = Bench()
    twin.engine = Engine.restore([before])
    assert copy_of(twin) == before
    assert list(twin.engine.retained()) == list(bench.engine.retained())
    for is_commit in (True, False):
        ends = []
        for start in (bench, twin):
            one = Bench()
            one.engine = Engine.restore([copy_of(start)])
            ends.append((finish(one, is_commit=is_commit), copy_of(one)))
        assert ends[0] == ends[1]


def test_entries_with_prepared_messages_are_retained(bench: Bench) -> None:
    prepare(bench, consumed(1, 1, 3), batch(2, ["moved"]))
    sequence = bench.engine.sequence
    assert sequence in bench.engine.retained()
    assert sequence - 1 in bench.engine.retained()  # what it consumes may come back
    finish(bench, is_commit=True)
    assert list(bench.engine.retained()) == [(sequence, sequence)]


def test_a_decision_outlives_its_connection_until_every_channel_has_finished(bench: Bench) -> None:
    prepare(bench, consumed(1, 1, 1))
    decide(bench, is_commit=True)
    bench.apply(Forget(ALICE))
    bench.tick(1_000)
    bench.tick(1_000 + 2 * FORGOTTEN_MS)
    assert decide(bench, is_commit=False).number == Outcome.DONE
    bench.apply(TransactionSettle(SESSION, 1))
    assert not bench.engine.unresolved
    assert ALICE not in bench.engine.connections()
    bench.apply(Tick(2_000 + 4 * FORGOTTEN_MS))
    assert bench.engine.next_due() is None
    assert decide(bench, is_commit=False).number == Outcome.ROLLED_BACK


def test_what_a_connection_did_in_one_channel_is_not_done_again_when_it_has_ended(bench: Bench) -> None:
    """A Client Manager that hung had the commit in hand, while its client went on through another one and ended."""
    commit(bench, consumed(1, 1, 1), batch(2, ["paid"]))
    assert ALICE in bench.engine.connections()
    bench.tick(1_000)
    bench.apply(Forget(ALICE))
    assert ALICE not in bench.engine.connections()
    bench.engine = Engine.restore([copy_of(bench)])
    commit(bench, consumed(1, 1, 1), batch(2, ["paid"]))
    assert bench.queue(2).count == 1
    assert bench.engine.next_due() == 1_000 + BRIEF_MS
    bench.tick(1_000 + BRIEF_MS)
    assert bench.engine.next_due() is None


def test_a_queue_that_makes_others_wait_rolls_a_transaction_back() -> None:
    bench = Bench()
    full = bench.create("queue:full", max_length=1, overflow="block")
    bench.publish(full, "x", connection=CAROL)
    assert error_of(commit(bench, batch(full, ["y"]))) == "TransactionRolledBack"
    assert error_of(commit(bench, consumed(full, 1, 1), batch(full, ["y"]), counter=2)) == ""
    assert bench.queue(full).count == 1
