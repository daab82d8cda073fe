"""The sequencer: numbers after a quorum of reports, commits after a majority and enough copies, changes one by one."""

import pytest

from alphorn.bus.config import Role, Timing
from alphorn.bus.entries import EpochBegun, InSyncChanged, MemberLeft, decode_system
from alphorn.bus.frames import (
    AssignmentAnswer,
    Commit,
    CommitSubmit,
    DataReport,
    Heartbeat,
    Held,
    NewEpoch,
    Prepare,
)
from alphorn.bus.machine import CONTROL_GROUP
from tests.bus.group import make_config
from tests.bus.leading import Leading, held
from tests.bus.stations import (
    EPOCH,
    NEXT_EPOCH,
    SENDER,
    batch_id,
    numbered,
    origin_of_member,
)

TIMING = Timing()


def test_an_epoch_begins_with_an_announcement_and_its_first_entry() -> None:
    leading = Leading()
    assert [to for to, _ in leading.bench.sent(NewEpoch)] == [CONTROL_GROUP]
    first = leading.bench.ledger.get(5)
    assert first is not None
    assert (first.epoch, decode_system(first.system)) == (EPOCH, EpochBegun(EPOCH, 1))


@pytest.mark.requirement("BUS-12")
@pytest.mark.parametrize("quorum", [1, 2, 3])
def test_a_batch_gets_its_number_after_the_report_quorum_and_not_before(quorum: int) -> None:
    leading = Leading(make_config(report_quorum=quorum))
    leading.open_epoch()
    for number in range(1, quorum):
        leading.report(number, 1)
        leading.report(number, 1)
    assert leading.numbers() == []
    leading.report(quorum, 1)
    assert leading.numbers() == [batch_id(1)]


@pytest.mark.requirement("BUS-12")
def test_each_new_number_follows_all_earlier_ones() -> None:
    leading = Leading()
    leading.open_epoch()
    for counter in (1, 2, 3):
        leading.report(2, counter)
    assert [leading.bench.ledger.find(batch_id(counter)) for counter in (1, 2, 3)] == [6, 7, 8]


@pytest.mark.requirement("BUS-5")
def test_a_senders_batches_are_numbered_in_the_order_it_sent_them() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.report(2, 3)
    leading.report(2, 2)
    assert leading.numbers() == []
    leading.report(2, 1)
    assert leading.numbers() == [batch_id(1), batch_id(2), batch_id(3)]


def test_a_batch_is_numbered_once_however_often_it_is_reported() -> None:
    leading = Leading()
    leading.open_epoch()
    for number in (2, 3, 2, 1):
        leading.report(number, 1)
    for number in (1, 2, 3):
        leading.acknowledge(number, 6, 6)
    leading.report(3, 1)
    assert leading.numbers() == [batch_id(1)]


def test_a_batch_of_a_stranger_is_not_numbered() -> None:
    leading = Leading()
    leading.open_epoch()
    stranger = batch_id(1, origin_of_member(77))
    body = DataReport([Held(stranger, 0, 0, 1)])
    leading.sequencer.on_report(leading.frame(2, body), body, 0.0)
    leading.flush()
    assert leading.numbers() == []


def test_a_batch_that_was_reported_in_time_is_not_numbered_once_its_sender_is_forgotten() -> None:
    leading = Leading(make_config(report_quorum=3), departed_senders_max=0)
    leading.open_epoch()
    leading.report(1, 1)
    leading.report(2, 1)
    leading.sequencer.on_leave(SENDER)
    now = away(leading, 3)
    leading.flush(now)
    entries = leading.bench.ledger.slice(5, leading.bench.ledger.last)
    assert [decode_system(entry.system) for entry in entries if entry.system] == [
        MemberLeft(0x8000, SENDER, False),
        InSyncChanged((1, 2), 2),
    ]
    assert [entry.id for entry in entries if not entry.system] == [], "two reports are enough now, and nobody knows it"
    assert leading.sequencer.describe()["unnumbered"] == 0


@pytest.mark.requirement("BUS-13", "BUS-17")
def test_one_submit_names_all_numbers_of_a_turn() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.report(2, 1, 2, 3)
    ((to, submit),) = leading.bench.sent(CommitSubmit)
    assert to == CONTROL_GROUP
    assert (submit.previous, submit.previous_epoch, submit.committed) == (5, EPOCH, 5)
    assert [assignment.id for assignment in submit.assignments] == [batch_id(1), batch_id(2), batch_id(3)]


