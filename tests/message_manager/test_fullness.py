"""A destination that blocks: what fits is taken, the rest postponed, and whoever asks is told between two marks."""

import pytest

from alphorn.message_manager.fullness import DiskGauge, Fullness, Space, low_mark
from alphorn.model.commands import Acknowledge, DeleteDestination, SetPolicy
from alphorn.model.destinations import Policy
from alphorn.model.messages import Packed
from tests.message_manager.bench import ALICE, BOB, Bench, arrived, batch, errors


@pytest.mark.requirement("FC-4")
def test_a_full_destination_takes_what_it_has_room_for_and_postpones_the_rest() -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=3)
    command = batch(queue, ["a", "b", "c", "d", "e"])
    taken = bench.apply(command)
    assert arrived(taken) == [(queue, 0, 1, 3)]
    assert errors(taken) == ["Postponed"]
    assert errors(bench.apply(command)) == ["Postponed"]
    assert bench.pending(queue) == [(1, 3)]


@pytest.mark.requirement("FC-4", "API-12")
def test_a_postponed_batch_that_comes_again_goes_on_where_it_ended() -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=3)
    command = batch(queue, ["a", "b", "c", "d", "e"])
    bench.apply(command)
    bench.acknowledge(queue, 1, 2)
    again = bench.apply(command)
    assert arrived(again) == [(queue, 0, 4, 5)]
    assert errors(again) == []
    run = bench.queue(queue).segments.find(4)
    assert run is not None
    assert (run.index, run.count) == (3, 1)


def test_what_follows_a_postponed_batch_is_not_taken_before_it() -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=1)
    bench.apply(batch(queue, ["a", "b"]))
    assert errors(bench.apply(batch(queue, ["c"], counter=3))) == ["Unavailable"]
    bench.acknowledge(queue, 1, 1)
    assert arrived(bench.apply(batch(queue, ["a", "b"]))) == [(queue, 0, 2, 2)]


def test_a_postponed_batch_keeps_the_particulars_of_each_message() -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=2)
    command = batch(queue, [Packed("a"), Packed("b", priority=9), Packed("c", priority=9), Packed("d")])
    bench.apply(command)
    assert bench.candidates(queue) == [2, 1]
    bench.acknowledge(queue, 1, 2)
    bench.apply(command)
    assert bench.candidates(queue) == [3, 4]


@pytest.mark.requirement("MM-14")
def test_a_topic_that_blocks_waits_for_its_slowest_subscription() -> None:
    bench = Bench()
    topic = bench.create("topic:t", max_length=2)
    quick, slow = bench.subscribe(topic, ALICE), bench.subscribe(topic, BOB)
    bench.apply(batch(topic, ["a", "b"]))
    bench.acknowledge(topic, 1, 2, subscription=quick)
    assert errors(bench.apply(batch(topic, ["c"], counter=3))) == ["Postponed"]
    bench.acknowledge(topic, 1, 1, subscription=slow)
    assert len(arrived(bench.apply(batch(topic, ["c"], counter=3)))) == 2


def watched(bench: Bench, fullness: Fullness, *commands: object) -> list[tuple[int, str]]:
    """What is news after these commands."""
    effects = bench.apply(*commands)  # type: ignore[arg-type]
    fullness.on_applied(list(commands), effects)  # type: ignore[arg-type]
    return [(number, reason.partition(";")[0]) for number, reason in fullness.take_changes()]


@pytest.mark.requirement("FC-2", "FC-3")
def test_a_destination_is_told_full_at_its_limit_and_free_at_the_low_mark() -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=80)
    fullness = Fullness(bench.engine)
    assert watched(bench, fullness, batch(queue, list(range(79)))) == []
    full = watched(bench, fullness, batch(queue, ["last"], counter=80))
    assert full == [(queue, "queue:q is full with 80 messages")]
    assert low_mark(80) == 70
    assert watched(bench, fullness, Acknowledge(queue, 0, b"", [1, 9])) == []
    assert watched(bench, fullness, Acknowledge(queue, 0, b"", [10, 10])) == [(queue, "")]


@pytest.mark.parametrize(("limit", "low"), [(1, 0), (5, 4), (8, 7), (1000, 875)])
def test_a_small_destination_is_free_as_soon_as_one_message_is_consumed(limit: int, low: int) -> None:
    assert low_mark(limit) == low


def test_messages_that_wait_for_their_time_fill_a_destination_too() -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=1)
    fullness = Fullness(bench.engine)
    [(number, _)] = watched(bench, fullness, batch(queue, [Packed("later", deliver_at=1 << 50)]))
    assert number == queue


@pytest.mark.parametrize("change", ["deleted", "unlimited", "rejecting"])
def test_a_destination_that_does_not_block_any_more_is_free(change: str) -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=1)
    bench.apply(batch(queue, ["a"]))
    fullness = Fullness(bench.engine)
    assert list(fullness.reasons) == [queue]
    fullness.take_changes()
    policy = Policy() if change == "unlimited" else Policy(max_length=1, overflow="reject")
    command = DeleteDestination(queue) if change == "deleted" else SetPolicy(queue, policy)
    assert watched(bench, fullness, command) == [(queue, "")]
    assert fullness.reasons == {}


def test_an_entry_that_concerns_no_limit_changes_nothing() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    fullness = Fullness(bench.engine)
    assert watched(bench, fullness, batch(queue, ["a"])) == []
    assert fullness.reasons == {}


@pytest.mark.parametrize(
    ("left", "way_out"), [(None, "a larger store_bytes_max"), (9 << 20, "9 MiB left and 24 MiB are kept")]
)
def test_who_waits_for_a_store_is_told_whether_its_limit_or_its_disk_is_in_the_way(
    left: int | None, way_out: str
) -> None:
    gauge = DiskGauge()
    assert gauge.measure("mm1", Space(used=60 << 20, limit=64 << 20, reserve=24 << 20, left=left))
    assert gauge.reason.startswith("the store of mm1 has 60 MiB of 64 MiB in use")
    assert way_out in gauge.reason


@pytest.mark.requirement("FC-2", "FC-4")
def test_a_disk_lets_nobody_in_from_the_high_mark_down_to_the_low_mark() -> None:
    gauge = DiskGauge()
    marks = Space(used=0, limit=64 << 20, reserve=24 << 20)
    assert (marks.high >> 20, marks.low >> 20) == (40, 32)

    def measure(mebibytes: int) -> tuple[bool, bool]:
        space = Space(used=mebibytes << 20, limit=marks.limit, reserve=marks.reserve)
        return gauge.measure("mm1", space), bool(gauge.reason)

    assert [measure(used) for used in (39, 40, 45, 33, 32, 39)] == [
        (False, False),
        (True, True),
        (False, True),
        (False, True),
        (True, False),
        (False, False),
    ]


@pytest.mark.parametrize(
    ("used", "unmeasured_mib"),
    [(0, 100), (3200, 50), (6336, 1), (6400, 1), (7000, 1)],
    ids=["an empty disk", "half full", "nearly full", "full", "fuller"],
)
def test_a_disk_is_measured_the_more_often_the_less_is_let_in_still(used: int, unmeasured_mib: int) -> None:
    space = Space(used=used << 20, limit=8000 << 20, reserve=1600 << 20)
    assert space.unmeasured_max == unmeasured_mib << 20
