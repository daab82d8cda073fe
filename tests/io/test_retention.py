from random import Random

import pytest

from alphorn.io.retention import Emptied
from alphorn.model.ranges import RangeSet


@pytest.mark.parametrize("seed", range(50))
def test_looking_only_where_something_may_be_drops_the_same(seed: int) -> None:
    random, emptied = Random(seed), Emptied()
    entries: set[int] = set()
    expected: set[int] = set()
    for _ in range(60):
        for number in random.choices(range(40), k=random.choice([0, 0, 1, 5])):
            emptied.fill(number)
            entries.add(number)
            expected.add(number)
        firsts = random.choices(range(40), k=random.randint(0, 5))
        dropped = RangeSet((first, first + random.choice([0, 1, 4])) for first in firsts)
        for first, last in emptied.empty(dropped):
            entries.difference_update(range(first, last + 1))
        expected = {number for number in expected if number not in dropped}
        assert entries == expected


def test_gaps_that_stay_are_not_looked_at_again() -> None:
    emptied = Emptied()
    assert emptied.empty(RangeSet([(1, 3), (5, 5), (7, 9)])) == [(1, 3), (5, 5), (7, 9)]
    assert emptied.empty(RangeSet([(1, 5), (7, 9), (11, 11)])) == [(1, 5), (11, 11)]
    emptied.fill(12)
    assert emptied.empty(RangeSet([(1, 5), (7, 9)])) == []
    emptied.fill(8)
    assert emptied.empty(RangeSet([(1, 5), (7, 9)])) == [(1, 5), (7, 9)]
