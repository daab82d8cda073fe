"""Commit servers change by log entries: one at a time, and never so that the group could not decide any more."""

import msgspec
import pytest

from alphorn.bus.config import Timing
from alphorn.bus.entries import VoterRemoved, decode_system
from alphorn.bus.frames import Join
from tests.bus.group import make_config
from tests.bus.leading import Leading
from tests.bus.stations import joined

TIMING = Timing()


def test_one_change_of_voters_at_a_time() -> None:
    leading = Leading(make_config(servers=3, witnesses=2))
    for number in (1, 2, 3):
        leading.acknowledge(number, 5, 5)
    assert leading.sequencer.change_voters(5, add=False, now=0.0)
    assert not leading.sequencer.change_voters(4, add=False, now=0.0)
    leading.flush()
    for number in (1, 2, 3):
        leading.acknowledge(number, 6, 6)
    assert leading.committed == 6
    assert leading.sequencer.change_voters(4, add=False, now=0.0)


def test_no_change_of_voters_before_the_epochs_first_number_is_committed() -> None:
    leading = Leading(make_config(servers=3, witnesses=2))
    assert not leading.sequencer.change_voters(5, add=False, now=0.0)


def test_no_vote_is_taken_for_a_lost_disk_before_the_epochs_first_number_is_committed() -> None:
    leading = Leading()
    config = leading.bench.config
    asked = joined(config, 3, bytes(9) + b"n").member
    told = (leading.bench.station.epoch, leading.bench.ledger.last)
    join = Join(msgspec.structs.replace(asked, nonce=7), True, config.digest(), 0, 0, 9, told)
    late = 2 * TIMING.suspect_s
    leading.sequencer.on_join(leading.frame(3, join), join, late)
    assert leading.sequencer._tip.voters == [1, 2, 3]
    leading.open_epoch()
    told = (leading.bench.station.epoch, leading.bench.ledger.last)
    join = msgspec.structs.replace(join, told=told)
    leading.sequencer.on_join(leading.frame(3, join), join, late)
    assert leading.sequencer._tip.voters == [1, 2]


@pytest.mark.parametrize(
    ("number", "add"), [(2, True), (9, False), (9, True)], ids=["has-it", "unknown", "unknown-add"]
)
def test_a_change_of_voters_that_changes_nothing_is_refused(number: int, *, add: bool) -> None:
    leading = Leading()
    leading.open_epoch()
    assert not leading.sequencer.change_voters(number, add=add, now=0.0)


def test_a_removed_voter_does_not_count_from_the_moment_its_removal_is_in_the_log() -> None:
    leading = Leading(make_config(servers=3, witnesses=2))
    for number in (1, 2, 3):
        leading.acknowledge(number, 5, 5)
    leading.sequencer.change_voters(5, add=False, now=0.0)
    leading.flush()
    change = leading.bench.ledger.get(6)
    assert change is not None
    assert decode_system(change.system) == VoterRemoved(5, True)
    leading.acknowledge(1, 6, 6)
    leading.acknowledge(4, 6, 0)
    leading.acknowledge(5, 6, 0)
    assert leading.committed == 5, "three of the four that are left are a majority, and 5 is none of them"
    leading.acknowledge(2, 6, 6)
    assert leading.committed == 6


def following_witness() -> Leading:
    """Three servers and a witness, 4, which has joined; number 6 says so and is committed."""
    leading = Leading(make_config(servers=3, witnesses=1))
    leading.sequencer._propose(joined(leading.bench.config, 4))
    leading.flush()
    for number in (1, 2, 3):
        leading.acknowledge(number, 6, 6)
    assert leading.committed == 6
    return leading


def test_an_added_voter_counts_from_the_moment_its_addition_is_in_the_log() -> None:
    leading = following_witness()
    leading.sequencer.change_voters(4, add=False, now=0.0)
    leading.flush()
    for number in (1, 2, 3):
        leading.acknowledge(number, 7, 7)
    leading.hear(4, 7)
    assert leading.sequencer.change_voters(4, add=True, now=0.0)
    leading.flush()
    leading.acknowledge(1, 8, 8)
    leading.acknowledge(2, 8, 8)
    assert leading.committed == 7, "two of four are no majority"
    leading.acknowledge(4, 8, 0)
    assert leading.committed == 8


@pytest.mark.parametrize("state", ["never-heard", "behind", "too-few-others"])
def test_a_voter_is_added_only_if_it_follows_the_log_and_the_larger_set_can_decide(state: str) -> None:
    """One more that cannot vote yet, its disk lost perhaps, could leave the group without a majority for ever."""
    leading = following_witness()
    leading.sequencer.change_voters(4, add=False, now=0.0)
    leading.flush()
    for number in (1, 2, 3):
        leading.acknowledge(number, 7, 7)
    if state != "never-heard":
        leading.hear(4, 7, is_synchronised=state != "behind")
    now = TIMING.away_s * 2 if state == "too-few-others" else 0.0
    assert not leading.sequencer.change_voters(4, add=True, now=now)


def test_a_sequencer_that_is_no_voter_any_more_steps_down_once_that_is_committed() -> None:
    leading = Leading()
    leading.open_epoch()
    assert leading.sequencer.change_voters(1, add=False, now=0.0)
    leading.flush()
    leading.acknowledge(2, 6, 6)
    leading.sequencer.on_time(0.1)
    assert leading.committed == 5
    assert leading.sequencer.is_active, "the removal is open: nobody else can commit it in this epoch"
    leading.acknowledge(3, 6, 6)
    assert leading.committed == 6
    leading.sequencer.on_time(0.2)
    assert not leading.sequencer.is_active
    assert leading.bench.station.sequencer == 0
