import msgspec
import pytest

from alphorn.message_manager.effects import Created
from alphorn.message_manager.engine import Engine
from alphorn.model.commands import DeleteDestination, Purge, Redrive, Tick, Unsubscribe
from alphorn.model.messages import Packed
from tests.message_manager.bench import BOB, Bench, arrived, errors, gone

DMQ = "queue:_DMQ"


@pytest.mark.requirement("DMQ-1", "DMQ-3")
def test_a_rejected_message_is_moved_with_its_history_and_not_copied() -> None:
    bench = Bench()
    queue = bench.create("queue:orders")
    bench.publish(queue, "a", "b", "c")
    bench.tick(5_000)
    bench.give_back(queue, 2, 2)
    effects = bench.give_back(queue, 2, 2, is_dead=True)
    dead = bench.named(DMQ)
    assert isinstance(effects[0], Created)
    assert gone(effects) == [(queue, 0, [2, 2])]
    assert arrived(effects) == [(dead.number, 0, 1, 1)]
    run = dead.segments.find(1)
    assert run is not None
    assert (run.sequence, run.command, run.index, run.count) == (2, 0, 1, 1)
    assert msgspec.msgpack.decode(dead.history_of(1)) == {
        "destination": "queue:orders",
        "reason": "rejected",
        "deliveries": 2,
        "time": 5_000,
    }
    bench.acknowledge(queue, 1, 3)
    assert bench.engine.retained().flat() == [2, 2], "the entry is needed while the dead message is"


@pytest.mark.requirement("DMQ-1")
def test_an_expired_message_is_dead() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.tick(1_000)
    bench.publish(queue, "stays", Packed("short", expiration=2_000), Packed("long", expiration=3_000))
    assert bench.engine.next_due() == 2_000
    assert gone(bench.tick(2_000)) == [(queue, 0, [2, 2])]
    assert msgspec.msgpack.decode(bench.named(DMQ).history_of(1))["reason"] == "expired"
    assert gone(bench.tick(9_000)) == [(queue, 0, [3, 3])]
    assert bench.named(DMQ).count == 2


def test_a_message_that_expires_while_a_consumer_has_it_comes_again_as_a_redelivery() -> None:
    bench, other = Bench(), Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, *[Packed(name, expiration=2_000) for name in ("returned", "new", "never given out")])
    bench.give_back(queue, 1, 1)
    effects = bench.apply(Tick(2_000, [(queue, 0, [1, 2])]))
    assert gone(effects) == [(queue, 0, [1, 3])]
    dead = bench.named(DMQ)
    assert [msgspec.msgpack.decode(dead.history_of(position))["deliveries"] for position in (1, 2, 3)] == [2, 1, 0]
    other.engine = Engine.restore(bench.engine.checkpoint())
    for each in (bench, other):
        assert errors(each.apply(Redrive(dead.number, []))) == []
        assert each.queue(queue).backlog.counts == {4: 2, 5: 1}
    assert b"".join(other.engine.checkpoint()) == b"".join(bench.engine.checkpoint())


def test_only_the_subscription_whose_consumer_has_a_message_counts_that() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    names = [bench.subscribe(topic, name=name, is_durable=True) for name in ("has it", "waits")]
    bench.publish(topic, Packed("a", expiration=2_000))
    bench.apply(Tick(2_000, [(topic, names[0], [1, 9])]))
    dead = bench.named(DMQ)
    assert [(known.subscription, known.deliveries) for _, _, known in dead.histories] == [(names[0], 1), (names[1], 0)]


def test_a_tick_whose_positions_are_no_pairs_changes_nothing() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, Packed("a", expiration=2_000))
    assert errors(bench.apply(Tick(2_000, [(queue, 0, [1])]))) == ["PeerViolation"]
    assert (bench.engine.now_ms, bench.pending(queue)) == (0, [(1, 1)])


def test_a_message_that_comes_too_late_is_dead_at_once() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.tick(1_000)
    effects = bench.publish(queue, Packed("late", expiration=1_000), "fine")
    assert arrived(effects) == [(bench.named(DMQ).number, 0, 1, 1), (queue, 0, 2, 2)]


