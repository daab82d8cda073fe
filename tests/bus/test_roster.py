"""What the sequencer knows of its members, and what it proposes from that."""

import msgspec
import pytest

from alphorn.bus.config import GroupConfig
from alphorn.bus.entries import (
    CheckpointMark,
    Collected,
    EpochBegun,
    InSyncChanged,
    MemberJoined,
    MemberLeft,
    VoterAdded,
    VoterRemoved,
)
from alphorn.bus.frames import CommitAcknowledge, Join, Status, Welcome
from alphorn.bus.group_state import FIRST_JOINED_NUMBER
from alphorn.bus.roster import Roster, nth_largest
from tests.bus.group import make_config, without_checkpoints
from tests.bus.remembering import TIMING, Leading
from tests.bus.stations import EPOCH, NEXT_EPOCH, SENDER, joined, numbered, origin_of_member, system


@pytest.mark.parametrize(
    ("numbers", "n", "found"), [([], 1, 0), ([5], 1, 5), ([5, 9, 7], 2, 7), ([5, 9, 7], 3, 5), ([5, 9], 3, 0)]
)
def test_the_largest_number_that_enough_members_reach(numbers: list[int], n: int, found: int) -> None:
    assert nth_largest(numbers, n) == found


def test_words_of_another_epoch_are_only_a_sign_of_life() -> None:
    leading = Leading()
    body = Status(9, 9, 9, 0, 0, True, "S2")
    leading.roster.on_status(leading.bench.frame(2, body, NEXT_EPOCH), body, EPOCH, 5.0)
    assert (leading.roster.accepted(2), leading.roster.stored(2), leading.roster.silence(2, 5.0)) == (0, 0, 0.0)


def test_a_new_run_of_a_member_starts_from_nothing() -> None:
    leading = Leading()
    leading.hear(2)
    leading.roster.hear(leading.bench.frame(2, CommitAcknowledge(0, 0), origin=bytes(9) + b"n"), 2.0)
    assert (leading.roster.accepted(2), leading.roster.stored(2)) == (0, 0)


@pytest.mark.requirement("BUS-6")
def test_a_client_that_asks_gets_a_free_number_and_is_welcomed_once_that_is_committed() -> None:
    leading = Leading()
    (entry,) = leading.join(0, origin=SENDER)
    assert isinstance(entry, MemberJoined)
    assert (entry.member.number, entry.member.origin) == (FIRST_JOINED_NUMBER, SENDER)
    assert leading.bench.sent(Welcome) == []
    leading.fold(entry)
    assert leading.join(0, origin=SENDER) == []
    ((to, welcome),) = leading.bench.sent(Welcome)
    assert (to, welcome.number, welcome.sequence, welcome.refusal) == ("c", FIRST_JOINED_NUMBER, 21, "")
    assert welcome.state == leading.bench.ledger.state.encode()


def test_a_join_that_is_proposed_but_open_is_neither_proposed_again_nor_answered() -> None:
    leading = Leading()
    (entry,) = leading.join(0, origin=SENDER)
    tip = leading.bench.ledger.state.copy(leading.bench.config)
    tip.fold(tip.sequence + 1, system(entry))
    member = msgspec.structs.replace(joined(leading.bench.config, 1).member, number=0, origin=SENDER)
    assert leading.roster.on_join(Join(member, False, b"", 0, 0, 20), tip, has_open_voters=False, now=1.0) == []
    assert leading.bench.sent(Welcome) == []


def test_a_configured_run_is_told_how_far_the_log_goes_before_its_join_is_committed() -> None:
    leading = Leading()
    leading.bench.ledger.append(numbered(18))
    (entry,) = leading.join(2)
    assert leading.bench.sent(Welcome) == [("S2", Welcome(0, 0, 0, b"", 21))]
    tip = leading.bench.ledger.state.copy(leading.bench.config)
    tip.fold(tip.sequence + 1, system(entry))
    member = joined(leading.bench.config, 2, bytes(9) + b"n", 2).member
    again = Join(member, False, leading.bench.config.digest(), 20, 0, 20)
    assert leading.roster.on_join(again, tip, has_open_voters=False, now=1.1) == []
    assert leading.bench.sent(Welcome) == [("S2", Welcome(0, 0, 0, b"", 21))], "the first answer may be lost"


