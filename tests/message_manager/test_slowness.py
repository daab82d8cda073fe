"""Consumers of a client that takes nothing at the moment: others get what they would have got, and nothing is lost."""

import pytest

from alphorn.message_manager.consumers import Consumer
from alphorn.model.commands import connection_of
from tests.message_manager.stage import Stage, first_time, key

CM, OTHER_CM = 7, 8
SLOW = connection_of(key("a"))  # of every consumer whose name begins so
OTHERS = "bcd"


@pytest.fixture
def stage() -> Stage:
    return Stage()


def slow(stage: Stage, *, is_slow: bool = True) -> None:
    stage.dispatcher.regulate_client(SLOW, CM, is_slow=is_slow)


@pytest.mark.requirement("MM-13", "FC-8")
def test_a_queue_gives_to_another_client_what_a_slow_one_does_not_take(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, client_manager=CM)
    stage.attach("b", queue)
    slow(stage)
    stage.publish(queue, 4)
    assert stage.deliver() == {"b": first_time(1, 4)}
    stage.detach("b")
    stage.publish(queue, 1)
    assert stage.deliver() == {}
    slow(stage, is_slow=False)
    assert stage.deliver() == {"a": first_time(5, 5)}


def test_a_slow_client_that_acknowledges_gets_nothing_for_it_before_it_goes_on(stage: Stage) -> None:
    queue = stage.queue()
    stage.publish(queue, 10)
    stage.attach("a", queue, client_manager=CM, prefetch=4)
    stage.deliver()
    slow(stage)
    stage.acknowledge("a", queue, 1, 3)
    assert stage.deliver() == {}
    assert stage.state(queue)["consumers"][0]["is_blocked"]
    slow(stage, is_slow=False)
    assert stage.deliver() == {"a": first_time(5, 7)}
    assert not stage.state(queue)["consumers"][0]["is_blocked"]


def test_only_consumers_that_would_have_got_something_are_touched(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[Consumer] = []
    queues = [stage.queue(f"q{number}") for number in range(20)]
    names = [f"{'a':-<16}{number:04}" for number in range(20)]
    for name, queue in zip(names, queues, strict=True):
        stage.attach(name, queue, client_manager=CM)
    stage.deliver()
    seat = type(stage.dispatcher._find(queues[0], 0)).seat
    monkeypatch.setattr(
        "alphorn.message_manager.outlet.Outlet.seat", lambda self, one: (touched.append(one), seat(self, one))[1]
    )
    slow(stage)
    stage.publish(queues[3], 1)
    assert stage.deliver() == {}
    slow(stage, is_slow=False)
    assert {consumer.key for consumer in touched} == {key(names[3])}
    assert stage.deliver() == {names[3]: first_time(1, 1)}


def test_who_attaches_is_not_slow_until_it_is_said_again(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, client_manager=CM)
    slow(stage)
    stage.publish(queue, 1)
    assert stage.deliver() == {}
    stage.attach("a", queue, client_manager=OTHER_CM)
    assert stage.deliver() == {"a": first_time(1, 1)}


def test_what_its_last_client_manager_still_says_of_a_client_that_has_left_it_does_not_count(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, client_manager=OTHER_CM)
    stage.dispatcher.regulate_client(SLOW, OTHER_CM, is_slow=True)
    stage.publish(queue, 1)
    slow(stage, is_slow=False)
    assert stage.deliver() == {}
    stage.dispatcher.regulate_client(SLOW, OTHER_CM, is_slow=False)
    assert stage.deliver() == {"a": first_time(1, 1)}


def test_the_word_of_a_client_manager_that_is_gone_does_not_count(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, client_manager=CM)
    slow(stage)
    stage.publish(queue, 1)
    assert stage.deliver() == {}
    stage.dispatcher.leave(OTHER_CM)
    assert stage.deliver() == {}
    stage.dispatcher.leave(CM)
    assert stage.deliver() == {"a": first_time(1, 1)}


def test_a_consumer_that_is_blocked_itself_stays_so_when_its_client_goes_on(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, client_manager=CM)
    slow(stage)
    stage.dispatcher.regulate([key("a")], is_blocked=True)
    stage.publish(queue, 1)
    slow(stage, is_slow=False)
    assert stage.deliver() == {}
    stage.dispatcher.regulate([key("a")], is_blocked=False)
    assert stage.deliver() == {"a": first_time(1, 1)}


def test_a_consumer_that_left_while_its_client_was_slow_is_not_given_anything(stage: Stage) -> None:
    queue = stage.queue()
    stage.attach("a", queue, client_manager=CM)
    slow(stage)
    stage.publish(queue, 1)
    assert stage.deliver() == {}
    stage.detach("a")
    slow(stage, is_slow=False)
    assert stage.deliver() == {}
    stage.attach("b", queue)
    assert stage.deliver() == {"b": first_time(1, 1)}


def test_nobody_is_slow_who_was_never_told_of(stage: Stage) -> None:
    queue = stage.queue()
    for name in OTHERS:
        stage.attach(name, queue)
    slow(stage)
    slow(stage, is_slow=False)
    slow(stage, is_slow=False)
    stage.publish(queue, 3)
    assert sum(len(got) for got in stage.deliver().values()) == 3
