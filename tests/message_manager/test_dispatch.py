"""Who gets which messages in the plain case: ranges, room, turns, acknowledgement and return."""

from collections.abc import Iterator
from typing import Any

import pytest

from alphorn.message_manager.topic import SEGMENTS_MIN
from alphorn.model.commands import DeleteDestination, Return, SetPolicy, Unsubscribe, connection_of
from alphorn.model.destinations import Policy
from alphorn.model.errors import InvalidDestination, InvalidSelector, Misuse
from alphorn.model.link import DeliveredRun
from alphorn.model.messages import Packed
from alphorn.model.ranges import RangeSet
from tests.message_manager.stage import Stage, first_time, key


@pytest.fixture
def stage() -> Stage:
    return Stage()


class Unwalked(dict[Any, Any]):
    """Consumers that may be looked up, and not gone through."""

    def __iter__(self) -> Iterator[Any]:
        return map(_refuse, range(1))

    values = items = __iter__  # type: ignore[assignment]


def _refuse(_: int) -> None:
    raise AssertionError("a consumer that comes or goes must not cost by the number of others")


def test_a_consumer_that_comes_or_goes_costs_nothing_by_the_number_of_others(stage: Stage) -> None:
    queue = stage.queue()
    stage.publish(queue, 10)
    stage.attach("a", queue, prefetch=1)
    outlet, places = stage.dispatcher._outlets[queue][0], stage.dispatcher._places
    outlet.consumers, places._outlets = Unwalked(outlet.consumers), Unwalked(places._outlets)
    stage.attach("b", queue, prefetch=2)
    stage.attach("b", queue, prefetch=2, held=[2, 3])
    assert stage.dispatcher.consumers_of(connection_of(key("b")), 1) == [key("b")]
    assert stage.dispatcher.detach(key("b")) != []


def test_what_one_of_many_with_the_same_selector_leaves_behind_others_still_get(stage: Stage) -> None:
    queue = stage.queue()
    for name in "abc":
        stage.attach(name, queue, prefetch=1, selector="x = 1")
    stage.attach("a", queue, prefetch=1)
    stage.detach("b")
    stage.publish(queue, [Packed("body", {"x": 1}), Packed("body"), Packed("body", {"x": 1})])
    assert stage.deliver() == {"c": first_time(1, 1), "a": first_time(2, 2)}
    stage.detach("c")
    assert [consumer["selector"] for consumer in stage.state(queue)["consumers"]] == [""]


@pytest.mark.requirement("MM-3", "MM-10")
def test_a_batch_is_delivered_by_its_place_in_the_log_to_the_consumers_client_manager(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, client_manager=7)
    stage.publish(queue, 450)
    assert stage.deliver() == {"a": first_time(1, 450)}
    assert stage.runs["a"] == [DeliveredRun(stage.engine.sequence, 0, 0, 450, 1, 1)]
    assert stage.managers == {"a": 7}


def test_what_was_there_before_the_consumer_is_delivered_one_run_a_batch(stage: Stage) -> None:
    queue = stage.queue()
    for _ in range(3):
        stage.publish(queue, 10)
    stage.attach("a", queue)
    assert stage.deliver() == {"a": first_time(1, 30)}
    assert [(run.position, run.count) for run in stage.runs["a"]] == [(1, 10), (11, 10), (21, 10)]


def test_nobody_has_more_than_its_prefetch_and_acknowledging_a_part_makes_room_for_as_much(stage: Stage) -> None:
    queue = stage.queue()
    stage.publish(queue, 100)
    stage.attach("a", queue, prefetch=40)
    assert stage.deliver() == {"a": first_time(1, 40)}
    assert stage.deliver() == {}
    stage.acknowledge("a", queue, 11, 25)
    assert stage.deliver() == {"a": first_time(41, 55)}
    assert stage.runs["a"][0].index == 40
    assert stage.state(queue)["consumers"][0]["outstanding"] == 40


def test_competing_consumers_get_whole_batches_in_turn(stage: Stage) -> None:
    queue = stage.queue()
    for name in "abc":
        stage.attach(name, queue, prefetch=100)
    for _ in range(4):
        stage.publish(queue, 30)
    assert stage.deliver() == {
        "a": first_time(1, 30) + first_time(91, 120),
        "b": first_time(31, 60),
        "c": first_time(61, 90),
    }


