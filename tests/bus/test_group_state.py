"""The group's own state: a pure fold, equal everywhere, that a checkpoint can hold."""

import msgspec
import pytest

from alphorn.bus.config import GroupConfig, Role
from alphorn.bus.entries import (
    CheckpointMark,
    Collected,
    EpochBegun,
    InSyncChanged,
    IntervalChanged,
    Member,
    MemberJoined,
    MemberLeft,
    Nothing,
    SystemEntry,
    VoterAdded,
    VoterRemoved,
)
from alphorn.bus.group_state import FIRST_JOINED_NUMBER, GroupState
from tests.bus.group import make_config
from tests.bus.stations import EPOCH, SENDER, joined, numbered, origin_of_member, system

CONFIG = make_config(servers=3, witnesses=2, checkpoint_interval=10)
CLIENT = Member(FIRST_JOINED_NUMBER, "c", "c", 0, 0, "client", SENDER, 1)


def state_after(*entries: SystemEntry, config: GroupConfig = CONFIG, departed_max: int = 8) -> GroupState:
    state = GroupState(config, departed_max=departed_max)
    fold(state, *entries)
    return state


def fold(state: GroupState, *entries: SystemEntry) -> None:
    for entry in entries:
        state.fold(state.sequence + 1, system(entry))


def test_a_founded_group_has_its_configured_voters_and_data_servers_and_nobody_is_live() -> None:
    state = state_after()
    assert (state.voters, state.majority, state.in_sync, state.copies) == ([1, 2, 3, 4, 5], 3, (1, 2, 3), 2)
    assert not any(member.is_live for member in state.members.values())


def test_data_servers_decide_alone_while_as_many_as_must_store_are_a_majority_of_voters() -> None:
    pair = make_config(servers=2, witnesses=1)
    assert state_after(config=pair).is_decided_by_data_servers
    assert not state_after(InSyncChanged((1,), 1), config=pair).is_decided_by_data_servers
    assert not state_after().is_decided_by_data_servers, "two copies are no majority of five voters"


def test_numbers_are_folded_without_a_gap() -> None:
    with pytest.raises(AssertionError):
        state_after().fold(2, numbered(1))


def test_the_newest_epoch_names_the_primary() -> None:
    state = state_after(EpochBegun(EPOCH, 1), EpochBegun(EPOCH + (1 << 16), 3))
    assert (state.primary, state.epoch) == (3, EPOCH + (1 << 16))


@pytest.mark.requirement("BUS-6", "BUS-7")
def test_a_member_that_joins_is_known_by_its_tag_and_rank() -> None:
    state = state_after(joined(CONFIG, 2), MemberJoined(CLIENT))
    assert (state.members[2].tag, state.members[2].rank, state.members[2].is_live) == ("store", 2, True)
    assert state.members[FIRST_JOINED_NUMBER].tag == "client"
    assert state.number_of(SENDER) == FIRST_JOINED_NUMBER


def test_joining_makes_nobody_a_voter_and_unmakes_none() -> None:
    claims = msgspec.structs.replace(CLIENT, is_voter=True)
    state = state_after(joined(CONFIG, 2), MemberJoined(claims))
    assert state.voters == [1, 2, 3, 4, 5]


def test_a_configured_member_that_left_is_remembered_and_a_client_is_not() -> None:
    state = state_after(joined(CONFIG, 2), MemberJoined(CLIENT))
    fold(state, MemberLeft(2, origin_of_member(2), False), MemberLeft(FIRST_JOINED_NUMBER, SENDER, True))
    assert not state.members[2].is_live
    assert FIRST_JOINED_NUMBER not in state.members
    assert state.left == state_after(MemberJoined(CLIENT)).members[FIRST_JOINED_NUMBER]


def test_a_late_word_about_an_earlier_run_removes_nobody() -> None:
    later = joined(CONFIG, 2, origin=bytes(9) + b"2", incarnation=2)
    state = state_after(joined(CONFIG, 2), later, MemberLeft(2, origin_of_member(2), True))
    assert state.members[2].is_live
    assert state.left is None


