"""Goal: positions lead to places in the log, whatever was swept. Method: a dictionary of single messages beside it."""

from random import Random

import msgspec
import pytest

from alphorn.message_manager.segments import Run, Segments
from alphorn.model.ranges import RangeSet


def made(*counts: int) -> Segments:
    """Batches of so many messages, one a log entry from 10 on, positions from 1 on."""
    segments = Segments()
    position = 1
    for number, count in enumerate(counts):
        segments.append(Run(10 + number, 0, 0, count, position, 100 * count))
        position += count
    return segments


@pytest.mark.parametrize("seed", range(10))
def test_random_sweeps_keep_every_place_that_is_needed(seed: int) -> None:
    random = Random(seed)
    segments = Segments()
    places: dict[int, tuple[int, int, int]] = {}
    position = 1
    needed = RangeSet()
    for sequence in range(1, 200):
        count, index = random.randint(1, 6), random.randint(0, 3)
        segments.append(Run(sequence, sequence % 3, index, count, position, count))
        places |= {position + step: (sequence, sequence % 3, index + step) for step in range(count)}
        needed.add(position, position + count - 1)
        position += count + random.choice([0, 0, 2])
        first = random.randint(1, position)
        needed.remove(first, first + random.choice([0, 3, 30]))
        if random.random() < 0.2:
            half = needed.first if needed else 0
            segments.sweep([RangeSet(needed.intersection(0, half)), needed])
    segments.sweep([needed])
    for first, last in needed:
        found = [
            (run.position + step, (run.sequence, run.command, run.index + step))
            for run in segments.runs(first, last)
            for step in range(run.count)
        ]
        assert found == [(number, places[number]) for number in range(first, last + 1)]
    kept = {places[number][0] for pair in needed for number in range(pair[0], pair[1] + 1)}
    assert segments.sequences() == kept, "and no other"


def test_a_run_is_cut_to_what_was_asked_for_and_has_its_share_of_the_bytes() -> None:
    runs = list(made(10, 10).runs(4, 12))
    assert [(run.sequence, run.index, run.count, run.position, run.size) for run in runs] == [
        (10, 3, 7, 4, 700),
        (11, 0, 2, 11, 200),
    ]


@pytest.mark.parametrize("size", [1, 7, 99, 100, 101])
def test_the_shares_of_a_batch_are_together_as_large_as_the_batch(size: int) -> None:
    segments = Segments()
    segments.append(Run(1, 0, 0, 10, 1, size))
    for pieces in ([(1, 10)], [(1, 3), (4, 9), (10, 10)], [(position, position) for position in range(1, 11)]):
        assert sum(run.size for piece in pieces for run in segments.runs(*piece)) == size


def test_what_is_not_there_is_not_found() -> None:
    segments = made(3)
    assert segments.find(0) is None
    assert segments.find(4) is None
    assert list(Segments().runs(1, 9)) == []
    assert (segments.end_of(2), segments.end_of(7), Segments().end_of(7)) == (3, 7, 7)


def test_segments_nobody_needs_are_dropped() -> None:
    segments = made(5, 5, 5)
    segments.sweep([RangeSet([(7, 7)])])
    assert (len(segments), segments.size, segments.sequences()) == (1, 500, {11})
    segments.sweep([])
    assert len(segments) == 0


def test_stretches_come_back_from_bytes() -> None:
    segments, twin = made(*range(1, 50)), Segments()
    for start in range(0, len(segments), 7):
        twin.extend(segments.encode(start, start + 7))
    assert list(twin.runs(0, 10_000)) == list(segments.runs(0, 10_000))
    assert segments.encode(0, 1)[4] == (1).to_bytes(8, "little"), "positions are little-endian"


@pytest.mark.parametrize("place", range(6))
def test_columns_that_do_not_fit_are_refused(place: int) -> None:
    columns = made(1, 2).encode(0, 2)
    for wrong in (columns[place][:-1], columns[place][: len(columns[place]) // 2]):
        with pytest.raises(msgspec.ValidationError):
            Segments().extend([*columns[:place], wrong, *columns[place + 1 :]])
    with pytest.raises(msgspec.ValidationError):
        Segments().extend(columns[:-1])


def test_segments_out_of_order_are_refused() -> None:
    segments = made(1, 2)
    with pytest.raises(msgspec.ValidationError):
        segments.extend(made(1).encode(0, 1))


def test_positions_between_segments_keep_none() -> None:
    segments = Segments()
    for position in (1, 11):
        segments.append(Run(position, 0, 0, 5, position))
    segments.sweep([RangeSet([(7, 8)])])
    assert len(segments) == 0
