"""Unicast catch-up: ranges, checkpoints, resume, and no storm."""

import pytest

from alphorn.bus.config import Budget, GroupConfig
from alphorn.bus.entries import Assignment
from alphorn.bus.frames import (
    CheckpointChunk,
    CheckpointFetch,
    CheckpointOffer,
    CheckpointReport,
    Data,
    Fetch,
    Range,
    RangeFetch,
    Status,
)
from alphorn.bus.machine import Deliver, InstallCheckpoint, Persist, SynchronisedChanged, TakeCheckpoint
from alphorn.bus.storage import CheckpointInfo
from tests.bus.group import Group, Hop, Node, logs_agree, make_config, without_checkpoints

SMALL = Budget(datagram_bytes=1200, nack_numbers_max=8, range_bytes=2000, chunk_bytes=100)
OFTEN = make_config(checkpoint_interval=20)


def founded(config: GroupConfig | None = None, budget: Budget = SMALL) -> Group:
    group = Group(config, budget=budget).found()
    group.client("C")
    group.run(0.3)
    return group


def fill(group: Group, count: int, *, name: str = "C") -> list[bytes]:
    """Orders batches one after another."""
    payloads = [b"batch %03d of %s" % (place, name.encode()) for place in range(count)]
    group.order_and_wait(name, *payloads)
    return payloads


def collected(group: Group) -> int:
    value = group.leader.describe("state", "collected")
    assert isinstance(value, int)
    return value


@pytest.mark.requirement("HA-18")
def test_a_backup_that_lost_too_much_says_so_and_catches_up_by_unicast_instead_of_asking_number_by_number() -> None:
    group = founded()
    heal = group.cut("S3")
    fill(group, 60)
    heal()
    began = group.now
    group.run_until(lambda: logs_agree(group, "S1", "S3") and bool(group["S3"].describe("synchronised")))
    changes = [change.is_synchronised for change in group["S3"].of(SynchronisedChanged)]
    assert changes[-2:] == [False, True]
    assert len(group.frames(RangeFetch, source="S3", since=began)) > 1
    asked = [fetch for fetch in group.frames(Fetch, source="S3", since=began) if fetch.sequences]
    assert sum(last - first + 1 for fetch in asked for first, last in fetch.sequences) <= 4 * SMALL.nack_numbers_max


@pytest.mark.requirement("BUS-8")
def test_a_healed_partition_is_followed_by_no_storm_of_repairs_to_the_group() -> None:
    group = founded()
    heal = group.cut("S3")
    fill(group, 60)
    heal()
    began = group.now
    group.run_until(lambda: logs_agree(group, "S1", "S3"))
    repairs = [s for s in group.sent if s.at >= began and s.name in ("Data", "Repair", "Range")]
    assert [sent for sent in repairs if sent.to.startswith("*")] == []
    batches = [
        entry for s in repairs if s.to == "S3" and isinstance(s.frame.body, Range) for entry in s.frame.body.entries
    ]
    assert len(batches) <= 2 * 70, "what S3 missed is sent about once"


def test_one_answer_is_under_way_at_a_time() -> None:
    group = founded()
    heal = group.cut("S3")
    fill(group, 60)
    heal()
    began = group.now
    group.run_until(lambda: logs_agree(group, "S1", "S3"))
    steps = [s for s in group.sent if s.at >= began and isinstance(s.frame.body, RangeFetch | Range)]
    assert [sent.name for sent in steps[:6]] == ["RangeFetch", "Range"] * 3
    assert all(sent.size <= SMALL.range_bytes + 1200 for sent in steps)


def test_a_silent_server_is_replaced_by_another() -> None:
    group = founded()
    heal = group.cut("S3")
    fill(group, 60)
    heal()
    group.drop(lambda hop: hop.source == "S2" and hop.name == "Range")
    group.run_until(lambda: logs_agree(group, "S1", "S3"))


@pytest.mark.requirement("CKP-1", "CKP-2", "CKP-3")
def test_every_checkpoint_server_consolidates_at_the_same_marks() -> None:
    group = founded(OFTEN)
    fill(group, 70)
    group.run(0.5)
    marks = {name: [taken.sequence for taken in group[name].of(TakeCheckpoint)] for name in ("S1", "S2", "S3")}
    assert len(marks["S1"]) >= 3
    assert marks["S1"] == marks["S2"] == marks["S3"]
    infos = [group[name].disk.checkpoint() for name in ("S1", "S2", "S3")]
    digests = {(info.sequence, info.digest, info.state) for info in infos if isinstance(info, CheckpointInfo)}
    assert len(digests) == 1