def test_a_consumed_message_does_not_expire() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, Packed("a", expiration=2_000))
    bench.acknowledge(queue, 1, 1)
    assert bench.engine.next_due() is None
    assert bench.tick(3_000) == []


def test_dead_messages_go_where_the_policy_says() -> None:
    bench = Bench()
    queue = bench.create("queue:q", dead_letter="q.dead", delivery_limit=1)
    bench.publish(queue, *range(5))
    bench.give_back(queue, 2, 4)
    assert bench.named("queue:q.dead").count == 3
    assert [run[:2] for run in bench.named("queue:q.dead").histories] == [(1, 3)], "died alike, told once"


def test_a_dead_message_that_dies_again_is_let_go() -> None:
    bench = Bench()
    queue = bench.create("queue:q", delivery_limit=1)
    bench.publish(queue, "a")
    bench.give_back(queue, 1, 1)
    dead = bench.named(DMQ)
    assert gone(bench.give_back(dead.number, 1, 1, is_dead=True)) == [(dead.number, 0, [1, 1])]
    assert dead.count == 0
    assert not bench.engine.retained()


def test_dead_messages_go_to_the_systems_queue_where_their_own_was_deleted() -> None:
    bench = Bench()
    queue = bench.create("queue:q", dead_letter="q.dead", delivery_limit=1)
    bench.apply(DeleteDestination(bench.named("queue:q.dead").number))
    bench.publish(queue, "one")
    bench.give_back(queue, 1, 1)
    assert (bench.named(DMQ).count, len(bench.engine.destinations)) == (1, 2)


def test_a_queue_that_is_its_own_dead_letter_queue_lets_its_dead_go() -> None:
    bench = Bench()
    queue = bench.create("queue:q", dead_letter="q", delivery_limit=1)
    bench.publish(queue, "a")
    assert arrived(bench.give_back(queue, 1, 1)) == []
    assert bench.queue(queue).count == 0


@pytest.mark.requirement("DMQ-3")
def test_a_dead_message_of_a_subscription_names_it() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    name = bench.subscribe(topic, name="s", is_durable=True)
    bench.publish(topic, "a")
    bench.give_back(topic, 1, 1, subscription=name, is_dead=True)
    history = msgspec.msgpack.decode(bench.named(DMQ).history_of(1))
    assert (history["destination"], history["subscription"]) == ("topic:t", name)


def test_expired_messages_of_volatile_subscriptions_are_let_go() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    volatile, durable = bench.subscribe(topic, BOB), bench.subscribe(topic, name="s", is_durable=True)
    bench.publish(topic, Packed("a", expiration=50))
    effects = bench.tick(100)
    assert gone(effects) == [(topic, volatile, [1, 1]), (topic, durable, [1, 1])]
    assert bench.named(DMQ).count == 1


@pytest.mark.requirement("DMQ-3")
def test_redriven_messages_are_new_where_they_came_from() -> None:
    bench = Bench()
    queue = bench.create("queue:q", delivery_limit=1, groups=True)
    bench.publish(queue, "a", Packed("b", priority=9, key="k", expiration=10**12), "c")
    bench.give_back(queue, 1, 2)
    dead = bench.named(DMQ)
    assert bench.candidates(dead.number) == [2, 1], "priority stays with a message"
    effects = bench.apply(Redrive(dead.number, []))
    assert gone(effects) == [(dead.number, 0, [1, 2])]
    assert arrived(effects) == [(queue, 0, 4, 5)]
    assert bench.candidates(queue) == [5, 3, 4]
    assert bench.queue(queue).keys == {5: "k"}
    assert bench.queue(queue).backlog.counts == {}
    runs = [(run.sequence, run.index, run.position) for run in bench.queue(queue).segments.runs(4, 5)]
    assert runs == [(2, 0, 4), (2, 1, 5)]
    assert bench.queue(queue).histories.find(4) is None


