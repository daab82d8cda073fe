from collections.abc import Iterator

import msgspec
import pytest

from alphorn.message_manager.effects import Answer, Arrived, Subscribed, Unsubscribed
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.moments import STEPS_MAX, Moments
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import Entry, Forget, Subscribe, Tick, Unsubscribe, key_of
from alphorn.model.messages import Packed
from tests.message_manager.bench import ALICE, BOB, CAROL, Bench, subscription


@pytest.fixture(name="bench")
def make_bench() -> Bench:
    """Topics 1 and 2; the second keeps messages for a minute and has four, published at 1, 2, 3 and 4 seconds."""
    bench = Bench()
    bench.create("topic:plain")
    topic = bench.create("topic:kept", retain_s=60.0)
    for second in (1, 2, 3, 4):
        bench.publish(topic, second, timestamp=second * 1_000)
        bench.tick(second * 1_000)
    return bench


def test_a_volatile_subscription_belongs_to_its_consumer(bench: Bench) -> None:
    effects = bench.apply(subscription(1, ALICE))
    assert effects == [Subscribed(1, 1), Answer(0, 1)]
    assert bench.apply(subscription(1, ALICE)) == [Answer(0, 1)], "to ask again changes nothing"
    assert bench.subscribe(1, ALICE, consumer=key_of(ALICE, 2)) == 2
    assert bench.subscribe(1, BOB) == 3
    assert bench.of(1, 1).consumer == key_of(ALICE, 1)
    assert ALICE in bench.engine.connections()


@pytest.mark.requirement("HA-20")
def test_volatile_subscriptions_end_with_their_connection_and_durable_ones_stay(bench: Bench) -> None:
    bench.subscribe(1, BOB)
    durable = bench.subscribe(1, BOB, name="s", is_durable=True)
    assert bench.apply(Forget(BOB)) == [Unsubscribed(1, 1)]
    assert list(bench.topic(1).subscriptions) == [durable]
    assert BOB not in bench.engine.connections()
    bench.publish(1, "while away")
    assert bench.subscribe(1, CAROL, name="s", is_durable=True) == durable
    assert bench.pending(1, durable) == [(1, 1)]
    assert bench.of(1, durable).consumer == key_of(CAROL, 1)


def test_durable_names_are_of_their_client(bench: Bench) -> None:
    one = bench.subscribe(1, name="s", client="one", is_durable=True)
    other = bench.subscribe(1, name="s", client="other", is_durable=True)
    assert one != other
    assert bench.engine.find_subscription("one", "s") == (1, one)
    assert bench.engine.find_subscription("", "s") is None


@pytest.mark.parametrize("changes", [{"selector": "n > 1"}, {"destination": 2}, {"no_local": ALICE}])
def test_a_durable_subscription_that_changes_is_a_new_one(bench: Bench, changes: dict[str, object]) -> None:
    old = bench.subscribe(1, name="s", is_durable=True)
    bench.publish(1, "for the old one")
    effects = bench.apply(subscription(**{"topic": 1, "name": "s", "is_durable": True, **changes}))  # type: ignore[arg-type]
    assert effects[0] == Unsubscribed(1, old)
    answer = effects[-1]
    assert isinstance(answer, Answer)
    topic = changes.get("destination", 1)
    assert bench.engine.find_subscription("", "s") == (topic, answer.number)
    assert bench.pending(topic, answer.number) == []  # type: ignore[arg-type]
    assert old not in bench.topic(1).subscriptions


def test_a_durable_subscription_without_local_messages_is_the_same_on_another_connection(bench: Bench) -> None:
    number = bench.subscribe(1, ALICE, name="s", is_durable=True, no_local=ALICE)
    assert bench.subscribe(1, BOB, name="s", is_durable=True, no_local=BOB) == number
    bench.publish(1, "from alice", connection=ALICE)
    bench.publish(1, "from bob", connection=BOB)
    assert bench.pending(1, number) == [(1, 1)]


