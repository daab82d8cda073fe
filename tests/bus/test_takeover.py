"""Takeover: a durable claim, a majority of promises, the best log adopted, and nothing cut that may be committed."""

import pytest

from alphorn.bus.config import Role
from alphorn.bus.entries import VoterAdded, VoterRemoved, epoch_counter, make_epoch
from alphorn.bus.frames import Fetch, NewEpoch, Prepare, Promise
from alphorn.bus.takeover import State
from tests.bus.group import make_config
from tests.bus.standing import OLD, TIMING, Standing
from tests.bus.stations import batch_id, numbered, system


def test_a_claim_is_on_the_candidates_own_disk_before_it_is_said() -> None:
    standing = Standing()
    standing.takeover.ask(1.0)
    token, _ = standing.bench.hand_over()
    assert standing.bench.sent(Prepare) == []
    meta = standing.bench.storage.meta()
    assert meta is not None
    assert meta.promised == standing.bench.station.epoch
    standing.bench.station.journal.on_durable(token)
    assert standing.bench.sent(Prepare) != []


def test_a_claim_is_above_every_epoch_heard_of() -> None:
    standing = Standing()
    standing.takeover.seen(make_epoch(40, 3))
    assert standing.ask() == make_epoch(41, 1)


def test_asking_again_for_an_epoch_that_nobody_answered_does_not_drive_epochs_up() -> None:
    standing = Standing()
    first = standing.ask(1.0)
    standing.takeover.on_time(10.0)
    assert standing.takeover.state is State.IDLE
    assert standing.ask(11.0) == first


def test_an_epoch_that_others_went_past_is_not_asked_for_again() -> None:
    standing = Standing()
    first = standing.ask(1.0)
    standing.takeover.seen(first + (1 << 16))
    standing.takeover.on_time(10.0)
    assert epoch_counter(standing.ask(11.0)) == epoch_counter(first) + 2


def test_promises_from_a_minority_are_not_enough() -> None:
    standing = Standing(make_config(servers=3, witnesses=2))
    standing.ask()
    standing.promise_own()
    standing.promise(4)
    assert not standing.sequencer.is_active
    standing.promise(5)
    assert standing.sequencer.is_active


def test_the_same_voter_counts_once() -> None:
    standing = Standing()
    standing.ask()
    standing.promise(2)
    standing.promise(2)
    assert not standing.sequencer.is_active


def test_a_promise_of_another_epoch_does_not_count() -> None:
    standing = Standing()
    epoch = standing.ask()
    standing.promise_own()
    standing.promise(2, epoch=epoch - (1 << 16))
    assert not standing.sequencer.is_active


def test_one_that_is_no_voter_any_more_does_not_count() -> None:
    standing = Standing()
    standing.bench.fold(system(VoterRemoved(2, False)))
    standing.ask()
    standing.promise(1, previous=4, committed=4)
    standing.promise(2, previous=4, committed=4)
    assert not standing.sequencer.is_active
    standing.promise(3, previous=4, committed=4)
    assert standing.sequencer.is_active


def test_voters_are_counted_by_the_newest_configuration_in_the_adopted_log_even_if_it_is_open() -> None:
    standing = Standing(make_config(servers=3, witnesses=1))
    standing.ask()
    removal = system(VoterRemoved(4, True), OLD)
    standing.promise(2, removal)
    standing.promise_own()
    assert standing.sequencer.is_active, "two of the three voters that are left"


def test_an_open_addition_raises_the_majority() -> None:
    standing = Standing(make_config(servers=3, witnesses=1))
    standing.bench.fold(system(VoterRemoved(4, False)))
    standing.ask()
    addition = system(VoterAdded(4), OLD)
    standing.promise(2, addition, previous=4, committed=4)
    standing.promise(1, previous=4, committed=4)
    assert not standing.sequencer.is_active, "two of four are no majority"
    standing.promise(4, addition, previous=4, committed=4)
    assert standing.sequencer.is_active


def test_a_refusal_ends_the_candidacy() -> None:
    standing = Standing()
    standing.ask()
    standing.promise(2, is_granted=False)
    assert standing.takeover.state is State.IDLE
    assert not standing.sequencer.is_active


def test_a_candidate_refused_for_an_epoch_of_the_same_count_asks_for_one_above_it() -> None:
    standing = Standing()
    standing.ask()
    refused = standing.bench.station.epoch
    standing.promise(2, is_granted=False, promised=refused + 1)
    standing.ask()
    assert standing.bench.station.epoch > refused + 1


