"""Primaries come and go, copies fall and rise, roles are spread: nothing confirmed is lost, nothing is doubled."""

import pytest

from alphorn.bus.config import GroupConfig, MemberConfig, Role, Timing
from alphorn.bus.entries import Assignment, make_epoch
from alphorn.bus.frames import Commit, CommitAcknowledge, CommitSubmit, Prepare, encode
from alphorn.bus.machine import Goodbye, MemberChanged, Ordered, PrimaryChanged, Received
from tests.bus.group import Group, logs_agree, make_config

SERVERS = ("S1", "S2", "S3")
ALL = (*SERVERS, "C", "D")


def founded(config: GroupConfig | None = None) -> Group:
    """A group with a client C and a client D, at rest."""
    group = Group(config).found()
    group.client("C")
    group.client("D")
    group.run(0.3)
    return group


def settle(group: Group) -> None:
    group.run(0.3)


def confirmed(group: Group, name: str) -> set[int]:
    """Handles that a member was told are committed."""
    return {output.handle for output in group[name].of(Ordered)}


@pytest.mark.requirement("HA-6")
def test_backups_that_find_no_primary_make_one_of_them_primary_whoever_started_first() -> None:
    group = Group()
    for name in ("S3", "S2"):
        group[name].start(founding=True)
        group.run(0.05)
    group.run_until(lambda: group.primary is not None)
    settle(group)
    assert [change.number for change in group["S3"].of(PrimaryChanged)] == [group.leader.me.number]
    assert [change.is_self for name in ("S2", "S3") for change in group[name].of(PrimaryChanged)].count(True) == 1


@pytest.mark.requirement("HA-8", "HA-9")
@pytest.mark.parametrize(("lowest_rank_first", "first", "second"), [(True, "S1", "S2"), (False, "S3", "S2")])
def test_the_best_rank_leads_and_the_next_best_follows_it(first: str, second: str, *, lowest_rank_first: bool) -> None:
    group = founded(make_config(lowest_rank_first=lowest_rank_first))
    assert group.leader.name == first
    group.order_and_wait("C", b"one")
    group[first].crash()
    group.order_and_wait("C", b"two")
    assert group.leader.name == second
    settle(group)
    assert group[second].state == [b"one", b"two"] == group["D"].state


@pytest.mark.requirement("HA-8")
@pytest.mark.parametrize("late_s", [0.06, 0.2, 0.7])
def test_the_best_rank_leads_a_new_group_although_it_starts_last(late_s: float) -> None:
    group = Group(make_config(servers=2, witnesses=1))
    for name in ("S2", "W1"):
        group[name].start(founding=True)
    group.run(late_s)
    group["S1"].start(founding=True)
    group.run_until(lambda: group.primary is not None)
    assert group.leader.name == "S1"


@pytest.mark.requirement("HA-6")
def test_a_new_group_whose_best_rank_does_not_come_is_led_by_the_next_best() -> None:
    group = Group(make_config(servers=3))
    for name in ("S3", "S2"):
        group[name].start(founding=True)
        group.run(0.01)
    group.run_until(lambda: group.primary is not None, limit_s=2.0)
    assert group.leader.name == "S2"


@pytest.mark.requirement("HA-8")
@pytest.mark.parametrize("late_s", [0.06, 0.2, 0.3])
def test_after_the_death_of_all_the_best_rank_leads_again_although_it_starts_last(late_s: float) -> None:
    group = Group(make_config(servers=2, witnesses=1)).found()
    for node in group.nodes.values():
        node.crash()
    for name in ("S2", "W1"):
        group.restart(name)
    group.run(late_s)
    group.restart("S1")
    group.run_until(lambda: group.primary is not None)
    assert group.leader.name == "S1"


@pytest.mark.requirement("HA-8")
def test_a_backup_of_better_rank_that_is_not_up_to_date_is_passed_over() -> None:
    group = founded()
    group.drop(lambda hop: hop.target == "S2" and hop.name in ("Data", "Repair", "Range", "CommitSubmit", "Commit",
                                                               "AssignmentAnswer"))  # fmt: skip
    group.order_and_wait("C", *[b"%d" % place for place in range(30)])
    group.run(0.2)
    group["S1"].crash()
    group.run_until(lambda: group.primary is not None)
    assert group.leader.name == "S3"


@pytest.mark.requirement("HA-8")
def test_a_backup_that_missed_the_last_commits_and_heartbeats_is_passed_over() -> None:
    group = founded()
    lost = ("Data", "Repair", "Range", "CommitSubmit", "Commit", "AssignmentAnswer", "Heartbeat")
    group.drop(lambda hop: hop.target == "S2" and hop.name in lost)
    group.order_and_wait("C", *[b"%d" % place for place in range(30)])
    group["S1"].crash()
    group.run_until(lambda: group.primary is not None)
    assert group.leader.name == "S3"