def test_the_numbers_that_a_checkpoint_covers_are_handed_to_the_disk_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[bool] = []
    take = Node._take_checkpoint

    def look(node: Node, output: TakeCheckpoint) -> None:
        assignment = node.disk.assignment(output.sequence)
        known.append(isinstance(assignment, Assignment) and assignment.epoch == output.epoch)
        take(node, output)

    monkeypatch.setattr(Node, "_take_checkpoint", look)
    group = founded(OFTEN)
    heal = group.cut("S3")
    fill(group, 40)
    heal()
    group.run_until(lambda: logs_agree(group, "S1", "S3"))
    assert len(known) > 3
    assert all(known)


def test_the_disk_gets_what_a_turn_writes_before_the_upper_layer_gets_what_it_delivers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[list[type]] = []
    settle, perform = Node._settle, Node._perform
    monkeypatch.setattr(Node, "_settle", lambda node: (turns.append([]), settle(node)))
    monkeypatch.setattr(Node, "_perform", lambda node, output: (turns[-1].append(type(output)), perform(node, output)))
    group = Group().found()
    for place in range(20):  # those who only keep the log hear that one is committed when the next is submitted
        group.order_and_wait(group.leader.name, b"batch %d" % place)
    both = [turn for turn in turns if {Persist, Deliver} <= set(turn)]
    assert len(both) > 10
    assert all(turn.index(Persist) < turn.index(Deliver) for turn in both)


@pytest.mark.requirement("CKP-4")
def test_the_sequencer_hears_the_terminal_number_and_the_size_of_each_checkpoint() -> None:
    group = founded(OFTEN)
    fill(group, 30)
    group.run(0.5)
    info = group["S2"].disk.checkpoint()
    assert isinstance(info, CheckpointInfo)
    reports = [s for s in group.sent if s.source == "S2" and isinstance(s.frame.body, CheckpointReport)]
    assert {sent.to for sent in reports} == {"S1"}
    assert reports[-1].frame.body == CheckpointReport(info.sequence, info.size, info.digest)
    assert info.size > 0


@pytest.mark.requirement("CKP-7")
def test_what_a_checkpoint_covers_is_deleted_everywhere() -> None:
    group = founded(OFTEN)
    fill(group, 70)
    group.run(1.0)
    line = collected(group)
    assert line >= 40
    for name in ("S1", "S2", "S3"):
        assert group[name].disk.assignment_bounds()[0] == line + 1
        assert min(group[name].disk.visible.entries) > line


@pytest.mark.requirement("CKP-7")
def test_collection_waits_for_a_live_member_that_is_behind() -> None:
    group = founded(OFTEN)
    before = collected(group)
    group.drop(lambda hop: hop.target == "S3" and hop.name in ("Data", "Repair", "Range"))
    fill(group, 70)
    group.run(1.0)
    stored = group["S3"].describe("data_server", "stored")
    assert isinstance(stored, int)
    assert stored < 40
    assert before <= collected(group) <= stored


@pytest.mark.requirement("CKP-6")
def test_what_is_older_than_its_lifetime_is_deleted_where_nobody_makes_checkpoints() -> None:
    group = founded(without_checkpoints(make_config(checkpoint_interval=64, lifetime=64)))
    for _ in range(6):
        fill(group, 50)
    group.run(1.0)
    line = collected(group)
    newest = group["S1"].history[-1]
    assert line >= 64
    assert all(d.assignment.timestamp < newest - 64 for d in group["S1"].of(Deliver) if d.sequence <= line)
    assert all(group[name].disk.assignment_bounds()[0] == line + 1 for name in ("S1", "S2", "S3"))


@pytest.mark.requirement("CKP-6")
def test_a_group_that_is_killed_whole_goes_on_where_its_log_begins_if_nobody_makes_checkpoints() -> None:
    group = founded(without_checkpoints(make_config(checkpoint_interval=64, lifetime=64)))
    for _ in range(6):
        fill(group, 50)
    group.run(1.0)
    line, before = collected(group), list(zip(group["S1"].history, group["S1"].state, strict=True))
    for name in ("S1", "S2", "S3"):
        group[name].crash()
    for name in ("S1", "S2", "S3"):
        group.restart(name)
    group.order_and_wait("C", b"after")
    group.run(1.0)
    kept = [payload for number, payload in before if number > line]
    assert 0 < len(kept) < len(before)
    assert all(group[name].state == [*kept, b"after"] for name in ("S1", "S2", "S3"))


