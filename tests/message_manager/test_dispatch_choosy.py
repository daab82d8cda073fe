"""Where single messages matter: selectors, groups, priorities, and replays with a selector."""

import pytest

from alphorn.message_manager import groups, supply
from alphorn.message_manager.dispatch import LOOKS_MAX
from alphorn.model.commands import Acknowledge, SetPolicy, connection_of
from alphorn.model.destinations import Policy
from alphorn.model.messages import Packed
from tests.message_manager.stage import PRODUCER, Stage, first_time, key


@pytest.fixture
def stage() -> Stage:
    return Stage()


def colours(*names: str) -> list[Packed]:
    return [Packed("body", {"colour": name}) for name in names]


def keyed(*names: str | None) -> list[Packed]:
    return [Packed("body", key=name) for name in names]


@pytest.mark.requirement("API-8", "MM-10")
def test_a_selector_takes_its_messages_and_leaves_the_others(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, selector="colour = 'red'")
    stage.publish(queue, colours("red", "blue", "red", "red", "green"))
    assert stage.deliver() == {"a": [(1, 1), (3, 1), (4, 1)]}
    assert [(run.position, run.index, run.count) for run in stage.runs["a"]] == [(1, 0, 1), (3, 2, 2)]
    stage.attach("b", queue, selector="colour LIKE 'b%'")
    stage.attach("c", queue)
    assert stage.deliver() == {"b": [(2, 1)], "c": [(5, 1)]}


def test_a_message_is_looked_at_once_for_all_consumers_with_one_selector(stage: Stage) -> None:
    queue = stage.queue()
    for name in "abc":
        stage.attach(name, queue, prefetch=1, selector="colour = 'red'")
    stage.publish(queue, colours("blue", "red", "red", "red"))
    assert stage.deliver() == {"a": [(2, 1)], "b": [(3, 1)], "c": [(4, 1)]}
    for _ in range(10):
        stage.publish(queue, colours("blue"))
        stage.deliver()
    stage.reads.clear()
    stage.acknowledge("a", queue, 2, 2)
    assert stage.deliver() == {}
    assert len(stage.reads) == 10  # not read while nobody had room, and once then
    stage.acknowledge("b", queue, 3, 3)
    stage.publish(queue, colours("red"))
    stage.deliver()
    assert len(stage.reads) == 11


def test_consumers_with_and_without_a_selector_take_turns_with_what_both_want(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, selector="colour = 'red'")
    stage.attach("b", queue)
    for _ in range(4):
        stage.publish(queue, colours("red"))
    assert stage.deliver() == {"a": [(1, 1), (3, 1)], "b": [(2, 1), (4, 1)]}


def test_what_a_selector_refused_is_looked_at_by_those_who_come_later(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, selector="colour = 'red'")
    stage.publish(queue, colours("blue", "blue"))
    assert stage.deliver() == {}
    stage.attach("a", queue, selector="colour = 'blue'")
    assert stage.deliver() == {"a": first_time(1, 2)}