def test_a_batch_goes_whole_to_whoever_has_room_for_all_of_it(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("narrow", queue, prefetch=10)
    stage.attach("wide", queue, prefetch=50)
    stage.publish(queue, 40)
    assert stage.deliver() == {"wide": first_time(1, 40)}


def test_a_batch_that_fits_nowhere_is_split_rather_than_kept_waiting(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("narrow", queue, prefetch=10)
    stage.attach("wide", queue, prefetch=50)
    stage.publish(queue, 100)
    assert stage.deliver() == {"wide": first_time(1, 50), "narrow": first_time(51, 60)}


@pytest.mark.requirement("MM-13")
def test_a_consumer_without_room_holds_up_nobody(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("slow", queue, prefetch=1)
    stage.publish(queue)
    assert stage.deliver() == {"slow": [(1, 1)]}
    stage.attach("quick", queue, prefetch=5)
    stage.publish(queue, 3)
    assert stage.deliver() == {"quick": first_time(2, 4)}


@pytest.mark.requirement("API-9")
def test_what_a_consumer_gives_back_comes_again_before_newer_messages_and_counts(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, prefetch=3)
    stage.publish(queue, 5)
    assert stage.deliver() == {"a": first_time(1, 3)}
    stage.give_back("a", queue, 2, 2)
    assert stage.deliver() == {"a": [(2, 2)]}
    stage.give_back("a", queue, 1, 2)
    assert stage.deliver() == {"a": [(1, 2), (2, 3)]}


def test_what_comes_back_to_wait_frees_room_now_and_is_delivered_when_it_is_due(stage: Stage) -> None:
    queue = stage.queue()
    stage.tick(1_000)
    stage.attach("a", queue, prefetch=2)
    stage.publish(queue, 3)
    stage.deliver()
    stage.give_back("a", queue, 1, 1, delay_ms=500)
    assert stage.deliver() == {"a": [(3, 1)]}
    stage.tick(1_001)
    stage.acknowledge("a", queue, 2, 3)
    assert stage.deliver() == {}
    stage.tick(5_000)
    assert stage.deliver() == {"a": [(1, 2)]}


@pytest.mark.requirement("API-9", "MM-11")
def test_what_a_consumer_held_when_it_left_is_given_out_only_once_its_return_is_applied(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, prefetch=10)
    stage.publish(queue, 10)
    stage.deliver()
    stage.acknowledge("a", queue, 3, 4)
    stage.attach("b", queue)
    commands = stage.detach("a")
    assert commands == [Return(queue, 0, key("a"), [1, 2, 5, 10], delay_ms=0)]
    assert stage.deliver() == {}
    stage.order(*commands)
    assert stage.deliver() == {"b": [(position, 2) for position in (1, 2, 5, 6, 7, 8, 9, 10)]}


def test_what_the_program_of_a_leaving_consumer_never_saw_does_not_count(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, prefetch=10)
    stage.publish(queue, 4)
    stage.deliver()
    commands = stage.dispatcher.detach(key("a"), RangeSet([(2, 3)]))
    stage.order(*commands)
    stage.attach("b", queue)
    assert stage.deliver() == {"b": [(1, 1), (2, 2), (3, 2), (4, 1)]}


def test_consumers_of_a_deleted_topic_hear_that_it_was_deleted(stage: Stage) -> None:
    topic = stage.topic()
    stage.attach("a", topic, subscription=stage.subscribe(topic, "s"))
    stage.order(DeleteDestination(topic))
    [(_, detached)] = stage.dispatcher.take_notices()
    assert "was deleted; create it again" in detached.reason


def test_a_late_return_of_one_consumer_takes_nothing_from_another(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, prefetch=1)
    stage.publish(queue)
    stage.deliver()
    commands = stage.detach("a")
    stage.give_back("a", queue, 1, 1)  # by the client, a moment before it left
    stage.attach("b", queue, prefetch=1)
    assert stage.deliver() == {"b": [(1, 2)]}
    stage.order(*commands)
    stage.attach("c", queue, prefetch=1)
    assert stage.deliver() == {}
    assert stage.state(queue)["locked"] == 1


def test_a_consumer_that_holds_nothing_or_is_unknown_leaves_without_a_command(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue)
    assert stage.detach("a") == []
    assert stage.detach("a") == []
    assert stage.dispatcher.describe()["destinations"] == {}


@pytest.mark.requirement("HA-20", "MM-11")
def test_a_lost_client_manager_takes_its_consumers_with_it_and_no_others(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue("other")
    stage.attach("a", queue, prefetch=2, client_manager=1)
    stage.attach("b", other, prefetch=2, client_manager=1)
    stage.attach("c", queue, prefetch=2, client_manager=2)
    stage.publish(queue, 4)
    stage.publish(other, 1)
    assert set(stage.deliver()) == {"a", "b", "c"}
    commands = stage.lose(1)
    assert [(command.destination, command.consumer) for command in commands] == [(queue, key("a")), (other, key("b"))]
    stage.order(*commands)
    stage.acknowledge("c", queue, 3, 4)
    assert stage.deliver() == {"c": [(1, 2), (2, 2)]}
    assert stage.dispatcher.describe()["destinations"].keys() == {queue}


@pytest.mark.requirement("HA-20")
def test_a_consumer_that_attaches_again_keeps_what_it_names_and_the_rest_may_be_a_redelivery(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, prefetch=10, client_manager=1)
    stage.publish(queue, 10)
    stage.deliver()
    stage.attach("a", queue, prefetch=10, client_manager=2, held=[1, 3, 7, 7])
    assert stage.deliver() == {"a": [(position, 2) for position in (4, 5, 6, 8, 9, 10)]}
    assert stage.managers == {"a": 2}
    assert stage.detach("a")[0].positions == [1, 10]


def test_a_consumer_that_turns_to_another_queue_leaves_the_first_one_free(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue("other")
    stage.attach("a", queue)
    stage.publish(queue, 2)
    stage.deliver()
    stage.attach("a", other)
    stage.attach("b", queue)
    assert stage.deliver() == {"b": [(1, 2), (2, 2)]}


def test_what_somebody_else_holds_or_is_not_pending_cannot_be_claimed(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, prefetch=3)
    stage.publish(queue, 4)
    stage.deliver()
    stage.acknowledge("a", queue, 1, 1)
    stage.attach("b", queue, prefetch=90, held=[1, 2, 4, 80])
    assert stage.deliver() == {}
    assert stage.detach("b")[0].positions == [4, 4]
    assert stage.detach("a")[0].positions == [2, 3]


@pytest.mark.requirement("API-3")
def test_every_subscription_gets_every_message_and_those_who_share_one_compete(stage: Stage) -> None:
    topic = stage.topic()
    alone = stage.subscribe(topic, "alone")
    shared = stage.subscribe(topic, "shared", is_shared=True)
    stage.attach("a", topic, subscription=alone)
    stage.attach("b", topic, subscription=shared)
    stage.attach("c", topic, subscription=shared)
    stage.publish(topic, 5)
    stage.publish(topic, 5)
    assert stage.deliver() == {"a": first_time(1, 10), "b": first_time(1, 5), "c": first_time(6, 10)}


def test_a_topic_that_sweeps_its_segments_still_knows_where_its_newest_batch_is(stage: Stage) -> None:
    topic = stage.topic()
    subscription = stage.subscribe(topic, "s")
    stage.attach("a", topic, subscription=subscription)
    for position in range(1, SEGMENTS_MIN + 3):
        stage.publish(topic, 1)
        assert stage.deliver() == {"a": [(position, 1)]}
        stage.acknowledge("a", topic, position, position, subscription=subscription)
    assert len(stage.engine.destinations[topic].segments) < SEGMENTS_MIN


def test_a_subscription_that_is_not_shared_has_one_consumer_at_a_time_and_keeps_its_order(stage: Stage) -> None:
    topic = stage.topic()
    subscription = stage.subscribe(topic, "alone")
    stage.attach("a", topic, prefetch=3, subscription=subscription)
    with pytest.raises(Misuse, match="active consumer"):
        stage.attach("b", topic, subscription=subscription)
    stage.publish(topic, 5)
    stage.deliver()
    commands = stage.detach("a")
    stage.attach("b", topic, subscription=subscription)
    assert stage.deliver() == {}  # 4 and 5 would come before 1, 2 and 3
    stage.order(*commands)
    assert stage.deliver() == {"b": [(1, 2), (2, 2), (3, 2), (4, 1), (5, 1)]}


def test_consumers_of_what_is_deleted_are_told_and_get_nothing_any_more(stage: Stage) -> None:
    queue, topic = stage.queue(), stage.topic()
    subscription = stage.subscribe(topic, "s")
    stage.attach("a", queue, client_manager=3)
    stage.attach("b", topic, subscription=subscription, client_manager=4)
    stage.publish(queue)
    stage.publish(topic)
    stage.order(Unsubscribe(topic, subscription))
    stage.order(DeleteDestination(queue))
    told = stage.dispatcher.take_notices()
    assert [(manager, detached.consumer, detached.error) for manager, detached in told] == [
        (4, key("b"), "InvalidDestination"),
        (3, key("a"), "InvalidDestination"),
    ]
    assert "queue:orders was deleted" in told[1][1].reason
    assert stage.dispatcher.take_notices() == []
    assert stage.deliver() == {}
    assert stage.detach("a") == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"destination": 99}, InvalidDestination),
        ({"subscription": 5}, InvalidDestination),
        ({"selector": "color ="}, InvalidSelector),
        ({"prefetch": -1}, Misuse),
        ({"held": [1]}, Misuse),
        ({"held": [5, 4]}, Misuse),
    ],
)
def test_what_cannot_be_attached_is_refused_and_changes_nothing(
    stage: Stage, change: dict[str, object], error: type[Exception]
) -> None:
    queue = stage.queue()
    stage.attach("a", queue)
    stage.publish(queue)
    stage.deliver()
    before = stage.dispatcher.describe()
    given = {"destination": queue, "subscription": 0, "selector": "", "prefetch": 100, "held": [], **change}
    with pytest.raises(error):
        stage.dispatcher.attach(key("a"), client_manager=1, **given)  # type: ignore[arg-type]
    assert stage.dispatcher.describe() == before


def test_an_exclusive_queue_serves_who_came_first_and_then_the_next(stage: Stage) -> None:
    queue = stage.queue(exclusive=True)
    stage.attach("a", queue, prefetch=2)
    stage.attach("b", queue)
    stage.publish(queue, 4)
    assert stage.deliver() == {"a": first_time(1, 2)}
    assert [consumer["is_active"] for consumer in stage.state(queue)["consumers"]] == [True, False]
    commands = stage.detach("a")
    assert stage.deliver() == {}  # 3 and 4 would come before 1 and 2
    stage.order(*commands)
    assert stage.deliver() == {"b": [(1, 2), (2, 2), (3, 1), (4, 1)]}


def test_a_queue_that_is_exclusive_no_more_serves_all(stage: Stage) -> None:
    queue = stage.queue(exclusive=True)
    stage.attach("a", queue, prefetch=2)
    stage.attach("b", queue)
    stage.publish(queue, 4)
    stage.deliver()
    stage.order(SetPolicy(queue, Policy()))
    assert stage.deliver() == {"b": first_time(3, 4)}


def test_idle_destinations_are_not_looked_at_and_leave_no_trace(stage: Stage) -> None:
    queues = [stage.queue(f"q{number}") for number in range(50)]
    for queue in queues:
        stage.attach(f"c{queue}", queue)
    stage.deliver()
    stage.publish(queues[7])
    assert stage.dispatcher.has_more
    assert len(stage.dispatcher._dirty) == 1
    assert stage.deliver() == {f"c{queues[7]}": [(1, 1)]}
    stage.acknowledge(f"c{queues[7]}", queues[7], 1, 1)
    for queue in queues:
        stage.detach(f"c{queue}")
    assert stage.dispatcher.describe()["destinations"] == {}


def test_a_dead_message_comes_with_its_history(stage: Stage) -> None:
    queue = stage.queue(dead_letter="graves", delivery_limit=1)
    stage.attach("a", queue)
    stage.publish(queue, 2)
    stage.deliver()
    stage.give_back("a", queue, 1, 2)
    assert stage.deliver() == {}
    graves = next(number for number, found in stage.engine.destinations.items() if found.destination.name == "graves")
    stage.attach("gravedigger", graves)
    assert [position for position, _ in stage.deliver()["gravedigger"]] == [1, 2]
    assert all(b"queue:orders" in run.history for run in stage.runs["gravedigger"])


def test_what_a_leaving_consumers_program_never_saw_comes_back_uncounted(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue)
    stage.publish(queue, 10)
    stage.deliver()
    [seen, unseen] = stage.dispatcher.detach(key("a"), RangeSet([(1, 2)]))
    assert (seen.positions, seen.is_unseen) == ([1, 2], False)
    assert (unseen.positions, unseen.is_unseen) == ([3, 10], True)


@pytest.mark.requirement("MM-13", "FC-5")
def test_a_queue_gives_to_another_consumer_what_a_blocked_one_does_not_take() -> None:
    stage = Stage()
    queue = stage.queue()
    stage.attach("a", queue)
    stage.attach("b", queue)
    stage.dispatcher.regulate([key("a"), key("nobody")], is_blocked=True)
    stage.publish(queue, 4)
    assert stage.deliver() == {"b": first_time(1, 4)}
    stage.detach("b")
    stage.publish(queue, 1)
    assert stage.deliver() == {}
    stage.dispatcher.regulate([key("a")], is_blocked=False)
    assert stage.deliver() == {"a": first_time(5, 5)}


def test_a_blocked_consumer_keeps_what_it_holds_and_is_free_when_it_attaches_again() -> None:
    stage = Stage()
    queue = stage.queue()
    stage.attach("a", queue)
    stage.publish(queue, 2)
    stage.deliver()
    stage.dispatcher.regulate([key("a")], is_blocked=True)
    stage.attach("b", queue)
    assert stage.deliver() == {}
    stage.publish(queue, 1)
    stage.attach("a", queue, held=[1, 2])
    stage.detach("b")
    assert stage.deliver() == {"a": first_time(3, 3)}
