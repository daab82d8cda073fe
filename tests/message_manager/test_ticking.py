from collections.abc import ItemsView, Iterator, ValuesView
from itertools import pairwise

import msgspec
import pytest

from alphorn.message_manager.queue import Queue
from alphorn.message_manager.timeline import MARKS_MAX, STEPS
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import DeleteDestination, Forget, Retire, SetPolicy, Tick
from alphorn.model.destinations import Policy
from alphorn.model.messages import Packed
from tests.message_manager.bench import ALICE, BOB, Bench, arrived, batch, gone


def test_time_does_not_run_backwards() -> None:
    bench = Bench()
    bench.tick(5_000)
    assert bench.tick(4_000) == []
    assert bench.engine.now_ms == 5_000


def test_nothing_is_due_where_nothing_waits() -> None:
    bench = Bench()
    bench.publish(bench.create("queue:q"), *range(100))
    assert bench.engine.next_due() is None


def test_the_policys_time_to_live_counts_from_the_first_tick_after_a_message() -> None:
    bench = Bench()
    queue = bench.create("queue:q", ttl=10.0)
    bench.tick(1_000)
    bench.publish(queue, "a", "b")
    assert bench.engine.next_due() == 1_100, "the last tick may be long ago"
    bench.tick(50_000)
    bench.publish(queue, "c")
    assert gone(bench.tick(55_000)) == []
    assert bench.engine.next_due() == 60_000
    bench.acknowledge(queue, 1, 1)
    assert gone(bench.tick(60_000)) == [(queue, 0, [2, 2])]
    assert bench.engine.next_due() == 65_000
    assert gone(bench.tick(70_000)) == [(queue, 0, [3, 3])]
    assert bench.engine.next_due() is None
    assert bench.named("queue:_DMQ").count == 2


def test_a_time_to_live_costs_by_steps_of_time_and_not_by_messages() -> None:
    bench = Bench()
    queue = bench.create("queue:q", ttl=100.0)
    for now_ms in range(1_000, 100_000, 10):
        bench.publish(queue, *range(3))
        bench.tick(now_ms)
    assert bench.queue(queue).count == 3 * 9_900
    assert len(bench.queue(queue).timeline.times) <= 2_001


@pytest.mark.parametrize("name", ["queue:q", "topic:t"])
def test_a_short_time_to_live_is_kept_where_messages_are_retained_for_long(name: str) -> None:
    bench = Bench()
    number = bench.create(name, ttl=1.0, retain_s=1_000_000.0)
    subscription = bench.subscribe(number, is_durable=True, name="s") if name == "topic:t" else 0
    for now_ms in range(100_000, 200_000, 200):
        bench.publish(number, "a")
        bench.tick(now_ms)
        [(first, last)] = bench.pending(number, subscription)
        assert last - first < 6, "as many as come within a second, and one that has just come"


@pytest.mark.parametrize("policy", [{"ttl": 1.0, "retain_s": 1_000_000.0}, {"retain_bytes": 1 << 40}])
def test_times_are_few_however_long_messages_are_retained_and_by_which_rule(policy: dict[str, object]) -> None:
    bench = Bench()
    queue = bench.create("queue:q", **policy)
    for now_ms in range(100_000, 4_100_000, 200):
        bench.publish(queue, "a")
        bench.tick(now_ms)
    times = bench.queue(queue).timeline.times
    assert len(times) <= MARKS_MAX
    late = [following - time for time, following in pairwise(times)]
    assert max(late) <= 4_000_000 // STEPS + 200


def test_a_shorter_time_to_live_holds_for_what_is_there() -> None:
    bench = Bench()
    queue = bench.create("queue:q", ttl=100.0)
    bench.publish(queue, "a")
    bench.tick(1_000)
    bench.apply(SetPolicy(queue, Policy(ttl=2.0)))
    assert gone(bench.tick(4_000)) == [(queue, 0, [1, 1])]


def test_a_time_to_live_that_comes_later_counts_from_then() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, "a")
    bench.tick(1_000)
    bench.apply(SetPolicy(queue, Policy(ttl=2.0)))
    assert gone(bench.tick(9_000)) == []
    assert gone(bench.tick(11_000)) == [(queue, 0, [1, 1])]


def test_a_policy_without_time_forgets_the_times() -> None:
    bench = Bench()
    queue = bench.create("queue:q", ttl=2.0)
    bench.publish(queue, "a")
    bench.tick(1_000)
    bench.apply(SetPolicy(queue, Policy()))
    assert gone(bench.tick(90_000)) == []
    assert bench.engine.next_due() is None


def test_a_topic_keeps_messages_for_as_long_as_its_policy_says() -> None:
    bench = Bench()
    topic = bench.create("topic:t", retain_s=10.0)
    bench.publish(topic, "a")
    bench.tick(1_000)
    bench.publish(topic, "b")
    bench.tick(5_000)
    slow = bench.subscribe(topic, start=0)
    assert bench.engine.next_due() == 11_000
    assert gone(bench.tick(11_000)) == [], "those who had it pending keep it"
    assert bench.topic(topic).retained.flat() == [2, 2]
    assert bench.pending(topic, slow) == [(1, 2)]
    bench.acknowledge(topic, 1, 2, subscription=slow)
    bench.tick(15_000)
    assert bench.topic(topic).retained_bytes == 0
    assert not bench.engine.retained()