@pytest.mark.requirement("CKP-7")
def test_a_group_whose_checkpoints_never_come_keeps_its_log_however_old_it_is_and_starts_again() -> None:
    group = founded(make_config(checkpoint_interval=64, lifetime=64))
    for name in ("S1", "S2", "S3"):
        group[name]._take_checkpoint = lambda output: None  # type: ignore[method-assign]
    for _ in range(6):
        fill(group, 50)
    group.run(1.0)
    before = group["S1"].state
    for name in ("S1", "S2", "S3"):
        group[name].crash()
    for name in ("S1", "S2", "S3"):
        group.restart(name)
    group.run_until(lambda: all(group[name].state == before for name in ("S1", "S2", "S3")))


@pytest.mark.requirement("CKP-5")
def test_a_late_member_loads_the_checkpoint_and_then_what_follows_it() -> None:
    group = founded(OFTEN)
    payloads = fill(group, 70)
    group.run(1.0)
    late = group.client("L")
    group.run_until(lambda: late.state == payloads)
    (installed,) = late.of(InstallCheckpoint)
    assert installed.sequence >= collected(group) > 0
    assert late.history == [n for n in group["C"].history if n > installed.sequence]
    group.order_and_wait("L", b"and takes part")
    assert late.state == [*payloads, b"and takes part"]


@pytest.mark.requirement("CKP-5")
def test_a_late_member_without_a_need_for_history_begins_at_the_newest_number() -> None:
    group = founded(OFTEN)
    fill(group, 30)
    late = group.client("L", history=False)
    group.run(0.5)
    group.order_and_wait("C", b"news")
    group.run(0.2)
    assert late.state == [b"news"]


def test_a_member_restarts_from_its_own_checkpoint_and_the_tail_of_its_log() -> None:
    group = founded(OFTEN)
    payloads = fill(group, 70)
    group.run(1.0)
    node = group.restart("S2")
    group.run_until(lambda: node.state == payloads)
    (installed,) = node.of(InstallCheckpoint)
    assert node.history == [number for number in group["C"].history if number > installed.sequence]
    assert group.frames(CheckpointFetch, source="S2") == []


def test_a_transfer_goes_on_at_the_chunk_that_was_lost() -> None:
    group = founded(OFTEN)
    payloads = fill(group, 70)
    group.run(1.0)
    lost: list[int] = []

    def lose_once(hop: Hop) -> bool:
        if isinstance(hop.body, CheckpointChunk) and hop.body.chunk == 3 and len(lost) < 2:
            lost.append(hop.body.chunk)
            return True
        return False

    group.drop(lose_once)
    late = group.client("L")
    group.run_until(lambda: late.state == payloads)
    chunks = [fetch.chunk for fetch in group.frames(CheckpointFetch, source="L")]
    assert chunks == [*range(4), 3, 3, *range(4, max(chunks) + 1)]


def test_another_server_goes_on_where_one_fell_silent() -> None:
    group = founded(OFTEN)
    payloads = fill(group, 70)
    group.run(1.0)
    silent: set[str] = set()

    def falls_silent(hop: Hop) -> bool:
        if isinstance(hop.body, CheckpointChunk) and hop.body.chunk == 3 and not silent:
            silent.add(hop.source)
        return hop.source in silent and hop.target == "L"

    group.drop(falls_silent)
    late = group.client("L")
    group.run_until(lambda: late.state == payloads)
    served = {(s.source, s.frame.body.chunk) for s in group.sent if isinstance(s.frame.body, CheckpointChunk)}
    others = {chunk for source, chunk in served if source not in silent}
    assert len({source for source, _ in served}) == 2
    assert min(others) == 3


def test_a_restart_in_the_middle_of_a_transfer_resumes_it() -> None:
    group = founded(OFTEN)
    heal = group.cut("S3")
    payloads = fill(group, 70)
    group.run(4.0)  # S3 is evicted, so that collection goes on without it
    fill(group, 30)
    group.run(1.0)
    group.drop(lambda hop: isinstance(hop.body, CheckpointFetch) and hop.body.chunk >= 4 and group["S3"].run == 1)
    heal()
    group.run_until(lambda: any(fetch.chunk == 4 for fetch in group.frames(CheckpointFetch, source="S3")))
    group.run(0.01)  # what has arrived is on the disk
    node = group.restart("S3")
    began = group.now
    group.run_until(lambda: node.state == group["S1"].state)
    assert node.state[: len(payloads)] == payloads
    assert min(fetch.chunk for fetch in group.frames(CheckpointFetch, source="S3", since=began)) == 4


