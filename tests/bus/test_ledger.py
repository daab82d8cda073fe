"""The ledger: log matching, what may be cut, what is confirmed, and what is let go."""

import pytest

from alphorn.bus.entries import EpochBegun, Nothing, make_epoch
from alphorn.bus.ledger import Ledger
from alphorn.bus.machine import Persist, PutAssignments
from alphorn.io.memory_storage import MemoryStorage
from tests.bus.stations import EPOCH, NEXT_EPOCH, Bench, batch_id, numbered, system

LAST_EPOCH = make_epoch(3, 3)


def ledger_of(*counters: int, committed: int = 0) -> Bench:
    """A ledger with these batches as its first numbers."""
    bench = Bench()
    for counter in counters:
        bench.ledger.append(numbered(counter))
    bench.ledger.commit(committed)
    return bench


def test_numbers_follow_one_another() -> None:
    ledger = ledger_of().ledger
    assert [ledger.append(numbered(counter)) for counter in (1, 2, 3)] == [1, 2, 3]
    assert ledger.last == 3
    assert ledger.get(2) == numbered(2)
    assert ledger.find(batch_id(2)) == 2


def test_a_speaker_matches_where_its_entry_has_the_same_epoch() -> None:
    ledger = ledger_of(1, 2, 3).ledger
    assert ledger.matches(3, EPOCH)
    assert not ledger.matches(3, NEXT_EPOCH)
    assert not ledger.matches(4, EPOCH)


def test_whatever_is_committed_matches_every_speaker() -> None:
    ledger = ledger_of(1, 2, 3, committed=2).ledger
    assert ledger.matches(2, NEXT_EPOCH)
    assert not ledger.matches(3, NEXT_EPOCH)


def test_a_longer_log_of_the_same_epoch_cuts_nothing() -> None:
    ledger = ledger_of(1, 2).ledger
    assert ledger.merge(0, [numbered(1), numbered(2), numbered(3)]) == (None, 3)
    assert ledger.last == 3


def test_a_shorter_log_of_the_same_epoch_is_a_late_frame_and_cuts_nothing() -> None:
    ledger = ledger_of(1, 2, 3).ledger
    assert ledger.merge(0, [numbered(1)]) == (None, 0)
    assert ledger.last == 3


def test_what_conflicts_with_a_newer_epoch_is_cut_with_all_that_follows() -> None:
    ledger = ledger_of(1, 2, 3).ledger
    assert ledger.merge(1, [numbered(9, NEXT_EPOCH)]) == (1, 2)
    assert (ledger.last, ledger.last_epoch) == (2, NEXT_EPOCH)
    assert (ledger.find(batch_id(2)), ledger.find(batch_id(3)), ledger.find(batch_id(9))) == (0, 0, 2)


def test_a_committed_number_is_never_replaced_by_a_merge() -> None:
    ledger = ledger_of(1, 2, 3, committed=2).ledger
    ledger.merge(0, [numbered(7, NEXT_EPOCH), numbered(8, NEXT_EPOCH)])
    assert ledger.slice(0, 3) == [numbered(1), numbered(2), numbered(3)]


def test_cutting_a_committed_number_is_a_broken_promise_and_stops_the_node() -> None:
    ledger = ledger_of(1, 2, committed=2).ledger
    with pytest.raises(AssertionError, match="number 2 is committed and cannot be cut off"):
        ledger.cut(1)


def test_a_cut_takes_back_what_was_confirmed() -> None:
    ledger = ledger_of(1, 2, 3).ledger
    ledger.confirm(EPOCH, 3)
    ledger.cut(1)
    assert ledger.confirmed == 1


def test_a_higher_epoch_starts_its_confirmation_anew_even_if_it_is_lower() -> None:
    ledger = ledger_of(1, 2, 3).ledger
    ledger.confirm(EPOCH, 3)
    ledger.confirm(NEXT_EPOCH, 1)
    assert (ledger.confirmed_epoch, ledger.confirmed) == (NEXT_EPOCH, 1)


def test_confirmation_of_an_older_epoch_counts_for_nothing() -> None:
    ledger = ledger_of(1, 2, 3).ledger
    ledger.confirm(NEXT_EPOCH, 1)
    ledger.confirm(EPOCH, 3)
    assert (ledger.confirmed_epoch, ledger.confirmed) == (NEXT_EPOCH, 1)


def test_confirmation_never_falls_within_an_epoch() -> None:
    ledger = ledger_of(1, 2, 3).ledger
    ledger.confirm(EPOCH, 3)
    ledger.confirm(EPOCH, 2)
    assert ledger.confirmed == 3


def test_commit_makes_numbers_final_in_order_and_each_once() -> None:
    bench, seen = ledger_of(1, 2, 3), []
    bench.ledger.on_committed = lambda sequence, assignment, entry: seen.append((sequence, assignment.id, entry))
    bench.ledger.commit(2)
    bench.ledger.commit(1)
    bench.ledger.commit(9)
    assert seen == [(1, batch_id(1), None), (2, batch_id(2), None), (3, batch_id(3), None)]
    assert bench.ledger.committed == 3


def test_a_commit_of_a_system_entry_gives_the_entry() -> None:
    bench, seen = Bench(), []
    bench.ledger.on_committed = lambda sequence, assignment, entry: seen.append(entry)
    bench.ledger.append(system(EpochBegun(EPOCH, 1)))
    bench.ledger.commit(1)
    assert seen == [EpochBegun(EPOCH, 1)]
    assert bench.ledger.find(system(EpochBegun(EPOCH, 1)).id) == 0