@pytest.mark.parametrize("is_shared", [True, False])
def test_shared_and_unshared_cannot_have_one_name(bench: Bench, is_shared: bool) -> None:
    bench.subscribe(1, name="s", is_durable=True, is_shared=is_shared)
    answer = bench.answer(subscription(1, name="s", is_durable=True, is_shared=not is_shared))
    assert answer.error == "Misuse"


def test_durable_and_volatile_shared_ones_of_one_name_are_apart(bench: Bench) -> None:
    durable = bench.subscribe(1, name="s", is_durable=True, is_shared=True)
    volatile = bench.subscribe(1, name="s", is_shared=True)
    assert durable != volatile
    assert bench.engine.find_subscription("", "s") == (1, durable)


def test_a_shared_volatile_subscription_lives_as_long_as_any_of_its_consumers(bench: Bench) -> None:
    number = bench.subscribe(1, ALICE, name="s", is_shared=True)
    assert bench.subscribe(1, BOB, name="s", is_shared=True) == number
    assert bench.apply(Forget(ALICE)) == []
    assert bench.of(1, number).consumers == [key_of(BOB, 1)]
    assert bench.apply(Forget(BOB)) == [Unsubscribed(1, number)]
    assert bench.engine.find_subscription("", "s") is None


def test_a_shared_volatile_subscription_ends_when_the_last_consumer_leaves_it(bench: Bench) -> None:
    number = bench.subscribe(1, CAROL, name="s", is_shared=True)
    bench.subscribe(1, BOB, name="s", is_shared=True)
    assert bench.apply(Unsubscribe(1, number, key_of(CAROL, 1))) == []
    assert CAROL not in bench.engine.connections()
    assert bench.apply(Unsubscribe(1, number, key_of(CAROL, 1))) == []
    assert bench.apply(Unsubscribe(1, number, key_of(BOB, 1))) == [Unsubscribed(1, number)]


def test_a_consumer_that_leaves_does_not_end_a_durable_subscription(bench: Bench) -> None:
    number = bench.subscribe(1, ALICE, name="s", is_durable=True)
    assert bench.apply(Unsubscribe(1, number, key_of(ALICE, 1))) == []
    assert bench.engine.find_subscription("", "s") == (1, number)


def test_a_shared_volatile_subscription_changes_only_for_one_who_has_it_alone(bench: Bench) -> None:
    bench.subscribe(1, ALICE, name="s", is_shared=True)
    assert bench.answer(subscription(1, BOB, name="s", is_shared=True, selector="n = 1")).error == "Misuse"
    changed = bench.apply(subscription(1, ALICE, name="s", is_shared=True, selector="n = 1"))
    assert changed[0] == Unsubscribed(1, 1)
    assert bench.of(1, 2).selector_text == "n = 1"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"selector": "n >"}, "InvalidSelector"),
        ({"is_durable": True}, "Misuse"),
        ({"is_shared": True}, "Misuse"),
        ({"name": "x" * 300, "is_durable": True}, "Misuse"),
        ({"consumer": b"short"}, "PeerViolation"),
        ({"no_local": b"short"}, "PeerViolation"),
        ({"start": -2}, "Misuse"),
        ({"start_ms": -1}, "Misuse"),
        ({"destination": 99}, "InvalidDestination"),
        ({"destination": 3}, "InvalidDestination"),
    ],
)
def test_what_cannot_be_subscribed_is_answered(bench: Bench, changes: dict[str, object], error: str) -> None:
    bench.create("queue:number three")
    assert bench.answer(subscription(1, **changes)).error == error
    assert not bench.topic(1).subscriptions


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"start": -1}, []),
        ({"start": 0}, [(1, 4)]),
        ({"start": 7}, [(3, 4)]),
        ({"start": 8}, [(4, 4)]),
        ({"start": 500}, []),
        ({"start_ms": 1}, [(1, 4)]),
        ({"start_ms": 2_001}, [(3, 4)]),
        ({"start_ms": 3_000}, [(3, 4)]),
        ({"start_ms": 9_000}, []),
    ],
)
def test_a_subscription_begins_where_it_wants(
    bench: Bench, changes: dict[str, object], expected: list[tuple[int, int]]
) -> None:
    number = bench.subscribe(2, **changes)
    assert bench.pending(2, number) == expected
    bench.publish(2, "new")
    assert bench.candidates(2, number)[-1] == 5