def test_only_named_positions_are_redriven() -> None:
    bench = Bench()
    queue = bench.create("queue:q", delivery_limit=1)
    bench.publish(queue, *range(5))
    bench.give_back(queue, 1, 5)
    dead = bench.named(DMQ)
    bench.apply(Redrive(dead.number, [2, 3, 9, 9]))
    assert bench.pending(dead.number) == [(1, 1), (4, 5)]
    assert bench.pending(queue) == [(6, 7)]


def test_dead_messages_go_back_to_the_one_subscription_they_died_in() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    one = bench.subscribe(topic, name="one", is_durable=True)
    other = bench.subscribe(topic, name="other", is_durable=True)
    bench.publish(topic, "a")
    bench.give_back(topic, 1, 1, subscription=one, is_dead=True)
    bench.apply(Redrive(bench.named(DMQ).number, []))
    assert bench.pending(topic, one) == [(2, 2)]
    assert bench.pending(topic, other) == [(1, 1)]


def test_what_cannot_go_back_stays_and_is_answered() -> None:
    bench = Bench()
    gone_queue, queue, topic = bench.create("queue:gone"), bench.create("queue:q"), bench.create("topic:t")
    name = bench.subscribe(topic, name="s", is_durable=True)
    for number, subscription in ((gone_queue, 0), (queue, 0), (topic, name)):
        bench.publish(number, "x")
        bench.give_back(number, 1, 1, subscription=subscription, is_dead=True)
    bench.apply(DeleteDestination(gone_queue), Unsubscribe(topic, name))
    dead = bench.named(DMQ)
    effects = bench.apply(Redrive(dead.number, []))
    assert errors(effects) == ["InvalidDestination"]
    assert bench.pending(dead.number) == [(1, 1), (3, 3)]
    assert bench.pending(queue) == [(2, 2)]


def test_messages_that_were_sent_to_a_dead_letter_queue_have_nowhere_to_go_back() -> None:
    bench = Bench()
    queue = bench.create("queue:q", dead_letter="mixed", delivery_limit=1)
    mixed = bench.create("queue:mixed")
    bench.publish(mixed, "sent here")
    bench.publish(queue, "died there")
    bench.give_back(queue, 1, 1)
    bench.apply(Redrive(mixed, []))
    assert bench.pending(mixed) == [(1, 1)]
    bench.give_back(mixed, 1, 1, is_dead=True)
    assert bench.named(DMQ).count == 1


def test_a_redriven_value_does_not_replace_a_newer_one() -> None:
    bench = Bench()
    queue = bench.create("queue:q", last_value=True)
    bench.publish(queue, Packed("old", key="k"), Packed("only", key="o"))
    bench.give_back(queue, 1, 2, is_dead=True)
    bench.publish(queue, Packed("new", key="k"))
    bench.apply(Redrive(bench.named(DMQ).number, []))
    assert bench.named(DMQ).count == 0
    assert bench.pending(queue) == [(3, 3), (5, 5)]


@pytest.mark.parametrize("positions", [[], [1, 2], [2, 2, 1, 1], [1, 2, 2, 2]])
def test_of_several_redriven_values_the_newest_stays(positions: list[int]) -> None:
    bench = Bench()
    queue = bench.create("queue:q", last_value=True)
    for body in ("old", "new"):
        bench.publish(queue, Packed(body, key="k", priority=9))
        position = bench.queue(queue).next_position - 1
        bench.give_back(queue, position, position, is_dead=True)
    effects = bench.apply(Redrive(bench.named(DMQ).number, positions))
    assert bench.pending(queue) == [(4, 4)]
    assert arrived(effects) == [(queue, 0, 4, 4)]
    run = bench.queue(queue).segments.find(4)
    assert run is not None
    assert run.sequence == 4, "where the newest value was published"
    assert {level: list(found) for level, found in bench.queue(queue).priorities.items()} == {9: [(4, 4)]}
    bench.publish(queue, Packed("newer", key="k"))
    assert bench.pending(queue) == [(5, 5)]


