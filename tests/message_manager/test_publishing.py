from collections.abc import Callable

import msgspec
import pytest

from alphorn.message_manager.effects import Answer, Arrived
from alphorn.model.audit import AuditEvent, AuditStage, AuditTrail
from alphorn.model.commands import NOBODY, Entry, Forget, Publish, Tick, key_of
from alphorn.model.log_lines import LogLines
from alphorn.model.messages import Packed
from tests.message_manager.bench import ALICE, BOB, CAROL, Bench, arrived, batch, errors, gone

DAY_MS = 24 * 3600 * 1000


@pytest.mark.requirement("MM-2", "API-2")
def test_a_batch_is_one_arrival_and_one_segment() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    assert bench.publish(queue, *range(450)) == [Arrived(queue, 0, 1, 450)]
    assert bench.publish(queue, "next") == [Arrived(queue, 0, 451, 451)]
    assert len(bench.queue(queue).segments) == 2
    assert bench.pending(queue) == [(1, 451)]


@pytest.mark.requirement("API-12")
def test_a_batch_that_comes_again_is_stored_once() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    command = batch(queue, ["a", "b"])
    assert bench.apply(command, command) == [Arrived(queue, 0, 1, 2)]
    assert bench.apply(command) == []


@pytest.mark.requirement("API-12")
def test_of_a_batch_that_overlaps_only_the_new_part_is_stored() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.apply(batch(queue, ["a", "b"]))
    assert arrived(bench.apply(batch(queue, ["b", "c", "d"], counter=2))) == [(queue, 0, 3, 4)]
    run = bench.queue(queue).segments.find(3)
    assert run is not None
    assert (run.sequence, run.index, run.count) == (3, 1, 1)


def test_what_the_new_part_of_a_batch_asks_for_is_found_at_its_place() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.apply(batch(queue, ["a"]))
    bench.apply(batch(queue, [Packed("a", priority=9), Packed("b"), Packed("c", priority=9)]))
    assert bench.candidates(queue) == [3, 1, 2]


def test_a_gap_is_refused_and_forgotten() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    assert errors(bench.apply(batch(queue, ["c"], counter=3))) == ["UnknownOutcome"]
    assert bench.engine.connections() == set()
    bench.apply(batch(queue, ["a", "b"]))
    assert arrived(bench.apply(batch(queue, ["c"], counter=3))) == [(queue, 0, 3, 3)]


def test_producers_have_counters_of_their_own() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    for connection in (ALICE, BOB):
        for number in (1, 2):
            effects = bench.apply(batch(queue, ["x"], key=key_of(connection, number)))
            assert len(arrived(effects)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 3},
        {"count": 0},
        {"count": -1},
        {"count": 1 << 40},
        {"counter": 0},
        {"counter": -5},
        {"counter": 1 << 63},
        {"producer": b"short"},
        {"blob": memoryview(b"")},
        {"blob": memoryview(b"no batch")},
        {"flags": 127, "blob": memoryview(b"\x92\x91")},
        {"flags": 127, "blob": memoryview(b"\x92\x91\xa1\xff\x92\xc0\x81\xa1\xff\x01")},
        {"flags": 127, "blob": memoryview(b"\x92\x91\xc0\x91" + b"\x91" * 5_000 + b"\xc0")},
    ],
)
def test_a_batch_that_cannot_be_right_changes_nothing(changes: dict[str, object]) -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    before = b"".join(bench.engine.checkpoint())
    command = msgspec.structs.replace(batch(queue, ["a", "b"]), **changes)
    [answer] = bench.engine.apply(bench.engine.sequence + 1, Entry([command]))
    assert isinstance(answer, Answer)
    assert answer.error == "PeerViolation"
    assert answer.reason
    after = b"".join(bench.engine.checkpoint())
    assert len(after) == len(before)
    assert bench.pending(queue) == []
    assert arrived(bench.apply(batch(queue, ["a"]))) == [(queue, 0, 1, 1)]


@pytest.mark.requirement("DMQ-2")
def test_nobody_publishes_to_the_queue_of_dead_messages() -> None:
    bench = Bench()
    dead = bench.create("queue:_DMQ")
    assert errors(bench.publish(dead, "x")) == ["AccessDenied"]
    assert bench.pending(dead) == []


def test_a_producer_goes_on_after_a_refusal_and_a_resend_is_refused_alike() -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=2, overflow="reject")
    bench.apply(batch(queue, ["a"]))
    refused = bench.apply(batch(queue, ["b", "c"], counter=2))
    assert errors(refused) == ["Blocked"]
    bench.acknowledge(queue, 1, 1)
    assert bench.apply(batch(queue, ["b", "c"], counter=2)) == refused
    assert arrived(bench.apply(batch(queue, ["d"], counter=4))) == [(queue, 0, 2, 2)]
    assert bench.apply(batch(queue, ["d"], counter=4)) == []
    assert errors(bench.apply(batch(99, ["e"], counter=5))) == ["InvalidDestination"]
    assert errors(bench.apply(batch(queue, ["e"], counter=5))) == ["InvalidDestination"]


