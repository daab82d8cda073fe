"""Queues with groups: what came back and waits for its time holds up its own group, and nothing else."""

import pytest

from alphorn.message_manager import supply
from alphorn.model.commands import Acknowledge, Purge, SetPolicy
from alphorn.model.destinations import Policy
from alphorn.model.messages import Packed
from tests.message_manager.stage import Stage, first_time, key
from tests.message_manager.test_dispatch_choosy import keyed

DELAY_S = 5.0
BOTH = pytest.mark.parametrize("is_exclusive", [False, True])


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.tick(1_000)
    return stage


def begin(stage: Stage, *, prefetch: int = 1, **policy: object) -> int:
    """Of group x are 1, 2 and 4, of y 3; the consumer `a` had 1 and gave it back."""
    queue = stage.queue(groups=True, redelivery_delay=DELAY_S, **policy)
    stage.attach("a", queue, prefetch=prefetch)
    stage.publish(queue, keyed("x"))
    assert stage.deliver() == {"a": [(1, 1)]}
    stage.publish(queue, keyed("x", "y", "x"))
    stage.give_back("a", queue, 1, 1)
    return queue


def pass_delay(stage: Stage) -> None:
    for _ in range(2):  # the time of what came back is counted from the next tick on
        stage.tick(stage.engine.now_ms + int(DELAY_S * 1000))


@BOTH
def test_what_follows_in_the_group_waits_for_what_came_back_and_other_groups_do_not(
    stage: Stage, *, is_exclusive: bool
) -> None:
    queue = begin(stage, exclusive=is_exclusive)
    assert stage.deliver() == {"a": [(3, 1)]}
    stage.acknowledge("a", queue, 3, 3)
    stage.publish(queue, keyed("x", "z", None))
    assert stage.deliver() == {"a": [(6, 1)]}
    stage.acknowledge("a", queue, 6, 6)
    assert stage.deliver() == {"a": [(7, 1)]}
    stage.acknowledge("a", queue, 7, 7)
    pass_delay(stage)
    for position, count in ((1, 2), (2, 1), (4, 1), (5, 1)):
        assert stage.deliver() == {"a": [(position, count)]}
        stage.acknowledge("a", queue, position, position)
    assert stage.state(queue)["behind_delayed"] == 0


def test_all_that_waited_comes_in_order_with_what_came_back_first(stage: Stage) -> None:
    begin(stage, prefetch=10)
    assert stage.deliver() == {"a": [(3, 1)]}
    pass_delay(stage)
    assert stage.deliver() == {"a": [(1, 2), (2, 1), (4, 1)]}


def test_another_consumer_is_not_given_what_waits_either(stage: Stage) -> None:
    queue = begin(stage)
    stage.deliver()
    stage.attach("b", queue)
    stage.order(*stage.detach("a"))
    assert stage.deliver() == {"b": [(3, 2)]}
    pass_delay(stage)
    assert stage.deliver() == {"b": [(1, 2), (2, 1), (4, 1)]}


@BOTH
def test_a_new_primary_knows_which_groups_wait(stage: Stage, *, is_exclusive: bool) -> None:
    queue = begin(stage, exclusive=is_exclusive)
    stage.deliver()
    stage.become_primary()
    stage.attach("b", queue)
    assert stage.deliver() == {"b": [(3, 1)]}
    pass_delay(stage)
    assert stage.deliver() == {"b": [(1, 2), (2, 1), (4, 1)]}


def test_of_several_that_came_back_the_first_holds_up_the_others(stage: Stage) -> None:
    queue = stage.queue(groups=True)
    stage.attach("a", queue)
    stage.publish(queue, keyed("x", "x", "x"))
    assert stage.deliver() == {"a": first_time(1, 3)}
    stage.give_back("a", queue, 1, 1, delay_ms=60_000)
    stage.give_back("a", queue, 2, 2, delay_ms=1_000)
    stage.tick(2_000)
    stage.tick(4_000)
    stage.publish(queue, keyed("x", "y"))
    assert stage.deliver() == {"a": [(5, 1)]}
    stage.tick(90_000)
    assert stage.deliver() == {"a": [(1, 2), (2, 2), (4, 1)]}


