"""Whole groups without faults but those told: the claims of the protocol, as stories."""

import random

import msgspec
import pytest

from alphorn.bus.config import Budget, GroupConfig, Role, Timing
from alphorn.bus.entries import Assignment
from alphorn.bus.frames import (
    AssignmentAnswer,
    AssignmentQuery,
    Commit,
    CommitSubmit,
    Data,
    DataReport,
    Fetch,
    Heartbeat,
)
from alphorn.bus.frames import encode as encode_frame
from alphorn.bus.machine import (
    DATA_GROUP,
    ChangeInterval,
    ChangeVoters,
    MemberChanged,
    Ordered,
    Received,
)
from tests.bus.frame_values import SAMPLES, encode
from tests.bus.group import LINK_S, Group, Hop, logs_agree, make_config

TIMING = Timing()


def founded(config: GroupConfig | None = None, budget: Budget | None = None) -> Group:
    """A group with a client C and a client D, at rest."""
    group = Group(config, budget=budget).found()
    group.client("C")
    group.client("D")
    group.run(0.3)
    return group


def settle(group: Group) -> None:
    group.run(0.3)


SERVERS = ("S1", "S2", "S3")
ALL = (*SERVERS, "C", "D")


@pytest.mark.requirement("BUS-4", "BUS-18")
def test_batches_of_several_senders_reach_every_member_in_one_order() -> None:
    group = founded()
    for place in range(20):
        group.order("C", b"c%d" % place)
        group.order("D", b"d%d" % place)
        group.order("S2", b"s%d" % place)
        group.run(random.Random(place).uniform(0, 0.003))
    group.run_until(lambda: len(group["D"].state) == 60)
    settle(group)
    assert logs_agree(group, *ALL)
    for sender in (b"c", b"d", b"s"):
        own = [payload for payload in group["S3"].state if payload.startswith(sender)]
        assert own == [sender + b"%d" % place for place in range(20)]


@pytest.mark.requirement("BUS-10", "BUS-11", "BUS-13", "BUS-14", "BUS-15")
def test_a_batch_takes_the_five_steps_of_the_protocol() -> None:
    group = founded()
    began = group.now
    group.order_and_wait("C", b"x")
    settle(group)
    steps = {"Data": "C", "DataReport": "", "CommitSubmit": "S1", "CommitAcknowledge": "", "Commit": "S1"}
    first = {name: next(s.at for s in group.sent if s.at >= began and s.name == name) for name in steps}
    assert list(first) == sorted(first, key=lambda name: first[name])
    for name, source in steps.items():
        speakers = {s.source for s in group.sent if s.at >= began and s.name == name}
        assert source in speakers or (source == "" and speakers >= {"S2", "S3"})


@pytest.mark.requirement("BUS-1", "BUS-2")
def test_another_backup_adds_no_bytes_to_what_the_sender_puts_on_the_wire() -> None:
    sizes = []
    for servers in (2, 3, 5):
        group = founded(make_config(servers=servers, witnesses=1 if servers == 2 else 0))
        began = group.now
        group.order_and_wait("C", bytes(10_000))
        sizes.append(sum(s.size for s in group.sent if s.source == "C" and s.at >= began and s.name == "Data"))
        assert {s.to for s in group.sent if s.source == "C" and s.name == "Data"} == {DATA_GROUP}
    assert len(set(sizes)) == 1


def test_backups_store_what_they_overhear_and_send_no_batches_on() -> None:
    group = founded()
    group.order_and_wait("C", b"x" * 3000)
    settle(group)
    assert not [s for s in group.sent if s.source in ("S2", "S3") and isinstance(s.frame.body, Data)]
    assert all(group[name].disk.entry(group["C"].history[0]) == b"x" * 3000 for name in SERVERS)


def test_a_large_batch_is_cut_into_fragments_and_arrives_whole_although_some_are_lost() -> None:
    group = founded()
    drop = random.Random(1)
    group.drop(lambda hop: isinstance(hop.body, Data) and drop.random() < 0.2)
    payload = random.Random(2).randbytes(50_000)
    group.order_and_wait("C", payload)
    group.run_until(lambda: all(group[name].state == [payload] for name in ALL))