def test_looking_into_many_messages_is_done_in_turns(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue("other")
    stage.publish(queue, colours(*["blue"] * (2 * LOOKS_MAX), "red"))
    stage.attach("a", queue, selector="colour = 'red'")
    stage.attach("b", other)
    stage.publish(other)
    (delivery,) = stage.dispatcher.take_deliveries()
    assert delivery.deliver.consumer == key("b")
    assert stage.dispatcher.has_more
    assert stage.dispatcher.take_deliveries() == []
    (delivery,) = stage.dispatcher.take_deliveries()
    assert delivery.deliver.runs[0].position == 2 * LOOKS_MAX + 1
    assert not stage.dispatcher.has_more


def test_who_had_no_turn_to_look_comes_first_the_next_time(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue("other")
    stage.publish(queue, colours(*["blue"] * (3 * LOOKS_MAX)))
    stage.publish(other, colours("red"))
    stage.attach("a", queue, selector="colour = 'red'")
    stage.attach("b", other, selector="colour = 'red'")
    assert stage.dispatcher.take_deliveries() == []
    (delivery,) = stage.dispatcher.take_deliveries()
    assert delivery.deliver.consumer == key("b")


def test_messages_that_cannot_be_read_now_are_tried_again_later(stage: Stage) -> None:
    queue = stage.queue()
    stage.publish(queue, colours("red"))
    stage.unreadable = {stage.engine.sequence}
    stage.attach("a", queue, selector="colour = 'red'")
    assert stage.deliver() == {}
    assert not stage.dispatcher.has_more
    stage.unreadable = set()
    assert stage.deliver() == {"a": [(1, 1)]}


@pytest.mark.requirement("API-8")
def test_selectors_see_header_fields(stage: Stage) -> None:
    queue = stage.queue()
    identity = f"ID:{PRODUCER.hex()}:2"
    stage.attach("a", queue, selector=f"JMSMessageID = '{identity}'")
    stage.attach("b", queue, selector="JMSPriority > 6 AND JMSType = 'order'")
    stage.publish(queue, [Packed("body"), Packed("body"), Packed("body", priority=7, type="order")])
    assert stage.deliver() == {"a": [(2, 1)], "b": [(3, 1)]}


def test_higher_priorities_come_first_and_each_in_order(stage: Stage) -> None:
    queue = stage.queue()
    stage.publish(queue, [Packed("body", priority=priority) for priority in (4, 0, 9, 4, 9, 5)])
    stage.publish(queue, [Packed("body", priority=9)])
    stage.attach("a", queue, prefetch=5)
    assert stage.deliver() == {"a": [(3, 1), (5, 1), (7, 1), (6, 1), (1, 1)]}
    stage.acknowledge("a", queue, 1, 1, 3, 3, 5, 5)
    stage.give_back("a", queue, 7, 7)
    assert stage.deliver() == {"a": [(7, 2), (4, 1), (2, 1)]}


def test_priorities_and_selectors_go_together(stage: Stage) -> None:
    queue = stage.queue()
    stage.publish(queue, [Packed("body", {"n": number}, priority=number % 3 + 3) for number in range(6)])
    stage.attach("a", queue, selector="n <> 2")
    assert stage.deliver() == {"a": [(6, 1), (2, 1), (5, 1), (1, 1), (4, 1)]}


def test_messages_with_one_key_go_to_one_consumer_for_as_long_as_it_stays(stage: Stage) -> None:
    queue = stage.queue(groups=True)
    stage.attach("a", queue)
    stage.attach("b", queue)
    stage.publish(queue, keyed("x", "y", "x", "y"))
    assert stage.deliver() == {"a": [(1, 1), (3, 1)], "b": [(2, 1), (4, 1)]}
    stage.acknowledge("a", queue, 1, 1, 3, 3)
    stage.publish(queue, keyed("y", "x"))
    assert stage.deliver() == {"a": [(6, 1)], "b": [(5, 1)]}
    stage.acknowledge("a", queue, 6, 6)
    assert stage.detach("a") == []
    stage.publish(queue, keyed("x"))
    assert stage.deliver() == {"b": [(7, 1)]}


def test_a_group_whose_owner_is_busy_waits_and_holds_up_nobody(stage: Stage) -> None:
    queue = stage.queue(groups=True)
    stage.attach("a", queue, prefetch=1)
    stage.publish(queue, keyed("x", "x", "x"))
    assert stage.deliver() == {"a": [(1, 1)]}
    stage.attach("b", queue)
    stage.publish(queue, keyed("y", None, "x"))
    assert stage.deliver() == {"b": [(4, 1), (5, 1)]}
    for held, following in ((1, 2), (2, 3), (3, 6)):
        stage.acknowledge("a", queue, held, held)
        assert stage.deliver() == {"a": [(following, 1)]}


def test_a_group_goes_to_another_in_order_when_its_owner_leaves(stage: Stage) -> None:
    queue = stage.queue(groups=True)
    stage.attach("a", queue, prefetch=2)
    stage.publish(queue, keyed("x", "x", "x", "x"))
    stage.deliver()
    stage.attach("b", queue)
    assert stage.deliver() == {}
    commands = stage.detach("a")
    stage.publish(queue, keyed("x", "y"))
    assert stage.deliver() == {"b": [(6, 1)]}  # 3 to 5 would come before 1 and 2
    stage.order(*commands)
    assert stage.deliver() == {"b": [(1, 2), (2, 2), (3, 1), (4, 1), (5, 1)]}


def test_messages_of_a_group_that_expire_while_they_wait_are_given_to_nobody(stage: Stage) -> None:
    queue = stage.queue(groups=True)
    stage.attach("a", queue, prefetch=1)
    stage.publish(queue, keyed("x", "x", "x"))
    stage.deliver()
    stage.attach("b", queue)
    assert stage.deliver() == {}
    stage.acknowledge("operator", queue, 2, 2)
    stage.acknowledge("a", queue, 1, 1)
    assert stage.deliver() == {"a": [(3, 1)]}


def test_a_message_that_its_groups_owner_does_not_select_is_free_for_others(stage: Stage) -> None:
    queue = stage.queue(groups=True)
    stage.attach("a", queue, selector="colour = 'red'")
    stage.publish(queue, [Packed("body", {"colour": "red"}, key="x")])
    assert stage.deliver() == {"a": [(1, 1)]}
    stage.attach("b", queue)
    stage.publish(queue, [Packed("body", {"colour": "blue"}, key="x"), Packed("body", {"colour": "red"}, key="x")])
    assert stage.deliver() == {"a": [(3, 1)], "b": [(2, 1)]}


def test_the_search_beyond_busy_groups_is_bounded_and_goes_on_when_they_move(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "PARKED_MAX", 3)
    queue = stage.queue(groups=True)
    stage.attach("a", queue, prefetch=1)
    stage.publish(queue, keyed("x", "x", "x", "x", "x", "y"))
    stage.deliver()
    stage.attach("b", queue)
    assert stage.deliver() == {}
    stage.acknowledge("a", queue, 1, 1)
    assert stage.deliver() == {"a": [(2, 1)], "b": [(6, 1)]}


def test_groups_that_nobody_holds_are_forgotten_where_there_are_too_many(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUPS_MAX", 5)
    queue = stage.queue(groups=True)
    stage.attach("a", queue)
    for number in range(20):
        stage.publish(queue, keyed(f"x{number}"))
        stage.deliver()
        stage.acknowledge("a", queue, number + 1, number + 1)
    assert stage.state(queue)["groups"] == 5


def test_groups_are_known_again_from_what_consumers_hold_after_a_change_of_primary(stage: Stage) -> None:
    queue = stage.queue(groups=True)
    stage.attach("a", queue, client_manager=1)
    stage.publish(queue, keyed("x", "y"))
    stage.deliver()
    stage.become_primary(1, 2)
    stage.attach("b", queue, client_manager=2)
    stage.attach("a", queue, client_manager=1, held=[1, 2])
    stage.publish(queue, keyed("y", "x", "z"))
    assert stage.deliver() == {"a": [(3, 1), (4, 1)], "b": [(5, 1)]}


def test_groups_can_be_switched_on_and_off(stage: Stage) -> None:
    queue = stage.queue(last_value=False, groups=True)
    stage.attach("a", queue, prefetch=1)
    stage.publish(queue, keyed("x", "x", "x"))
    stage.deliver()
    stage.attach("b", queue, prefetch=1)
    assert stage.deliver() == {}
    stage.order(SetPolicy(queue, Policy()))
    assert stage.deliver() == {"b": [(2, 1)]}
    stage.order(SetPolicy(queue, Policy(groups=True)))
    stage.acknowledge("b", queue, 2, 2)
    assert stage.deliver() == {}
    stage.acknowledge("a", queue, 1, 1)
    assert stage.deliver() == {"a": [(3, 1)]}


def test_delayed_messages_are_delivered_when_they_are_due(stage: Stage) -> None:
    queue = stage.queue()
    stage.tick(1_000)
    stage.attach("a", queue)
    stage.publish(queue, [Packed("body", deliver_at=5_000), Packed("body")])
    assert stage.deliver() == {"a": [(2, 1)]}
    stage.tick(5_000)
    assert stage.deliver() == {"a": [(1, 1)]}


def test_a_replay_leaves_out_what_the_subscription_does_not_select_and_has_it_acknowledged(stage: Stage) -> None:
    topic = stage.topic(retain_bytes=1_000_000)
    stage.publish(topic, colours("red", "blue", "red", "blue", "blue"))
    subscription = stage.subscribe(topic, "s", selector="colour = 'red'", start=0)
    stage.publish(topic, colours("red", "blue"))
    stage.attach("a", topic, subscription=subscription)
    assert stage.deliver() == {"a": [(1, 1), (3, 1), (6, 1)]}
    (command,) = stage.dispatcher.take_refused()
    assert command == Acknowledge(topic, subscription, b"", [2, 2, 4, 5])
    assert stage.dispatcher.take_refused() == []
    stage.order(command)
    stage.acknowledge("a", topic, 1, 1, 3, 3, 6, 6, subscription=subscription)
    assert not stage.engine.destinations[topic].backlog_of(subscription).pending  # type: ignore[union-attr]


def test_a_replay_leaves_out_what_the_connection_itself_has_sent(stage: Stage) -> None:
    topic = stage.topic(retain_bytes=1_000_000)
    stage.publish(topic, 3)
    subscription = stage.subscribe(topic, "s", no_local=connection_of(PRODUCER), client="me", start=0)
    stage.attach("a", topic, subscription=subscription)
    assert stage.deliver() == {}
    assert stage.dispatcher.take_refused()[0].positions == [1, 3]


def test_a_queue_with_groups_that_becomes_exclusive_serves_the_active_consumer_alone(stage: Stage) -> None:
    queue = stage.queue(groups=True)
    stage.attach("a", queue, prefetch=3)
    stage.attach("b", queue, prefetch=3)
    for name in ("K", "L"):
        stage.publish(queue, keyed(name))
        stage.deliver()
    stage.order(SetPolicy(queue, Policy(groups=True, exclusive=True)))
    for _ in range(2):
        stage.publish(queue, keyed("L"))
    assert stage.deliver() == {"a": first_time(3, 4)}