def test_numbers_for_clients_are_given_again_only_after_they_left() -> None:
    state = state_after(MemberJoined(CLIENT))
    assert state.free_number() == FIRST_JOINED_NUMBER + 1
    fold(state, MemberLeft(FIRST_JOINED_NUMBER, SENDER, False))
    assert state.free_number() == FIRST_JOINED_NUMBER


def test_a_retired_voter_loses_the_role_and_one_that_lost_its_disk_keeps_it() -> None:
    state = state_after(VoterRemoved(4, True), VoterRemoved(5, False))
    assert state.voters == [1, 2, 3]
    assert (state.members[4].has(Role.COMMIT), state.members[5].has(Role.COMMIT)) == (False, True)


def test_majority_is_counted_over_the_voters_there_are() -> None:
    state = state_after(VoterRemoved(4, False))
    assert state.majority == 3
    fold(state, VoterRemoved(5, False))
    assert state.majority == 2
    fold(state, VoterAdded(5))
    assert (state.voters, state.majority) == ([1, 2, 3, 5], 3)


def test_the_in_sync_set_and_its_copies_are_what_the_log_says() -> None:
    state = state_after(InSyncChanged((1, 3), 1))
    assert (state.in_sync, state.copies) == ((1, 3), 1)


@pytest.mark.requirement("CKP-2")
def test_marks_and_intervals_are_agreed_through_the_log() -> None:
    state = state_after(IntervalChanged(50, 400), Nothing(), CheckpointMark())
    assert (state.interval, state.lifetime, state.mark) == (50, 400, 3)


def test_collection_never_goes_back() -> None:
    state = state_after(Collected(30), Collected(20))
    assert state.collected == 30


def test_each_sender_is_remembered_by_its_newest_counter() -> None:
    state = state_after(MemberJoined(CLIENT))
    state.fold(2, numbered(1))
    state.fold(3, numbered(2))
    assert state.senders[SENDER] == 2
    assert state.is_sender(SENDER)


def test_a_sender_that_left_may_not_send_and_is_remembered_for_its_return() -> None:
    state = state_after(MemberJoined(CLIENT))
    state.fold(2, numbered(1))
    fold(state, MemberLeft(FIRST_JOINED_NUMBER, SENDER, True))
    assert not state.is_sender(SENDER)
    assert state.senders[SENDER] == 1
    fold(state, MemberJoined(CLIENT))
    assert state.is_sender(SENDER)
    assert state.senders[SENDER] == 1


def test_departed_senders_are_remembered_up_to_a_bound_oldest_forgotten_first() -> None:
    state = state_after(departed_max=2)
    origins = [bytes(9) + bytes([place]) for place in range(1, 4)]
    for origin in origins:
        fold(state, MemberJoined(msgspec.structs.replace(CLIENT, origin=origin)))
        fold(state, MemberLeft(FIRST_JOINED_NUMBER, origin, True))
    assert list(state.senders) == origins[1:]


def test_a_name_that_is_not_known_may_be_forgotten_if_it_may_have_been_used_before_a_sender_was_forgotten() -> None:
    state = state_after(departed_max=1)
    first, second = bytes(9) + b"1", bytes(9) + b"2"
    for origin in (first, second):
        fold(state, MemberJoined(msgspec.structs.replace(CLIENT, origin=origin)))
        assert not state.may_be_forgotten(SENDER, 0), "nobody was forgotten yet"
        fold(state, MemberLeft(FIRST_JOINED_NUMBER, origin, True))
    assert state.may_be_forgotten(first, 3)
    assert not state.may_be_forgotten(first, 4)
    assert not state.may_be_forgotten(second, 0), "it left, and is remembered"
    fold(state, MemberJoined(CLIENT))
    copy = GroupState.decode(state.encode(), CONFIG, departed_max=1)
    assert copy.may_be_forgotten(first, 3)
    assert not copy.may_be_forgotten(first, 4)