def test_a_submit_is_never_larger_than_a_datagram() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.report(2, *range(1, 101))
    submits = [submit for _, submit in leading.bench.sent(CommitSubmit)]
    assert len(submits) > 1
    assert sum(len(submit.assignments) for submit in submits) == 100
    assert [submit.previous for submit in submits] == [
        5 + sum(len(before.assignments) for before in submits[:place]) for place in range(len(submits))
    ]


@pytest.mark.requirement("BUS-26")
@pytest.mark.parametrize("is_stable_first", [True, False])
def test_a_number_is_on_stable_storage_before_commit_servers_hear_of_it_where_that_is_set(
    *, is_stable_first: bool
) -> None:
    leading = Leading(make_config(stable_before_submit=is_stable_first))
    leading.open_epoch()
    body = DataReport([held(1)])
    leading.sequencer.on_report(leading.frame(2, body), body, 0.0)
    leading.sequencer.flush(0.0)
    token, _ = leading.bench.hand_over()
    assert bool(leading.bench.sent(CommitSubmit)) is not is_stable_first
    leading.bench.station.journal.on_durable(token)
    assert bool(leading.bench.sent(CommitSubmit)) is is_stable_first
    assert leading.bench.storage.assignment(6) is not None


@pytest.mark.requirement("BUS-15")
def test_a_number_is_committed_with_a_majority_of_commit_servers_and_enough_copies() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.report(2, 1)
    leading.acknowledge(1, 6, 6)
    assert leading.committed == 5
    leading.acknowledge(2, 6, 6)
    assert leading.committed == 6
    commits = [commit for _, commit in leading.bench.sent(Commit)]
    assert [(commit.first, commit.committed) for commit in commits] == [(6, 6)]
    assert [assignment.id for assignment in commits[0].assignments] == [batch_id(1)]


@pytest.mark.parametrize(
    ("roles", "is_told"), [(Role.NONE, True), (Role.DATA, False), (Role.COMMIT, False), (Role.DATA | Role.READER, True)]
)
def test_a_commit_is_told_at_once_where_somebody_waits_for_it(roles: Role, is_told: bool) -> None:
    leading = Leading(client_roles=roles)
    leading.open_epoch()
    leading.report(2, 1)
    leading.acknowledge(1, 6, 6)
    leading.acknowledge(2, 6, 6)
    assert leading.committed == 6
    assert len(leading.bench.sent(Commit)) == is_told


def test_those_who_only_keep_the_log_hear_of_a_commit_with_the_next_submit_or_heartbeat() -> None:
    leading = Leading(client_roles=Role.DATA)
    leading.open_epoch()
    leading.report(2, 1)
    leading.acknowledge(1, 6, 6)
    leading.acknowledge(2, 6, 6)
    leading.bench.station.outbox.clear()
    leading.report(2, 2)
    assert [submit.committed for _, submit in leading.bench.sent(CommitSubmit)] == [6]
    leading.acknowledge(1, 7, 7)
    leading.acknowledge(2, 7, 7)
    leading.sequencer.on_time(TIMING.heartbeat_busy_s)
    assert [beat.committed for to, beat in leading.bench.sent(Heartbeat) if to == CONTROL_GROUP] == [7]


def test_what_the_group_says_of_itself_is_told_to_all_at_once() -> None:
    leading = Leading(client_roles=Role.DATA)
    leading.open_epoch()
    assert leading.sequencer.change_interval(16, 0)
    leading.flush()
    leading.acknowledge(1, 6, 6)
    leading.acknowledge(2, 6, 6)
    assert [(commit.first, commit.committed) for _, commit in leading.bench.sent(Commit)] == [(6, 6)]


def test_copies_without_a_majority_commit_nothing() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.report(2, 1)
    for number in (1, 2, 3):
        leading.acknowledge(number, 6 if number == 1 else 5, 6)
    assert leading.committed == 5


def test_a_majority_without_enough_copies_commits_no_batch() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.report(2, 1)
    for number in (1, 2, 3):
        leading.acknowledge(number, 6, 6 if number == 1 else 5)
    assert leading.committed == 5