def test_an_outdated_value_leaves_no_priority_behind() -> None:
    bench = Bench()
    queue = bench.create("queue:q", last_value=True)
    bench.publish(queue, Packed("old", key="k", priority=9))
    bench.give_back(queue, 1, 1, is_dead=True)
    bench.publish(queue, Packed("new", key="k"))
    bench.apply(Redrive(bench.named(DMQ).number, []))
    assert bench.pending(queue) == [(2, 2)]
    assert not bench.queue(queue).priorities


def test_in_a_dead_letter_queue_of_last_values_the_one_that_died_last_stays() -> None:
    bench = Bench()
    dead = bench.create("queue:dead", last_value=True)
    queue = bench.create("queue:q", last_value=True, dead_letter="dead")
    bench.publish(queue, Packed("old", key="k"))
    bench.give_back(queue, 1, 1, is_dead=True)
    bench.publish(queue, Packed("new", key="k"))
    effects = bench.give_back(queue, 2, 2, is_dead=True)
    assert gone(effects) == [(queue, 0, [2, 2]), (dead, 0, [1, 1])]
    assert arrived(effects) == [(dead, 0, 2, 2)]
    assert bench.pending(dead) == [(2, 2)]


def test_dead_messages_do_not_go_to_another_subscription_of_the_same_number() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    name = bench.subscribe(topic, name="alice", is_durable=True)
    bench.publish(topic, "for alice")
    bench.give_back(topic, 1, 1, subscription=name, is_dead=True)
    bench.apply(DeleteDestination(topic))
    topic = bench.create("topic:t")
    assert bench.subscribe(topic, name="alice", is_durable=True, selector="region = 'us'") == name
    dead = bench.named(DMQ)
    assert errors(bench.apply(Redrive(dead.number, []))) == ["InvalidDestination"]
    assert bench.pending(topic, name) == []
    assert bench.pending(dead.number) == [(1, 1)]


def test_dead_messages_of_a_queue_go_to_the_one_that_has_its_name_now() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, "a")
    bench.give_back(queue, 1, 1, is_dead=True)
    bench.apply(DeleteDestination(queue))
    queue = bench.create("queue:q")
    bench.apply(Redrive(bench.named(DMQ).number, []))
    assert bench.pending(queue) == [(1, 1)]


def test_a_restored_replica_redrives_as_the_others_do() -> None:
    bench, other = Bench(), Bench()
    queue, topic = bench.create("queue:q", last_value=True), bench.create("topic:t")
    names = [bench.subscribe(topic, name=name, is_durable=True) for name in ("gone", "stays")]
    bench.publish(topic, "a")
    for name in names:
        bench.give_back(topic, 1, 1, subscription=name, is_dead=True)
    for body in ("old", "new"):
        bench.publish(queue, Packed(body, key="k", priority=9))
        position = bench.queue(queue).next_position - 1
        bench.give_back(queue, position, position, is_dead=True)
    bench.apply(Unsubscribe(topic, names[0]))
    other.engine = Engine.restore(bench.engine.checkpoint())
    redrive = Redrive(bench.named(DMQ).number, [])
    effects = bench.apply(redrive)
    assert errors(effects) == ["InvalidDestination"]
    assert arrived(effects) == [(queue, 0, 4, 4), (topic, names[1], 2, 2)]
    assert other.apply(redrive) == effects
    assert b"".join(other.engine.checkpoint()) == b"".join(bench.engine.checkpoint())


def test_purged_histories_are_forgotten() -> None:
    bench = Bench()
    queue = bench.create("queue:q", delivery_limit=1)
    bench.publish(queue, *range(3))
    bench.give_back(queue, 1, 3)
    dead = bench.named(DMQ)
    bench.apply(Purge(dead.number))
    dead.sweep()
    assert not dead.histories


def test_a_dead_letter_queue_may_have_a_time_to_live() -> None:
    bench = Bench()
    dead = bench.create("queue:dead", ttl=1.0)
    queue = bench.create("queue:q", dead_letter="dead", delivery_limit=1)
    bench.publish(queue, "a")
    bench.give_back(queue, 1, 1)
    bench.tick(5_000)
    assert gone(bench.tick(6_000)) == [(dead, 0, [1, 1])]
    assert not bench.engine.retained()
