"""What the sequencer knows of its members, and what it proposes from that."""

import msgspec
import pytest

from alphorn.bus.config import GroupConfig, Timing
from alphorn.bus.entries import (
    CheckpointMark,
    Collected,
    EpochBegun,
    InSyncChanged,
    MemberJoined,
    MemberLeft,
    SystemEntry,
    VoterAdded,
    VoterRemoved,
)
from alphorn.bus.frames import CommitAcknowledge, Join, Status, Welcome
from alphorn.bus.group_state import FIRST_JOINED_NUMBER
from alphorn.bus.roster import Roster, nth_largest
from tests.bus.group import make_config, without_checkpoints
from tests.bus.stations import EPOCH, NEXT_EPOCH, SENDER, Bench, joined, numbered, origin_of_member, system

TIMING = Timing()


class Leading:
    """Sequencer 1 of the first epoch, with servers 1 to 3 live in their first run and a log through number `last`."""

    def __init__(self, config: GroupConfig | None = None, *, last: int = 20) -> None:
        self.bench = Bench(config or make_config())
        self.bench.join(1, 2, 3)
        for counter in range(last - 3):
            self.bench.fold(numbered(counter + 1, timestamp=counter))
        self.roster = Roster(self.bench.station, 0.0)

    def hear(self, number: int, *, accepted: int = 20, stored: int = 20, checkpoint: int = 0, now: float = 1.0,
             is_synchronised: bool = True, origin: bytes | None = None) -> None:  # fmt: skip
        origin = origin or (self.bench.station.origin if number == 1 else origin_of_member(number))
        body = Status(stored, accepted, stored, checkpoint, 0, is_synchronised, f"S{number}")
        self.roster.on_status(self.bench.frame(number, body, origin=origin), body, EPOCH, now)

    def hear_all(self, now: float = 1.0, **values: int) -> None:
        for number in (1, 2, 3):
            self.hear(number, now=now, **values)  # type: ignore[arg-type]

    def fold(self, *entries: SystemEntry) -> None:
        self.bench.fold(*map(system, entries))

    def join(self, number: int, *, incarnation: int = 2, is_blank: bool = False, accepted: int = 20,
             origin: bytes = bytes(9) + b"n", config: bytes | None = None, has_open_voters: bool = False,
             nonce: int = 0, unused: int = 20, told: tuple[int, int] | None = None,
             now: float = 1.1 + TIMING.suspect_s) -> list[SystemEntry]:  # fmt: skip
        """Asks; as one that has heard an answer just now, if nothing else is said."""
        if number <= 3 and number:
            member = joined(self.bench.config, number, origin, incarnation).member
            member = msgspec.structs.replace(member, nonce=nonce)
            config = self.bench.config.digest() if config is None else config
        else:
            member = joined(self.bench.config, 1).member
            member = msgspec.structs.replace(member, number=0, name="c", address="c", roles=0, origin=origin)
            config = b""
        station = self.bench.station
        told = (station.epoch, station.ledger.last) if told is None else told
        body = Join(member, is_blank, config, accepted, 0, unused, told)
        tip = self.bench.ledger.state
        return self.roster.on_join(body, tip, has_open_voters=has_open_voters, now=now)


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


def test_a_restarted_member_with_its_disk_keeps_its_vote() -> None:
    leading = Leading()
    leading.hear(2)
    assert [type(entry) for entry in leading.join(2)] == [MemberJoined]


def test_the_same_process_keeps_its_vote_when_it_comes_back_after_it_was_taken_for_gone() -> None:
    leading = Leading()
    leading.hear(2)
    leading.fold(MemberLeft(2, origin_of_member(2), True))
    entries = leading.join(2, incarnation=1, accepted=3, origin=origin_of_member(2))
    assert [type(entry) for entry in entries] == [MemberJoined]


disks = pytest.mark.parametrize(
    "disk",
    [
        {"is_blank": True},
        {"incarnation": 1},
        {"accepted": 19},
    ],
    ids=["lost-disk", "old-incarnation", "old-image"],
)


@disks
def test_a_member_whose_disk_is_lost_or_old_loses_its_vote_before_it_joins(disk: dict[str, int]) -> None:
    leading = Leading()
    leading.hear(2)
    entries = leading.join(2, nonce=7, **disk)  # type: ignore[arg-type]
    assert [type(entry) for entry in entries] == [VoterRemoved, MemberJoined]
    assert entries[0] == VoterRemoved(2, False)
    assert (leading.roster.accepted(2), leading.roster.stored(2)) == (0, 0)