@pytest.mark.requirement("BUS-15")
def test_a_higher_acknowledge_quorum_is_waited_for() -> None:
    leading = Leading(make_config(acknowledge_quorum=3))
    leading.open_epoch()
    leading.report(2, 1)
    leading.acknowledge(1, 6, 6)
    leading.acknowledge(2, 6, 6)
    assert leading.committed == 5
    leading.acknowledge(3, 6, 0)
    assert leading.committed == 6


@pytest.mark.requirement("BUS-17")
def test_each_number_of_a_batched_submit_is_committed_by_its_own_acknowledgements() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.report(2, 1, 2, 3)
    leading.acknowledge(1, 8, 8)
    leading.acknowledge(2, 6, 6)
    assert leading.committed == 6
    leading.acknowledge(3, 7, 7)
    assert leading.committed == 7
    leading.acknowledge(2, 8, 8)
    assert leading.committed == 8


def test_acknowledgements_of_another_epoch_count_for_nothing() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.report(2, 1)
    leading.acknowledge(1, 6, 6)
    leading.acknowledge(2, 6, 6, epoch=EPOCH - (1 << 16))
    leading.acknowledge(3, 6, 6, epoch=EPOCH + (1 << 16))
    assert leading.committed == 5


def test_a_witness_without_data_helps_to_a_majority_but_is_no_copy() -> None:
    leading = Leading(make_config(servers=3, witnesses=2))
    for number in (1, 2, 3):
        leading.acknowledge(number, 5, 5)
    leading.report(2, 1)
    leading.acknowledge(1, 6, 6)
    leading.acknowledge(4, 6, 0)
    leading.acknowledge(5, 6, 0)
    assert leading.committed == 5
    leading.acknowledge(2, 0, 6)
    assert leading.committed == 6


def test_an_open_number_of_an_older_epoch_is_committed_only_together_with_this_epochs_first() -> None:
    leading = Leading(has_open_number=True)
    assert leading.sequencer.start == 6
    for number in (1, 2, 3):
        leading.acknowledge(number, 5, 5)
    assert leading.committed == 4
    for number in (1, 2):
        leading.acknowledge(number, 6, 6)
    assert leading.committed == 6


def away(leading: Leading, number: int) -> float:
    """Lets a data server be silent so long that it leaves the in-sync set; gives the time."""
    now = TIMING.away_s + 0.01
    last = leading.bench.ledger.last
    for other in {1, 2, 3} - {number}:
        leading.acknowledge(other, last, last, now=now)
    leading.sequencer.on_time(now)
    leading.flush(now)
    return now


def test_while_a_change_of_the_in_sync_set_is_open_both_rules_must_be_met() -> None:
    leading = Leading(make_config(copies=3))
    leading.open_epoch()
    leading.report(2, 1)
    now = away(leading, 3)
    change = leading.bench.ledger.get(7)
    assert change is not None
    assert decode_system(change.system) == InSyncChanged((1, 2), 2)
    leading.acknowledge(1, 7, 7, now=now)
    assert leading.committed == 5, "the old rule wants three copies, and only one voter has the new one"
    leading.acknowledge(2, 7, 7, now=now)
    assert leading.committed == 7, "a majority has the new rule, so it alone counts"


def test_a_change_of_the_in_sync_set_waits_for_the_one_before() -> None:
    leading = Leading()
    leading.open_epoch()
    now = away(leading, 3)
    last = leading.bench.ledger.last
    leading.acknowledge(1, last, last, now=now + TIMING.away_s)
    leading.sequencer.on_time(now + TIMING.away_s + 0.1)
    changes = [
        decode_system(assignment.system)
        for assignment in leading.bench.ledger.slice(5, leading.bench.ledger.last)
        if assignment.system
    ]
    assert changes == [InSyncChanged((1, 2), 2)]


@pytest.mark.requirement("BUS-24")
def test_heartbeats_carry_the_largest_committed_number() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.report(2, 1)
    leading.acknowledge(1, 6, 6)
    leading.acknowledge(2, 6, 6)
    leading.sequencer.on_time(leading.sequencer.next_deadline())
    beats = [beat for to, beat in leading.bench.sent(Heartbeat) if to == CONTROL_GROUP]
    assert [(beat.committed, beat.assigned) for beat in beats] == [(6, 6)]