def sent_at(*times: int) -> Bench:
    """Topic 1 keeps messages that were sent at these times, one in each batch, all between two ticks."""
    bench = Bench()
    topic = bench.create("topic:kept", retain_s=60.0)
    bench.tick(1_000)
    for time_ms in times:
        bench.publish(topic, time_ms, timestamp=time_ms)
    bench.tick(2_000)
    return bench


@pytest.mark.parametrize(
    ("start_ms", "first"), [(1_001, 1), (1_500, 1), (1_501, 2), (1_502, 2), (1_503, 4), (1_504, 4), (1_505, 5)]
)
def test_a_replay_from_a_time_is_exact_to_the_timestamps_of_the_messages(start_ms: int, first: int) -> None:
    bench = sent_at(1_500, 1_502, 1_502, 1_504)
    number = bench.subscribe(1, start_ms=start_ms)
    assert bench.pending(1, number) == ([(first, 4)] if first <= 4 else [])
    twin = Bench()
    twin.engine = Engine.restore(bench.engine.checkpoint())
    assert twin.pending(1, twin.subscribe(1, CAROL, start_ms=start_ms)) == bench.pending(1, number)


def test_a_sender_whose_clock_is_ahead_does_not_make_a_replay_begin_before_its_time() -> None:
    bench = sent_at(1_500, 99_000, 1_600)
    bench.publish(1, "later", timestamp=2_500)
    bench.tick(3_000)
    assert bench.pending(1, bench.subscribe(1, start_ms=2_400)) == [(4, 4)]
    assert bench.pending(1, bench.subscribe(1, CAROL, start_ms=1_550)) == [(2, 4)]


def test_only_the_newest_moments_are_remembered_and_a_replay_from_before_them_begins_early() -> None:
    moments = Moments()
    for position in range(STEPS_MAX + 1):
        moments.note(position + 1, position)
    assert len(moments.times) <= STEPS_MAX
    assert moments.first_from(STEPS_MAX, end=0) == STEPS_MAX + 1
    assert moments.first_from(10, end=0) == 0


def test_moments_of_messages_that_are_kept_no_more_are_forgotten() -> None:
    bench = sent_at(1_500, 1_502, 1_504)
    bench.tick(70_000)
    assert bench.topic(1).moments.times == []


@pytest.mark.parametrize("timestamp", [-1, 1 << 63])
def test_a_timestamp_that_no_clock_shows_harms_nobody(timestamp: int) -> None:
    bench = sent_at(1_500, timestamp, 1_502)
    assert bench.pending(1, bench.subscribe(1, start_ms=1_501)) == [(3, 3)]
    Engine.restore(bench.engine.checkpoint())


def test_replayed_messages_arrive_and_are_marked_as_unseen_by_the_selector(bench: Bench) -> None:
    effects = bench.apply(subscription(2, selector="n = 1", start=0))
    assert effects == [Subscribed(2, 1), Arrived(2, 1, 1, 4), Answer(0, 1)]
    assert bench.of(2, 1).selected_from == 5
    bench.publish(2, Packed(properties={"n": 1}), Packed(properties={"n": 2}))
    assert bench.pending(2, 1) == [(1, 5)]


def test_a_topic_that_keeps_nothing_has_nothing_to_replay(bench: Bench) -> None:
    bench.subscribe(1, ALICE)
    bench.publish(1, "pending for alice")
    late = bench.subscribe(1, BOB, start=0)
    assert bench.pending(1, late) == []