def test_a_checkpoint_that_arrives_wrong_is_not_installed() -> None:
    group = founded(OFTEN)
    payloads = fill(group, 70)
    group.run(1.0)
    for name in ("S2", "S3"):
        chunks = group[name].disk.visible.chunks
        key = max(chunks)
        chunks[key] = bytes(len(chunks[key]))
    late = group.client("L")
    group.run_until(lambda: late.state == payloads)
    assert "S1" in {s.source for s in group.sent if isinstance(s.frame.body, CheckpointChunk) and s.to == "L"}


def test_an_offer_names_the_groups_own_state_at_its_number() -> None:
    group = founded(OFTEN)
    fill(group, 70)
    group.run(1.0)
    late = group.client("L")
    group.run_until(lambda: bool(late.of(InstallCheckpoint)))
    offers = group.frames(CheckpointOffer)
    assert offers[-1].sequence == late.of(InstallCheckpoint)[0].sequence
    assert offers[-1].state


def test_little_that_is_missing_is_repaired_number_by_number_and_not_caught_up() -> None:
    group = founded()
    group.drop(lambda hop: hop.target == "S3" and isinstance(hop.body, Data) and not hop.body.is_repair)
    payloads = fill(group, 5)
    group.run_until(lambda: group["S3"].state == payloads)
    assert group.frames(RangeFetch, source="S3") == []
    assert group["S3"].describe("synchronised")


def test_without_loss_nobody_catches_up() -> None:
    group = founded(budget=Budget(datagram_bytes=1200))
    group.client("D")
    group.run(0.3)
    fill(group, 250)
    group.run(0.3)
    assert group.frames(RangeFetch) == []


@pytest.mark.parametrize("name", ["S2", "S3"])
def test_every_member_asks_a_backup_before_the_primary(name: str) -> None:
    group = founded()
    heal = group.cut(name)
    fill(group, 60)
    heal()
    group.run_until(lambda: logs_agree(group, "S1", name))
    asked = [sent.to for sent in group.sent if sent.source == name and isinstance(sent.frame.body, RangeFetch)]
    assert set(asked) == {"S2", "S3"} - {name}


def test_a_meaning_that_cannot_be_read_is_learnt_from_a_commit_server_where_nobody_else_has_the_batch() -> None:
    group = founded(make_config(2, witnesses=1, copies=1, checkpoint_interval=20))
    heal = group.drop(lambda hop: hop.target == "S1" and hop.name in ("Data", "Repair", "Range"))
    fill(group, 30)
    group.run(0.5)
    keeper, other = group["S2"], group["S1"]
    number = min(keeper.disk.visible.entries)
    info = keeper.disk.checkpoint()
    assert isinstance(info, CheckpointInfo)
    assert info.sequence > number, "after its next start S2 reads that number only when somebody asks for it"
    assert other.disk.entry(number) is None
    keeper.disk.damage(("assignment", number, 0))
    group.restart("S2")
    heal()
    group.run_until(lambda: other.disk.entry(number) == keeper.disk.entry(number))
    assert keeper.disk.assignment(number) == other.disk.assignment(number)


@pytest.mark.requirement("CKP-4")
def test_a_fetched_checkpoint_is_reported_only_once_it_is_durable() -> None:
    group = founded(OFTEN)
    heal = group.cut("S3")
    fill(group, 70)
    group.run(group.timing.evict_s + 1.0)
    heal()
    late = group["S3"]
    late.disk.slow_chance = 1.0
    reported: list[tuple[int, int]] = []

    def look(hop: Hop) -> bool:
        if hop.source == "S3" and isinstance(hop.body, CheckpointReport | Status):
            saved = late.disk.durable.checkpoint
            named = hop.body.sequence if isinstance(hop.body, CheckpointReport) else hop.body.checkpoint
            reported.append((named, saved.sequence if saved is not None else 0))
        return False

    group.drop(look)
    group.run_until(lambda: logs_agree(group, "S1", "S3"))
    group.run(1.0)
    assert late.of(InstallCheckpoint)
    assert [(named, saved) for named, saved in reported if named > saved] == []
    assert max(named for named, _ in reported) > 0
