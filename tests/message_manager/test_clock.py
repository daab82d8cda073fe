"""The time of the log: it goes on from what Client Managers know of it, whatever clocks primaries have."""

import pytest

from alphorn.message_manager.clock import HEAR_S, Clock
from alphorn.message_manager.machine import Demoted, LinkOpened, Promoted
from alphorn.model import link
from alphorn.model.commands import Publish, Return, SetPolicy, Tick, key_of
from alphorn.model.destinations import Policy
from alphorn.model.messages import Flag
from tests.client_manager.managing import encode
from tests.message_manager.test_core import CONNECTION, CONSUMER, FIRST, ME, QUEUE, SECOND, Serving

HOUR_MS = 3_600_000


def clock_at(wall_ms: int) -> Clock:
    return Clock(lambda now: wall_ms + int(now * 1000))


def followed(wall_ms: int, said_ms: int, now: float = 0.0) -> Clock:
    clock = clock_at(wall_ms)
    clock.follow(said_ms, now, is_alone=False)
    return clock


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
    clock.follow(4_000, 1.0, is_alone=True)
    assert clock.tick(0, 1.0) == 6_000
    assert clock.next_deadline(7_000) == 2.0
    assert clock.tick(7_000, 1.5) is None
    assert clock.tick(7_000, 2.0) == 7_000


def test_a_clock_that_is_behind_the_log_goes_on_from_there() -> None:
    clock = clock_at(0)
    clock.follow(10_000, 2.0, is_alone=True)
    assert clock.tick(11_000, 2.9) is None
    assert clock.next_deadline(11_000) == 3.001
    assert clock.tick(11_000, 3.0) == 11_000


@pytest.mark.parametrize("wall_ms", [0, 2 * HOUR_MS])
@pytest.mark.requirement("LOG-4")
def test_what_a_client_manager_knows_is_the_time_whatever_the_own_clock_says(wall_ms: int) -> None:
    clock = followed(wall_ms, HOUR_MS - 60_000)
    assert clock.hear(HOUR_MS, 1.0), "others are to be told"
    assert clock.time_ms(3.0) == HOUR_MS + 2_000
    assert clock.next_deadline(HOUR_MS + 5_000) == pytest.approx(6.001)
    assert clock.tick(HOUR_MS + 5_000, 5.9) is None
    assert clock.tick(HOUR_MS + 5_000, 6.0) == HOUR_MS + 5_000


def test_nobody_makes_the_time_earlier_than_the_log_has_it() -> None:
    clock = followed(0, HOUR_MS)
    assert not clock.hear(HOUR_MS + 500, 1.0)
    clock = followed(0, HOUR_MS)
    assert clock.hear(5_000, 1.0)
    assert clock.time_ms(2.0) == HOUR_MS + 2_000


def test_there_is_no_tick_while_somebody_may_come_who_knows_the_time() -> None:
    clock = followed(HOUR_MS, 0, 1.0)
    assert clock.next_deadline(10) == 1.0 + HEAR_S
    assert clock.tick(10, 1.5) is None
    assert not clock.hear(HOUR_MS + 1_600, 1.5)
    assert clock.next_deadline(10) == 1.5
    assert clock.tick(10, 1.5) == HOUR_MS + 1_500


def test_who_says_another_time_later_is_told_what_holds() -> None:
    clock = followed(HOUR_MS, 0)
    assert clock.hear(5_000, HEAR_S)
    assert clock.time_ms(HEAR_S) == HOUR_MS + int(1000 * HEAR_S)


@pytest.mark.requirement("LOG-4")
def test_all_client_managers_are_told_when_one_of_them_knew_the_time() -> None:
    serving = Serving(known=(FIRST, SECOND))
    serving.introduce(1, FIRST)
    serving.receive(LinkOpened(2))
    serving.told.clear()
    serving.ask(2, link.Introduce("cm2", SECOND, 1, "", [], time_ms=HOUR_MS))
    assert [(to, frame.time_ms) for to, frame in serving.told if isinstance(frame, link.Time)] == [
        (1, HOUR_MS),
        (2, HOUR_MS),
    ]


def test_a_primary_says_the_time_with_its_role() -> None:
    serving = ahead()
    serving.receive(LinkOpened(2))
    serving.now = 5.0
    serving.receive(Demoted(4))
    serving.receive(Promoted(5, ME, ()))
    roles = [(to, frame.time_ms) for to, frame in serving.told if isinstance(frame, link.Role)]
    assert roles == [(1, HOUR_MS), (2, HOUR_MS), (1, 0), (2, 0), (1, HOUR_MS), (2, HOUR_MS)]


def test_a_time_that_never_came_into_the_log_keeps_nobody_waiting_who_is_primary_again() -> None:
    clock = clock_at(0)
    clock.follow(HOUR_MS, 0.0, is_alone=True)
    assert clock.tick(HOUR_MS, 600.0) == HOUR_MS + 600_000
    clock.follow(HOUR_MS, 601.0, is_alone=True)
    due = clock.next_deadline(HOUR_MS + 1)
    assert due < 601.1
    assert clock.tick(HOUR_MS + 1, due) is not None


@pytest.mark.parametrize("ticked", [1, 7, 333, 10_001])
def test_at_its_deadline_there_is_a_tick(ticked: int) -> None:
    clock = clock_at(-HOUR_MS)
    clock.follow(0, 0.1, is_alone=True)
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
    serving.pass_time(1.0)
    assert serving.ordered == []
    serving.pass_time(2.0)
    assert [type(command) for command in serving.ordered] == [Tick]
