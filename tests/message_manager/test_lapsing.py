"""A message whose time is over while a consumer has it: acknowledging it counts, and coming back is its end."""

import pytest

from alphorn.message_manager.effects import Lapsed
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.histories import History
from alphorn.model import link
from alphorn.model.commands import (
    Acknowledge,
    Purge,
    Redrive,
    Return,
    Tick,
    TransactionCommit,
    TransactionDecide,
    TransactionPrepare,
    key_of,
)
from alphorn.model.messages import Packed
from tests.message_manager.bench import ALICE, BOB, Bench, arrived, errors, gone
from tests.message_manager.stage import Stage, first_time, key

QUEUE, DEAD = 1, 2
SESSION = key_of(ALICE, 7)


def short(count: int) -> list[Packed]:
    return [Packed("short", expiration=2_000)] * count


@pytest.fixture
def bench() -> Bench:
    """Three messages whose time is over, of which consumers have 1 and 2."""
    bench = Bench()
    bench.create("queue:q", dead_letter="dead")
    bench.publish(QUEUE, *short(3))
    effects = bench.apply(Tick(2_000, [], [(QUEUE, 0, [1, 2, 9, 9])]))
    assert (gone(effects), Lapsed(QUEUE, 0, [1, 2]) in effects) == ([(QUEUE, 0, [3, 3])], True)
    return bench


def deaths(bench: Bench) -> list[tuple[int, int, int]]:
    return [(first, last, known.deliveries) for first, last, known in bench.queue(DEAD).histories]


def restarted(bench: Bench) -> Bench:
    other = Bench()
    other.engine = Engine.restore(bench.engine.checkpoint())
    assert b"".join(other.engine.checkpoint()) == b"".join(bench.engine.checkpoint())
    return other


def test_what_a_consumer_has_is_consumed_when_it_acknowledges(bench: Bench) -> None:
    for each in (restarted(bench), bench):
        assert gone(each.acknowledge(QUEUE, 1, 2)) == [(QUEUE, 0, [1, 2])]
        assert deaths(each) == [(1, 1, 0)], "only the third has died"
        assert not each.queue(QUEUE).backlog.lapsed


@pytest.mark.parametrize(("is_unseen", "deliveries"), [(False, 1), (True, 0)])
def test_what_comes_back_dies_then(bench: Bench, is_unseen: bool, deliveries: int) -> None:
    for each in (restarted(bench), bench):
        effects = each.give_back(QUEUE, 1, 1, is_unseen=is_unseen, delay_ms=500)
        assert (gone(effects), arrived(effects)) == ([(QUEUE, 0, [1, 1])], [(DEAD, 0, 2, 2)])
        assert (each.pending(QUEUE), each.queue(QUEUE).backlog.deferred) == ([(2, 2)], {})
        assert [(last, known.deliveries) for _, last, known in each.queue(DEAD).histories][-1] == (2, deliveries)


def test_what_dies_when_it_comes_back_is_marked_after_a_redrive(bench: Bench) -> None:
    bench.give_back(QUEUE, 1, 2)
    assert errors(bench.apply(Redrive(DEAD, []))) == []
    assert bench.queue(QUEUE).backlog.counts == {5: 1, 6: 1}
    assert not bench.queue(QUEUE).backlog.lapsed, "it has no time any more"


def test_what_is_rejected_is_dead_for_that_reason(bench: Bench) -> None:
    bench.give_back(QUEUE, 1, 1, is_dead=True)
    assert [known.reason for _, _, known in bench.queue(DEAD).histories] == ["expired", "rejected"]


def test_a_purge_takes_along_what_consumers_have(bench: Bench) -> None:
    bench.apply(Purge(QUEUE))
    assert not bench.queue(QUEUE).backlog.lapsed
    restarted(bench)


def test_a_transaction_may_consume_what_was_received_in_time(bench: Bench) -> None:
    wanted = Acknowledge(QUEUE, 0, key_of(BOB, 1), [1, 1])
    assert not errors(bench.apply(TransactionCommit(SESSION, 1, 1), wanted))
    assert bench.pending(QUEUE) == [(2, 2)]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_over_channels_may_consume_it_too_and_ends_it_by_rolling_back(
    bench: Bench, is_commit: bool
) -> None:
    wanted = Acknowledge(QUEUE, 0, key_of(BOB, 1), [1, 1])
    assert not errors(bench.apply(TransactionPrepare(SESSION, 1, [0, 1], 1), wanted))
    for each in (restarted(bench), bench):
        each.apply(TransactionDecide(SESSION, 1, [0, 1], is_commit))
        assert each.pending(QUEUE) == [(2, 2)]
        assert each.queue(DEAD).count == (1 if is_commit else 2)
        assert list(each.queue(QUEUE).backlog.lapsed) == [(2, 2)]