@pytest.mark.parametrize("number", [0, 2], ids=["client", "server"])
def test_a_name_that_may_have_been_used_before_a_sender_was_forgotten_is_not_admitted_and_told_so(number: int) -> None:
    leading = Leading()
    leading.bench.ledger.state.forgotten = 15
    assert leading.join(number, unused=14) == []
    ((_, welcome),) = leading.bench.sent(Welcome)
    assert (welcome.number, welcome.sequence, welcome.assigned, welcome.refusal) == (0, 15, 20, "")
    assert [type(entry) for entry in leading.join(number, unused=15)] == [MemberJoined]


def test_what_is_told_to_be_forgotten_is_committed() -> None:
    leading = Leading()
    tip = leading.bench.ledger.state.copy(leading.bench.config)
    tip.forgotten = 21
    member = msgspec.structs.replace(joined(leading.bench.config, 1).member, number=0, origin=bytes(9) + b"n")
    assert leading.roster.on_join(Join(member, False, b"", 0, 0, 20), tip, has_open_voters=False, now=1.0) == []
    assert [welcome.sequence for _, welcome in leading.bench.sent(Welcome)] == [0]


def test_a_sender_that_is_remembered_is_admitted_however_long_it_sends() -> None:
    leading = Leading()
    leading.fold(MemberLeft(2, origin_of_member(2), True))
    leading.bench.ledger.state.forgotten = 15
    entries = leading.join(2, incarnation=1, origin=origin_of_member(2), unused=2)
    assert [type(entry) for entry in entries] == [MemberJoined]


def test_another_configuration_is_refused_with_the_way_out() -> None:
    leading = Leading()
    assert leading.join(2, config=bytes(16)) == []
    ((to, welcome),) = leading.bench.sent(Welcome)
    assert to == "S2"
    assert welcome.refusal == "the configuration of S2 differs from the group's; copy it and restart"


def test_the_last_voter_is_never_removed() -> None:
    leading = Leading()
    leading.fold(VoterRemoved(1, False), VoterRemoved(3, False))
    assert leading.join(2, is_blank=True) == []


def test_a_voter_removed_for_its_disk_is_added_again_once_it_has_caught_up() -> None:
    leading = Leading()
    leading.fold(VoterRemoved(2, False))
    tip = leading.bench.ledger.state
    leading.hear(1, accepted=21)
    leading.hear(3, accepted=21)
    assert leading.roster.voter_change(tip, 1.0) is None
    leading.hear(2, is_synchronised=False)
    assert leading.roster.voter_change(tip, 1.0) is None
    leading.hear(2)
    assert leading.roster.voter_change(tip, 1.0) == VoterAdded(2)


def test_a_voter_is_not_added_while_the_larger_set_would_have_no_majority_that_keeps_up() -> None:
    leading = Leading(make_config(servers=3, witnesses=1))
    leading.fold(VoterRemoved(2, False))
    leading.hear(1, accepted=21)
    leading.hear(2)
    tip = leading.bench.ledger.state
    assert leading.roster.voter_change(tip, 1.0) is None
    leading.hear(3, accepted=21)
    assert leading.roster.voter_change(tip, 1.0) == VoterAdded(2)


def test_a_retired_voter_is_not_added_again() -> None:
    leading = Leading()
    leading.fold(VoterRemoved(2, True))
    for number in (1, 2, 3):
        leading.hear(number, accepted=21)
    assert leading.roster.voter_change(leading.bench.ledger.state, 1.0) is None


def test_members_that_said_goodbye_or_were_silent_too_long_are_reported_as_such() -> None:
    leading = Leading()
    leading.hear_all(now=1.0)
    leading.hear(3, now=4.0)
    leading.roster.left.add(origin_of_member(3))
    departures = leading.roster.departures(leading.bench.ledger.state, 1.0 + TIMING.evict_s + 0.1)
    assert departures == [MemberLeft(2, origin_of_member(2), True), MemberLeft(3, origin_of_member(3), False)]


def test_a_data_server_that_is_away_leaves_the_in_sync_set() -> None:
    leading = Leading()
    leading.hear_all(now=1.0)
    later = 1.1 + TIMING.away_s
    leading.hear(1, now=later)
    leading.hear(2, now=later)
    assert leading.roster.in_sync_change(leading.bench.ledger.state, later) == InSyncChanged((1, 2), 2)