def test_a_batch_that_overlaps_a_refused_one_is_refused_as_a_whole() -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=1, overflow="reject")
    bench.apply(batch(queue, ["a", "b"]))
    assert errors(bench.apply(batch(queue, ["b", "c"], counter=2))) == ["Blocked"]
    assert bench.pending(queue) == []
    assert arrived(bench.apply(batch(queue, ["d"], counter=4))) == [(queue, 0, 1, 1)]


def test_a_topic_is_as_full_as_its_slowest_subscription() -> None:
    bench = Bench()
    topic = bench.create("topic:t", max_length=2, overflow="reject")
    quick, slow = bench.subscribe(topic, ALICE), bench.subscribe(topic, BOB)
    bench.publish(topic, "a", "b")
    bench.acknowledge(topic, 1, 2, subscription=quick)
    assert errors(bench.publish(topic, "c")) == ["Blocked"]
    bench.acknowledge(topic, 1, 1, subscription=slow)
    assert len(arrived(bench.publish(topic, "c"))) == 2


def test_messages_go_by_priority_and_then_in_order() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, "a", Packed("b", priority=9), Packed("c", priority=0), "d")
    bench.publish(queue, Packed("e", priority=9), Packed("f", priority=17), Packed("g", priority=-3))
    assert bench.candidates(queue) == [2, 5, 6, 1, 4, 3, 7]


def test_the_policys_priority_takes_the_place_of_the_senders() -> None:
    bench = Bench()
    queue = bench.create("queue:q", priority=8)
    bench.publish(queue, "a", Packed("b", priority=1))
    assert bench.queue(queue).priorities[8].flat() == [1, 2]
    assert bench.candidates(queue) == [1, 2]


def test_the_newest_value_of_a_key_stands() -> None:
    bench = Bench()
    queue = bench.create("queue:q", last_value=True)
    values = [Packed("a1", key="a"), Packed("b1", key="b"), Packed("a2", key="a"), "no key"]
    assert gone(bench.publish(queue, *values)) == [], "nobody had heard of the first one"
    assert bench.pending(queue) == [(2, 4)]
    effects = bench.publish(queue, Packed("b2", key="b"))
    assert gone(effects) == [(queue, 0, [2, 2])]
    assert bench.pending(queue) == [(3, 5)]
    bench.acknowledge(queue, 5, 5)
    assert gone(bench.publish(queue, Packed("b3", key="b"))) == []


def test_keys_are_known_where_the_policy_groups_by_them() -> None:
    bench = Bench()
    grouped, plain = bench.create("queue:grouped", groups=True), bench.create("queue:plain")
    for queue in (grouped, plain):
        bench.publish(queue, Packed("a", key="k"), "b", number=queue)
    assert bench.queue(grouped).keys == {1: "k"}
    assert bench.queue(plain).keys == {}
    bench.acknowledge(grouped, 1, 2)
    assert bench.queue(grouped).keys == {}


def test_a_delayed_message_waits_for_its_time() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.tick(1_000)
    effects = bench.publish(queue, "now", Packed("later", deliver_at=5_000), Packed("past", deliver_at=1_000))
    assert arrived(effects) == [(queue, 0, 1, 1), (queue, 0, 3, 3)]
    assert bench.engine.next_due() == 5_000
    assert arrived(bench.tick(4_999)) == []
    assert arrived(bench.tick(5_000)) == [(queue, 0, 2, 2)]
    assert bench.candidates(queue) == [1, 2, 3]
    assert bench.engine.next_due() is None


@pytest.mark.requirement("API-3")
def test_every_subscription_gets_every_message() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    bench.publish(topic, "nobody hears this")
    first = bench.subscribe(topic, ALICE)
    second = bench.subscribe(topic, BOB)
    effects = bench.publish(topic, "a", "b")
    assert arrived(effects) == [(topic, first, 2, 3), (topic, second, 2, 3)]
    bench.acknowledge(topic, 2, 3, subscription=first)
    assert bench.pending(topic, first) == []
    assert bench.pending(topic, second) == [(2, 3)]


def test_a_topic_nobody_listens_to_stores_nothing() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    assert bench.publish(topic, "a", Packed("b", {"n": 1}, priority=3, expiration=9)) == []
    assert len(bench.topic(topic).segments) == 0
    assert not bench.engine.retained()


@pytest.mark.requirement("API-8")
def test_a_subscription_gets_what_its_selector_takes() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    chosen = bench.subscribe(topic, ALICE, selector="n > 1 AND JMSPriority < 5")
    all_of_it = bench.subscribe(topic, BOB)
    messages = [Packed(properties={"n": n}, priority=p) for n, p in [(1, 4), (2, 4), (3, 9), (4, 0)]]
    bench.publish(topic, *messages, "no property")
    assert bench.candidates(topic, chosen) == [2, 4]
    assert bench.candidates(topic, all_of_it) == [3, 1, 2, 5, 4]