def test_a_later_tick_that_does_not_name_it_any_more_ends_it_as_delivered() -> None:
    bench = Bench()
    queue = bench.create("queue:q", ttl=1.0)
    bench.tick(1_000)
    bench.publish(queue, "a")
    bench.tick(1_100)
    bench.apply(Tick(2_100, [], [(queue, 0, [1, 1])]))
    bench.publish(queue, "b")
    bench.tick(2_200)
    assert bench.pending(queue) == [(1, 2)]
    bench.tick(3_200)
    assert bench.pending(queue) == []
    assert [known.deliveries for _, _, known in bench.named("queue:_DMQ").histories] == [1, 0]


def test_the_expired_message_of_a_volatile_subscription_is_let_go_when_it_comes_back() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    number = bench.subscribe(topic)
    bench.publish(topic, *short(2))
    bench.apply(Tick(2_000, [], [(topic, number, [1, 2])]))
    bench.acknowledge(topic, 1, 1, subscription=number)
    assert gone(bench.give_back(topic, 2, 2, subscription=number)) == [(topic, number, [2, 2])]
    assert len(bench.engine.destinations) == 1


@pytest.fixture
def stage() -> Stage:
    """`a` has 1 and 2 of four messages whose time is over in a moment."""
    stage = Stage()
    stage.queue(dead_letter="dead")
    stage.attach("a", QUEUE, prefetch=2)
    stage.publish(QUEUE, short(4))
    assert stage.deliver() == {"a": first_time(1, 2)}
    return stage


def order_refused(stage: Stage) -> list[object]:
    refused = stage.dispatcher.take_refused()
    for command in refused:
        stage.order(command)
    return [(type(command), command.positions) for command in refused]


def pending(stage: Stage) -> list[tuple[int, int]]:
    return list(stage.engine.destinations[QUEUE].backlog.pending)  # type: ignore[union-attr]


def histories(stage: Stage) -> list[tuple[int, History]]:
    return [(last - first + 1, known) for first, last, known in stage.engine.destinations[DEAD].histories]  # type: ignore


def test_who_has_a_message_hears_that_its_time_is_over(stage: Stage) -> None:
    stage.tick(2_000)
    assert stage.dispatcher.take_notices() == [(1, link.Lapsed(key("a"), [1, 2]))]
    assert pending(stage) == [(1, 2)]
    stage.acknowledge("a", QUEUE, 1, 1)
    stage.give_back("a", QUEUE, 2, 2)
    assert (stage.deliver(), order_refused(stage)) == ({}, [])
    assert [(count, known.deliveries) for count, known in histories(stage)] == [(2, 0), (1, 1)]


def test_who_attaches_again_hears_it_once_more(stage: Stage) -> None:
    stage.tick(2_000)
    stage.become_primary(1)
    stage.attach("a", QUEUE, prefetch=2, held=[1, 1])
    stage.dispatcher.introduce(1)
    assert stage.dispatcher.take_notices() == [(1, link.Lapsed(key("a"), [1, 1]))]
    assert stage.deliver() == {}
    assert order_refused(stage) == [(Return, [2, 2])], "nobody has it"
    assert pending(stage) == [(1, 1)]
    assert [(count, known.deliveries) for count, known in histories(stage)] == [(2, 0), (1, 0)], (
        "it was never given out"
    )


def test_what_nobody_has_any_more_dies_and_is_given_to_nobody(stage: Stage) -> None:
    stage.tick(2_000)
    stage.attach("a", QUEUE, prefetch=2, held=[2, 2])
    stage.attach("b", QUEUE, selector="n = 1")
    stage.attach("c", QUEUE)
    assert stage.deliver() == {}
    stage.attach("d", QUEUE, selector="n > 1 OR n IS NULL")
    assert stage.deliver() == {}
    assert order_refused(stage) == [(Return, [1, 1])], "once"
    assert [(count, known.deliveries) for count, known in histories(stage)] == [(2, 0), (1, 1)], "a may have used it"


def test_a_new_primary_finds_what_nobody_has_even_where_nobody_comes(stage: Stage) -> None:
    stage.tick(2_000)
    stage.become_primary()
    assert stage.deliver() == {}
    assert order_refused(stage) == [(Return, [1, 2])]
    assert (pending(stage), stage.dispatcher.describe()["destinations"]) == ([], {})


def test_what_comes_back_while_the_tick_is_on_its_way_dies_as_well(stage: Stage) -> None:
    names = stage.dispatcher.names_of(stage.engine.expiring(2_000))
    stage.give_back("a", QUEUE, 1, 1)
    stage.order(Tick(2_000, *names))
    assert stage.deliver() == {}
    assert order_refused(stage) == [(Return, [1, 1])]
    assert pending(stage) == [(2, 2)]