@disks
def test_a_lost_or_old_disk_counts_only_once_its_run_shows_that_it_is_there(disk: dict[str, int]) -> None:
    leading = Leading()
    leading.hear(2)
    epoch, last = leading.bench.station.epoch, leading.bench.ledger.last
    for told in ((0, 0), (epoch, last - 1), (epoch - 1, last + 9)):
        assert leading.join(2, nonce=7, told=told, **disk) == []  # type: ignore[arg-type]
        assert [(to, body.number, body.sequence, body.assigned) for to, body in leading.bench.sent(Welcome)] == [
            ("S2", 0, 0, last),
            ("S2", 0, leading.bench.ledger.committed, last),
        ]
    assert (leading.roster.accepted(2), leading.roster.stored(2)) == (20, 20)
    leading.fold(MemberLeft(3, origin_of_member(3), True))
    entries = leading.join(2, nonce=7, accepted=20, told=(epoch, last))
    assert [type(entry) for entry in entries] == [VoterRemoved, MemberJoined], "whatever it has caught up with"


def test_what_an_earlier_run_was_told_says_nothing_once_another_is_admitted() -> None:
    leading = Leading()
    leading.hear(2)
    lost = {"nonce": 7, "told": (leading.bench.station.epoch, leading.bench.ledger.last)}
    assert leading.join(2, is_blank=True, has_open_voters=True, **lost) == []  # type: ignore[arg-type]
    leading.fold(*leading.join(2, nonce=8, incarnation=3, accepted=20, origin=bytes(9) + b"o"))
    assert leading.join(2, is_blank=True, now=9.0, **lost) == []  # type: ignore[arg-type]


@disks
def test_a_late_word_of_an_earlier_run_changes_nothing_while_the_known_one_is_heard(disk: dict[str, int]) -> None:
    leading = Leading()
    leading.hear(2)
    assert leading.join(2, nonce=7, now=1.0 + 0.9 * TIMING.suspect_s, **disk) == []  # type: ignore[arg-type]
    assert (leading.roster.accepted(2), leading.roster.stored(2)) == (20, 20)
    entries = leading.join(2, nonce=7, accepted=20)  # it was no copy: the other run is silent now
    assert [type(entry) for entry in entries] == [VoterRemoved, MemberJoined], "whatever it has caught up with"


@disks
def test_a_lost_disk_must_wait_while_another_change_of_voters_is_open(disk: dict[str, int]) -> None:
    leading = Leading()
    leading.hear(2)
    assert leading.join(2, nonce=7, has_open_voters=True, **disk) == []  # type: ignore[arg-type]
    leading.hear(2, accepted=0, stored=0, origin=bytes(9) + b"n")
    entries = leading.join(2, nonce=7, **disk)  # type: ignore[arg-type]
    assert [type(entry) for entry in entries] == [VoterRemoved, MemberJoined]


def test_a_disk_that_was_found_old_is_so_until_its_vote_is_removed_and_not_after_that() -> None:
    leading = Leading()
    leading.hear(2)
    assert leading.join(2, nonce=7, accepted=19, has_open_voters=True) == []
    entries = leading.join(2, nonce=7, accepted=20)
    assert [type(entry) for entry in entries] == [VoterRemoved, MemberJoined], "what it forgot, it may have promised"
    leading.fold(*entries, VoterAdded(2), MemberLeft(2, bytes(9) + b"n", True))
    assert [type(entry) for entry in leading.join(2, nonce=7, accepted=20)] == [MemberJoined]


@disks
def test_what_a_lost_disk_had_counts_for_nothing_though_its_vote_cannot_be_removed_yet(disk: dict[str, int]) -> None:
    leading = Leading()
    leading.hear_all(checkpoint=20)
    later = 1.1 + TIMING.away_s
    leading.hear(1, now=later)
    leading.hear(2, now=later)
    tip = leading.bench.ledger.state
    assert leading.roster.in_sync_change(tip, later) == InSyncChanged((1, 2), 2)
    asked = later + 0.1 + TIMING.suspect_s
    assert leading.join(2, nonce=7, has_open_voters=True, now=asked, **disk) == []  # type: ignore[arg-type]
    assert (leading.roster.accepted(2), leading.roster.stored(2)) == (0, 0)
    standing = leading.roster.of(2)
    assert standing is not None
    assert (standing.checkpoint, standing.is_synchronised) == (0, False)
    assert leading.roster.in_sync_change(tip, later) is None


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