def test_a_new_run_of_a_member_replaces_the_old_one_as_sender() -> None:
    later = joined(CONFIG, 2, origin=bytes(9) + b"2", incarnation=2)
    state = state_after(joined(CONFIG, 2), later)
    assert not state.is_sender(origin_of_member(2))
    assert state.is_sender(bytes(9) + b"2")


@pytest.mark.requirement("CKP-6", "BUS-27")
def test_age_is_told_by_logical_timestamps() -> None:
    state = state_after(IntervalChanged(1000, 100))
    for counter in range(1, 1000):
        state.fold(state.sequence + 1, numbered(counter, timestamp=state.sequence))
    line = state.aged_through(state.sequence)
    assert state.sequence - 100 - 2 * 64 <= line < state.sequence - 100
    assert state.aged_through(100) == 0


@pytest.mark.requirement("CKP-6")
def test_an_entry_with_a_young_timestamp_holds_back_all_after_it() -> None:
    state = state_after(IntervalChanged(1000, 100))
    for counter in range(1, 1000):
        young = 950 if counter == 300 else 0
        state.fold(state.sequence + 1, numbered(counter, timestamp=young))
    assert state.aged_through(state.sequence) < 301


def test_without_a_lifetime_nothing_ages() -> None:
    state = state_after()
    for counter in range(1, 500):
        state.fold(state.sequence + 1, numbered(counter))
    assert state.aged_through(state.sequence) == 0


def rich_state() -> GroupState:
    state = state_after(
        EpochBegun(EPOCH, 1),
        joined(CONFIG, 1),
        joined(CONFIG, 2),
        MemberJoined(CLIENT),
        VoterRemoved(5, False),
        InSyncChanged((1, 2), 2),
        IntervalChanged(100, 200),
    )
    for counter in range(1, 200):
        state.fold(state.sequence + 1, numbered(counter, timestamp=counter))
    fold(state, CheckpointMark(), Collected(70), MemberLeft(FIRST_JOINED_NUMBER, SENDER, True))
    return state


@pytest.mark.requirement("CKP-3")
def test_a_state_is_rebuilt_from_its_bytes_and_goes_on_the_same() -> None:
    state = rich_state()
    copy = GroupState.decode(state.encode(), CONFIG, departed_max=8)
    assert copy.encode() == state.encode()
    for each in (state, copy):
        fold(each, MemberJoined(CLIENT), VoterAdded(5), EpochBegun(EPOCH + (1 << 16), 2))
        each.fold(each.sequence + 1, numbered(200, timestamp=150))
    assert copy.encode() == state.encode()


def test_a_copy_is_independent() -> None:
    state = rich_state()
    before = state.encode()
    fold(state.copy(CONFIG), VoterRemoved(1, True), Collected(90), IntervalChanged(1, 1))
    assert state.encode() == before


def test_equal_logs_give_equal_bytes() -> None:
    assert rich_state().encode() == rich_state().encode()


def test_bytes_that_are_no_state_are_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        GroupState.decode(b"\x93\x01\x02\x03", CONFIG, departed_max=8)


def test_people_can_read_who_is_in_the_group() -> None:
    described = rich_state().describe()
    assert described["voters"] == [1, 2, 3, 4]
    assert described["in_sync"] == [1, 2]


def test_whatever_bytes_a_peer_sends_for_a_state_are_one_or_are_refused_as_such() -> None:
    encoded = state_after(joined(CONFIG, 1), MemberJoined(CLIENT), EpochBegun(EPOCH, 1)).encode()
    refused = 0
    for place in range(len(encoded)):
        for byte in (0x00, 0x93, 0xA3, 0xC0, 0xC4, 0xCF, 0xFF):
            try:
                GroupState.decode(encoded[:place] + bytes([byte]) + encoded[place + 1 :], CONFIG, departed_max=8)
            except msgspec.DecodeError:
                refused += 1
    assert refused > len(encoded)