@pytest.mark.parametrize("how", ["acknowledged", "purged", "dead"])
def test_what_is_gone_holds_nothing_up(stage: Stage, how: str) -> None:
    queue = begin(stage)
    stage.deliver()
    stage.acknowledge("a", queue, 3, 3)
    match how:
        case "acknowledged":
            stage.order(Acknowledge(queue, 0, key("operator"), [1, 1]))
        case "purged":
            stage.order(Purge(queue))
            stage.publish(queue, keyed("x"))
        case _:
            stage.give_back("a", queue, 1, 1, is_dead=True)
    assert stage.deliver() == {"a": [(5 if how == "purged" else 2, 1)]}


def test_what_waits_may_be_gone_before_its_turn(stage: Stage) -> None:
    queue = begin(stage)
    stage.deliver()
    stage.order(Acknowledge(queue, 0, key("operator"), [2, 3]))
    stage.deliver()
    assert stage.state(queue)["behind_delayed"] == 1
    pass_delay(stage)
    assert stage.deliver() == {"a": [(1, 2)]}
    stage.acknowledge("a", queue, 1, 1)
    assert stage.deliver() == {"a": [(4, 1)]}


def test_what_a_consumer_says_to_have_is_not_given_out_when_the_group_goes_on(stage: Stage) -> None:
    queue = begin(stage)
    stage.deliver()
    stage.attach("b", queue, held=[2, 2])
    stage.attach("a", queue, prefetch=10, held=[3, 3])
    pass_delay(stage)
    assert stage.deliver() == {"a": [(1, 2), (4, 1)]}


def test_what_was_parked_behind_a_group_that_waits_is_given_to_its_owner(stage: Stage) -> None:
    queue = stage.queue(groups=True, redelivery_delay=DELAY_S)
    stage.attach("a", queue, prefetch=2)
    stage.publish(queue, keyed("x", "y"))
    stage.deliver()
    stage.attach("b", queue)
    stage.publish(queue, keyed("x", "x", "y"))
    assert stage.deliver() == {}, "all of these are parked with a"
    stage.give_back("a", queue, 1, 1)
    assert stage.deliver() == {"a": [(5, 1)]}


def test_a_message_that_was_sent_with_a_delay_holds_nothing_up(stage: Stage) -> None:
    queue = stage.queue(groups=True)
    stage.attach("a", queue)
    stage.publish(queue, [Packed("later", key="x", deliver_at=9_000), Packed("now", key="x")])
    assert stage.deliver() == {"a": [(2, 1)]}
    stage.become_primary()
    stage.attach("a", queue, held=[2, 2])
    stage.publish(queue, keyed("x"))
    assert stage.deliver() == {"a": [(3, 1)]}


def test_what_has_a_higher_priority_passes_by_as_always(stage: Stage) -> None:
    queue = begin(stage)
    stage.publish(queue, [Packed("urgent", key="x", priority=9)])
    assert stage.deliver() == {"a": [(5, 1)]}


def test_without_groups_nothing_waits_for_what_came_back(stage: Stage) -> None:
    queue = begin(stage)
    stage.deliver()
    stage.acknowledge("a", queue, 3, 3)
    stage.order(SetPolicy(queue, Policy(redelivery_delay=DELAY_S)))
    assert stage.deliver() == {"a": [(2, 1)]}
    stage.order(SetPolicy(queue, Policy(groups=True, redelivery_delay=DELAY_S)))
    stage.acknowledge("a", queue, 2, 2)
    assert stage.deliver() == {}, "the fourth follows the first again"


def test_a_consumer_with_another_selector_is_not_given_what_waits(stage: Stage) -> None:
    queue = begin(stage)
    stage.deliver()
    stage.attach("b", queue, selector="colour = 'red'")
    stage.publish(queue, [Packed("body", {"colour": "red"}, key=each) for each in ("x", "z")])
    assert stage.deliver() == {"b": [(6, 1)]}
    behind = stage.state(queue)["behind_delayed"]
    stage.attach("c", queue, selector="colour LIKE 'r%'")
    assert stage.deliver() == {}
    assert stage.state(queue)["behind_delayed"] == behind > 0