def test_a_plain_batch_is_selected_by_its_header_alone() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    wanted = bench.subscribe(topic, selector="JMSTimestamp = 7 AND n IS NULL AND JMSDeliveryMode = 'PERSISTENT'")
    never = bench.subscribe(topic, CAROL, selector="JMSPriority > 4")
    one = bench.subscribe(topic, ALICE, selector=f"JMSMessageID = 'ID:{key_of(ALICE, 1).hex()}:2'")
    bench.publish(topic, "a", "b", "c")
    assert bench.pending(topic, wanted) == [(1, 3)]
    assert bench.pending(topic, never) == []
    assert bench.pending(topic, one) == [(2, 2)]


def test_no_local_leaves_out_what_the_connection_itself_sent() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    mine = bench.subscribe(topic, ALICE, no_local=ALICE)
    bench.publish(topic, "mine", connection=ALICE)
    bench.publish(topic, "yours", connection=BOB)
    assert bench.pending(topic, mine) == [(2, 2)]


def test_counters_end_with_their_connection() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, "a")
    assert bench.engine.connections() == {ALICE}
    bench.apply(Forget(ALICE))
    assert bench.engine.connections() == set()
    again = bench.apply(batch(queue, ["a"]))
    assert (arrived(again), errors(again)) == ([], ["UnknownOutcome"]), "a Client Manager that hung had it in hand"
    assert arrived(bench.apply(batch(queue, ["a"], key=key_of(ALICE, 2)))) == [(queue, 0, 2, 2)]


def test_a_producer_of_nobody_is_forgotten_after_a_day_without_a_message() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.tick(1_000)
    command = batch(queue, ["a"], key=key_of(NOBODY, 1))
    bench.apply(command)
    assert bench.engine.connections() == set()
    assert bench.engine.next_due() == 1_000 + DAY_MS
    bench.apply(Tick(999 + DAY_MS))
    assert bench.apply(command) == []
    bench.apply(Tick(1_000 + DAY_MS))
    assert arrived(bench.apply(command)) == [(queue, 0, 2, 2)]


@pytest.mark.parametrize("make", [lambda: LogLines(b"run"), lambda: AuditTrail("node", b"run")], ids=["log", "audit"])
@pytest.mark.parametrize("what", ["silence", "loss"])
def test_what_a_node_says_of_itself_is_stored_after_a_day_of_silence_and_after_something_was_lost(
    make: Callable[[], LogLines | AuditTrail], what: str
) -> None:
    bench, trail = Bench(), make()
    topic = bench.create("topic:t", retain_s=3.0 * DAY_MS)

    def say() -> Publish:
        if isinstance(trail, LogLines):
            trail.add(["line"])
        else:
            trail.add(AuditEvent(stage=AuditStage.BEGUN, destination="queue:q"))
        return trail.publish(topic, 0)

    bench.tick(1_000)
    bench.apply(say())
    if what == "loss":
        say()
    else:
        bench.apply(Tick(1_000 + DAY_MS))
    last = say()
    assert not errors(bench.apply(last))
    assert bench.engine.destinations[topic].next_position == 3
    bench.apply(last)
    assert bench.engine.destinations[topic].next_position == 3, "and once"


def test_the_end_of_a_connection_that_cannot_be_leaves_the_producers_of_nobody_as_they_are() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.apply(batch(queue, ["a"], key=key_of(NOBODY, 2)))
    assert errors(bench.apply(Forget(NOBODY))) == ["PeerViolation"]
    assert arrived(bench.apply(batch(queue, ["b"], key=key_of(NOBODY, 1)))) == [(queue, 0, 2, 2)]
    assert bench.apply(batch(queue, ["a"], key=key_of(NOBODY, 2))) == [], "it was stored before"


def test_the_id_of_a_message_is_the_same_when_a_part_of_its_batch_was_stored_before() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    bench.apply(batch(topic, ["a"]))
    third = bench.subscribe(topic, selector=f"JMSMessageID = 'ID:{key_of(ALICE, 1).hex()}:3'")
    bench.apply(batch(topic, ["a", "b", "c"]))
    assert bench.pending(topic, third) == [(3, 3)]


@pytest.mark.requirement("API-12")
def test_a_producer_that_sends_to_other_channels_too_has_gaps_here_and_nothing_on_its_way_is_overtaken() -> None:
    bench = Bench()
    queue = bench.create("queue:q")

    def publish(counter: int, after: int) -> list[str]:
        return errors(bench.apply(msgspec.structs.replace(batch(queue, ["body"], counter), after=after)))

    assert publish(3, after=0) == []
    assert publish(7, after=5) == ["Unavailable"], "the one with counter 5 is still on its way"
    assert publish(5, after=3) == []
    assert publish(7, after=5) == []
    assert publish(5, after=3) == [], "sent again"
    assert publish(9, after=9) == ["PeerViolation"]
    assert bench.pending(queue) == [(1, 3)]
