import msgspec
import pytest

from alphorn.message_manager.effects import Answer, Created, Deleted, Gone, Unsubscribed
from alphorn.message_manager.engine import Engine
from alphorn.model.commands import CreateDestination, DeleteDestination, Forget, SetPolicy
from alphorn.model.destinations import Destination, DestinationKind, Policy, parse_destination
from alphorn.model.messages import Packed
from tests.message_manager.bench import ALICE, BOB, Bench, arrived, errors


def create(name: str, owner: bytes = b"", policy: Policy | None = None) -> CreateDestination:
    kind, _, rest = name.partition(":")
    destination = Destination(DestinationKind[kind.upper()], rest)
    return CreateDestination(destination, policy or Policy(), owner)


@pytest.mark.requirement("MM-9", "MM-16")
def test_a_destination_is_created_once_and_announced() -> None:
    bench = Bench()
    first = bench.apply(create("queue:q"))
    assert first == [Created(1, parse_destination("queue:q"), Policy(), is_new=True), Answer(0, 1)]
    assert bench.apply(create("queue:q", policy=Policy(ttl=1.0))) == [Answer(0, 1)]
    assert bench.queue(1).policy == Policy(), "one that exists keeps its policy"


@pytest.mark.requirement("API-3")
def test_a_queue_and_a_topic_may_share_a_name() -> None:
    bench = Bench()
    assert bench.create("queue:x") != bench.create("topic:x")


@pytest.mark.requirement("WKD-2")
@pytest.mark.parametrize("name", ["queue:_mine", "topic:_DMQ", "queue:_LOG", "topic:_"])
def test_names_of_the_system_are_not_for_users(name: str) -> None:
    assert Bench().answer(create(name)).error == "AccessDenied"


@pytest.mark.requirement("WKD-1")
@pytest.mark.parametrize("name", ["queue:_DMQ", "topic:_LOG", "topic:_ADMIN", "topic:_AUDIT"])
def test_what_the_system_knows_is_there_for_whoever_needs_it(name: str) -> None:
    bench = Bench()
    number = bench.create(name)
    assert bench.answer(DeleteDestination(number)).error == "AccessDenied"
    assert bench.answer(create(name, ALICE)).error == "AccessDenied"


@pytest.mark.parametrize("name", ["queue:", "queue:a\nb", "topic:" + "x" * 300])
def test_impossible_names_are_answered(name: str) -> None:
    assert Bench().answer(create(name)).error == "InvalidDestination"


@pytest.mark.parametrize(
    "policy",
    [
        Policy(retain_s=-1.0),
        Policy(ttl=float("nan")),
        Policy(ttl=float("inf")),
        Policy(dead_letter=""),
        Policy(priority=11),
    ],
)
def test_impossible_policies_are_answered_and_change_nothing(policy: Policy) -> None:
    bench = Bench()
    assert bench.answer(create("queue:q", policy=policy)).error == "InvalidDestination"
    assert not bench.engine.destinations
    number = bench.create("queue:q", ttl=5.0)
    assert bench.answer(SetPolicy(number, policy)).error == "InvalidDestination"
    assert bench.queue(number).policy == Policy(ttl=5.0)


@pytest.mark.requirement("WKD-2")
def test_a_dead_letter_queue_has_no_name_of_the_system_but_the_known_one() -> None:
    bench = Bench()
    assert bench.answer(create("queue:q", policy=Policy(dead_letter="_mine"))).error == "AccessDenied"
    assert not bench.answer(create("queue:q", policy=Policy(dead_letter="_DMQ"))).error


def test_a_temporary_destination_ends_with_its_connection() -> None:
    bench = Bench()
    mine, other = bench.create("queue:temporary.a", ALICE), bench.create("queue:lasting")
    assert bench.engine.connections() == {ALICE}
    assert bench.create("queue:temporary.a", ALICE) == mine
    assert bench.create("queue:temporary.a") == mine, "who only sends there does not own it"
    assert bench.answer(create("queue:temporary.a", BOB)).error == "InvalidDestination"
    assert bench.answer(create("queue:lasting", BOB)).error == "InvalidDestination"
    effects = bench.apply(Forget(ALICE))
    assert effects == [Deleted(mine, parse_destination("queue:temporary.a"), is_temporary=True)]
    assert list(bench.engine.destinations) == [other]
    assert bench.engine.connections() == set()
    assert bench.answer(create("queue:temporary.a")).error == "InvalidDestination"


def test_a_deleted_temporary_destination_is_owned_no_more() -> None:
    bench = Bench()
    bench.apply(DeleteDestination(bench.create("queue:temporary.a", ALICE)))
    assert bench.engine.connections() == set()
    assert bench.apply(Forget(ALICE)) == []


def test_a_deleted_topic_ends_its_subscriptions() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    volatile, durable = bench.subscribe(topic), bench.subscribe(topic, name="s", is_durable=True)
    bench.publish(topic, "x", connection=ALICE)
    effects = bench.apply(DeleteDestination(topic))
    assert effects == [
        Unsubscribed(topic, volatile),
        Unsubscribed(topic, durable),
        Deleted(topic, parse_destination("topic:t")),
    ]
    assert bench.engine.find_subscription("", "s") is None
    assert bench.engine.connections() == {ALICE}
    assert not bench.engine.retained()
    assert errors(bench.publish(topic, "y")) == ["InvalidDestination"]