def test_of_the_promised_logs_the_one_of_the_highest_epoch_is_adopted_even_if_it_is_shorter() -> None:
    standing = Standing(None, numbered(1, OLD - (1 << 16)), numbered(2, OLD - (1 << 16)))
    standing.bench.hold(1, 2, 9)
    standing.ask()
    standing.promise_own()
    standing.promise(2, numbered(9, OLD))
    assert standing.log == [numbered(9, OLD)]
    assert standing.sequencer.is_active


def test_of_two_logs_of_one_epoch_the_longer_is_adopted() -> None:
    standing = Standing(None, numbered(1, OLD))
    standing.bench.hold(1, 2)
    standing.ask()
    standing.promise_own()
    standing.promise(2, numbered(1, OLD), numbered(2, OLD))
    assert standing.log == [numbered(1, OLD), numbered(2, OLD)]


def test_what_any_promise_knows_to_be_committed_is_committed() -> None:
    standing = Standing(None, numbered(1, OLD), numbered(2, OLD))
    standing.bench.hold(1, 2)
    standing.ask()
    standing.promise_own()
    standing.promise(2, numbered(1, OLD), numbered(2, OLD), committed=4)
    assert standing.bench.ledger.committed == 4


def test_a_candidate_too_far_behind_to_adopt_the_best_log_does_not_begin() -> None:
    standing = Standing()
    standing.ask()
    standing.promise_own()
    standing.promise(2, numbered(30), previous=40, committed=40)
    assert not standing.sequencer.is_active


def test_a_candidate_too_far_behind_learns_that_it_must_catch_up_before_it_asks_again() -> None:
    standing = Standing()
    standing.ask()
    standing.promise(2, numbered(30), previous=40, committed=40)
    assert (standing.follower.collected, standing.follower.known_committed) == (40, 40)
    assert standing.bench.ledger.committed == 3
    standing.takeover.on_time(10.0)
    standing.bench.settle()
    standing.bench.sent(Prepare)
    for tick in range(1, 20):
        standing.takeover.on_time(10.0 + tick * TIMING.suspect_s)
        standing.bench.settle()
    assert standing.takeover.state is State.IDLE
    assert standing.bench.sent(Prepare) == []


def cut_short(standing: Standing) -> None:
    """Voter 2 tells numbers 4 to 6 of a log through 9; 4 and 5 are committed, and no more fits its promise."""
    epoch = standing.bench.station.epoch
    told = [numbered(counter) for counter in (1, 2, 3)]
    body = Promise(True, epoch, epoch, 1, 3, OLD, 5, 9, OLD, told)
    standing.takeover.on_promise(standing.bench.frame(2, body, epoch), body, 1.0)


def test_a_candidate_takes_what_is_committed_of_a_log_too_long_for_one_promise_and_asks_again_from_there() -> None:
    standing = Standing()
    epoch = standing.ask()
    standing.bench.sent(Prepare)
    cut_short(standing)
    assert (standing.bench.ledger.committed, standing.bench.ledger.last) == (5, 5), "what is open may not be all"
    assert not standing.sequencer.is_active
    standing.takeover.on_time(1.0 + 1.2 * TIMING.prepare_s)
    standing.bench.settle()
    assert {prepare.committed for _, prepare in standing.bench.sent(Prepare)} == {5}
    assert standing.bench.station.epoch == epoch


def test_promises_from_before_a_candidate_came_closer_do_not_count() -> None:
    standing = Standing()
    standing.ask()
    standing.promise(3)
    cut_short(standing)
    rest = [numbered(counter) for counter in (3, 4, 5, 6)]
    standing.bench.hold(*range(1, 7))
    standing.promise(2, *rest, previous=5, committed=5)
    assert not standing.sequencer.is_active
    standing.promise_own()
    assert standing.sequencer.is_active
    assert standing.log == [numbered(counter) for counter in range(1, 7)]


def missing_batch(**settings: object) -> Standing:
    """A candidate that adopts number 4, whose batch is not here."""
    standing = Standing(make_config(**settings), numbered(1, OLD))  # type: ignore[arg-type]
    standing.bench.storage._entries.clear()
    standing.ask()
    standing.promise_own()
    for number in (2, 3):
        standing.promise(number, numbered(1, OLD))
    assert standing.takeover.state is State.RESOLVING
    return standing


def test_a_batch_of_an_open_number_is_looked_for_before_the_epoch_begins() -> None:
    standing = missing_batch()
    asked = {to: fetch.ids for to, fetch in standing.bench.sent(Fetch)}
    assert asked == {"S2": [(batch_id(1), 0, 0)], "S3": [(batch_id(1), 0, 0)]}
    assert not standing.sequencer.is_active
    standing.bench.hold(1)
    standing.takeover.on_batch(1.0)
    assert standing.sequencer.is_active
    assert standing.log == [numbered(1, OLD)]


