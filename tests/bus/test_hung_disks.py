"""A disk that hangs and reports no error: the group goes on, and its member does not collect all that for ever."""

from alphorn.bus.config import Budget
from alphorn.bus.frames import AssignmentQuery, DataReport, RangeFetch
from alphorn.bus.machine import Deliver
from tests.bus.group import Group

BUDGET = Budget(datagram_bytes=1200, open_numbers_max=16, window_batches=64, range_bytes=16_000)
BATCHES = [b"%d" % number for number in range(600)]


def founded() -> Group:
    group = Group(budget=BUDGET).found()
    group.client("C")
    group.order_and_wait("C", b"first")
    return group


def hang(group: Group, name: str) -> None:
    group[name].disk.hang_s = float("inf")


def answer(group: Group, name: str) -> None:
    disk = group[name].disk
    disk._end_sync(disk._run)


def figure(group: Group, name: str, *path: str) -> int:
    value = group[name].describe(*path)
    assert isinstance(value, int)
    return value


def test_a_member_whose_disk_hangs_takes_no_more_than_some_and_all_of_it_when_the_disk_answers() -> None:
    group = founded()
    hang(group, "S3")
    group.order_and_wait("C", *BATCHES)
    assert 4 * 16 <= figure(group, "S3", "follower", "unwritten") < 8 * 16
    assert figure(group, "S3", "journal", "pending") < 8 * 16
    answer(group, "S3")
    last = figure(group, "S1", "ledger", "last")
    group.run_until(lambda: figure(group, "S3", "receiver", "delivered") == last)
    group.run_until(lambda: group["S3"].disk.durable.bounds[1] == last)
    assert [deliver.payload for deliver in group["S3"].of(Deliver)] == [b"first", *BATCHES]


def test_a_member_whose_disk_hangs_asks_for_nothing_and_reports_no_more_than_it_had() -> None:
    group = founded()
    hang(group, "S3")
    group.order_and_wait("C", *BATCHES)
    group.run(1.0)
    began = group.now
    group.run(5.0)
    assert figure(group, "S3", "ledger", "last") < figure(group, "S1", "ledger", "last")
    assert group.frames(AssignmentQuery, source="S3", since=began) == []
    assert group.frames(RangeFetch, source="S3", since=began) == []
    reported = {held.id for report in group.frames(DataReport, source="S3", since=began) for held in report.held}
    assert len(reported) <= BUDGET.window_batches


def test_a_sequencer_whose_disk_hangs_makes_way_for_another() -> None:
    group = founded()
    assert group.leader.name == "S1"
    hang(group, "S1")
    group.order_and_wait("C", *BATCHES)
    assert group.leader.name != "S1"
    assert figure(group, "S1", "follower", "unwritten") < 8 * 16
    answer(group, "S1")
    group.run_until(lambda: figure(group, "S1", "receiver", "delivered") == figure(group, "S2", "ledger", "last"))
    assert [deliver.payload for deliver in group["S1"].of(Deliver)] == [b"first", *BATCHES]
