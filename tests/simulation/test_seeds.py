"""A few seeds of the real protocol at every test run; `make sim SEEDS=2000` runs many."""

import pytest

from alphorn.testing.faults import FAULTS
from alphorn.testing.plan import FAULT_CLASSES_MIN, make_plan
from alphorn.testing.run import run_seed

SEEDS = range(1, 21)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.requirement(
    "BUS-4", "BUS-5", "BUS-8", "BUS-15", "BUS-18", "BUS-19", "HA-8", "HA-10", "HA-21", "CKP-5", "CKP-7"
)
def test_every_promise_of_the_log_holds_under_faults(seed: int) -> None:
    result = run_seed(seed)
    assert not result.failure, f"alphorn sim --seed {seed}\n{result.failure}\n{result.details}"
    assert result.faults["torn-batch"]


def test_old_numbers_behind_two_damaged_ones_stay_while_only_the_first_is_known_anew() -> None:
    """A member that was alone has an old tail, in which two records rot; it starts again when one is repaired."""
    seed = 2000030
    result = run_seed(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind log\n{result.failure}\n{result.details}"


def test_fragments_of_one_batch_cut_in_two_sizes_do_not_take_each_others_place_for_ever() -> None:
    """The sequencer lacks parts of batches whose sender is gone; the two servers that have them cut them unequally."""
    seed = 7600015
    result = run_seed(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind log\n{result.failure}\n{result.details}"


def test_a_voter_whose_record_cannot_be_read_is_not_removed_while_another_has_lost_its_disk() -> None:
    """The record of a number rots at the witness; as soon as it is whole again, one of the two servers is blank."""
    seed = 777000221
    result = run_seed(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind log\n{result.failure}\n{result.details}"


def test_the_record_that_the_only_copies_hang_on_does_not_rot() -> None:
    """A group that keeps one copy: without its group state, the server that has it would begin anew, with no entry."""
    seed = 777000153
    result = run_seed(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind log\n{result.failure}\n{result.details}"


def test_every_plan_enables_many_classes_of_faults() -> None:
    plans = [make_plan(seed) for seed in range(200)]
    assert all(len(plan.faults) >= FAULT_CLASSES_MIN for plan in plans)
    assert {fault for plan in plans for fault in plan.faults} == set(FAULTS)


def test_plans_have_groups_with_and_without_a_lifetime() -> None:
    assert {make_plan(seed).config.lifetime > 0 for seed in range(50)} == {True, False}


def test_plans_have_members_with_datagrams_of_one_size_and_of_several() -> None:
    assert {len(set(make_plan(seed).datagrams)) > 1 for seed in range(50)} == {True, False}


def test_every_planned_group_is_a_valid_one() -> None:
    for seed in range(200):
        make_plan(seed).config.check()
