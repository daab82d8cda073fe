"""Intervals with owners behave as a dictionary from position to owner does."""

import random

import pytest

from alphorn.message_manager.locks import Locks

SPAN = 60


@pytest.mark.parametrize("seed", range(20))
def test_locks_are_what_a_dictionary_of_positions_would_be(seed: int) -> None:
    dice = random.Random(seed)
    locks: Locks[str] = Locks()
    model: dict[int, str] = {}
    for _ in range(300):
        first = dice.randrange(SPAN)
        last = min(SPAN - 1, first + dice.randrange(12))
        if dice.random() < 0.6:
            owner = dice.choice("abc")
            for start, end in locks.free(first, last):
                assert not any(position in model for position in range(start, end + 1))
                locks.lock(start, end, owner)
                model |= dict.fromkeys(range(start, end + 1), owner)
        else:
            held = [(model[position], position) for position in range(first, last + 1) if position in model]
            parts = locks.parts(first, last)
            released = locks.release(first, last)
            assert parts == released
            assert [(owner, p) for owner, start, end in released for p in range(start, end + 1)] == held
            for _, position in held:
                del model[position]
        assert len(locks) == len(model)
        assert bool(locks) == bool(model)
        for owner in "abc":
            mine = [position for start, end in locks.of(owner) for position in range(start, end + 1)]
            assert mine == sorted(position for position, other in model.items() if other == owner)


def test_neighbours_of_one_owner_are_one_interval() -> None:
    locks: Locks[str] = Locks()
    for first, last in ((1, 2), (5, 6), (3, 4)):
        locks.lock(first, last, "a")
    locks.lock(7, 8, "b")
    assert locks.parts(0, 99) == [("a", 1, 6), ("b", 7, 8)]


def test_a_position_is_never_with_two_owners() -> None:
    locks: Locks[str] = Locks()
    locks.lock(3, 6, "a")
    for first, last in ((1, 3), (4, 5), (6, 9), (1, 9)):
        with pytest.raises(AssertionError):
            locks.lock(first, last, "b")