def test_an_unsubscribed_subscription_is_gone(bench: Bench) -> None:
    number = bench.subscribe(1, name="s", is_durable=True)
    bench.publish(1, "x")
    assert bench.apply(Unsubscribe(1, number)) == [Unsubscribed(1, number)]
    assert bench.answer(Unsubscribe(1, number)).error == "InvalidDestination"
    assert bench.subscribe(1, name="s", is_durable=True) > number


def test_an_impossible_connection_owns_nothing(bench: Bench) -> None:
    assert bench.answer(Forget(b"short")).error == "PeerViolation"
    assert bench.apply(Forget(CAROL)) == []
    assert bench.apply(Tick(0)) == []


class Unwalked(dict[int, object]):
    """Subscriptions that may be looked up, and not gone through."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("a consumer that comes or goes must not cost by the number of others")

    values = items = __iter__  # type: ignore[assignment]


def test_a_consumer_that_comes_or_goes_costs_nothing_by_the_number_of_others(bench: Bench) -> None:
    bench.subscribe(1, ALICE)
    topic = bench.topic(1)
    topic.subscriptions = Unwalked(topic.subscriptions)  # type: ignore[assignment]
    assert bench.subscribe(1, ALICE, consumer=key_of(ALICE, 2), selector="a = 1") == 2
    assert bench.subscribe(1, ALICE, consumer=key_of(ALICE, 2), selector="a = 1") == 2
    assert bench.subscribe(1, ALICE, consumer=key_of(ALICE, 2), selector="a = 2") == 3
    bench.apply(Unsubscribe(1, 3, key_of(ALICE, 2)))
    assert bench.subscribe(1, ALICE, consumer=key_of(ALICE, 2)) == 4


def test_a_restored_topic_knows_whose_its_subscriptions_are_and_whether_any_chooses(bench: Bench) -> None:
    bench.subscribe(1, ALICE)
    chosen = bench.subscribe(1, BOB, selector="a = 1")
    bench.subscribe(1, BOB, name="s", is_durable=True, selector="a = 1")
    twin = Engine.restore(bench.engine.checkpoint())
    for engine in (bench.engine, twin):
        topic = engine.destinations[1]
        assert isinstance(topic, Topic)
        again = engine.apply(engine.sequence + 1, Entry([subscription(1, BOB, selector="a = 1")], [9]))
        assert again == [Answer(0, chosen)]
        assert topic.selective
        engine.apply(engine.sequence + 1, Entry([Unsubscribe(1, chosen, key_of(BOB, 1))]))
        assert topic.selective
        engine.apply(engine.sequence + 1, Entry([Unsubscribe(1, 3)]))
        assert not topic.selective


def test_no_more_named_subscriptions_are_made_than_there_may_be_and_those_there_are_go_on(bench: Bench) -> None:
    def wanted(name: str, topic: int = 1, **options: object) -> Subscribe:
        return msgspec.structs.replace(subscription(topic, ALICE, name=name, **options), subscriptions_max=2)

    first = bench.answer(wanted("one", is_durable=True)).number
    assert not bench.answer(wanted("two", is_durable=True)).error
    refused = bench.answer(wanted("three", is_durable=True))
    assert (refused.error, refused.reason) == (
        "Misuse",
        "subscription three is not made: its channel has 2 named ones and may have 2; "
        "unsubscribe from some, or raise subscriptions_max in the cluster file",
    )
    assert bench.answer(wanted("one", is_durable=True)).number == first
    assert not bench.answer(wanted("two", topic=2, is_durable=True)).error, "one takes the place of another"
    assert not bench.answer(wanted("")).error, "one without a name ends with its consumer"
    bench.apply(Unsubscribe(1, first))
    assert not bench.answer(wanted("three", is_durable=True)).error
