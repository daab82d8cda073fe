"""A few seeds of clusters of several channels, with destinations moved between them; `make sim` runs many."""

import pytest

from alphorn.testing import campaign
from alphorn.testing.cluster_plan import make_channel_plan
from alphorn.testing.cluster_run import ClusterRun, run_channels
from alphorn.testing.move_faults import LEAVE

SEEDS = (1, 2, 7, 8)
QUICK = {  # the others take more seeds
    "refused-dropped": {"progress after healing"},
    "refused-believed": {"a redelivery says so"},
    "batches-left-behind": {"staged is seen once, all together", "first deliveries to an only consumer come in order"},
    "consumed-left-behind": {"what a queue retains is read, each message once", "machines do not raise"},
    "register-unaware": {"a name leads to its destination"},
    "coming-overlooked": {"a drained channel is empty"},
    "dead-letters-left-behind": {"a dead letter queue is beside its destination"},
    "staged-forgotten": {"clients are served"},
    "part-forgotten": {"the dead are received by one name"},
}
LEFT_WITHOUT = 27  # a job publishes what it was refused to stage, because a queue was on its way


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.requirement("HA-19", "CM-19")
def test_nothing_is_lost_repeated_or_overtaken_when_destinations_move_under_faults(seed: int) -> None:
    result = run_channels(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind channels\n{result.failure}\n{result.details}"
    assert result.messages
    assert result.faults["moved"]
    assert result.faults["leaving-staged"]


def test_what_was_to_come_back_behind_a_move_says_that_it_was_given_out() -> None:
    """A consumer closes while its queue leaves; the old log refuses what the primary says of it, which is lost then."""
    seed = 918273384
    result = run_channels(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind channels\n{result.failure}\n{result.details}"


@pytest.mark.parametrize("seed", [777000384, 777000528])
def test_what_was_given_out_before_a_move_says_so_although_primaries_ended_amid_it(seed: int) -> None:
    """A consumer closes while its queue leaves; or the next one never sees what was given to one that is gone."""
    result = run_channels(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind channels\n{result.failure}\n{result.details}"


def test_a_publication_that_was_asked_for_stays_as_it_is_where_its_batch_is_published_once_more() -> None:
    """A hasty job asks before it hears that a part was refused, and a channel has its batch by an earlier word."""
    seed = 782000088
    result = run_channels(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind channels\n{result.failure}\n{result.details}"


def test_a_move_that_was_refused_is_not_expected_by_what_was_ordered_again_for_a_new_primary() -> None:
    """The channel was opened between the two."""
    seed = 777000152
    result = run_channels(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind channels\n{result.failure}\n{result.details}"


def test_who_receives_from_what_leaves_acknowledges_or_closes_and_then_primaries_end() -> None:
    told: list[str] = []
    crashes = 0
    for seed in (4, 5, 27):
        run = ClusterRun(make_channel_plan(seed))
        assert run.plan.leaves_hard
        for channel in run.cluster.channels:
            channel.simulation.watch.fault.append(lambda fault, details: told.append(f"{fault}: {details}"))
        result = run.finish()
        assert not result.failure, f"alphorn sim --seed {seed} --kind channels\n{result.failure}\n{result.details}"
        crashes += result.faults.get("crash-sequencer", 0)
    for text in ("stop to receive from", "acknowledge what they have of queue:z"):
        assert any(each.startswith(LEAVE) and text in each for each in told), text
    assert any(each.startswith("move: queue:z") for each in told)
    assert crashes


def test_in_some_runs_destinations_leave_hard_and_in_some_they_do_not() -> None:
    assert {make_channel_plan(seed).leaves_hard for seed in range(20)} == {True, False}


def test_a_seed_of_two_channels_has_one_trace() -> None:
    assert run_channels(1).trace_hash == run_channels(1).trace_hash


@pytest.mark.parametrize("name", QUICK)
def test_a_deliberate_mistake_in_a_move_is_caught(name: str) -> None:
    verdict = campaign.hunt(name, range(1, 41))
    assert verdict.checker in QUICK[name], verdict


def test_a_batch_is_not_taken_for_published_where_a_destination_has_left_without_it() -> None:
    """The channel that it has left has published the batch before, while the destination was on another one."""
    for seed in (LEFT_WITHOUT, 918273160):
        result = run_channels(seed)
        assert not result.failure, f"alphorn sim --seed {seed} --kind channels\n{result.failure}\n{result.details}"
    verdict = campaign.hunt("left-overlooked", range(LEFT_WITHOUT, LEFT_WITHOUT + 1))
    assert verdict.checker == "staged is seen once, all together", verdict
