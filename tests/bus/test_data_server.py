"""A data server: reports from memory, stores under the number, and says stored only when it is durable."""

import msgspec
import pytest

from alphorn.bus.config import Timing
from alphorn.bus.data_server import DataServer
from alphorn.bus.entries import Assignment, MemberJoined
from alphorn.bus.frames import DataReport, Fetch
from alphorn.bus.machine import PutAssignments, PutEntry, Write
from alphorn.bus.nack import Requests
from tests.bus.stations import (
    EPOCH,
    NEXT_EPOCH,
    SENDER,
    Bench,
    batch_id,
    numbered,
    payload_of,
    system,
)

TIMING = Timing()


class Storing:
    """Data server 2 of three with sequencer 1; a client is a member, too. Numbers go on after 4."""

    def __init__(self, timing: Timing = TIMING, report_quorum: int = 1) -> None:
        self.bench = Bench(number=2)
        self.bench.join(1, 2, 3)
        members = self.bench.ledger.state.members
        client = members[1].__class__(0x8000, "c", "c", 0, 0, "client", SENDER, 1)
        self.bench.fold(system(MemberJoined(client)))
        self.bench.ledger.confirm(EPOCH, 4)
        station = self.bench.station
        station.epoch, station.sequencer, station.timing = EPOCH, 1, timing
        station.config = msgspec.structs.replace(station.config, report_quorum=report_quorum)
        self.requests = Requests(station)
        self.server = DataServer(station, self.requests, stored=4)

    def receive(self, *counters: int, now: float = 1.0) -> None:
        for counter in counters:
            self.bench.hold(counter)
            whole = self.bench.station.holdings.get(batch_id(counter))
            assert whole is not None
            self.server.on_batch(batch_id(counter), whole, self.bench.ledger.find(batch_id(counter)), now)

    def number(self, *assignments: Assignment) -> None:
        first = self.bench.ledger.last + 1
        for assignment in assignments:
            self.bench.ledger.append(assignment)
        self.bench.ledger.confirm(self.bench.station.epoch, self.bench.ledger.last)
        self.server.on_appended(first, 1.0)

    def reports(self, now: float = 1.0) -> list[list[bytes]]:
        self.server.flush(now)
        return [[held.id for held in report.held] for to, report in self.bench.sent(DataReport) if to == "S1"]


def entries(writes: list[Write]) -> list[tuple[int, bytes]]:
    return [(write.sequence, bytes(write.payload)) for write in writes if isinstance(write, PutEntry)]


@pytest.mark.requirement("BUS-11")
def test_a_batch_that_is_whole_is_reported_to_the_sequencer_before_it_is_on_disk() -> None:
    storing = Storing()
    storing.receive(1)
    assert storing.reports() == [[batch_id(1)]]


@pytest.mark.requirement("BUS-16")
def test_one_report_names_all_batches_of_a_turn() -> None:
    storing = Storing()
    storing.receive(1, 2, 3)
    assert storing.reports() == [[batch_id(1), batch_id(2), batch_id(3)]]
    assert storing.server.reports == 1


def test_a_report_that_got_no_number_is_made_again() -> None:
    storing = Storing()
    storing.receive(1, 2)
    storing.reports(now=1.0)
    storing.number(numbered(1))
    storing.server.on_time(1.0 + TIMING.report_repeat_s)
    assert storing.reports(now=1.1) == [[batch_id(2)]]


PATIENT = Timing(report_delay_s=0.01)


def test_a_patient_data_server_gives_the_sequencer_time_to_number_by_itself() -> None:
    storing = Storing(PATIENT)
    storing.receive(1, 2)
    assert storing.reports(now=1.0) == []
    assert storing.server.next_deadline() == 1.0 + PATIENT.report_delay_s
    storing.number(numbered(1))
    storing.server.on_time(1.01)
    assert storing.reports(now=1.01) == [[batch_id(2)]]


def test_a_patient_data_server_waits_anew_for_what_comes_later() -> None:
    storing = Storing(PATIENT)
    storing.receive(1)
    storing.reports(now=1.0)
    storing.number(numbered(1))
    storing.server.on_time(1.01)
    assert storing.reports(now=1.01) == []
    storing.receive(2, now=1.02)
    assert storing.reports(now=1.02) == []