@pytest.mark.requirement("HA-10")
def test_of_two_primaries_only_one_commits_and_the_other_steps_down_and_nothing_is_lost_or_doubled() -> None:
    group = founded()
    group.order_and_wait("C", b"before")
    settle(group)
    heal = group.cut("S1", "D")
    lost = group.order("D", b"at the old primary")
    group.run_until(lambda: any(group[name].describe("sequencer_role", "active") for name in ("S2", "S3")))
    group.order_and_wait("C", b"at the new primary")
    assert not confirmed(group, "D") & set(lost)
    heal()
    group.run_until(lambda: confirmed(group, "D") >= set(lost))
    settle(group)
    active = [name for name in SERVERS if group[name].describe("sequencer_role", "active")]
    assert len(active) == 1
    assert active != ["S1"]
    assert logs_agree(group, *ALL)
    assert group["S1"].state == [b"before", b"at the new primary", b"at the old primary"]


@pytest.mark.requirement("HA-21")
def test_without_a_majority_nothing_is_confirmed_and_all_goes_on_after_the_heal() -> None:
    group = founded()
    group.order_and_wait("C", b"one")
    heals = [group.cut(name) for name in SERVERS]
    (handle,) = group.order("C", b"two")
    group.run(3.0)
    assert group.primary is None
    assert handle not in confirmed(group, "C")
    for heal in heals:
        heal()
    group.run_until(lambda: handle in confirmed(group, "C"))
    settle(group)
    assert group["S2"].state == [b"one", b"two"] == group["D"].state


@pytest.mark.parametrize("step", ["Data", "DataReport", "CommitSubmit", "CommitAcknowledge", "Commit"])
def test_a_batch_under_way_when_the_primary_dies_is_ordered_once_by_the_next(step: str) -> None:
    group = founded()
    began = group.now
    (handle,) = group.order("C", b"x")
    group.run_until(lambda: any(sent.name == step and sent.at >= began for sent in group.sent))
    group["S1"].crash()
    group.run_until(lambda: handle in confirmed(group, "C"))
    settle(group)
    assert group["S2"].state == [b"x"] == group["D"].state


def test_a_primary_that_was_paused_commits_nothing_when_it_wakes_up() -> None:
    group = founded()
    heal = group.cut("S1")
    group.run_until(lambda: any(group[name].describe("sequencer_role", "active") for name in ("S2", "S3")))
    group.order_and_wait("C", b"x")
    began = group.now
    heal()
    settle(group)
    assert group.frames(Commit, source="S1", since=began) == []
    assert group["S1"].state == [b"x"]


def test_a_witness_breaks_the_tie_between_primary_and_backup() -> None:
    group = founded(make_config(servers=2, witnesses=1))
    group.order_and_wait("C", b"one")
    group["S1"].crash()
    group.order_and_wait("C", b"two")
    assert group.leader.name == "S2"
    assert group["W1"].disk.visible.entries == {}
    assert group["W1"].state == []


def test_copies_fall_by_a_recorded_decision_and_rise_again() -> None:
    group = founded(make_config(servers=2, witnesses=1))
    group["S2"].crash()
    group.order_and_wait("C", b"alone")
    assert group["S1"].describe("state", "copies") == 1
    assert group["S1"].describe("state", "in_sync") == [1]
    group.restart("S2")
    group.run_until(lambda: group["S1"].describe("state", "in_sync") == [1, 2])
    assert group["S1"].describe("state", "copies") == 2
    assert group["S2"].state == [b"alone"]


def test_with_copies_min_two_nothing_is_confirmed_on_one_copy() -> None:
    group = founded(make_config(servers=2, witnesses=1, copies=2, copies_min=2))
    group["S2"].crash()
    (handle,) = group.order("C", b"waits")
    group.run(5.0)
    assert handle not in confirmed(group, "C")
    group.restart("S2")
    group.run_until(lambda: handle in confirmed(group, "C"))
    settle(group)
    assert group["S1"].state == [b"waits"] == group["S2"].state


def make_split() -> GroupConfig:
    """Each role on members of its own, as far as roles go apart."""
    roles = {
        "S": Role.SEQUENCER | Role.COMMIT,
        "T": Role.SEQUENCER | Role.COMMIT,
        "V": Role.COMMIT,
        "A": Role.DATA,
        "B": Role.DATA | Role.CHECKPOINT,
        "E": Role.DATA | Role.CHECKPOINT,
    }
    members = tuple(
        MemberConfig(number=place, name=name, address=name, roles=role, rank=place)
        for place, (name, role) in enumerate(roles.items(), 1)
    )
    return GroupConfig(group=7, members=members)


