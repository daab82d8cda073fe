"""The small parts: when messages came, why they died, what is due, what producers sent."""

import pytest

from alphorn.message_manager.histories import Histories, History
from alphorn.message_manager.producers import REASONS_MAX, REFUSALS_MAX, Producer
from alphorn.message_manager.schedule import Item, Kind, Schedule
from alphorn.message_manager.timeline import Timeline
from alphorn.model.ranges import RangeSet


def history(reason: str) -> History:
    return History("queue:q", reason, 1, 5)


def test_a_timeline_knows_what_had_come_by_a_time() -> None:
    timeline = Timeline()
    for through, now_ms in ((5, 1_000), (5, 1_500), (9, 2_000), (20, 3_000)):
        timeline.mark(through, now_ms, 0)
    assert [timeline.through(time) for time in (999, 1_000, 1_999, 2_000, 9_000)] == [0, 5, 5, 9, 20]
    assert [timeline.first_from(time) for time in (1, 1_000, 1_001, 3_000, 3_001)] == [0, 0, 6, 10, 21]
    assert [timeline.next_time(time) for time in (0, 1_000, 3_000)] == [1_000, 2_000, None]
    timeline.drop(9)
    assert (timeline.throughs, timeline.times) == ([20], [3_000])


@pytest.mark.parametrize(("span_ms", "marks_max"), [(0, 200), (1_000_000, 21)])
def test_marks_that_are_close_become_one(span_ms: int, marks_max: int) -> None:
    timeline = Timeline()
    for step in range(1, 1_001):
        timeline.mark(step, step * 10, span_ms)
    assert len(timeline.times) <= marks_max
    assert timeline.through(10_000) == 1_000
    late = [timeline.through(time) for time in range(0, 10_001, 10)]
    assert all(through <= time // 10 for time, through in zip(range(0, 10_001, 10), late, strict=True)), "never early"


def test_histories_are_found_by_position() -> None:
    histories = Histories()
    histories.append(3, 5, history("one"))
    histories.append(8, 9, history("other"))
    reasons = [found.reason if (found := histories.find(position)) else "" for position in range(1, 11)]
    assert reasons == ["", "", "one", "one", "one", "", "", "other", "other", ""]
    split = [(first, last, found.reason if found else "") for first, last, found in histories.split(1, 8)]
    assert split == [(1, 2, ""), (3, 5, "one"), (6, 7, ""), (8, 8, "other")]


def test_histories_are_the_same_however_often_they_were_swept() -> None:
    often, once = Histories(), Histories()
    for histories in (often, once):
        histories.append(1, 4, history("one"))
        histories.append(5, 9, history("one"))
    often.sweep(RangeSet([(2, 9)]))
    for histories in (often, once):
        histories.sweep(RangeSet([(2, 2), (6, 7)]))
    assert list(often) == list(once) == [(2, 2, history("one")), (6, 7, history("one"))]


def test_void_items_neither_come_up_nor_pile_up() -> None:
    live: set[int] = {5}
    schedule = Schedule(lambda item: item.number in live)
    for number in range(10_000):
        schedule.push(Item(number, Kind.EXPIRE, number))
    assert len(schedule) < 2_000
    assert schedule.live() == [Item(5, Kind.EXPIRE, 5)]
    assert schedule.next_due() == 5
    assert schedule.take_due(4) == []
    assert schedule.take_due(9_999) == [Item(5, Kind.EXPIRE, 5)]
    assert schedule.next_due() is None
    assert schedule.live() == []


def test_items_come_in_order_of_time() -> None:
    schedule = Schedule(lambda item: True)
    for due_ms in (30, 10, 20):
        schedule.push(Item(due_ms, Kind.RELEASE, 1))
    assert [item.due_ms for item in schedule.take_due(25)] == [10, 20]
    assert schedule.next_due() == 30


def test_refusals_are_remembered_within_bounds_the_newest_longest() -> None:
    producer = Producer()
    for number in range(REFUSALS_MAX + 50):
        producer.refuse(1 + 2 * number, 1 + 2 * number, ("Blocked", "full"))
    assert producer.refused["Blocked", "full"].intervals == REFUSALS_MAX
    assert producer.refusal_of(producer.next - 1, producer.next - 1) == ("Blocked", "full")
    assert producer.refusal_of(1, 1) is None
    for number in range(REASONS_MAX + 3):
        producer.refuse(producer.next, producer.next, ("Blocked", f"queue {number} is full"))
    assert len(producer.refused) == REASONS_MAX
    assert ("Blocked", f"queue {REASONS_MAX + 2} is full") in producer.refused