def test_numbers_are_never_given_again() -> None:
    bench = Bench()
    first = bench.create("queue:q")
    bench.apply(DeleteDestination(first))
    assert bench.create("queue:q") > first
    assert bench.answer(DeleteDestination(first)).error == "InvalidDestination"


def test_another_policy_holds_from_then_on() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, "a")
    policy = Policy(max_length=1, overflow="reject")
    assert bench.apply(SetPolicy(queue, policy)) == [Created(queue, parse_destination("queue:q"), policy)]
    assert errors(bench.publish(queue, "b")) == ["Blocked"]
    bench.apply(SetPolicy(queue, Policy()))
    assert len(arrived(bench.publish(queue, "c"))) == 1


@pytest.mark.requirement("MM-7")
def test_destinations_have_positions_of_their_own() -> None:
    bench = Bench()
    numbers = [bench.create(f"queue:{name}") for name in "abc"]
    for number in numbers * 2:
        bench.publish(number, "x", "y", number=number)
    assert [bench.pending(number) for number in numbers] == [[(1, 4)]] * 3


def test_the_printable_state_names_every_destination() -> None:
    bench = Bench()
    bench.publish(bench.create("queue:q"), *range(3))
    bench.subscribe(bench.create("topic:t"), name="s", is_durable=True)
    described = bench.engine.describe()
    queue, topic = described["destinations"]  # type: ignore[misc,has-type]
    assert (queue["name"], queue["depth"], queue["bytes"] > 0) == ("queue:q", 3, True)
    assert (topic["name"], topic["subscriptions"][0]["name"]) == ("topic:t", "s")
    assert described["producers"] == 1


def test_a_queue_that_becomes_one_of_last_values_keeps_the_newest_of_each_key_on_every_replica() -> None:
    bench, twin = Bench(), Bench()
    queue = bench.create("queue:q", groups=True)
    bench.publish(queue, Packed("old", key="K"), Packed("other", key="L"), Packed("new", key="K"))
    effects = bench.apply(SetPolicy(queue, Policy(groups=True, last_value=True)))
    assert [effect.positions for effect in effects if isinstance(effect, Gone)] == [[1, 1]]
    bench.acknowledge(queue, 3, 3)
    twin.engine, twin.counters = Engine.restore(list(bench.engine.checkpoint())), dict(bench.counters)
    newest = Packed("newest", key="K")
    assert bench.publish(queue, newest) == twin.publish(queue, newest)
    assert b"".join(bench.engine.checkpoint()) == b"".join(twin.engine.checkpoint())


@pytest.mark.requirement("DMQ-2")
def test_a_policy_names_a_dead_letter_queue_of_its_own_channel_only() -> None:
    """A name belongs to one channel, which is not for this one to say; so nothing is made here on its own."""
    bench = Bench()
    policy = Policy(dead_letter="dead")
    assert bench.answer(create("queue:q", policy=policy)).error == "NoDeadLetterQueue"
    assert parse_destination("queue:q") not in bench.engine.numbers
    queue = bench.create("queue:q")
    assert bench.answer(SetPolicy(queue, policy)).error == "NoDeadLetterQueue"
    bench.create("queue:dead")
    assert not [effect for effect in bench.apply(SetPolicy(queue, policy)) if isinstance(effect, Answer)]
    assert bench.queue(queue).policy == policy
    assert not bench.answer(create("queue:q", policy=Policy(dead_letter="any"))).error, "it exists, and keeps its own"


def limited(name: str, most: int) -> CreateDestination:
    return msgspec.structs.replace(create(name), destinations_max=most)


def test_no_more_destinations_are_created_than_there_may_be_and_deleting_one_makes_room() -> None:
    bench = Bench()
    numbers = [bench.answer(limited(f"queue:{number}", 3)).number for number in range(3)]
    refused = bench.answer(limited("topic:more", 3))
    assert (refused.error, refused.reason) == (
        "Misuse",
        "topic:more is not created: its channel has 3 destinations and may have 3; "
        "delete some, or raise destinations_max in the cluster file",
    )
    assert bench.answer(limited("queue:1", 3)).number == numbers[1], "what exists is found as before"
    bench.apply(DeleteDestination(numbers[0]))
    assert not bench.answer(limited("topic:more", 3)).error


def test_what_the_system_needs_is_created_however_many_destinations_there_are() -> None:
    bench = Bench()
    bench.create("queue:q")
    assert not bench.answer(limited("topic:_LOG", 1)).error


def test_the_limit_that_holds_is_the_one_in_the_command() -> None:
    bench = Bench()
    bench.create("queue:a")
    assert bench.answer(limited("queue:b", 1)).error == "Misuse"
    assert not bench.answer(limited("queue:b", 2)).error
    assert not bench.answer(create("queue:c")).error, "older logs have none"
