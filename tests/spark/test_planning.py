"""Offsets, limits and shares: arithmetic that Spark never sees fail."""

import json
from collections import Counter
from random import Random

import pytest

from alphorn.client.log_reader import Amount, entry
from alphorn.model.errors import Corruption
from alphorn.spark.cluster import pieces
from alphorn.spark.dividing import divide, limit
from alphorn.spark.offsets import advanced, between, canonical, floors_of, gaps_of, turns_after, with_floors


def amounts(*sizes: int, first: int = 1) -> list[Amount]:
    return [Amount(entry(first + place + 1), size, 10 * size) for place, size in enumerate(sizes)]


def test_an_offset_has_one_text() -> None:
    random = Random(5)
    offset = {f"channel-{number}": number for number in range(20)}
    shuffled = dict(random.sample(list(offset.items()), len(offset)))
    assert json.dumps(canonical(shuffled)) == json.dumps(canonical(offset))


@pytest.mark.parametrize("wrong", [{"a": "1"}, {"a": 1.0}, {"a": None}, {"a": True}, {"a": -1}, {1: 1}])
def test_what_is_no_offset_is_named(wrong: dict) -> None:
    with pytest.raises(Corruption, match="is none of alphorn's"):
        canonical(wrong)


def test_a_stream_never_goes_back_and_forgets_no_channel() -> None:
    assert advanced({"a": 5, "gone": 9}, {"a": 3, "new": 7}) == {"a": 5, "gone": 9, "new": 7}
    assert between({"a": 5, "gone": 9}, {"a": 8, "gone": 9, "new": 7}) == [("a", 5, 8), ("new", 1, 7)]


def test_floors_hold_until_they_are_passed() -> None:
    start = with_floors("a", 5, {1: 3, 2: 8, 3: 20})
    assert start == {"a": 5, "a#2": 8, "a#3": 20}
    assert advanced(start, {"a": 10}) == {"a": 10, "a#3": 20}
    assert floors_of(start, "a") == {2: 8, 3: 20}
    assert pieces({1: 0, 2: 8, 3: 20}, entry(5), entry(12)) == [
        (entry(5), entry(8), [1]),
        (entry(8), entry(12), [1, 2]),
    ]
    assert pieces({3: 20}, entry(5), entry(12)) == []


def test_gaps_hold_until_they_are_passed_and_only_where_something_is_read_before_them() -> None:
    start = with_floors("a", 5, {1: 3, 2: 8, 3: 20}, {1: 9, 2: 8, 3: 30, 4: 5})
    assert start == {"a": 5, "a#1?": 9, "a#2": 8, "a#3": 20, "a#3?": 30}
    assert (floors_of(start, "a"), gaps_of(start, "a")) == ({2: 8, 3: 20}, {1: 9, 3: 30})
    assert advanced(start, {"a": 10}) == {"a": 10, "a#3": 20, "a#3?": 30}
    assert advanced(start, {"a": 25}) == {"a": 25, "a#3?": 30}
    assert between(start, {"a": 8}) == [("a", 5, 8)]


def test_without_a_limit_everything_is_read() -> None:
    assert limit({"a": amounts(3, 4), "b": amounts(5)}) == {"a": 3, "b": 2}


def test_both_limits_hold() -> None:
    assert limit({"a": amounts(3, 4, 5)}, max_messages=7) == {"a": 3}
    assert limit({"a": amounts(3, 4, 5)}, max_messages=100, max_bytes=30) == {"a": 2}
    assert limit({"a": amounts(3, 4, 5)}, max_messages=3, max_bytes=1000) == {"a": 2}


def test_channels_share_a_limit_by_what_they_have() -> None:
    ends = limit({"a": amounts(*[1] * 90), "b": amounts(*[1] * 10)}, max_messages=10)
    assert ends == {"a": 10, "b": 2}


def test_there_is_always_progress() -> None:
    assert limit({"a": [], "b": amounts(50, 50)}, max_messages=10) == {"b": 2}


def test_limits_hold_where_there_are_more_channels_than_messages_allowed() -> None:
    assert limit({"a": amounts(1, 1), "b": amounts(1), "c": amounts(1)}, max_messages=1) == {"a": 2}
    assert limit({"a": amounts(1, 1), "b": amounts(1), "c": amounts(1)}, max_messages=2) == {"a": 2, "b": 2}
    assert limit({"a": amounts(80, 1), "b": amounts(70), "c": amounts(20)}, max_messages=100) == {"a": 2, "c": 2}


@pytest.mark.parametrize("sizes", [(100, 1, 1), (1, 100, 100), (8, 8, 8), (1, 1, 1)])
@pytest.mark.parametrize("maximum", [1, 10, 50])
def test_no_channel_waits_for_ever_however_large_its_entries_and_busy_the_others(sizes, maximum) -> None:
    """Each channel has entries of one size, and never an end."""
    turns: list[str] = []
    read: Counter[str] = Counter()
    start = dict.fromkeys("abc", 1)
    for _ in range(12):
        there = dict(zip("abc", sizes, strict=True))
        ordered = sorted(there, key=lambda it: turns.index(it) if it in turns else -1)
        ends = limit({channel: amounts(*[there[channel]] * 60) for channel in ordered}, max_messages=maximum)
        entries = {channel: end - 1 for channel, end in ends.items()}
        total = sum(count * there[channel] for channel, count in entries.items())
        assert 0 < total <= maximum or list(entries.values()) == [1], "only one entry alone may be more"
        read.update(entries)
        turns = turns_after(turns, start, {**start, **ends})
    assert all(read[channel] >= 4 for channel in "abc")


def test_an_entry_that_is_larger_than_a_limit_is_read_whole() -> None:
    parts = [Amount((5, 3, 100), 60, 600), Amount((5, 3, 160), 60, 600), Amount(entry(6), 10, 100)]
    assert limit({"a": parts}, max_messages=50) == {"a": 6}


def test_shares_are_small_enough_and_many_enough() -> None:
    found = {"a": amounts(*[1] * 100), "b": amounts(*[1] * 50)}
    ends = divide(found, min_partitions=1, max_bytes=100)
    assert (len(ends["a"]), len(ends["b"])) == (10, 5)
    assert ends["a"][-1] == entry(101)
    assert sum(map(len, divide(found, min_partitions=6, max_bytes=1 << 30).values())) >= 6
    assert divide({"a": []}, min_partitions=3, max_bytes=10) == {"a": []}


def test_no_task_is_left_with_a_large_rest_when_the_others_are_done() -> None:
    assert divide({"a": amounts(*[1] * 100)}, min_partitions=1, max_bytes=640)["a"] == [entry(51), entry(101)]
    assert divide({"a": amounts(*[1] * 100)}, min_partitions=4, max_bytes=640)["a"] == [
        entry(26),
        entry(51),
        entry(76),
        entry(101),
    ]


def test_a_share_is_never_larger_than_it_may_be_unless_one_piece_alone_is() -> None:
    random = Random(7)
    for _ in range(200):
        found = amounts(*[random.randrange(1, 40) for _ in range(random.randrange(1, 60))])
        most = random.randrange(100, 2000)
        ends = divide({"a": found}, min_partitions=random.randrange(1, 9), max_bytes=most)["a"]
        assert ends == sorted(set(ends))
        assert ends[-1] == found[-1].end
        shares = [
            [it.size for it in found if first < it.end <= end]
            for first, end in zip([entry(0), *ends], ends, strict=False)
        ]
        assert all(len(share) == 1 or sum(share) <= most for share in shares)
