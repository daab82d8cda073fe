"""A checkpoint server reports what is durable: terminal number and size, to the sequencer of the moment."""

import pytest

from alphorn.bus.checkpoint_server import CheckpointServer
from alphorn.bus.frames import CheckpointReport
from alphorn.bus.machine import SealCheckpoint
from tests.bus.group import make_config
from tests.bus.stations import EPOCH, Bench

NEVER = float("inf")


def server(*, number: int = 2, sequencer: int = 1) -> tuple[Bench, CheckpointServer]:
    bench = Bench(make_config(servers=3, witnesses=1), number)
    bench.station.sequencer = sequencer
    bench.storage._apply(SealCheckpoint(40, EPOCH, 12_345, 2, 0xABC, b"state"))
    return bench, CheckpointServer(bench.station)


@pytest.mark.requirement("CKP-4")
def test_a_durable_checkpoint_is_reported_with_its_terminal_number_and_size() -> None:
    bench, machine = server()
    assert machine.next_deadline() == NEVER
    machine.on_written(40, 1.0)
    machine.on_time(machine.next_deadline())
    assert bench.sent(CheckpointReport) == [("S1", CheckpointReport(40, 12_345, 0xABC))]
    assert machine.next_deadline() == NEVER


def test_a_checkpoint_that_is_written_but_not_durable_is_not_reported_in_place_of_an_older_one() -> None:
    bench, machine = server()  # storage shows checkpoint 40
    machine.on_written(30, 1.0)
    machine.on_time(1.0)
    assert bench.sent(CheckpointReport) == []
    machine.on_written(40, 2.0)
    machine.on_time(2.0)
    assert [report.sequence for _, report in bench.sent(CheckpointReport)] == [40]


def test_an_older_checkpoint_is_no_news() -> None:
    _, machine = server()
    machine.on_written(40, 1.0)
    machine.on_time(1.0)
    machine.on_written(30, 2.0)
    assert (machine.sequence, machine.next_deadline()) == (40, NEVER)


def test_a_new_sequencer_is_told_again() -> None:
    bench, machine = server()
    machine.on_written(40, 1.0)
    machine.on_time(1.0)
    bench.sent(CheckpointReport)
    bench.station.sequencer = 3
    machine.report_again(2.0)
    machine.on_time(2.0)
    assert [to for to, _ in bench.sent(CheckpointReport)] == ["S3"]


def test_nothing_is_reported_while_there_is_no_checkpoint_or_nobody_to_tell() -> None:
    bench, machine = server(sequencer=0)
    machine.report_again(1.0)
    assert machine.next_deadline() == NEVER
    machine.on_written(40, 1.0)
    machine.on_time(1.0)
    assert bench.sent(CheckpointReport) == []


def test_a_witness_has_no_checkpoint_of_its_own() -> None:
    _, machine = server(number=4)
    machine.on_written(40, 1.0)
    assert (machine.sequence, machine.next_deadline()) == (0, NEVER)
