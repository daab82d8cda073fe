"""Goal: whoever subscribes later gets what a topic keeps as those got it who subscribed before.

Method: a subscription that consumes nothing is there from the beginning; replays must offer what it offers, now and
after every Tick, also on a replica that began with a checkpoint.
"""

from random import Random

import pytest

from alphorn.message_manager.backlog import Backlog
from alphorn.message_manager.engine import Engine
from alphorn.model.commands import Acknowledge, SetPolicy
from alphorn.model.destinations import Policy
from alphorn.model.messages import Packed
from tests.message_manager.bench import BOB, Bench, arrived, subscription
from tests.message_manager.stage import Stage
from tests.message_manager.test_determinism import checkpoint_of

HOUR_MS = 3_600_000


@pytest.fixture(name="bench")
def make_bench() -> Bench:
    """Topic 1 keeps messages for a day; it is one second past."""
    bench = Bench()
    bench.create("topic:kept", retain_s=86_400.0)
    bench.tick(1_000)
    return bench


def restored(bench: Bench) -> Bench:
    twin = Bench()
    twin.engine = Engine.restore(bench.engine.checkpoint())
    twin.counters = dict(bench.counters)
    return twin


@pytest.mark.requirement("API-8")
def test_a_replay_selects_by_the_priorities_of_the_messages() -> None:
    stage = Stage()
    topic = stage.topic(retain_s=3_600.0)
    stage.publish(topic, [Packed("a"), Packed("urgent", priority=9), Packed("b", priority=7)])
    late = stage.subscribe(topic, "late", selector="JMSPriority >= 8", start=0)
    stage.attach("late", topic, subscription=late)
    assert stage.deliver() == {"late": [(2, 1)]}
    assert stage.dispatcher.take_refused() == [Acknowledge(topic, late, b"", [1, 1, 3, 3])]


def test_a_replay_is_given_out_by_priority(bench: Bench) -> None:
    bench.publish(1, "a", Packed(priority=9), Packed(priority=0), "b")
    bench.publish(1, Packed(priority=9), "c")
    assert bench.candidates(1, bench.subscribe(1, start=0)) == [2, 5, 1, 4, 6, 3]


def test_a_replay_that_begins_later_has_the_priorities_of_what_it_begins_with(bench: Bench) -> None:
    bench.publish(1, "a", Packed(priority=9), timestamp=1_000)
    bench.publish(1, "b", Packed(priority=9), timestamp=2_000)
    assert bench.candidates(1, bench.subscribe(1, start_ms=1_500)) == [4, 3]
    assert bench.of(1, 1).backlog.priorities[9].flat() == [4, 4]


def test_a_replayed_message_waits_for_its_time(bench: Bench) -> None:
    bench.publish(1, "a", Packed(deliver_at=HOUR_MS), Packed(deliver_at=HOUR_MS), "b", Packed(deliver_at=HOUR_MS))
    late = bench.subscribe(1, start=0)
    assert bench.candidates(1, late) == [1, 4]
    assert arrived(bench.tick(HOUR_MS - 1)) == []
    assert arrived(bench.tick(HOUR_MS)) == [(1, late, 2, 3), (1, late, 5, 5)]
    assert bench.candidates(1, late) == [1, 2, 3, 4, 5]


def test_only_what_is_ready_is_announced_of_a_replay(bench: Bench) -> None:
    bench.publish(1, "a", Packed(deliver_at=HOUR_MS), "b")
    effects = bench.apply(subscription(1, BOB, start=0))
    assert arrived(effects) == [(1, 1, 1, 1), (1, 1, 3, 3)]


def test_a_message_whose_delay_is_over_is_replayed_at_once(bench: Bench) -> None:
    bench.publish(1, Packed(deliver_at=2_000), Packed(deliver_at=500))
    bench.tick(2_000)
    assert bench.candidates(1, bench.subscribe(1, start=0)) == [1, 2]