def test_a_number_is_cut_only_when_so_many_lack_it_that_it_cannot_be_committed() -> None:
    standing = missing_batch()  # two copies of three in sync: this member lacks it, one more must say so
    assert standing.log == [numbered(1, OLD)]
    standing.deny(2, 1)
    assert standing.log == []
    assert standing.sequencer.is_active


def test_a_denial_under_another_epoch_does_not_count() -> None:
    standing = missing_batch()
    standing.deny(2, 1, epoch=OLD)
    assert standing.log == [numbered(1, OLD)]
    assert not standing.sequencer.is_active


def test_with_one_copy_every_in_sync_server_must_deny_it() -> None:
    standing = missing_batch(copies=1)
    standing.deny(2, 1)
    assert standing.log == [numbered(1, OLD)]
    assert not standing.sequencer.is_active
    standing.deny(3, 1)
    assert standing.log == []


def test_a_server_outside_the_in_sync_set_cannot_deny() -> None:
    standing = missing_batch(servers=3, witnesses=1)
    standing.deny(4, 1)
    assert standing.log == [numbered(1, OLD)]


def test_the_same_server_denies_once() -> None:
    standing = missing_batch(copies=1)
    for _ in range(3):
        standing.deny(2, 1)
    assert standing.log == [numbered(1, OLD)]


@pytest.mark.parametrize("state", ["barred", "damaged"])
def test_a_candidate_with_a_doubtful_disk_does_not_count_itself_among_those_that_lack_it(state: str) -> None:
    standing = missing_batch()
    if state == "barred":
        standing.bench.station.is_barred = True
    else:
        standing.bench.station.impaired_until = 99
    standing.takeover._denied.clear()
    standing.deny(2, 1)
    assert standing.log == [numbered(1, OLD)]
    assert not standing.sequencer.is_active


def test_what_follows_a_cut_number_is_cut_with_it_and_what_precedes_stays() -> None:
    standing = Standing(None, numbered(1, OLD), numbered(2, OLD), numbered(3, OLD))
    standing.bench.hold(1, 3)
    standing.ask()
    standing.promise_own()
    standing.promise(2, numbered(1, OLD), numbered(2, OLD), numbered(3, OLD))
    standing.deny(3, 2)
    assert standing.log == [numbered(1, OLD)]


def test_a_candidate_that_finds_the_batch_nowhere_waits_and_then_gives_up_rather_than_guess() -> None:
    standing = missing_batch()
    standing.takeover.on_time(1.0 + 2 * TIMING.stall_s)
    assert standing.takeover.state is State.IDLE
    assert standing.log == [numbered(1, OLD)]
    assert not standing.sequencer.is_active


def test_a_candidate_that_promised_somebody_else_meanwhile_does_not_begin() -> None:
    standing = missing_batch()
    standing.bench.station.raise_fence(standing.bench.station.epoch + (7 << 16))
    standing.bench.hold(1)
    standing.takeover.on_batch(1.0)
    assert not standing.sequencer.is_active


def test_the_new_epoch_is_announced_and_begins_after_the_adopted_log() -> None:
    standing = Standing(None, numbered(1, OLD))
    standing.bench.hold(1)
    epoch = standing.ask()
    standing.promise_own()
    standing.promise(2, numbered(1, OLD))
    assert [announced.last for _, announced in standing.bench.sent(NewEpoch)] == [4]
    assert (standing.sequencer.epoch, standing.sequencer.start) == (epoch, 5)


def test_a_member_whose_removal_is_open_in_its_own_log_does_not_ask_and_one_whose_addition_is_open_does() -> None:
    removed = Standing(None, system(VoterRemoved(1, False)))
    assert not removed.takeover.may_ask
    added = Standing()
    added.bench.fold(system(VoterRemoved(1, False)))
    assert not added.takeover.may_ask
    added.follower.adopt(4, [system(VoterAdded(1))])
    assert added.takeover.may_ask


@pytest.mark.parametrize("reason", ["no-sequencer-role", "barred", "removed", "installing", "no-state"])
def test_a_member_that_may_not_be_sequencer_never_asks(reason: str) -> None:
    standing = Standing(roles=Role.DATA | Role.COMMIT if reason == "no-sequencer-role" else None)
    match reason:
        case "barred":
            standing.bench.station.is_barred = True
        case "removed":
            standing.bench.fold(system(VoterRemoved(1, False)))
        case "installing":
            standing.receiver.hold(3)
        case "no-state":  # its own checkpoint is damaged, and what precedes its log is collected
            standing.receiver.delivered = 0
            standing.bench.station.ledger.collect(2)
    for tick in range(1, 50):
        standing.takeover.on_time(tick * TIMING.suspect_s)
    assert standing.takeover.state is State.IDLE
    assert standing.bench.station.epoch == OLD