@pytest.mark.requirement("HA-9")
def test_the_sequencer_before_is_not_waited_for_unless_it_is_heard() -> None:
    leading = Leading()
    leading.fold(EpochBegun(EPOCH, 3))
    leading.roster = Roster(leading.bench.station, 1.0)
    leading.hear(1, stored=21)
    leading.hear(2, stored=21)
    assert leading.roster.in_sync_change(leading.bench.ledger.state, 1.0) == InSyncChanged((1, 2), 2)
    leading.hear(3)
    assert leading.roster.in_sync_change(leading.bench.ledger.state, 1.0) is None


def test_a_data_server_that_said_goodbye_is_not_waited_for_until_it_is_back() -> None:
    leading = Leading()
    leading.hear_all(now=1.0)
    leading.roster.left.add(origin_of_member(2))
    assert leading.roster.departures(leading.bench.ledger.state, 1.0) == [MemberLeft(2, origin_of_member(2), False)]
    assert leading.roster.in_sync_change(leading.bench.ledger.state, 1.0) == InSyncChanged((1, 3), 2)
    leading.hear(2, now=1.0)
    assert leading.roster.in_sync_change(leading.bench.ledger.state, 1.0) is not None, "a last word of the same run"
    leading.hear(2, now=1.0, origin=bytes(9) + b"n")
    assert leading.roster.in_sync_change(leading.bench.ledger.state, 1.0) is None


def test_copies_fall_no_further_than_the_configuration_allows() -> None:
    leading = Leading(make_config(copies=2, copies_min=2))
    leading.hear_all(now=1.0)
    later = 1.1 + TIMING.away_s
    leading.hear(1, now=later)
    assert leading.roster.in_sync_change(leading.bench.ledger.state, later) is None


def test_copies_fall_by_a_recorded_decision_when_only_one_data_server_is_left() -> None:
    leading = Leading()
    leading.hear_all(now=1.0)
    later = 1.1 + TIMING.away_s
    leading.hear(1, now=later)
    assert leading.roster.in_sync_change(leading.bench.ledger.state, later) == InSyncChanged((1,), 1)


def test_no_set_becomes_the_rule_whose_members_do_not_hold_what_is_committed() -> None:
    leading = Leading()
    leading.hear_all(now=1.0)
    later = 1.1 + TIMING.away_s
    leading.bench.fold(numbered(100))
    leading.hear(1, stored=21, now=later)
    leading.hear(2, stored=20, now=later)
    assert leading.roster.in_sync_change(leading.bench.ledger.state, later) is None
    leading.hear(2, stored=21, now=later)
    assert leading.roster.in_sync_change(leading.bench.ledger.state, later) == InSyncChanged((1, 2), 2)


def test_no_set_becomes_the_rule_whose_members_lack_what_an_earlier_epoch_may_have_committed() -> None:
    leading = Leading()
    leading.bench.ledger.append(numbered(100))  # adopted, and open here: the sequencer before may have committed it
    leading.roster = Roster(leading.bench.station, 0.0)
    leading.hear_all(now=1.0)
    later = 1.1 + TIMING.away_s
    leading.hear(1, stored=21, now=later)
    leading.hear(2, stored=20, now=later)
    assert leading.roster.in_sync_change(leading.bench.ledger.state, later) is None
    leading.hear(2, stored=21, now=later)
    assert leading.roster.in_sync_change(leading.bench.ledger.state, later) == InSyncChanged((1, 2), 2)


def test_a_data_server_that_caught_up_is_in_sync_again_and_copies_are_restored() -> None:
    leading = Leading()
    leading.fold(InSyncChanged((1,), 1))
    leading.hear(1, stored=21)
    leading.hear(2, stored=20, is_synchronised=False)
    assert leading.roster.in_sync_change(leading.bench.ledger.state, 1.0) is None
    leading.hear(2, stored=21)
    assert leading.roster.in_sync_change(leading.bench.ledger.state, 1.0) == InSyncChanged((1, 2), 2)


def collecting(*, config: GroupConfig | None = None) -> Leading:
    """A log of 200 numbers and a mark at 201."""
    leading = Leading(config or make_config(checkpoint_interval=50), last=200)
    leading.fold(CheckpointMark())
    return leading