def test_a_policy_says_the_priority_of_messages_from_then_on_also_in_a_replay(bench: Bench) -> None:
    bench.publish(1, Packed(priority=9), "a")
    bench.apply(SetPolicy(1, Policy(retain_s=86_400.0, priority=7)))
    bench.publish(1, Packed(priority=9), "b")
    bench.apply(SetPolicy(1, Policy(retain_s=86_400.0)))
    bench.publish(1, Packed(priority=8), "c")
    assert bench.candidates(1, bench.subscribe(1, start=0)) == [1, 5, 3, 4, 2, 6]


def test_nothing_is_remembered_of_plain_messages(bench: Bench) -> None:
    plain = len(checkpoint_of(bench.engine))
    bench.publish(1, *range(1_000))
    bench.publish(1, Packed(properties={"n": 1}), Packed(deliver_at=900))
    particulars = bench.topic(1).particulars
    assert (particulars.priorities, particulars.delays) == ({}, {})
    assert len(checkpoint_of(bench.engine)) < plain + 1_000


def test_nothing_is_remembered_of_messages_that_are_kept_no_more(bench: Bench) -> None:
    bench.publish(1, *[Packed(priority=9, deliver_at=HOUR_MS, expiration=5_000) for _ in range(3)])
    bench.publish(1, Packed(priority=8, deliver_at=HOUR_MS))
    particulars = bench.topic(1).particulars
    bench.tick(5_000)
    assert {priority: positions.flat() for priority, positions in particulars.priorities.items()} == {8: [4, 4]}
    assert particulars.delays == {4: HOUR_MS}
    bench.apply(SetPolicy(1, Policy()))
    assert (particulars.priorities, particulars.delays) == ({}, {})
    bench.tick(6_000)
    assert bench.engine.next_due() is None


def test_a_message_that_came_too_late_is_not_remembered(bench: Bench) -> None:
    bench.publish(1, Packed(priority=9, deliver_at=HOUR_MS, expiration=500))
    particulars = bench.topic(1).particulars
    assert (particulars.priorities, particulars.delays) == ({}, {})


def test_delays_that_are_over_are_forgotten_though_nobody_subscribes(bench: Bench) -> None:
    bench.publish(1, Packed(deliver_at=2_000), Packed(deliver_at=3_000))
    bench.tick(1_100)
    twin = restored(bench)
    for each in (bench, twin):
        assert each.engine.next_due() == 2_000
        each.tick(2_000)
        assert each.topic(1).particulars.delays == {2: 3_000}
        each.tick(9_000)
        assert each.topic(1).particulars.delays == {}
    assert b"kept_delays" not in checkpoint_of(bench.engine)


def test_a_topic_that_keeps_nothing_remembers_nothing_for_later() -> None:
    bench = Bench()
    topic = bench.create("topic:plain")
    bench.subscribe(topic)
    bench.publish(topic, Packed(priority=9, deliver_at=HOUR_MS))
    particulars = bench.topic(topic).particulars
    assert (particulars.priorities, particulars.delays) == ({}, {})


def known(backlog: Backlog | None) -> tuple[object, ...]:
    assert backlog is not None
    return backlog.pending, backlog.priorities, backlog.deferred, list(backlog.candidates())


@pytest.mark.parametrize("seed", range(8))
def test_a_replay_is_what_a_subscription_from_the_beginning_has(bench: Bench, seed: int) -> None:
    random = Random(seed)
    live = bench.subscribe(1, name="live", is_durable=True)
    now_ms = 1_000
    for step in range(40):
        near = now_ms + random.randint(-200, 3_000)
        messages = [
            Packed(
                priority=random.choice([4, 4, 0, 9, 12]),
                expiration=random.choice([0, 0, 0, near + 500]),
                deliver_at=random.choice([0, 0, near]),
            )
            for _ in range(random.randint(1, 5))
        ]
        bench.publish(1, *messages)
        if random.random() < 0.5:
            now_ms += random.choice([50, 400, 2_000])
            bench.tick(now_ms)
        if random.random() < 0.2:
            bench = restored(bench)
        if random.random() < 0.3:
            bench.subscribe(1, name=f"replay at {step}", is_durable=True, start=0)
        topic = bench.topic(1)
        for number, backlog in topic.backlogs():
            assert known(backlog) == known(topic.backlog_of(live)), (step, number)
    assert len(bench.topic(1).subscriptions) > 3
