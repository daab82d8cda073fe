"""The limits of the fault model: what may be destroyed while voters change."""

import msgspec
import pytest

from alphorn.bus.machine import ChangeInterval, ChangeVoters
from alphorn.bus.storage import CheckpointInfo
from alphorn.testing.faults import Nemesis
from alphorn.testing.node_faults import sequencer_of
from alphorn.testing.plan import make_plan
from alphorn.testing.run import Run
from tests.bus.stations import numbered, payload_of
from tests.simulation.groups import make_group


@pytest.fixture
def nemesis() -> Nemesis:
    """Three servers that have just founded their group."""
    plan = msgspec.structs.replace(make_plan(1), config=make_group("A", "B", "C"), clients=0, turn_s=0.001)
    run = Run(plan)
    run.simulation.found()
    run.simulation.run_until(1.0)
    return run.nemesis


def test_a_disk_may_be_lost_while_the_others_are_a_majority(nemesis: Nemesis) -> None:
    assert all(nemesis.ruin.may_lose_disk(node) for node in nemesis.simulation.nodes)


def test_no_disk_may_be_lost_after_another_until_the_log_has_it_again(nemesis: Nemesis) -> None:
    first, second, _ = nemesis.simulation.nodes
    first.end("crash")
    first.disk.lose()
    assert not nemesis.ruin.may_lose_disk(second)
    first.start_again()
    nemesis.simulation.run_until(4.0)
    assert nemesis.ruin.may_lose_disk(second)


def test_no_disk_may_be_lost_that_has_to_deny_a_batch_which_nobody_has() -> None:
    plan = msgspec.structs.replace(make_plan(1), config=make_group("A", "B", "C", "D", "E"), clients=0, turn_s=0.001)
    run = Run(plan)
    run.simulation.found()
    run.simulation.run_until(1.0)
    first, second, other, *_ = run.simulation.nodes
    first.end("crash")
    first.disk.lose()
    assert run.nemesis.ruin.may_lose_disk(second)
    open_number = max(other.disk.durable.assignments) + 1
    other.disk.durable.assignments[open_number] = numbered(1)
    assert not run.nemesis.ruin.may_lose_disk(second), "three of five would deny it, and two may have had it"
    other.disk.durable.entries[open_number] = payload_of(1)
    assert run.nemesis.ruin.may_lose_disk(second)


def test_no_disk_may_be_lost_that_an_open_change_of_voters_would_need(nemesis: Nemesis) -> None:
    simulation, sequencer = nemesis.simulation, sequencer_of(nemesis)
    assert sequencer is not None
    victim, removed = (node for node in simulation.nodes if node is not sequencer)
    everywhere = [(a, b) for a in range(3) for b in range(3) if a != b]
    simulation.network.cut(everywhere)  # what is assigned now stays open
    sequencer.feed(ChangeVoters(removed.me.number, False))
    simulation.run_until(simulation.now + 0.01)
    assert not nemesis.ruin.may_lose_disk(victim)
    assert nemesis.ruin.may_lose_disk(removed)


def test_a_change_of_voters_counts_from_the_moment_it_is_asked_for(nemesis: Nemesis) -> None:
    sequencer = sequencer_of(nemesis)
    assert sequencer is not None
    victim, removed = (node for node in nemesis.simulation.nodes if node is not sequencer)
    nemesis.ruin.expect_change(sequencer, removed.index)
    assert not nemesis.ruin.may_lose_disk(victim)
    sequencer.feed(ChangeInterval(16, 0))  # its next turn shows what it made of the wish: nothing
    nemesis.simulation.run_until(nemesis.simulation.now + 0.01)
    assert nemesis.ruin.may_lose_disk(victim)


def test_no_second_entry_is_torn_while_another_data_server_cannot_read_one(nemesis: Nemesis) -> None:
    first, second, _ = nemesis.simulation.nodes
    assert nemesis.ruin.may_tear(second)
    first.disk.damage(("entry", 1, 0))
    assert not nemesis.ruin.may_tear(second)


def test_no_disk_may_be_lost_while_another_data_server_cannot_read_what_nobody_else_has(nemesis: Nemesis) -> None:
    first, second, _ = nemesis.simulation.nodes
    first.disk.damage(("entry", 99, 0))
    assert not nemesis.ruin.may_lose_disk(second)


def test_an_entry_may_rot_only_where_another_data_server_has_the_same_batch_as_that_number(nemesis: Nemesis) -> None:
    first, second, _ = nemesis.simulation.nodes
    first.disk.durable.entries[9], second.disk.durable.entries[9] = b"batch", b"of another epoch"
    assert not nemesis.ruin.may_damage_entry(first, 9)
    second.disk.durable.entries[9] = b"batch"
    assert nemesis.ruin.may_damage_entry(first, 9)


def test_what_a_number_means_may_rot_only_where_its_entry_can_be_read_there_or_elsewhere(nemesis: Nemesis) -> None:
    first, second, third = nemesis.simulation.nodes
    first.disk.durable.entries[9] = second.disk.durable.entries[9] = b"batch"
    first.disk.damage(("entry", 9, 0))
    assert nemesis.ruin.may_damage_number(first, 9)
    second.disk.damage(("entry", 9, 0))
    assert not nemesis.ruin.may_damage_number(first, 9)
    assert nemesis.ruin.may_damage_number(third, 9)
    third.disk.durable.entries[9] = b"batch"
    assert nemesis.ruin.may_damage_number(third, 9)


def test_the_only_record_a_log_begins_with_may_rot_only_where_the_whole_disk_may_be_lost(nemesis: Nemesis) -> None:
    first = nemesis.simulation.nodes[0]
    key, disk = ("group_state", 0, 0), first.disk.durable
    disk.group_state = (2, b"")
    disk.assignments[9], disk.entries[9] = numbered(9), b"batch"  # nobody else has it
    assert not nemesis.ruin.may_lose_disk(first)
    assert nemesis.ruin.may_damage_base(first, key), "a log from number 1 needs no record before it"
    disk.assignments = {number: known for number, known in disk.assignments.items() if number > 2}
    assert not nemesis.ruin.may_damage_base(first, key)
    disk.checkpoint = CheckpointInfo(sequence=2, epoch=1, size=0, chunks=0, digest=0, state=b"")
    assert nemesis.ruin.may_damage_base(first, key), "the checkpoint tells the same"
    disk.checkpoint = None
    for other in nemesis.simulation.nodes[1:]:
        other.disk.durable.entries[9] = b"batch"
    assert nemesis.ruin.may_damage_base(first, key)


def test_no_disk_may_be_lost_without_which_nobody_could_ask_to_be_sequencer() -> None:
    """Two witnesses are a majority of three commit servers, and no sequencer can come from them."""
    plan = msgspec.structs.replace(make_plan(1), config=make_group("A", "B", "C", witnesses=("V", "W")), clients=0)
    run = Run(plan)
    run.simulation.found()
    run.simulation.run_until(1.0)
    first, second, third = run.simulation.nodes[:3]
    for removed in (second, third):
        sequencer = sequencer_of(run.nemesis)
        assert sequencer is not None
        assert run.nemesis.ruin.may_lose_disk(first)
        sequencer.feed(ChangeVoters(removed.me.number, False))
        run.simulation.run_until(run.simulation.now + 1.0)
    assert not run.nemesis.ruin.may_lose_disk(first)
