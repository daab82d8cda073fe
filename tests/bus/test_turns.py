"""Whose turn it is to ask for an epoch: who holds more of the log, then who has the better rank, and when."""

import msgspec
import pytest

from alphorn.bus.config import GroupConfig
from alphorn.bus.frames import Status
from alphorn.bus.takeover import State
from tests.bus.group import make_config
from tests.bus.standing import TIMING, Standing
from tests.bus.stations import origin_of_member


def hear(standing: Standing, number: int, delivered: int, now: float) -> None:
    body = Status(delivered, 0, 0, 0, 0, True, f"S{number}")
    standing.takeover.on_status(standing.bench.frame(number, body), body, now)


def turn(standing: Standing) -> float:
    """When this member asks, if nobody speaks from now on."""
    now = 0.0
    while standing.takeover.state is State.IDLE and now < 5.0:
        now = max(now + 1e-4, standing.takeover.next_deadline())
        for number in (2, 3):
            if number in standing.takeover._peers:
                hear(standing, number, standing.takeover._peers[number][1], now)
        standing.takeover.on_time(now)
    return now


def ranked(*ranks: int, lowest_rank_first: bool = True) -> GroupConfig:
    config = make_config(lowest_rank_first=lowest_rank_first)
    members = [msgspec.structs.replace(member, rank=rank) for member, rank in zip(config.members, ranks, strict=True)]
    return msgspec.structs.replace(config, members=tuple(members))


@pytest.mark.requirement("HA-8")
@pytest.mark.parametrize(
    ("ranks", "lowest_rank_first", "place"),
    [((1, 2, 3), True, 0), ((3, 1, 2), True, 2), ((1, 2, 3), False, 2), ((3, 1, 2), False, 0), ((2, 1, 3), True, 1)],
)
def test_rank_decides_who_asks_first_lowest_or_highest(
    ranks: tuple[int, int, int], place: int, *, lowest_rank_first: bool
) -> None:
    standing = Standing(ranked(*ranks, lowest_rank_first=lowest_rank_first))
    for number in (2, 3):
        hear(standing, number, 3, 0.0)
    first = TIMING.suspect_s + place * TIMING.rank_delay_s
    assert first <= turn(standing) <= first + 0.5 * TIMING.rank_delay_s + 1e-3


@pytest.mark.requirement("HA-8")
def test_one_that_holds_more_of_the_log_goes_before_one_of_better_rank() -> None:
    standing = Standing(ranked(1, 2, 3))
    standing.follower.known_committed = 9
    hear(standing, 3, 9, 0.0)
    assert turn(standing) >= TIMING.suspect_s + TIMING.rank_delay_s


@pytest.mark.requirement("HA-6", "HA-8")
def test_a_member_that_nobody_has_led_yet_waits_a_bounded_while_for_a_better_candidate_that_is_there() -> None:
    standing = Standing(ranked(2, 1, 3), is_led=False)
    hear(standing, 2, 3, 0.0)
    first = TIMING.start_s + TIMING.rank_delay_s
    assert first <= turn(standing) <= first + 0.5 * TIMING.rank_delay_s + 1e-3


@pytest.mark.requirement("HA-6")
def test_a_member_that_nobody_has_led_yet_waits_for_no_worse_candidate_and_for_none_that_never_spoke() -> None:
    standing = Standing(ranked(2, 1, 3), is_led=False)
    hear(standing, 3, 3, 0.0)
    assert TIMING.suspect_s <= turn(standing) <= TIMING.suspect_s + TIMING.rank_delay_s


@pytest.mark.requirement("HA-6")
def test_a_member_that_nobody_has_led_yet_waits_for_a_better_candidate_only_while_that_speaks() -> None:
    standing = Standing(ranked(2, 1, 3), is_led=False)
    hear(standing, 2, 3, 0.0)
    while standing.takeover.state is State.IDLE:
        now = standing.takeover.next_deadline()
        assert now < TIMING.start_s
        standing.takeover.on_time(now)


@pytest.mark.requirement("HA-6")
def test_a_member_that_hears_no_sequencer_asks_after_a_time_limit_and_not_before() -> None:
    standing = Standing()
    standing.takeover.on_time(TIMING.suspect_s * 0.9)
    assert standing.takeover.state is State.IDLE
    assert TIMING.suspect_s <= turn(standing) <= TIMING.suspect_s + TIMING.rank_delay_s


def test_a_member_that_hears_a_sequencer_does_not_ask() -> None:
    standing = Standing()
    for tick in range(1, 100):
        now = tick * TIMING.suspect_s / 2
        standing.follower.any_heard_at = now
        standing.takeover.on_time(now)
    assert standing.takeover.state is State.IDLE


def test_the_sequencers_goodbye_spares_the_candidates_their_wait() -> None:
    standing = Standing()
    standing.bench.station.sequencer = 2
    standing.follower.any_heard_at = 5.0
    assert not standing.follower.on_leave(2, bytes(9) + b"o"), "an earlier run of it"
    assert not standing.follower.on_leave(3, origin_of_member(3)), "a backup"
    assert standing.follower.on_leave(2, origin_of_member(2))
    standing.takeover.hurry(5.0)
    assert standing.takeover.next_deadline() <= 5.0
    standing.takeover.on_time(5.0)
    assert standing.takeover.state is State.PREPARING


def test_one_that_retired_never_asks() -> None:
    standing = Standing()
    standing.takeover.retire()
    standing.takeover.hurry(5.0)
    standing.takeover.on_time(50.0)
    assert standing.takeover.state is State.IDLE
    assert standing.takeover.next_deadline() == float("inf")
