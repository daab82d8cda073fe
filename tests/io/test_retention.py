from random import Random

import pytest

from alphorn.bus.machine import DropThrough, Retain
from alphorn.io.retention import Bounds, Filled, Retention
from alphorn.model.ranges import RangeSet

LAST = 60


class Kept:
    """Entries of a store that drops what the rule gives, and of one that drops everything unneeded anew each time."""

    def __init__(self) -> None:
        self.retention = Retention()
        self.entries: set[int] = set()
        self.expected: set[int] = set()
        self.first = 1  # of the log

    @property
    def bounds(self) -> Bounds:
        return self.first, LAST

    def put(self, number: int) -> None:
        self.retention.put(number)
        self.entries.add(number)
        self.expected.add(number)

    def drop(self, write: DropThrough | Retain, through: int, needed: RangeSet) -> RangeSet:
        dropped = self.retention.dropped_by(write, self.bounds)
        assert dropped is not None
        self.entries = {number for number in self.entries if number not in dropped}
        self.expected = {number for number in self.expected if number > through or number in needed}
        return dropped


@pytest.mark.parametrize("seed", range(100))
def test_giving_each_gap_once_drops_the_same_as_giving_all_of_them_each_time(seed: int) -> None:
    random, kept = Random(seed), Kept()
    checkpoint, needed = 0, RangeSet([(1, LAST)])
    for number in range(1, LAST + 1):
        kept.put(number)
    for _ in range(25):
        for number in random.choices(range(1, LAST + 1), k=random.choice([0, 0, 0, 1, 3])):
            kept.put(number)
        if random.random() < 0.6:
            checkpoint = random.randint(checkpoint, min(checkpoint + 12, LAST))
            needed = RangeSet((n, n) for n in range(1, checkpoint + 1) if n in needed and random.random() < 0.9)
            kept.drop(Retain(checkpoint, needed.copy()), min(kept.first - 1, checkpoint), needed)
        elif checkpoint:
            through = random.randint(kept.first - 1, checkpoint)
            kept.drop(DropThrough(through, is_retaining=True), through, needed)
            kept.first = through + 1
        assert kept.entries == kept.expected


def test_gaps_that_stay_are_given_once_and_again_when_an_entry_was_put_there() -> None:
    kept, needed = Kept(), RangeSet([(4, 4), (6, 6), (10, 20)])
    kept.first = 10
    assert kept.drop(Retain(9, needed), 9, needed) == RangeSet([(0, 3), (5, 5), (7, 9)])
    kept.first = 13
    needed = RangeSet([(6, 6), (10, 10)])
    assert kept.drop(Retain(12, needed), 12, needed) == RangeSet([(4, 4), (11, 12)])
    assert not kept.drop(Retain(12, needed), 12, needed)
    kept.put(8)
    assert kept.drop(Retain(12, needed), 12, needed) == RangeSet([(8, 9), (11, 12)])


def test_an_entry_that_is_put_after_all_others_takes_the_place_of_none() -> None:
    filled = Filled(3)
    assert [filled.fill(number) for number in (3, 5, 4, 5, 6)] == [True, False, True, True, False]