def test_a_new_sequencer_is_told_at_once_even_by_a_patient_data_server() -> None:
    storing = Storing(PATIENT)
    storing.receive(1)
    storing.reports()
    storing.server.report_all()
    assert storing.reports() == [[batch_id(1)]]


def test_where_two_reports_are_needed_nobody_waits_with_its_own() -> None:
    storing = Storing(PATIENT, report_quorum=2)
    storing.receive(1)
    assert storing.reports() == [[batch_id(1)]]


def test_a_new_sequencer_is_told_everything_without_a_number() -> None:
    storing = Storing()
    storing.receive(1, 2)
    storing.reports()
    storing.server.report_all()
    assert storing.reports() == [[batch_id(1), batch_id(2)]]


def test_a_batch_that_has_its_number_already_is_not_reported() -> None:
    storing = Storing()
    storing.bench.fold(numbered(1))
    storing.receive(1)
    assert storing.reports() == []


@pytest.mark.requirement("BUS-25")
def test_an_entry_is_written_under_its_number_as_the_bytes_that_came() -> None:
    storing = Storing()
    storing.receive(1, 2)
    storing.number(numbered(1), numbered(2))
    assert entries(storing.bench.settle()) == [(5, payload_of(1)), (6, payload_of(2))]
    assert storing.bench.storage.entry(6) == payload_of(2)


@pytest.mark.requirement("BUS-25")
def test_an_entry_counts_as_stored_only_once_it_is_durable() -> None:
    storing = Storing()
    storing.receive(1)
    storing.number(numbered(1))
    token, _ = storing.bench.hand_over()
    assert storing.server.stored == 4
    storing.bench.station.journal.on_durable(token)
    assert storing.server.stored == 5


def test_stored_stops_at_the_first_entry_that_is_missing() -> None:
    storing = Storing()
    storing.receive(2)
    storing.number(numbered(1), numbered(2))
    storing.bench.settle()
    assert storing.server.stored == 4
    storing.receive(1)
    storing.bench.settle()
    assert storing.server.stored == 6


def test_stored_is_nothing_for_an_epoch_that_has_not_confirmed_this_log() -> None:
    storing = Storing()
    storing.bench.station.epoch = NEXT_EPOCH
    assert storing.server.stored == 0
    storing.bench.ledger.confirm(NEXT_EPOCH, 3)
    assert storing.server.stored == 3


@pytest.mark.requirement("BUS-21")
def test_a_numbered_batch_that_is_not_here_is_fetched() -> None:
    storing = Storing()
    storing.number(numbered(1))
    storing.requests.on_time(2.0)
    assert [fetch.ids for _, fetch in storing.bench.sent(Fetch)] == [[(batch_id(1), 0, 0)]]
    assert storing.server.is_missing(5)


def test_a_cut_takes_back_what_was_stored_and_reports_its_batches_anew() -> None:
    storing = Storing()
    storing.receive(1, 2)
    storing.number(numbered(1), numbered(2))
    storing.bench.settle()
    storing.reports()
    storing.bench.ledger.cut(5)
    storing.server.on_cut(5)
    assert storing.server.stored_log == 5
    assert storing.reports() == [[batch_id(2)]]


def test_a_write_that_was_cut_meanwhile_does_not_count_when_it_becomes_durable() -> None:
    storing = Storing()
    storing.receive(1, 2)
    storing.number(numbered(1), numbered(2))
    token, _ = storing.bench.hand_over()
    storing.bench.ledger.cut(5)
    storing.server.on_cut(5)
    storing.bench.station.journal.on_durable(token)
    assert storing.server.stored_log == 5


def test_a_write_from_before_the_log_was_replaced_does_not_speak_for_one_after_it() -> None:
    storing = Storing()
    storing.receive(1, 2)
    storing.number(numbered(1))
    token, _ = storing.bench.hand_over()
    storing.server.reset(5)
    storing.number(numbered(2))
    storing.bench.hand_over()
    storing.bench.station.journal.on_durable(token)
    assert storing.server.stored_log == 5
    storing.bench.station.journal.on_durable(token + 1)
    assert storing.server.stored_log == 6


def test_a_number_with_a_new_meaning_is_stored_anew_before_it_counts() -> None:
    storing = Storing()
    storing.receive(1, 2)
    storing.number(numbered(1))
    storing.bench.settle()
    storing.bench.ledger.cut(4)
    storing.server.on_cut(4)
    storing.bench.station.epoch = NEXT_EPOCH
    storing.number(numbered(2, NEXT_EPOCH))
    assert storing.server.stored == 4
    assert entries(storing.bench.settle()) == [(5, payload_of(2))]
    assert storing.server.stored == 5


