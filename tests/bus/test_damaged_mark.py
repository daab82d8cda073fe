"""A log that ends at its newest checkpoint, where the record of that last number is damaged."""

import pytest

from alphorn.bus.frames import Promise
from tests.bus.group import Group, Node, logs_agree, make_config

SERVERS = ("S1", "S2", "S3")


def down_at_a_mark() -> tuple[Group, int]:
    """A group whose servers all went down when their logs ended at their checkpoint; the number of that."""
    group = Group(make_config(checkpoint_interval=20)).found()
    group.client("C")
    group.run(0.5)
    while not all(ends_at_its_checkpoint(group[name]) for name in SERVERS):
        group.order("C", b"batch")
        end = group.now + 0.02
        while group.now < end and not all(ends_at_its_checkpoint(group[name]) for name in SERVERS):
            following = group.schedule.next_time()
            assert following is not None
            group.schedule.run_until(following)
    for name in SERVERS:
        group[name].crash()
    _, last = group["S3"].disk.assignment_bounds()
    return group, last


def ends_at_its_checkpoint(node: Node) -> bool:
    checkpoint, (_, last) = node.disk.durable.checkpoint, node.disk.durable.bounds
    return checkpoint is not None and checkpoint.sequence == last


@pytest.mark.parametrize("others", [["S1"], ["S2"], ["S1", "S2"]], ids="-".join)
def test_a_member_whose_last_record_is_damaged_votes_for_the_log_it_has_and_goes_on(others: list[str]) -> None:
    group, mark = down_at_a_mark()
    epoch = group["S3"].disk.durable.assignments[mark].epoch
    group["S3"].disk.damage(("assignment", mark, 0))
    began = group.now
    for name in (*others, "S3"):
        group.restart(name)
    group.run_until(lambda: group.primary is not None)
    group.order_and_wait("C", b"after")
    group.run(0.5)
    assert logs_agree(group, *others, "S3")
    assert group["S3"].state[-1] == b"after"
    words = {word.last_epoch for word in group.frames(Promise, since=began) if word.is_granted and word.last == mark}
    assert words == {epoch}, "nobody says another epoch than the one that the record has"
    assert [word for word in group.frames(Promise, source="S3", since=began) if word.is_granted]


def test_a_member_whose_last_record_is_damaged_leads_the_log_on() -> None:
    group, mark = down_at_a_mark()
    for name in ("S1", "S3"):
        group[name].disk.damage(("assignment", mark, 0))
        group.restart(name)
    group.run_until(lambda: group.primary is not None)
    group.order_and_wait("C", b"after")
    group.run(0.5)
    assert logs_agree(group, "S1", "S3")
    assert group["S1"].state[-1] == b"after"