def test_an_empty_batch_is_a_batch() -> None:
    group = founded()
    group.order_and_wait("C", b"", b"x", b"")
    settle(group)
    assert group["S3"].state == [b"", b"x", b""] == group["D"].state


@pytest.mark.requirement("BUS-20", "BUS-19")
def test_a_client_that_missed_a_commit_asks_a_commit_server_and_delivers_in_order() -> None:
    group = founded()
    end = group.drop(lambda hop: hop.target == "D" and hop.name in ("Commit", "CommitSubmit"))
    group.order_and_wait("C", b"one")
    end()
    group.order_and_wait("C", b"two", b"three")
    settle(group)
    assert group["D"].state == [b"one", b"two", b"three"]
    asked = [s for s in group.sent if s.source == "D" and isinstance(s.frame.body, AssignmentQuery)]
    assert asked[0].to in ("S2", "S3")
    assert {s.to for s in asked} <= set(SERVERS)
    assert {s.to for s in group.sent if isinstance(s.frame.body, AssignmentAnswer)} >= {"D"}


@pytest.mark.requirement("BUS-24")
def test_the_loss_of_the_very_last_commit_is_found_by_a_heartbeat() -> None:
    group = founded()
    group.drop(lambda hop: hop.target == "D" and hop.name in ("Commit", "CommitSubmit"))
    began = group.now
    group.order_and_wait("C", b"last")
    group.run_until(lambda: group["D"].state == [b"last"])
    assert group.now - began < TIMING.heartbeat_s + 10 * TIMING.nack_s
    assert max(beat.committed for beat in group.frames(Heartbeat)) == group["D"].history[0]


@pytest.mark.requirement("BUS-21", "BUS-22")
def test_a_client_that_missed_a_batch_asks_a_data_server_by_its_number() -> None:
    group = founded()
    group.drop(lambda hop: hop.target == "D" and hop.source == "C" and hop.name == "Data")
    numbers = group.order_and_wait("C", b"one", b"two")
    group.run_until(lambda: group["D"].state == [b"one", b"two"])
    fetches = group.frames(Fetch, source="D")
    asked = {n for fetch in fetches for first, last in fetch.sequences for n in range(first, last + 1)}
    assert asked == set(numbers)
    assert all(group.config.members[fetch.target - 1].roles & Role.DATA for fetch in fetches)


@pytest.mark.requirement("BUS-21")
def test_a_data_server_that_missed_a_batch_gets_it_although_the_sender_is_gone() -> None:
    group = founded()
    group.drop(lambda hop: hop.target == "S3" and hop.source == "C" and isinstance(hop.body, Data))
    group.order_and_wait("C", b"one")
    group["C"].crash()
    group.run_until(lambda: group["S3"].state == [b"one"])
    group.run(0.2)
    assert group["S3"].disk.entry(group["S3"].history[0]) == b"one"


def test_a_batch_that_reached_nobody_is_sent_again_by_its_sender_and_ordered_once() -> None:
    group = founded()
    lost: list[str] = []

    def lose_first(hop: Hop) -> bool:
        is_lost = hop.source == "C" and hop.name == "Data" and len(lost) < len(group.nodes) - 1
        if is_lost:
            lost.append(hop.target)
        return is_lost

    group.drop(lose_first)
    group.order_and_wait("C", b"one", b"two")
    settle(group)
    assert set(lost) == {"S1", "S2", "S3", "D"}
    assert group["S1"].state == [b"one", b"two"] == group["D"].state