@pytest.mark.requirement("BUS-5")
def test_a_gap_in_a_senders_counters_is_asked_for() -> None:
    storing = Storing()
    storing.receive(3)
    storing.requests.on_time(2.0)
    wanted = [batch for _, fetch in storing.bench.sent(Fetch) for batch, _, _ in fetch.ids]
    assert wanted == [batch_id(1), batch_id(2)]


def test_the_loss_of_a_senders_last_batch_shows_in_its_status() -> None:
    storing = Storing()
    storing.receive(1)
    storing.server.on_sent(SENDER, 2, 1.0)
    storing.requests.on_time(2.0)
    wanted = [batch for _, fetch in storing.bench.sent(Fetch) for batch, _, _ in fetch.ids]
    assert wanted == [batch_id(2)]


def test_a_damaged_entry_is_fetched_and_written_again_never_forgotten() -> None:
    storing = Storing()
    storing.receive(1)
    storing.number(numbered(1))
    storing.bench.settle()
    storing.bench.ledger.commit(5)
    storing.server.on_damaged(5, 1.0)
    storing.requests.on_time(2.0)
    assert [fetch.sequences for _, fetch in storing.bench.sent(Fetch)] == [[(5, 5)]]
    storing.server.store_late(5, payload_of(1), numbered(1).digest)
    assert entries(storing.bench.settle()) == [(5, payload_of(1))]
    assert not storing.server.is_missing(5)


def test_after_a_start_entries_on_disk_count_and_others_are_missed() -> None:
    storing = Storing()
    storing.receive(1, 2, 3)
    storing.number(numbered(1), numbered(2), numbered(3))
    storing.bench.settle()
    del storing.bench.storage._entries[6]
    again = DataServer(storing.bench.station, storing.requests, stored=4)
    again.restore(storing.bench.ledger.last, 1.0)
    assert again.stored_log == 5
    assert [again.is_missing(sequence) for sequence in (5, 6, 7)] == [False, True, False]


def test_after_a_start_an_entry_of_what_the_number_meant_before_is_missed() -> None:
    storing = Storing()
    storing.receive(1, 2, 3)
    storing.number(numbered(1), numbered(2), numbered(3))
    storing.bench.station.journal.write(PutEntry(6, payload_of(9), numbered(9).digest))
    storing.bench.settle()
    again = DataServer(storing.bench.station, storing.requests, stored=4)
    again.restore(storing.bench.ledger.last, 1.0)
    assert again.stored_log == 5
    assert [again.is_missing(sequence) for sequence in (5, 6, 7)] == [False, True, False]


def test_an_entry_of_what_the_number_meant_before_is_missed_once_others_tell_what_it_means() -> None:
    storing = Storing()
    storing.receive(1)
    storing.number(numbered(1))
    storing.bench.station.journal.write(PutEntry(5, payload_of(9), numbered(9).digest))
    storing.bench.settle()
    storing.bench.ledger.commit(5)
    storing.bench.ledger._recent.pop(5)
    storing.server.on_damaged(5, 1.0)
    storing.server.mend(4, [numbered(1)])
    assert storing.server.is_missing(5)


@pytest.mark.parametrize("has_entry", [True, False])
def test_what_a_number_means_is_written_again_once_others_tell(has_entry: bool) -> None:
    storing = Storing()
    storing.receive(1)
    storing.number(numbered(1))
    storing.bench.settle()
    storing.bench.ledger.commit(5)
    storing.bench.ledger._recent.pop(5)
    if not has_entry:
        del storing.bench.storage._entries[5]
    storing.server.on_damaged(5, 1.0)
    assert storing.server.holes == {5}
    storing.server.mend(3, [numbered(7), numbered(1)])
    assert PutAssignments(5, [numbered(1)]) in storing.bench.settle()
    assert storing.server.holes == set()
    assert storing.server.is_missing(5) is not has_entry


def test_open_numbers_mend_nothing() -> None:
    storing = Storing()
    storing.server.holes.add(5)
    storing.server.mend(4, [numbered(1)])
    assert storing.server.holes == {5}
