"""An upper layer takes its time over a checkpoint: what the member does meanwhile, and what it must not do."""

import pytest

from alphorn.bus.config import Budget
from alphorn.bus.frames import CheckpointReport
from alphorn.bus.machine import CheckpointInstalled, CheckpointRefused, Deliver, InstallCheckpoint
from alphorn.model.ranges import RangeSet
from tests.bus.group import Group, Node, logs_agree, make_config
from tests.bus.stations import batch_id, numbered
from tests.bus.test_receiver import Delivering

BATCH = b"%04d" + b"x" * 1000
TIGHT = Budget(
    datagram_bytes=1200, nack_numbers_max=8, range_bytes=4000, chunk_bytes=500_000, held_bytes_max=20_000,
    window_bytes=16_000,
)  # fmt: skip


def founded(*, interval: int = 20) -> Group:
    group = Group(make_config(checkpoint_interval=interval), budget=TIGHT).found()
    group.client("C")
    group.run(0.3)
    return group


def fill(group: Group, count: int) -> None:
    for place in range(count):
        group.order_and_wait("C", BATCH % place)


def hold_blank(group: Group, name: str) -> Node:
    """The member loses its disk, and its upper layer has a checkpoint from a peer to take over."""
    node = group[name]
    node.crash()
    group.run(1.0)  # long enough to leave the in-sync set
    node.disk.lose()
    node.installs_at_once = False
    group.restart(name)
    group.run_until(lambda: bool(node.of(InstallCheckpoint)))
    return node


def installing(node: Node) -> int:
    value = node.describe("receiver", "installing")
    assert isinstance(value, int)
    return value


def test_entries_are_stored_meanwhile_and_memory_stays_within_its_bound() -> None:
    group = founded()
    fill(group, 30)
    group.run(0.5)
    late = hold_blank(group, "S3")
    fill(group, 100)  # five times what may be held in memory
    group.run(2.0)
    assert late.of(Deliver) == []
    assert late.describe("data_server", "stored") == group.leader.describe("ledger", "committed")
    assert late.describe("holdings", "batches") == 0
    in_memory = late.describe("ledger", "in_memory")
    assert isinstance(in_memory, int)
    assert in_memory <= 600
    late.installed(installing(late))
    group.run_until(lambda: logs_agree(group, "S1", "S3"))


def test_a_member_is_not_synchronised_nor_in_sync_nor_a_voter_nor_a_checkpoint_holder_before_it_is_done() -> None:
    group = founded()
    fill(group, 30)
    group.run(0.5)
    began = group.now
    late = hold_blank(group, "S3")
    group.run(2.0)
    assert not late.describe("synchronised")
    assert group.leader.describe("state", "in_sync") == [1, 2]
    assert group.leader.describe("state", "voters") == [1, 2]
    assert group.frames(CheckpointReport, source="S3", since=began) == []
    late.installed(installing(late))
    group.run(2.0)
    assert late.describe("synchronised")
    assert group.leader.describe("state", "in_sync") == [1, 2, 3]
    assert group.leader.describe("state", "voters") == [1, 2, 3]
    assert group.frames(CheckpointReport, source="S3", since=began) != []


def test_a_restarted_member_does_not_stand_for_election_before_its_state_is_installed() -> None:
    group = founded()
    fill(group, 30)
    group.run(0.5)
    node = group["S2"]
    node.installs_at_once = False
    group.restart("S2")
    group["S1"].crash()
    group["S3"].installs_at_once = False
    group.restart("S3")
    group.run(5.0)
    assert group.primary is None
    node.installed(installing(node))
    group.run_until(lambda: group.primary is node)


def test_the_answer_to_a_checkpoint_that_was_replaced_does_not_count() -> None:
    group = founded()
    fill(group, 30)
    group.run(0.5)
    late = hold_blank(group, "S3")
    first = installing(late)
    fill(group, 60)
    group.run(1.0)
    late.feed(CheckpointRefused(first))
    group.run_until(lambda: len(late.of(InstallCheckpoint)) == 2)
    assert installing(late) > first
    late.feed(CheckpointInstalled(first))
    assert installing(late) > first
    late.installed(installing(late))
    group.run_until(lambda: logs_agree(group, "S1", "S3"))


def test_a_member_cut_off_while_it_installs_is_given_a_newer_checkpoint() -> None:
    group = founded()
    fill(group, 30)
    group.run(0.5)
    late = hold_blank(group, "S3")
    heal = group.cut("S3")
    group.run(4.0)  # the others give it up and collect without it
    fill(group, 60)
    group.run(1.0)
    heal()
    group.run_until(lambda: len(late.of(InstallCheckpoint)) == 2)
    late.installed(installing(late))
    group.run_until(lambda: logs_agree(group, "S1", "S3"))


def test_undelivered_batches_that_are_durable_are_let_go_where_memory_is_tight() -> None:
    delivering = Delivering(held_bytes_max=50)
    delivering.bench.hold(1, 2, 3, 4, 5)  # seven or eight bytes each
    delivering.commit(*[numbered(counter) for counter in range(1, 6)])
    holdings = delivering.bench.station.holdings
    assert not holdings.is_tight
    delivering.receiver.release_stored(4)
    assert len(holdings.whole()) == 5
    delivering.bench.hold(6)
    assert holdings.is_tight
    delivering.receiver.release_stored(4)
    assert [batch for batch, _ in holdings.whole()] == [batch_id(5), batch_id(6)]


def test_what_is_stored_and_not_final_is_not_let_go_while_a_checkpoint_is_installed() -> None:
    delivering = Delivering()
    delivering.bench.hold(1, 2)
    delivering.commit(numbered(1))
    delivering.receiver.hold(7)
    delivering.receiver.release_stored(2)
    assert [batch for batch, _ in delivering.bench.station.holdings.whole()] == [batch_id(2)]


def test_a_sequencer_that_must_take_over_a_checkpoint_steps_down() -> None:
    group = founded()
    leader = group.leader
    assert leader.endpoint is not None
    leader.endpoint._receiver.hold(1)
    leader.feed(CheckpointRefused(99))
    assert not leader.describe("sequencer_role", "active")


@pytest.mark.requirement("CKP-7")
def test_what_the_upper_layer_needs_survives_collection_and_a_reset_of_the_log() -> None:
    group = founded()
    for name in ("S1", "S2", "S3"):
        group[name].needed = RangeSet([(8, 9), (12, 12), (30, 32)])
    fill(group, 30)
    group.run(0.5)
    before = set(group["S3"].disk.visible.entries)
    heal = group.cut("S3")
    group.run(4.0)
    fill(group, 60)
    group.run(1.0)
    heal()
    group.run_until(lambda: logs_agree(group, "S1", "S3"))
    group.run(0.5)
    for name in ("S1", "S3"):
        state = group[name].disk.visible
        assert {number for number in state.entries if number < state.bounds[0]} == {8, 9, 12, 30, 31, 32} & before
