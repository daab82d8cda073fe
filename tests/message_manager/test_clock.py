"""The time of the log: it goes on from what an earlier primary said, however far its clock was ahead."""

import pytest

from alphorn.message_manager.clock import Clock
from alphorn.message_manager.machine import Demoted, Promoted
from alphorn.model import link
from alphorn.model.commands import Publish, Return, SetPolicy, Tick, key_of
from alphorn.model.destinations import Policy
from alphorn.model.messages import Flag
from tests.client_manager.managing import encode
from tests.message_manager.test_core import CONNECTION, CONSUMER, FIRST, ME, QUEUE, Serving

HOUR_MS = 3_600_000


def clock_at(wall_ms: int) -> Clock:
    return Clock(lambda now: wall_ms + int(now * 1000))


def ahead() -> Serving:
    """An earlier primary said that it was an hour later; this one has a consumer with message 1."""
    serving = Serving()
    serving.apply(SetPolicy(QUEUE, Policy(redelivery_delay=1.0)), Tick(HOUR_MS))
    serving.receive(Demoted(2))
    serving.receive(Promoted(3, ME, ()))
    serving.introduce(1, FIRST, CONNECTION)
    serving.attach(1)
    serving.publish(1)
    assert serving.delivered(1) == [(1, 1)]
    return serving


def test_a_clock_that_is_not_behind_the_log_is_the_time() -> None:
    clock = clock_at(5_000)
    clock.follow(4_000, 1.0)
    assert clock.tick(0, 1.0) == 6_000
    assert clock.next_deadline(7_000) == 2.0
    assert clock.tick(7_000, 1.5) is None
    assert clock.tick(7_000, 2.0) == 7_000


def test_a_clock_that_is_behind_the_log_goes_on_from_there_at_half_the_speed() -> None:
    clock = clock_at(0)
    clock.follow(10_000, 2.0)
    assert clock.tick(11_000, 3.9) is None
    due = clock.next_deadline(11_000)
    assert 4.0 <= due < 4.01
    assert clock.tick(11_000, due) == 11_000


def test_a_clock_that_was_behind_the_log_is_the_time_once_it_is_there() -> None:
    clock = clock_at(0)
    clock.follow(10_000, 2.0)
    assert clock.tick(0, 18.0) == 18_000
    assert clock.next_deadline(30_000) == 30.0


def test_a_time_that_never_came_into_the_log_keeps_nobody_waiting_who_is_primary_again() -> None:
    clock = clock_at(0)
    clock.follow(HOUR_MS, 0.0)
    assert clock.tick(HOUR_MS, 600.0) == HOUR_MS + 300_000
    clock.follow(HOUR_MS, 601.0)
    due = clock.next_deadline(HOUR_MS + 1)
    assert due < 601.1
    assert clock.tick(HOUR_MS + 1, due) == HOUR_MS + 1


@pytest.mark.parametrize("ticked", [1, 7, 333, 10_001])
def test_at_its_deadline_there_is_a_tick(ticked: int) -> None:
    clock = clock_at(-HOUR_MS)
    clock.follow(0, 0.1)
    due = clock.next_deadline(ticked)
    assert clock.tick(ticked, due) is not None
    later = clock.next_deadline(ticked)
    assert later > due
    assert clock.tick(ticked, later) is not None


def test_a_delay_is_over_although_the_clock_of_an_earlier_primary_was_ahead() -> None:
    serving = ahead()
    serving.apply(Return(QUEUE, 0, CONSUMER, [1, 1]))
    serving.pass_time(3.0)
    assert serving.delivered(1) == [(1, 2)]


def test_what_expires_does_so_although_the_clock_of_an_earlier_primary_was_ahead() -> None:
    serving = ahead()
    serving.ask(1, link.Detach(8, CONSUMER, []))
    blob = memoryview(encode([["body", None, 4, HOUR_MS + 2_000]]))
    serving.apply(Publish(QUEUE, key_of(CONNECTION, 7), 1, 1, int(Flag.EXPIRATION), 1000, blob))
    serving.ordered.clear()
    serving.pass_time(3.0)
    assert serving.ordered == []
    serving.pass_time(2.0)
    assert [type(command) for command in serving.ordered] == [Tick]