@pytest.mark.requirement("BUS-5")
def test_frames_that_arrive_twice_or_late_change_nothing() -> None:
    group = founded()
    group.order_and_wait("C", b"one", b"two")
    settle(group)
    for sent in [s for s in group.sent if s.name not in ("Prepare",)]:
        header = {"group": 7, "epoch": sent.frame.epoch, "number": sent.frame.number, "origin": sent.frame.origin}
        data = b"".join(encode_frame(body=sent.frame.body, **header))  # type: ignore[arg-type]
        for node in list(group.nodes.values()):
            node.feed(Received(data))
    group.order_and_wait("C", b"three")
    settle(group)
    assert logs_agree(group, *ALL)
    assert group["S1"].state == [b"one", b"two", b"three"]


@pytest.mark.requirement("BUS-16", "BUS-17")
def test_many_batches_of_one_turn_share_reports_and_submits() -> None:
    # Few numbers may be open at once, so that what is reported meanwhile shares the next submit.
    group = founded(budget=Budget(datagram_bytes=1200, open_numbers_max=4))
    group.order_and_wait("C", *[b"%d" % place for place in range(40)])
    reports = [len(report.held) for report in group.frames(DataReport, source="S2")]
    submits = [len(s.assignments) for s in group.frames(CommitSubmit, source="S1")]
    assert sum(reports) >= 40
    assert max(submits) > 1
    assert logs_agree(group, "S1", "C") or len(group["S1"].state) == 40


@pytest.mark.requirement("BUS-27")
def test_every_batch_carries_the_newest_number_its_sender_knew() -> None:
    group = founded()
    (first,) = group.order_and_wait("C", b"one")
    settle(group)
    group.order_and_wait("C", b"two")
    stamps = [data.timestamp for data in group.frames(Data, source="C")]
    assert stamps[1] == first
    assert stamps[0] < first


@pytest.mark.requirement("BUS-26")
def test_with_stable_storage_first_commit_servers_hear_of_a_number_after_the_sequencers_disk_has_it() -> None:
    group = founded(make_config(stable_before_submit=True))
    wrong: list[int] = []

    def look(hop: Hop) -> bool:
        if isinstance(hop.body, CommitSubmit):
            through = hop.body.previous + len(hop.body.assignments)
            durable = group["S1"].disk.durable.assignments
            wrong.extend(n for n in range(hop.body.previous + 1, through + 1) if n not in durable)
        return False

    group.drop(look)
    group.order_and_wait("C", b"one", b"two")
    settle(group)
    assert group["S3"].state == [b"one", b"two"]
    assert wrong == []


def test_a_confirmed_batch_is_durable_on_two_data_servers_and_its_number_on_a_majority() -> None:
    group = founded()
    seen = 0
    for place in range(10):
        group.order("C", b"%d" % place)
        group.run_until(lambda place=place: len(group["C"].of(Ordered)) == place + 1)  # type: ignore[misc]
        number = group["C"].of(Ordered)[-1].sequence
        disks = [group[name].disk.durable for name in SERVERS]
        assert sum(number in disk.entries for disk in disks) >= 2
        assert sum(number in disk.assignments for disk in disks) >= 2
        seen += 1
    assert seen == 10


@pytest.mark.requirement("BUS-12")
def test_with_a_report_quorum_of_three_every_data_server_has_a_batch_before_it_has_a_number() -> None:
    group = founded(make_config(report_quorum=3))
    group.drop(lambda hop: hop.target == "S3" and isinstance(hop.body, Data))
    group.order("C", b"x")
    group.run(0.3)
    assert group["S1"].state == []
    assert not [s for s in group.frames(CommitSubmit) if any(not a.system for a in s.assignments)]


def test_an_administrator_removes_and_adds_a_voter() -> None:
    group = founded(make_config(servers=3, witnesses=1))
    group["S1"].feed(ChangeVoters(4, False))
    settle(group)
    assert group["S2"].describe("state", "voters") == [1, 2, 3]
    group["S1"].feed(ChangeVoters(4, True))
    settle(group)
    assert group["S2"].describe("state", "voters") == [1, 2, 3, 4]
    assert [e.event for e in group["S3"].of(MemberChanged)][-2:] == ["voter_removed", "voter_added"]


