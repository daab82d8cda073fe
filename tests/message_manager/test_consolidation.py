"""Checkpoints before their time: when the log outgrows its share of the disk, and while the disk is full."""

import pytest

from alphorn.message_manager.consolidation import (
    AGAIN_BYTES,
    AGAIN_S,
    TAIL_BYTES,
    TAIL_FACTOR,
    TAIL_OF_RETAINED,
    Consolidation,
)
from alphorn.message_manager.fullness import Space

SPACE = Space(used=0, limit=8000, reserve=1000)  # the log since a checkpoint may take 1000
LARGE = Space(used=0, limit=64 << 30, reserve=1000)
INTERVAL = 100


def following(*sizes: int, start: int = 1) -> Consolidation:
    consolidation = Consolidation(INTERVAL)
    for sequence, size in enumerate(sizes, start):
        consolidation.on_entry(sequence, size)
    return consolidation


@pytest.mark.requirement("FC-4")
def test_a_log_that_outgrows_its_share_is_consolidated_at_once_and_the_interval_is_set_back() -> None:
    consolidation = following(600, 400)
    assert consolidation.look(SPACE, is_full=False, now=0.0) is None
    consolidation.on_entry(3, 1)
    assert consolidation.look(SPACE, is_full=False, now=0.0) == 3
    assert consolidation.on_checkpoint(4) == INTERVAL
    assert consolidation.look(SPACE, is_full=False, now=9.0) is None


@pytest.mark.requirement("FC-4")
def test_while_the_disk_is_full_whatever_came_since_is_consolidated() -> None:
    consolidation = following(1)
    assert consolidation.look(SPACE, is_full=True, now=0.0) == 1
    assert consolidation.on_checkpoint(2) == INTERVAL
    assert consolidation.look(SPACE, is_full=True, now=9.0) is None
    consolidation.on_entry(3, 1)
    assert consolidation.look(SPACE, is_full=True, now=9.0) == 1


def test_it_is_not_asked_for_again_at_once() -> None:
    consolidation = following(5000)
    assert consolidation.look(SPACE, is_full=True, now=0.0) == 1
    assert consolidation.look(SPACE, is_full=True, now=AGAIN_S / 2) is None
    assert consolidation.look(SPACE, is_full=True, now=AGAIN_S) == 1


def test_a_checkpoint_in_its_time_changes_nothing() -> None:
    consolidation = following(1, start=7)
    assert consolidation.on_checkpoint(INTERVAL) is None
    assert consolidation.on_checkpoint(2 * INTERVAL + 1) is None


def test_an_early_checkpoint_that_another_primary_asked_for_sets_the_interval_back() -> None:
    consolidation = following(1, start=7)
    assert consolidation.on_checkpoint(9) == INTERVAL


def test_before_anything_came_nothing_is_wanted() -> None:
    assert Consolidation(INTERVAL).look(SPACE, is_full=True, now=0.0) is None


def test_a_large_disk_is_given_longer() -> None:
    consolidation = following(5000)
    large = Space(used=0, limit=10 * AGAIN_BYTES, reserve=1000)
    assert consolidation.look(large, is_full=True, now=0.0) == 1
    assert consolidation.look(large, is_full=True, now=9 * AGAIN_S) is None
    assert consolidation.look(large, is_full=True, now=10 * AGAIN_S) == 1


def test_a_log_of_many_bytes_is_consolidated_however_large_the_disk_and_as_often_as_they_come() -> None:
    consolidation = following(TAIL_BYTES, 1)
    assert consolidation.look(LARGE, is_full=False, now=0.0) == 2
    assert consolidation.look(LARGE, is_full=False, now=0.0) is None
    assert consolidation.on_checkpoint(3) == INTERVAL
    consolidation.on_entry(4, TAIL_BYTES)
    assert consolidation.look(LARGE, is_full=False, now=0.0) is None
    consolidation.on_entry(5, 1)
    assert consolidation.look(LARGE, is_full=False, now=0.0) == 2


def test_a_large_state_is_written_only_when_much_more_than_it_has_come() -> None:
    consolidation = following(1)
    consolidation.on_checkpoint(INTERVAL)
    for _ in range(2):
        consolidation.on_state(TAIL_BYTES // TAIL_FACTOR)
    consolidation.on_entry(INTERVAL + 1, 2 * TAIL_BYTES)
    assert consolidation.look(LARGE, is_full=False, now=0.0) is None
    consolidation.on_entry(INTERVAL + 2, 1)
    assert consolidation.look(LARGE, is_full=False, now=0.0) == 2


def test_with_many_entries_to_go_through_it_is_done_less_often() -> None:
    consolidation = following(1)
    consolidation.on_checkpoint(INTERVAL)
    consolidation.on_retained(2 * TAIL_BYTES // TAIL_OF_RETAINED)
    consolidation.on_entry(INTERVAL + 1, 2 * TAIL_BYTES)
    assert consolidation.look(LARGE, is_full=False, now=0.0) is None
    consolidation.on_entry(INTERVAL + 2, 1)
    assert consolidation.look(LARGE, is_full=False, now=0.0) == 2