def test_the_heartbeat_after_a_commit_comes_soon_and_idle_ones_are_rare() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.sequencer.on_time(0.2)
    assert leading.sequencer.next_deadline() == pytest.approx(0.2 + TIMING.heartbeat_s)
    leading.report(2, 1, now=0.2)
    leading.acknowledge(1, 6, 6, now=0.2)
    leading.acknowledge(2, 6, 6, now=0.2)
    assert leading.sequencer.next_deadline() == pytest.approx(0.2 + TIMING.heartbeat_busy_s)


def test_commits_that_follow_one_another_postpone_the_heartbeat_but_not_for_ever() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.sequencer.on_time(0.2)
    step = TIMING.heartbeat_busy_s / 2
    count = int(TIMING.heartbeat_s / step) - 1
    for turn in range(count):
        leading.report(2, turn + 1, now=0.2 + turn * step)
        for number in (1, 2):
            leading.acknowledge(number, 6 + turn, 6 + turn, now=0.2 + turn * step)
        soon = 0.2 + turn * step + TIMING.heartbeat_busy_s
        assert leading.sequencer.next_deadline() == pytest.approx(min(soon, 0.2 + TIMING.heartbeat_s))


def test_a_sequencer_that_hears_no_majority_steps_down() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.acknowledge(2, 5, 5, now=1.0)
    leading.sequencer.on_time(1.0 + TIMING.lease_s)
    assert leading.sequencer.is_active
    leading.sequencer.on_time(1.1 + TIMING.lease_s)
    assert not leading.sequencer.is_active
    assert leading.bench.station.sequencer == 0


def test_a_sequencer_that_stepped_down_numbers_and_commits_nothing() -> None:
    leading = Leading()
    leading.open_epoch()
    leading.report(2, 1)
    leading.sequencer.stop("told to")
    leading.report(2, 2)
    for number in (1, 2):
        leading.acknowledge(number, 6, 6)
    assert (leading.committed, leading.bench.ledger.last) == (5, 6)


def test_a_deposed_sequencer_that_learns_as_many_numbers_as_it_gave_itself_gives_no_more() -> None:
    leading = Leading()
    leading.report(2, 1)
    body = AssignmentAnswer(4, [numbered(7, NEXT_EPOCH), numbered(8, NEXT_EPOCH)])
    leading.follower.on_answer(leading.frame(2, body), body, 1.0)
    leading.report(2, 2)
    assert leading.bench.ledger.slice(4, 99) == body.assignments


def test_a_sequencer_whose_voters_follow_a_higher_epoch_asks_for_one_above_it() -> None:
    leading = Leading()
    leading.open_epoch()
    higher = EPOCH + (5 << 16)
    leading.sequencer.hear_epoch(leading.frame(3, Prepare(0, 1), higher), 1.0)
    for number in (2, 3):
        leading.acknowledge(number, 5, 5, now=1.0 + TIMING.lease_s)
    leading.sequencer.on_time(1.1 + TIMING.lease_s)
    assert leading.sequencer.wants_epoch == higher


def test_the_window_is_shared_by_the_senders_that_are_active() -> None:
    leading = Leading(window_bytes=100_000)
    leading.open_epoch()
    assert leading.sequencer.share_bytes(0.0) == 100_000
    for origin in (SENDER, leading.bench.station.origin, origin_of_member(2), origin_of_member(3)):
        body = DataReport([Held(batch_id(1, origin), 0, 0, 1)])
        leading.sequencer.on_report(leading.frame(2, body), body, 0.0)
    assert leading.sequencer.share_bytes(0.0) == 25_000
    assert leading.sequencer.share_bytes(5.0) == 100_000


def test_no_more_numbers_are_open_than_the_budget_allows() -> None:
    leading = Leading(open_numbers_max=4)
    leading.open_epoch()
    leading.report(2, *range(1, 11))
    assert leading.bench.ledger.last == 9
    leading.acknowledge(1, 9, 9)
    leading.acknowledge(2, 9, 9)
    leading.flush()
    assert leading.bench.ledger.last == 13


@pytest.mark.requirement("CKP-2")
def test_a_mark_is_put_into_the_log_at_every_interval() -> None:
    leading = Leading(make_config(checkpoint_interval=10))
    leading.open_epoch()
    leading.report(2, *range(1, 6))
    mark = leading.bench.ledger.get(11)
    assert mark is not None
    assert mark.system
    assert leading.bench.ledger.find(batch_id(5)) == 10
