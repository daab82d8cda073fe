"""Positions with ranks behave as a sorted list of (rank, position) does."""

import random

import pytest

from alphorn.message_manager.ready import NORMAL, Ready, Stretch, ranked
from alphorn.model.ranges import RangeSet


@pytest.mark.parametrize("seed", range(20))
def test_ready_is_what_a_sorted_list_would_be(seed: int) -> None:
    dice = random.Random(seed)
    ready = Ready()
    model: dict[int, int] = {}
    ranks = [dice.choice((NORMAL, NORMAL, NORMAL, 0, 9)) for _ in range(80)]
    for _ in range(300):
        first = dice.randrange(80)
        action = dice.random()
        if action < 0.5:
            last = first
            while last < 79 and ranks[last + 1] == ranks[first] and dice.random() < 0.8:
                last += 1
            ready.add(Stretch(ranks[first], first, last))
            model |= {position: ranks[position] for position in range(first, last + 1)}
        elif action < 0.8:
            last = min(79, first + dice.randrange(10))
            removed = [position for position in range(first, last + 1) if position in model]
            assert ready.remove(first, last) == len(removed)
            for position in removed:
                del model[position]
        else:
            wanted = sorted((rank, position) for position, rank in model.items())[: dice.randrange(1, 9)]
            taken = ready.take(len(wanted))
            assert [(rank, p) for rank, start, end in taken for p in range(start, end + 1)] == wanted
            for _, position in wanted:
                del model[position]
        head = ready.head()
        smallest = min(((rank, position) for position, rank in model.items()), default=None)
        assert (None if head is None else head[:2]) == smallest
        assert len(ready) == len(model)
        assert {p: rank for rank, start, end in ready for p in range(start, end + 1)} == model


def test_a_range_is_cut_where_the_priority_changes() -> None:
    priorities = {9: RangeSet([(3, 4), (20, 30)]), 0: RangeSet([(6, 6)])}
    assert sorted(ranked(1, 8, priorities)) == [
        Stretch(0, 3, 4),
        Stretch(NORMAL, 1, 2),
        Stretch(NORMAL, 5, 5),
        Stretch(NORMAL, 7, 8),
        Stretch(9, 6, 6),
    ]
    assert ranked(1, 8, {}) == [Stretch(NORMAL, 1, 8)]
    assert Stretch(0, 3, 4).priority == 9
