"""Faults found and not fixed; each test fails today and belongs into the named file of tests/bus once it passes."""

import struct

import pytest

from alphorn.bus import frames as f
from alphorn.bus.config import Budget, GroupConfig, MemberConfig, Role
from alphorn.bus.entries import Assignment
from alphorn.bus.machine import Goodbye, MemberChanged, Received
from alphorn.model.errors import PeerViolation
from tests.bus.frame_values import SAMPLES, encode
from tests.bus.group import Group, make_config
from tests.bus.test_nack import Asking
from tools.fuzz_frames import seal


def founded(config: GroupConfig | None = None, budget: Budget | None = None) -> Group:
    group = Group(config, budget=budget).found()
    group.client("C")
    group.client("D")
    group.run(0.3)
    return group


# test_frames.py: frames.decode lets RecursionError through (unknown trailing fields are skipped recursively).
def test_a_body_nested_too_deep_is_refused() -> None:
    data = bytearray(encode(SAMPLES["Heartbeat"])[:40] + b"\x95\0\0\0\0" + b"\x91" * 5000 + b"\0")
    data[12:16] = struct.pack(">I", len(data))
    with pytest.raises(PeerViolation):
        f.decode_all(seal(data))


# test_endpoint.py: Assignment.system is decoded only in GroupState.fold; msgspec.ValidationError ends the node.
@pytest.mark.parametrize("kind", ["submit", "commit", "answer"])
def test_a_malformed_system_entry_is_a_violation_and_not_the_end_of_the_node(kind: str) -> None:
    group = founded()
    station = group["S1"].running._station
    last = group["S2"].describe("ledger", "last")
    bad = Assignment(station.epoch, b"x" * 16, system=b"\xff\xff")
    body = {
        "submit": f.CommitSubmit(last, station.epoch, last + 1, [bad]),
        "commit": f.Commit(last + 1, last + 1, [bad]),
        "answer": f.AssignmentAnswer(last, [bad]),
    }[kind]
    data = b"".join(f.encode(group=7, epoch=station.epoch, number=1, origin=station.origin, body=body))
    group["S2"].feed(Received(data))
    assert group["S2"].running.violations == 1


# test_catch_up.py: collection goes by K's checkpoint, but only data servers answer fetches: the history is unreachable.
def test_what_is_collected_can_be_loaded_where_checkpoint_servers_are_no_data_servers() -> None:
    roles = {"S": Role.SEQUENCER | Role.COMMIT, "A": Role.DATA, "B": Role.DATA, "K": Role.CHECKPOINT}
    members = tuple(
        MemberConfig(number=place, name=name, address=name, roles=role)
        for place, (name, role) in enumerate(roles.items(), 1)
    )
    group = founded(GroupConfig(group=7, members=members, checkpoint_interval=20))
    payloads = [b"%d" % place for place in range(70)]
    group.order_and_wait("C", *payloads)
    group.run(1.0)
    late = group.client("L")
    group.run_until(lambda: late.state == payloads, limit_s=10.0)


# test_nack.py: each number has a random due time of its own, so 30 missing numbers make 30 frames to the group.
def test_a_run_of_missing_numbers_is_asked_for_in_few_frames() -> None:
    group = founded()
    group.drop(lambda hop: hop.target == "D" and hop.source == "C" and hop.name == "Data")
    group.order_and_wait("C", *[b"%d" % place for place in range(30)])
    group.run_until(lambda: len(group["D"].state) == 30)
    assert len(group.frames(f.Fetch, source="D")) <= 6


# test_nack.py and test_catch_up.py: (attempts + number) % len(order) lets every other member begin with the primary.
def test_backups_are_asked_before_the_primary_by_every_member() -> None:
    asking = Asking(number=3)
    asking.requests.want_sequence(9, 0.0)
    assert asking.next_fetches()[1][0].target == 2


# test_catch_up.py: the first of several Commit frames claims all of `committed`, so clients believe they lost much.
def test_without_loss_nobody_catches_up() -> None:
    group = founded()
    group.order_and_wait("C", *[b"%d" % place for place in range(250)])
    group.run(0.3)
    assert group.frames(f.RangeFetch) == []


# test_failover.py: _place caps a peer's `delivered` by what this member itself has heard of.
def test_a_backup_that_missed_the_last_commits_and_heartbeats_is_passed_over() -> None:
    group = founded()
    lost = ("Data", "Repair", "Range", "CommitSubmit", "Commit", "AssignmentAnswer", "Heartbeat")
    group.drop(lambda hop: hop.target == "S2" and hop.name in lost)
    group.order_and_wait("C", *[b"%d" % place for place in range(30)])
    group["S1"].crash()
    group.run_until(lambda: group.primary is not None)
    assert group.leader.name == "S3"


# test_failover.py: a primary that says goodbye asks for a new epoch itself after the suspect time.
def test_a_primary_that_says_goodbye_does_not_stand_again() -> None:
    group = founded()
    group["S1"].feed(Goodbye())
    group.run_until(lambda: group.primary is not None)
    assert group.leader.name != "S1"


# test_failover.py: nobody is sequencer when the primary's Leave arrives, so it is forgotten.
def test_a_primary_that_says_goodbye_is_reported_as_left_and_not_as_failed() -> None:
    group = founded()
    group["S1"].feed(Goodbye())
    group.run(0.01)
    group["S1"].crash()
    group.run(6.0)
    assert [e.event for e in group["S2"].of(MemberChanged) if e.member.name == "S1"] == ["joined", "left"]


# test_holdings.py: a fragment's list of places is not counted; 92-byte frames take half a megabyte each.
def test_places_for_fragments_count_as_bytes_held() -> None:
    group = Group(make_config())
    from alphorn.bus.holdings import Holdings

    holdings = Holdings(10_000)
    for place in range(100):
        holdings.add(f.Data(bytes([place] * 16), 0, 0, 0, 1, 0, 0, 0xFFFF, b""))
    assert holdings.refused
    assert group.now == 0.0
