"""A few seeds of transfers over several channels at every test run; `make sim` runs many."""

import os
import subprocess
import sys

import pytest

from alphorn.testing.timeline import Timeline
from alphorn.testing.transfer_run import FAULTS, MOVE, make_transfer_plan, run_transfers
from alphorn.testing.transfers import Told, TransferBook
from alphorn.testing.watch import Violation

SEEDS = range(1, 13)
SEEDS_WITH_MOVES = (14, 18, 19, 20)
_TRACE = "from alphorn.testing.transfer_run import run_transfers; print(run_transfers(2).trace_hash)"
NAME, NEXT = (b"producer", 1), (b"producer", 2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.requirement("TX-1", "TX-9", "TX-10", "TX-11", "TX-12", "TX-13", "TX-15", "TX-17", "CM-25", "HA-20")
def test_every_unit_is_in_one_account_whoever_dies_at_whatever_step(seed: int) -> None:
    result = run_transfers(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind transfers\n{result.failure}\n{result.details}"
    assert result.transactions > 1


@pytest.mark.parametrize("seed", SEEDS_WITH_MOVES)
@pytest.mark.requirement("TX-1", "HA-19")
def test_every_unit_is_in_one_account_while_accounts_are_moved_between_channels(seed: int) -> None:
    result = run_transfers(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind transfers\n{result.failure}\n{result.details}"
    assert result.transactions > 1
    assert result.faults["moved"]


def test_a_seed_of_transfers_has_one_trace_with_or_without_a_timeline_and_under_any_hash_seed() -> None:
    traced = run_transfers(2, timeline=Timeline(50)).trace_hash
    assert run_transfers(2).trace_hash == traced
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    found = subprocess.run([sys.executable, "-c", _TRACE], capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.strip() == traced


def test_a_timeline_of_transfers_says_who_died_where_and_what_programs_heard() -> None:
    timeline = Timeline()
    run_transfers(2, timeline=timeline)
    text = "\n".join(timeline.lines())
    for word in ("FAULT", "commits 1 units", "hears Done"):
        assert word in text


def test_plans_of_transfers_use_every_class_of_faults_and_several_channels() -> None:
    plans = [make_transfer_plan(seed) for seed in range(100)]
    assert {fault for plan in plans for fault in plan.faults} == {*FAULTS, MOVE}
    assert {plan.channels for plan in plans} == {1, 2, 3}
    assert all(str(plan.seed) in plan.describe() for plan in plans)


def test_the_book_misses_a_unit_that_is_nowhere() -> None:
    book = TransferBook()
    book.send(NAME, 0, None)
    with pytest.raises(Violation, match="no unit is lost"):
        book.check([], 1)


def test_the_book_sees_a_unit_that_is_in_two_accounts() -> None:
    book = TransferBook()
    for name in (NAME, NEXT):
        book.send(name, 0, None)
    with pytest.raises(Violation, match="no unit is created"):
        book.check([("queue:a", NAME, 0), ("queue:b", NEXT, 0)], 1)


def test_the_book_sees_a_unit_that_stayed_though_its_transfer_was_confirmed() -> None:
    book = TransferBook()
    book.send(NAME, 0, None)
    book.send(NEXT, 0, NAME)
    book.tell([NEXT], Told.DONE)
    with pytest.raises(Violation, match="told is done"):
        book.check([("queue:a", NAME, 0)], 1)


def test_the_book_knows_what_was_rolled_back_whenever_it_is_seen() -> None:
    book = TransferBook()
    book.send(NAME, 0, None)
    book.receive(NAME, 0)
    with pytest.raises(Violation, match="rolled back is never seen"):
        book.tell([NAME], Told.ROLLED_BACK)
    with pytest.raises(Violation, match="rolled back is never seen"):
        book.receive(NAME, 0)
    with pytest.raises(Violation, match="rolled back is never seen"):
        book.check([("queue:a", NAME, 0)], 1)
