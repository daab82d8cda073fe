"""Goal: a RangeSet is a set of whole numbers. Method: every operation, at random, beside Python's own set."""

from itertools import pairwise
from random import Random

import msgspec
import pytest

from alphorn.model.ranges import RangeSet


def numbers_of(ranges: RangeSet) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def assert_is(ranges: RangeSet, expected: set[int]) -> None:
    """The same numbers, as the fewest intervals in order."""
    assert numbers_of(ranges) == expected
    assert len(ranges) == len(expected)
    assert bool(ranges) == bool(expected)
    pairs = list(ranges)
    assert all(first <= last for first, last in pairs)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(pairs))
    assert ranges.intervals == len(pairs)


@pytest.mark.parametrize("seed", range(30))
def test_random_changes_leave_what_they_leave_of_a_set(seed: int) -> None:
    random = Random(seed)
    ranges, expected = RangeSet(), set[int]()
    for _ in range(300):
        first = random.randint(0, 60)
        last = first + random.choice([-1, 0, 0, 1, 5, 20])
        span = set(range(first, last + 1))
        match random.choice(["add", "add", "remove", "cut", "take", "update"]):
            case "add":
                ranges.add(first, last)
                expected |= span
            case "remove":
                assert ranges.remove(first, last) == len(expected & span)
                expected -= span
            case "cut":
                assert numbers_of(RangeSet(ranges.cut(first, last))) == expected & span
                expected -= span
            case "take":
                count = random.randint(0, 5)
                taken = numbers_of(RangeSet(ranges.take(count)))
                assert taken == set(sorted(expected)[:count])
                expected -= taken
            case "update":
                ranges.update(RangeSet([(first, last), (first + 30, last + 31)]))
                expected |= span | set(range(first + 30, last + 32))
        assert_is(ranges, expected)
        assert numbers_of(RangeSet(ranges.intersection(first, last))) == expected & span
        assert (first in ranges) == (first in expected)
        after = [number for number in sorted(expected) if number >= first]
        found = ranges.next_range(first)
        assert (found is None) == (not after)
        assert found is None or found[0] == after[0]


@pytest.mark.parametrize("seed", range(10))
def test_differences_copies_and_flat_forms_hold_the_same_numbers(seed: int) -> None:
    random = Random(seed)
    one, other = (
        RangeSet((first, first + random.randint(0, 6)) for first in random.sample(range(100), 12)) for _ in range(2)
    )
    assert_is(one.difference(other), numbers_of(one) - numbers_of(other))
    assert RangeSet.from_flat(one.flat()) == one
    twin = one.copy()
    twin.add(500, 600)
    assert 500 not in one
    assert twin != one


@pytest.mark.parametrize("seed", range(60))
def test_sets_agree_through_the_last_interval_before_they_differ(seed: int) -> None:
    random = Random(seed)
    one = RangeSet((first, first + random.randint(0, 2)) for first in range(0, 200, 5) if random.random() < 0.7)
    other = one.copy()
    if change := random.randint(0, 2):
        number = random.randrange(200)
        other.add(number, number) if change == 1 else other.remove(number, number)
    through = one.agree_through(other)
    assert through == other.agree_through(one)
    assert {n for n in numbers_of(one) if n <= through} == {n for n in numbers_of(other) if n <= through}
    differing = min(numbers_of(one) ^ numbers_of(other), default=1000)
    equal = [last for first, last in one if (first, last) in list(other) and last < differing]
    assert through == (equal[-1] if equal else -1)


def test_messages_in_order_are_one_interval() -> None:
    ranges = RangeSet()
    for first in range(1, 45_000, 450):
        ranges.add(first, first + 449)
    assert list(ranges) == [(1, 45_000)]
    assert (ranges.first, ranges.last) == (1, 45_000)


@pytest.mark.parametrize("flat", [[1], [3, 2], [1, 2, 3, 4], [5, 6, 1, 2], [1, 4, 3, 8]])
def test_numbers_that_are_no_intervals_are_refused(flat: list[int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        RangeSet.from_flat(flat)