def test_a_primary_that_is_retired_as_a_voter_hands_over_to_another() -> None:
    group = founded()
    group["S1"].feed(ChangeVoters(1, False))
    group.run_until(lambda: group.primary is not None and group.leader.name != "S1")
    group.order_and_wait("C", b"x")
    settle(group)
    assert group.leader.describe("state", "voters") == [2, 3]
    assert logs_agree(group, *ALL)


@pytest.mark.requirement("CKP-2")
def test_an_administrators_interval_is_agreed_through_the_log() -> None:
    group = founded()
    group["S1"].feed(ChangeInterval(10, 0))
    group.order_and_wait("C", *[b"%d" % place for place in range(30)])
    settle(group)
    marks = {name: group[name].describe("state", "mark") for name in SERVERS}
    assert len(set(marks.values())) == 1
    assert marks["S1"] != 0


def test_frames_of_another_group_are_ignored() -> None:
    group = founded()
    before = msgspec.json.encode(group["S2"].describe("ledger"))
    for body in SAMPLES.values():
        group["S2"].feed(Received(encode(body)))
    assert msgspec.json.encode(group["S2"].describe("ledger")) == before
    assert group["S2"].running.violations == 0


def test_bytes_that_are_no_frame_are_counted_and_dropped() -> None:
    group = founded()
    group["S2"].feed(Received(b"GET / HTTP/1.1\r\n\r\n"))
    assert group["S2"].running.violations == 1
    group.order_and_wait("C", b"x")


@pytest.mark.parametrize("kind", ["submit", "commit", "answer"])
def test_a_malformed_system_entry_is_a_violation_and_not_the_end_of_the_node(kind: str) -> None:
    group = founded()
    station = group["S1"].running._station
    last = group["S2"].describe("ledger", "last")
    assert isinstance(last, int)
    bad = Assignment(station.epoch, b"x" * 16, system=b"\xff\xff")
    body = {
        "submit": CommitSubmit(last, station.epoch, last + 1, [bad]),
        "commit": Commit(last + 1, last + 1, [bad]),
        "answer": AssignmentAnswer(last, [bad]),
    }[kind]
    data = b"".join(encode_frame(group=7, epoch=station.epoch, number=1, origin=station.origin, body=body))
    group["S2"].feed(Received(data))
    assert group["S2"].running.violations == 1
    group.order_and_wait("C", b"x")


def test_the_window_slows_a_sender_down_and_loses_nothing() -> None:
    budget = Budget(datagram_bytes=1200, window_bytes=8_000, window_batches=4)
    group = founded(budget=budget)
    payloads = [b"%04d" % place * 200 for place in range(60)]
    group.order_and_wait("C", *payloads)
    settle(group)
    assert group["S3"].state == payloads == group["D"].state


def test_memory_is_empty_when_all_is_delivered_and_durable() -> None:
    group = founded()
    group.order_and_wait("C", *[bytes(5000) for _ in range(20)])
    settle(group)
    for name in ALL:
        assert group[name].describe("holdings", "bytes") == 0
        assert group[name].describe("requests", "open") == 0


def test_an_idle_group_asks_for_nothing_and_writes_nothing() -> None:
    group = founded()
    settle(group)
    syncs = [group[name].disk.syncs for name in SERVERS]
    began = group.now
    group.run(2.0)
    assert [group[name].disk.syncs for name in SERVERS] == syncs
    assert {s.name for s in group.sent if s.at > began} == {"Heartbeat", "Status"}


def test_a_commit_takes_four_hops_and_one_write() -> None:
    group = founded()
    began = group.now
    group.order_and_wait("C", b"x")
    assert group.now - began < 4 * LINK_S + 0.001


def test_the_same_seed_tells_the_same_story() -> None:
    stories = []
    for _ in range(2):
        group = founded()
        group.order_and_wait("C", b"one", b"two")
        group["S1"].crash()
        group.order_and_wait("D", b"three")
        stories.append([(s.at, s.source, s.to, s.name, s.size) for s in group.sent])
    assert stories[0] == stories[1]
