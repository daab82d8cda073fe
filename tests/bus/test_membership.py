"""Joining, telling, leaving, failing: the same events, in the same place of the log, at every member."""

import pytest

from alphorn.bus.config import Timing
from alphorn.bus.machine import Goodbye, MemberChanged, PrimaryChanged, Stop
from tests.bus.group import Group, Node, make_config

Event = tuple[int, str, str, str, int]


def events(node: Node) -> list[Event]:
    return [(e.sequence, e.event, e.member.name, e.member.tag, e.member.rank) for e in node.of(MemberChanged)]


def names(node: Node, event: str) -> list[str]:
    return [e.member.name for e in node.of(MemberChanged) if e.event == event]


@pytest.mark.requirement("BUS-6", "BUS-7")
def test_every_member_sees_the_same_joins_at_the_same_numbers_with_tag_and_rank() -> None:
    group = Group(make_config(servers=2, witnesses=1)).found()
    group.client("C")
    group.run(0.5)
    seen = events(group["S1"])
    assert sorted(event[2:] for event in seen if event[1] == "joined") == [
        ("C", "client", 0),
        ("S1", "store", 1),
        ("S2", "store", 2),
        ("W1", "witness", 3),
    ]
    assert events(group["S2"]) == events(group["W1"]) == seen


@pytest.mark.requirement("BUS-6")
def test_a_goodbye_is_reported_at_once_and_as_such() -> None:
    group = Group().found()
    group.client("C")
    group.run(0.5)
    began = group.now
    group["C"].feed(Goodbye())
    group.run_until(lambda: all(names(group[name], "left") == ["C"] for name in ("S1", "S2", "S3")))
    assert group.now - began < 0.2


@pytest.mark.requirement("BUS-6", "HA-7")
def test_a_member_that_falls_silent_is_reported_as_failed() -> None:
    group = Group().found()
    group.client("C")
    group.run(0.5)
    group["C"].crash()
    began = group.now
    group.run_until(lambda: all(names(group[name], "failed") == ["C"] for name in ("S1", "S2", "S3")))
    assert group.now - began == pytest.approx(Timing().evict_s, abs=0.5)


def test_a_run_that_was_reported_as_failed_joins_again_and_its_batch_is_stored_once() -> None:
    group = Group().found()
    group.client("C")
    group.run(0.5)
    group.order_and_wait("C", b"before")
    heal = group.cut("C")
    group.order("C", b"meanwhile")
    group.run(Timing().evict_s + 1.0)
    assert names(group["S1"], "failed") == ["C"]
    heal()
    group.order_and_wait("C", b"after")
    group.run(0.5)
    assert names(group["S1"], "joined").count("C") == 2
    assert group["S1"].state == [b"before", b"meanwhile", b"after"] == group["C"].state


def test_clients_get_numbers_of_their_own() -> None:
    group = Group().found()
    for name in ("A", "B", "C"):
        group.client(name)
    group.run(0.5)
    numbers = [group[name].describe("number") for name in ("A", "B", "C")]
    assert len(set(numbers)) == 3
    assert all(isinstance(number, int) and number >= 0x8000 for number in numbers)


def test_a_member_with_another_configuration_is_told_so_and_stops() -> None:
    group = Group().found("S1", "S2")
    config = group.config
    group.config = make_config(checkpoint_interval=99)
    group["S3"].start(founding=True)
    group.config = config
    group.run_until(lambda: bool(group["S3"].of(Stop)))
    assert group["S3"].of(Stop)[0].reason.startswith("the configuration of S3 differs from the group's")


def test_a_batch_ordered_before_the_member_has_joined_waits_for_it() -> None:
    group = Group().found()
    node = group.client("C")
    group.order_and_wait("C", b"early")
    assert node.state == [b"early"]


@pytest.mark.requirement("HA-7")
def test_a_new_primary_is_announced_to_every_member_at_the_same_number() -> None:
    group = Group().found()
    group.client("C")
    group.run(0.5)
    group["S1"].crash()
    group.run_until(lambda: all(len(group[name].of(PrimaryChanged)) == 2 for name in ("S2", "S3", "C")))
    changes = [group[name].of(PrimaryChanged)[-1] for name in ("S2", "S3", "C")]
    assert len({(change.sequence, change.epoch, change.number) for change in changes}) == 1
    assert [change.is_self for change in changes].count(True) == 1


def test_a_member_tells_where_it_stands_more_often_while_its_batches_are_under_way() -> None:
    group = Group().found()
    group.client("C")
    group.run(0.5)
    group.drop(lambda hop: hop.source == "C" and hop.name == "Data")
    began = group.now
    group.order("C", b"lost on its way")
    group.run_until(lambda: group["S1"].state == [b"lost on its way"])
    assert group.now - began < Timing().status_s
