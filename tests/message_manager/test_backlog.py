"""Goal: a backlog offers what is pending and not deferred, by priority. Method: a dictionary of messages beside it."""

from random import Random

import pytest

from alphorn.message_manager.backlog import Backlog


class Naive:
    """What is pending: position → priority, due, count."""

    def __init__(self) -> None:
        self.items: dict[int, list[int]] = {}

    def order(self) -> list[int]:
        ready = [position for position, (_, due, _) in self.items.items() if not due]
        return sorted(ready, key=lambda position: (-self.items[position][0], position))


def positions_of(backlog: Backlog) -> list[int]:
    return [position for first, last in backlog.candidates() for position in range(first, last + 1)]


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_leave_what_they_leave_of_single_messages(seed: int) -> None:
    random = Random(seed)
    backlog, naive = Backlog(), Naive()
    following = 1
    for now_ms in range(1, 250):
        first = random.randint(1, following)
        last = first + random.choice([0, 0, 2, 9])
        touched = [position for position in naive.items if first <= position <= last]
        match random.choice(["arrive", "arrive", "remove", "give_back", "defer", "release"]):
            case "arrive":
                end, priority = following + random.randint(0, 5), random.choice([4, 4, 4, 0, 9])
                backlog.arrive(following, end)
                backlog.prioritise(following, end, priority)
                naive.items |= {position: [priority, 0, 0] for position in range(following, end + 1)}
                following = end + 1
            case "remove":
                backlog.remove(first, last)
                for position in touched:
                    del naive.items[position]
            case "give_back":
                backlog.give_back(first, last)
                for position in touched:
                    naive.items[position][2] += 1
            case "defer":
                for start, end in backlog.pending.intersection(first, last):
                    backlog.defer(start, end, now_ms + 10)
                for position in touched:
                    naive.items[position][1] = now_ms + 10
            case "release":
                backlog.release(0, following, now_ms)
                for item in naive.items.values():
                    item[1] = item[1] if item[1] > now_ms else 0
        assert positions_of(backlog) == naive.order()
        assert len(backlog) == len(naive.items) == len(backlog.pending)
        ready = [position for start, end in backlog.ready(first, last) for position in range(start, end + 1)]
        assert ready == [position for position in sorted(naive.order()) if first <= position <= last]
        for start, end in backlog.pending:
            for piece in backlog.pieces(start, end):
                for position in range(piece.first, piece.last + 1):
                    assert naive.items[position][::2] == [piece.priority, piece.deliveries]


def test_pieces_are_as_few_as_can_be() -> None:
    backlog = Backlog()
    backlog.arrive(1, 20)
    backlog.prioritise(11, 20, 9)
    backlog.give_back(3, 5)
    pieces = [tuple(piece) for piece in backlog.pieces(1, 20)]
    assert pieces == [(1, 2, 0, 4), (3, 5, 1, 4), (6, 10, 0, 4), (11, 20, 0, 9)]


def test_candidates_may_be_taken_while_they_are_looked_at() -> None:
    backlog = Backlog()
    backlog.arrive(1, 30)
    backlog.prioritise(10, 12, 9)
    seen = []
    for first, last in backlog.candidates():
        seen.append((first, last))
        backlog.remove(first, last)
    assert seen == [(10, 12), (1, 9), (13, 30)]
    assert backlog.levels() == [4]


def test_only_asked_for_positions_are_candidates() -> None:
    backlog = Backlog()
    backlog.arrive(1, 10)
    assert list(backlog.candidates(after=4)) == [(4, 10)]
    assert backlog.next_ready(11) is None
    assert backlog.next_ready(1, priority=9) is None


def test_nothing_is_remembered_of_what_is_gone() -> None:
    backlog = Backlog()
    backlog.arrive(1, 10)
    backlog.prioritise(1, 10, 2)
    backlog.give_back(1, 10)
    backlog.defer(1, 10, 99)
    backlog.remove(1, 10)
    assert (backlog.counts, backlog.deferred, backlog.priorities) == ({}, {}, {})
    assert backlog.release(1, 10, 100) == []


def test_a_delay_that_has_not_begun_does_not_end() -> None:
    backlog = Backlog()
    backlog.arrive(1, 2)
    backlog.defer(1, 1, -500)
    assert backlog.release(1, 2, 10_000) == []
    assert positions_of(backlog) == [2]