def test_what_waits_counts_once_however_often_it_is_said_to_come_back(stage: Stage) -> None:
    queue = begin(stage)
    stage.deliver()
    stage.acknowledge("a", queue, 3, 3)
    stage.give_back("b", queue, 2, 2, is_unseen=True)
    assert stage.deliver() == {}
    assert stage.state(queue)["behind_delayed"] == 2


def test_so_much_is_set_aside_and_no_more(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supply, "PARKED_MAX", 2)
    queue = begin(stage)
    stage.publish(queue, keyed("x", "x", "z"))
    assert stage.deliver() == {"a": [(3, 1)]}
    stage.acknowledge("a", queue, 3, 3)
    assert stage.deliver() == {}, "the search ends at the fifth"
    pass_delay(stage)
    assert stage.deliver() == {"a": [(1, 2)]}


@BOTH
def test_a_consumer_that_recovers_is_not_given_what_is_to_follow_what_waits(
    stage: Stage, *, is_exclusive: bool
) -> None:
    queue = stage.queue(groups=True, redelivery_delay=DELAY_S, exclusive=is_exclusive)
    stage.attach("a", queue)
    stage.publish(queue, keyed("x", "x", "y", None))
    assert stage.deliver() == {"a": first_time(1, 4)}
    stage.dispatcher.pause(key("a"))
    stage.give_back("a", queue, 1, 1)
    stage.give_back("a", queue, 2, 4, is_unseen=True)
    stage.attach("a", queue)
    assert stage.deliver() == {"a": first_time(3, 4)}
    pass_delay(stage)
    assert stage.deliver() == {"a": [(1, 2), (2, 1)]}


@BOTH
def test_what_waited_until_its_consumer_had_recovered_is_not_overtaken(stage: Stage, *, is_exclusive: bool) -> None:
    queue = stage.queue(groups=True, redelivery_delay=DELAY_S, exclusive=is_exclusive)
    stage.attach("a", queue)
    stage.publish(queue, keyed("x", "x", "x"))
    assert stage.deliver() == {"a": first_time(1, 3)}
    stage.attach("b", queue)
    stage.dispatcher.pause(key("a"))
    stage.give_back("a", queue, 1, 1)
    stage.give_back("a", queue, 2, 3, is_unseen=True)
    pass_delay(stage)
    assert stage.deliver() == {}, "the group is that of the one that recovers"
    stage.attach("a", queue)
    assert stage.deliver() == {"a": [(1, 2), (2, 1), (3, 1)]}


@BOTH
def test_what_came_back_before_its_consumer_recovered_is_not_overtaken(stage: Stage, *, is_exclusive: bool) -> None:
    queue = stage.queue(groups=True, exclusive=is_exclusive)
    stage.attach("a", queue, prefetch=3)
    stage.publish(queue, keyed("x", "y", "x"))
    assert stage.deliver() == {"a": first_time(1, 3)}
    stage.dispatcher.regulate([key("a")], is_blocked=True)
    stage.give_back("a", queue, 1, 1)
    assert stage.deliver() == {}
    stage.dispatcher.pause(key("a"))
    stage.give_back("a", queue, 2, 3, is_unseen=True)
    stage.attach("a", queue)
    assert stage.deliver() == {"a": [(1, 2), (2, 1), (3, 1)]}


def test_what_waits_is_with_nobody_after_one_who_got_it_meanwhile_has_given_it_back(stage: Stage) -> None:
    queue = stage.queue(redelivery_delay=DELAY_S)
    stage.attach("a", queue)
    stage.publish(queue)
    stage.deliver()
    stage.attach("a", queue, prefetch=0)
    stage.attach("b", queue)
    assert stage.deliver() == {"b": [(1, 2)]}
    stage.give_back("a", queue, 1, 1)
    stage.give_back("b", queue, 1, 1, is_unseen=True)
    assert stage.state(queue)["locked"] == 0
    pass_delay(stage)
    assert stage.deliver() == {"b": [(1, 3)]}