def test_a_topic_keeps_no_more_bytes_than_its_policy_says() -> None:
    bench = Bench()
    topic = bench.create("topic:t", retain_bytes=1_000)
    for now_ms in range(1_000, 11_000, 1_000):
        bench.publish(topic, "x" * 100, "y" * 100)
        bench.tick(now_ms)
    kept = bench.topic(topic)
    assert kept.retained.flat() == [13, 20], "whole batches, the newest"
    assert kept.retained_bytes <= 1_000
    assert kept.bytes == kept.retained_bytes


def test_a_topic_that_need_not_keep_lets_go() -> None:
    bench = Bench()
    topic = bench.create("topic:t", retain_s=10.0)
    bench.publish(topic, "a")
    bench.apply(SetPolicy(topic, Policy()))
    assert not bench.engine.retained()
    assert bench.topic(topic).retained_bytes == 0


def test_kept_messages_that_expired_are_not_replayed() -> None:
    bench = Bench()
    topic = bench.create("topic:t", retain_s=1_000.0)
    bench.publish(topic, "a", Packed("b", expiration=2_000), "c")
    bench.tick(3_000)
    late = bench.subscribe(topic, start=0)
    assert bench.candidates(topic, late) == [1, 3]


def test_delays_and_expirations_of_deleted_destinations_are_void() -> None:
    bench = Bench()
    queue = bench.create("queue:q", ttl=5.0)
    bench.publish(queue, Packed("a", deliver_at=2_000), Packed("b", expiration=2_000), "c")
    bench.give_back(queue, 3, 3, delay_ms=100)
    bench.tick(1_000)
    bench.apply(DeleteDestination(queue))
    assert bench.engine.next_due() is None
    assert bench.tick(100_000) == []


def test_what_expires_while_it_waits_is_not_released() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, Packed("a", deliver_at=2_000, expiration=1_500), Packed("b", deliver_at=2_000))
    effects = bench.tick(3_000)
    assert arrived(effects) == [(2, 0, 1, 1), (queue, 0, 2, 2)]


@pytest.mark.requirement("MM-12")
def test_a_backlog_of_millions_is_a_few_bytes_a_batch() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    plain = batch(queue, [None] * 450)
    for step in range(2_000):
        bench.apply(msgspec.structs.replace(plain, counter=1 + step * 450))
    held = bench.queue(queue)
    assert held.count == 900_000
    assert held.backlog.pending.intervals == 1
    assert sum(len(column) for column in held.segments.encode(0, 5_000)) == 2_000 * 44


def test_a_topic_that_is_just_full_lets_nothing_go() -> None:
    bench = Bench()
    topic = bench.create("topic:t", retain_bytes=len(batch(1, ["x" * 50]).blob) * 2)
    for now_ms in (1_000, 2_000, 3_000):
        bench.publish(topic, "x" * 50)
        bench.tick(now_ms)
    assert bench.topic(topic).retained.flat() == [2, 3]


def test_what_expires_one_by_one_leaves_no_bytes_behind() -> None:
    bench = Bench()
    topic = bench.create("topic:t", retain_bytes=10_000)
    bench.tick(1_000)
    bench.publish(topic, "x" * 20)
    size = bench.topic(topic).retained_bytes
    for second in range(2, 40):
        bench.publish(topic, *[Packed("x" * 20, expiration=second * 1_000 + place) for place in range(1, 8)])
        for place in range(1, 8):
            bench.tick(second * 1_000 + place)
    assert bench.topic(topic).retained_bytes == size


def test_the_bytes_of_a_topic_that_keeps_nothing_any_more_are_none() -> None:
    bench = Bench()
    topic = bench.create("topic:t", retain_s=1_000.0)
    bench.publish(topic, *(Packed("xxxxx", expiration=1_000 * number) for number in range(1, 8)))
    for number in range(1, 8):
        bench.tick(1_000 * number)
    assert not bench.topic(topic).retained
    assert bench.topic(topic).retained_bytes == 0


def test_what_is_not_due_is_not_looked_at_however_many_destinations_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for number in range(20):
        bench.create(f"queue:{number}")
    bench.publish(1, Packed("a", expiration=2_000))
    looked: list[str] = []

    class Watched(dict[int, Queue | Topic]):
        """A directory that says when all of it is looked at."""

        def __iter__(self) -> Iterator[int]:
            looked.append("all")
            return super().__iter__()

        def items(self) -> ItemsView[int, Queue | Topic]:
            looked.append("all")
            return super().items()

        def values(self) -> ValuesView[Queue | Topic]:
            looked.append("all")
            return super().values()

    state = bench.engine._state
    monkeypatch.setattr(state, "directory", Watched(state.directory))
    monkeypatch.setattr(state, "destinations", state.directory)
    bench.apply(Tick(1_000), Tick(2_000), Forget(ALICE), Retire(BOB, 5, []))
    assert (looked, bench.named("queue:_DMQ").count) == ([], 1)