@pytest.mark.requirement("CKP-7")
def test_numbers_before_a_checkpoint_that_enough_servers_have_are_collected() -> None:
    leading = collecting()
    leading.hear(1, accepted=201, stored=201, checkpoint=150)
    leading.hear(2, accepted=201, stored=201, checkpoint=201)
    leading.hear(3, accepted=201, stored=201, checkpoint=0)
    assert leading.roster.collection(leading.bench.ledger.state, 1.0) == Collected(150)


@pytest.mark.requirement("CKP-7")
def test_nothing_is_collected_that_only_one_checkpoint_covers() -> None:
    leading = collecting()
    leading.hear_all(accepted=201, stored=201)
    leading.hear(2, accepted=201, stored=201, checkpoint=201)
    assert leading.roster.collection(leading.bench.ledger.state, 1.0) is None


@pytest.mark.requirement("CKP-7")
@pytest.mark.parametrize(("accepted", "stored"), [(120, 201), (201, 120)], ids=["voter", "data-server"])
def test_collection_never_passes_what_a_live_member_still_needs(accepted: int, stored: int) -> None:
    leading = collecting()
    leading.hear_all(accepted=201, stored=201, checkpoint=201)
    standing = leading.roster.of(3)
    assert standing is not None
    standing.accepted, standing.stored = accepted, stored
    assert leading.roster.collection(leading.bench.ledger.state, 1.0) == Collected(120)


@pytest.mark.requirement("CKP-7")
def test_what_a_live_member_without_a_log_has_not_heard_is_not_collected() -> None:
    leading = collecting()
    leading.hear_all(accepted=201, stored=201, checkpoint=201)
    (entry,) = leading.join(0)
    leading.fold(entry)
    assert isinstance(entry, MemberJoined)
    number, origin = entry.member.number, entry.member.origin
    leading.hear(number, accepted=0, stored=140, origin=origin)
    assert leading.roster.collection(leading.bench.ledger.state, 1.0) == Collected(140)
    leading.hear(number, accepted=0, stored=202, origin=origin)
    assert leading.roster.collection(leading.bench.ledger.state, 1.0) == Collected(201)


def test_a_member_that_was_evicted_does_not_hold_collection_back() -> None:
    leading = collecting()
    leading.hear_all(accepted=201, stored=201, checkpoint=201)
    leading.hear(3, accepted=201, stored=201, now=1.0)
    later = 1.1 + TIMING.evict_s
    leading.fold(MemberLeft(3, origin_of_member(3), True))
    for number in (1, 2):
        leading.hear(number, accepted=201, stored=201, checkpoint=201, now=later)
    assert leading.roster.collection(leading.bench.ledger.state, later) == Collected(201)


@pytest.mark.requirement("CKP-6")
def test_numbers_whose_logical_age_is_over_are_collected_where_nobody_makes_checkpoints() -> None:
    leading = collecting(config=without_checkpoints(make_config(checkpoint_interval=50, lifetime=60)))
    leading.hear_all(accepted=201, stored=201)
    assert leading.roster.collection(leading.bench.ledger.state, 1.0) == Collected(128)


@pytest.mark.requirement("CKP-7")
def test_what_no_checkpoint_covers_is_not_collected_however_old_it_is() -> None:
    leading = collecting(config=make_config(checkpoint_interval=50, lifetime=60))
    leading.hear_all(accepted=201, stored=201)
    assert leading.roster.collection(leading.bench.ledger.state, 1.0) is None
    leading.hear_all(accepted=201, stored=201, checkpoint=100)
    assert leading.roster.collection(leading.bench.ledger.state, 1.0) == Collected(100)


@pytest.mark.requirement("CKP-7")
def test_the_checkpoint_of_a_server_that_is_not_in_sync_covers_nothing() -> None:
    """It may never come back, and the one that is left would have neither the log nor a state."""
    leading = collecting()
    leading.fold(InSyncChanged((1,), 1))
    leading.hear_all(accepted=202, stored=202)
    leading.hear(2, accepted=202, stored=202, checkpoint=201)
    assert leading.roster.collection(leading.bench.ledger.state, 1.0) is None
    leading.hear(1, accepted=202, stored=202, checkpoint=150)
    assert leading.roster.collection(leading.bench.ledger.state, 1.0) == Collected(150)


def test_what_was_collected_is_not_collected_again() -> None:
    leading = collecting()
    leading.hear_all(accepted=201, stored=201, checkpoint=201)
    leading.fold(Collected(201))
    assert leading.roster.collection(leading.bench.ledger.state, 1.0) is None