@pytest.mark.requirement("BUS-10")
def test_roles_may_be_played_by_members_of_their_own() -> None:
    group = founded(make_split())
    group.order_and_wait("C", b"one", b"two")
    settle(group)
    assert group["T"].state == group["A"].state == group["D"].state == [b"one", b"two"]
    number = group["C"].history[0]
    stores = {name: group[name].disk.entry(number) for name in "STVABE"}
    assert stores == {"S": None, "T": None, "V": None, "A": b"one", "B": b"one", "E": b"one"}
    assert {name for name in "STVABE" if group[name].disk.assignment(number) is not None} == set("STVABE")


def test_with_roles_apart_a_new_sequencer_goes_on_and_a_lost_data_disk_is_filled_again() -> None:
    group = founded(make_split())
    group.order_and_wait("C", b"one")
    group["S"].crash()
    group.order_and_wait("C", b"two")
    assert group.leader.name == "T"
    group["A"].crash()
    group["A"].disk.lose()
    node = group.restart("A")
    group.order_and_wait("C", b"three")
    group.run_until(lambda: node.state == [b"one", b"two", b"three"])
    group.run(0.5)
    assert [entry for _, entry in sorted(node.disk.visible.entries.items())] == [b"one", b"two", b"three"]


def test_a_group_of_one_works_and_survives_its_restart() -> None:
    group = founded(make_config(servers=1))
    group.order_and_wait("C", b"one")
    group.restart("S1")
    group.order_and_wait("C", b"two")
    settle(group)
    assert group["S1"].state == [b"one", b"two"]


def test_a_backup_that_says_goodbye_leaves_the_in_sync_set_and_the_rest_goes_on() -> None:
    group = founded()
    group["S3"].feed(Goodbye())
    group.run(0.05)
    group["S3"].crash()
    group.run_until(lambda: group["S1"].describe("state", "in_sync") == [1, 2])
    group.order_and_wait("C", b"x")
    assert [e.event for e in group["S1"].of(MemberChanged) if e.member.name == "S3"] == ["joined", "left"]


def test_a_primary_that_says_goodbye_does_not_stand_again() -> None:
    group = founded()
    group["S1"].feed(Goodbye())
    group.run_until(lambda: group.primary is not None)
    assert group.leader.name != "S1"


def test_a_primary_that_says_goodbye_is_reported_as_left_and_not_as_failed() -> None:
    group = founded()
    group["S1"].feed(Goodbye())
    group.run(0.01)
    group["S1"].crash()
    group.run(6.0)
    assert [e.event for e in group["S2"].of(MemberChanged) if e.member.name == "S1"] == ["joined", "left"]


def test_the_goodbye_of_the_primary_starts_a_takeover_at_once() -> None:
    group = founded()
    began = group.now
    group["S1"].feed(Goodbye())
    group.run_until(lambda: group.primary is not None)
    assert group.now - began < Timing().suspect_s / 2
    group.order_and_wait("C", b"goes on")


def test_the_goodbye_of_a_backup_starts_no_takeover() -> None:
    group = founded()
    began = group.now
    group["S3"].feed(Goodbye())
    group.run(1.0)
    assert group.frames(Prepare, since=began) == []
    assert group.leader.name == "S1"


def test_nothing_is_acknowledged_to_a_new_epoch_before_its_fence_is_durable() -> None:
    # Goal: a crash must not let a member acknowledge one epoch and then an older one. Method: its fsync hangs while a
    # submit of a higher epoch comes that names nothing this member does not already have on its disk.
    group = founded()
    group.order_and_wait("C", b"x")
    settle(group)
    backup, epoch = group["S2"], make_epoch(9, 3)
    last = backup.disk.assignment_bounds()[1]
    known = backup.disk.assignment(last)
    assert isinstance(known, Assignment)
    submit = CommitSubmit(last - 1, 0, last, [known])
    origin = group["S3"].running.origin
    backup.disk._syncing = 1
    backup.feed(Received(b"".join(encode(group=7, epoch=epoch, number=3, origin=origin, body=submit))))
    spoken = [sent for sent in group.sent if sent.source == "S2" and sent.frame.epoch == epoch]
    assert [sent for sent in spoken if isinstance(sent.frame.body, CommitAcknowledge)] == []
    backup.disk._begin_sync()
    group.run(0.01)
    meta = backup.disk.durable.meta
    assert meta is not None
    words = [s for s in group.sent if s.source == "S2" and isinstance(s.frame.body, CommitAcknowledge)]
    assert (words[-1].frame.epoch, words[-1].frame.body) == (epoch, CommitAcknowledge(last, last))
