"""Members that come back with a disk that is lost, old, or found again: what the sequencer makes of their word."""

import pytest

from alphorn.bus.entries import InSyncChanged, MemberJoined, MemberLeft, VoterAdded, VoterRemoved
from alphorn.bus.frames import Welcome
from alphorn.bus.roster import Roster
from tests.bus.remembering import TIMING, Leading
from tests.bus.stations import origin_of_member


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


def incarnation_of(leading: Leading) -> int:
    return leading.bench.ledger.state.members[2].incarnation


@disks
def test_the_disk_that_was_replaced_is_an_old_one_when_it_comes_back_however_often_it_was_started(
    disk: dict[str, int],
) -> None:
    leading = Leading()
    leading.fold(*leading.join(2, nonce=5, incarnation=9, origin=bytes(9) + b"m"))
    leading.hear(2, origin=bytes(9) + b"m")
    leading.fold(*leading.join(2, nonce=7, **{"incarnation": 10, **disk}), VoterAdded(2))  # type: ignore[arg-type]
    leading.roster = Roster(leading.bench.station, 0.0)  # of another epoch, which has heard of nobody
    entries = leading.join(2, nonce=8, incarnation=100, origin=bytes(9) + b"o")
    assert [type(entry) for entry in entries] == [VoterRemoved, MemberJoined]


@disks
def test_a_member_keeps_its_vote_on_a_replaced_disk_that_knows_how_many_starts_it_has_behind_it(
    disk: dict[str, int],
) -> None:
    leading = Leading()
    leading.hear(2)
    leading.fold(*leading.join(2, nonce=7, **disk), VoterAdded(2))  # type: ignore[arg-type]
    entries = leading.join(2, nonce=8, incarnation=incarnation_of(leading) + 1, origin=bytes(9) + b"o")
    assert [type(entry) for entry in entries] == [MemberJoined]


def test_the_log_never_counts_fewer_starts_of_a_member_than_before() -> None:
    leading = Leading()
    leading.hear(2)
    leading.fold(*leading.join(2, nonce=7, is_blank=True), VoterAdded(2))
    before = incarnation_of(leading)
    leading.fold(MemberLeft(2, bytes(9) + b"n", True))
    leading.fold(*leading.join(2, nonce=7))  # the same process, which may not have heard how many there are
    assert incarnation_of(leading) == before > 2


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
def test_a_sequencer_judges_no_disk_of_a_member_that_follows_a_later_epoch(disk: dict[str, int]) -> None:
    leading = Leading()
    leading.hear(2)
    epoch = leading.bench.station.epoch
    assert leading.join(2, nonce=7, promised=epoch + 1, **disk) == []  # type: ignore[arg-type]
    assert [body.number for _, body in leading.bench.sent(Welcome)] == [0], "it was heard"
    assert (leading.roster.accepted(2), leading.roster.stored(2)) == (20, 20)
    assert leading.join(2, nonce=7, promised=epoch, **disk) != []  # type: ignore[arg-type]


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