def test_a_slice_stops_at_the_first_number_it_does_not_know() -> None:
    ledger = ledger_of(1, 2, 3, committed=3).ledger
    ledger.collect(1)
    assert ledger.slice(1, 9) == [numbered(2), numbered(3)]
    assert ledger.slice(0, 9) == []


def test_collected_numbers_are_forgotten_and_the_epoch_at_the_line_is_not() -> None:
    ledger = ledger_of(1, 2, 3, committed=3).ledger
    ledger.collect(2)
    assert (ledger.base, ledger.get(2), ledger.epoch_at(2), ledger.epoch_at(1)) == (2, None, EPOCH, None)
    assert ledger.matches(3, EPOCH)
    assert ledger.find(batch_id(2)) == 0


def test_collection_never_passes_what_is_committed() -> None:
    ledger = ledger_of(1, 2, 3, committed=2).ledger
    ledger.collect(3)
    assert (ledger.base, ledger.last) == (2, 3)
    assert ledger.get(3) == numbered(3)


def test_old_assignments_leave_memory_and_are_read_from_storage() -> None:
    bench = Bench()
    log = [numbered(counter) for counter in range(1, 1001)]
    bench.storage.submit(Persist(1, [PutAssignments(1, log)]))
    for assignment in log:
        bench.ledger.append(assignment)
    bench.ledger.commit(1000)
    bench.ledger.trim(stored=1000, needed=1000)
    assert bench.ledger.describe()["in_memory"] == 512
    assert bench.ledger.get(1) == numbered(1)
    assert bench.ledger.slice(0, 1000) == log


@pytest.mark.parametrize(("stored", "needed"), [(10, 1000), (1000, 10)], ids=["not-on-disk", "still-waited-for"])
def test_memory_keeps_what_is_not_on_disk_or_still_waited_for(stored: int, needed: int) -> None:
    bench = Bench()
    bench.storage.submit(Persist(1, [PutAssignments(1, [numbered(counter) for counter in range(1, 11)])]))
    for counter in range(1, 1001):
        bench.ledger.append(numbered(counter))
    bench.ledger.commit(1000)
    bench.ledger.trim(stored=stored, needed=needed)
    assert bench.ledger.describe()["in_memory"] == 990
    assert bench.ledger.get(11) == numbered(11)


def test_a_reset_goes_on_from_the_state_a_peer_gave() -> None:
    other = ledger_of(committed=0)
    other.fold(system(EpochBegun(NEXT_EPOCH, 2), NEXT_EPOCH), numbered(1, NEXT_EPOCH))
    bench = ledger_of(5, 6)
    bench.ledger.reset(other.ledger.state)
    assert (bench.ledger.base, bench.ledger.last, bench.ledger.committed) == (2, 2, 2)
    assert bench.ledger.epoch_at(2) == NEXT_EPOCH
    assert bench.ledger.find(batch_id(5)) == 0
    assert bench.ledger.append(system(Nothing(), NEXT_EPOCH)) == 3


def restored(*damaged: int) -> Ledger:
    """A ledger whose state goes through number 3, as it is after a restart; storage cannot read some numbers."""
    bench, storage = Bench(), MemoryStorage(on_durable=lambda token: None)
    log = [numbered(1), system(EpochBegun(NEXT_EPOCH, 2), NEXT_EPOCH), numbered(2, NEXT_EPOCH)]
    bench.fold(*log)
    for sequence, assignment in enumerate(log, 1):
        if sequence not in damaged:
            storage.submit(Persist(sequence, [PutAssignments(sequence, [assignment])]))
    return Ledger(bench.ledger.state, storage, base=0)


def test_the_epoch_of_the_last_number_is_known_from_the_state_where_its_record_cannot_be_read() -> None:
    ledger = restored(2, 3)
    assert (ledger.last, ledger.last_epoch) == (3, NEXT_EPOCH)
    assert (ledger.get(3), ledger.epoch_at(3)) == (None, NEXT_EPOCH)
    assert (ledger.epoch_at(2), ledger.epoch_at(1)) == (None, EPOCH)


def test_the_epoch_of_the_number_that_a_restart_went_on_from_stays_known() -> None:
    ledger = restored(3)
    ledger.append(system(EpochBegun(LAST_EPOCH, 3), LAST_EPOCH))
    ledger.commit(4)
    for line in (1, 3):
        ledger.collect(line)
        assert (ledger.base, ledger.epoch_at(3), ledger.last_epoch) == (line, NEXT_EPOCH, LAST_EPOCH)
    ledger.collect(4)
    assert (ledger.last, ledger.last_epoch) == (4, LAST_EPOCH)


def test_collecting_through_a_number_that_cannot_be_read_does_not_give_it_an_older_epoch() -> None:
    bench = ledger_of(*range(1, 1001), committed=1000)
    bench.ledger.trim(stored=1000, needed=1000)
    bench.ledger.collect(bench.ledger.floor)  # storage has nothing
    assert bench.ledger.base == bench.ledger.floor == 488
    assert bench.ledger.epoch_at(488) is None
    assert (bench.ledger.epoch_at(489), bench.ledger.last_epoch) == (EPOCH, EPOCH)
