"""A few seeds of whole message clusters at every test run; `make sim` runs many."""

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from alphorn.testing.checkers.retained import RetainedIsRead
from alphorn.testing.cluster_plan import (
    CLUSTER_FAULTS,
    FAULT_CLASSES_MIN,
    RETAIN_S_WHOLE,
    STREAM_FAULTS,
    make_cluster_plan,
)
from alphorn.testing.cluster_run import ClusterRun, run_cluster
from alphorn.testing.strangers import FAULT
from alphorn.testing.timeline import Timeline

SEEDS = range(1, 13)
_TRACE = "from alphorn.testing.cluster_run import run_cluster; print(run_cluster(2).trace_hash)"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.requirement("HA-2", "HA-20", "MM-11", "API-9")
def test_every_promise_to_clients_holds_under_faults(seed: int) -> None:
    result = run_cluster(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind cluster\n{result.failure}\n{result.details}"
    assert result.messages
    assert result.receipts


@pytest.mark.requirement("VLM-1", "VLM-4")
def test_streamed_bodies_are_read_whole_under_faults() -> None:
    run = ClusterRun(make_cluster_plan(3))
    read: list[int] = []
    run.cluster.book.on_body.append(lambda token, data: read.append(token))
    assert not run.finish().failure
    assert set(read) <= set(run.cluster.book.bodies)
    assert len(set(read)) > 5


def test_what_queues_retain_is_read_under_faults() -> None:
    """The checker of that is worth something only if it finds messages, and most of them consumed."""
    runs = [ClusterRun(make_cluster_plan(seed)) for seed in (4, 6)]
    found = 0
    for run in runs:
        assert not run.finish().failure
        found += sum(checker.messages for checker in run.message_checkers if isinstance(checker, RetainedIsRead))
        queues = [it for engine in run.cluster.engines() for it in engine.destinations.values() if it.is_retaining]
        assert all(it.count == 0 for it in queues)
    assert found > 100
    drawn = [policy for seed in range(50) for policy in make_cluster_plan(seed).retained.values()]
    assert {(policy.retain_s, policy.retain_bytes) for policy in drawn} == {(RETAIN_S_WHOLE, 0), (1.0, 0), (0.0, 200)}


def test_a_seed_of_a_cluster_has_one_trace_with_or_without_a_timeline_and_under_any_hash_seed() -> None:
    timeline = Timeline(50)
    traced = run_cluster(2, timeline=timeline).trace_hash
    assert run_cluster(2).trace_hash == traced
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        found = subprocess.run(
            [sys.executable, "-c", _TRACE], capture_output=True, text=True, env=environment, check=True
        )
        assert found.stdout.strip() == traced


def test_a_timeline_of_a_cluster_says_what_clients_and_links_say() -> None:
    timeline = Timeline()
    run_cluster(2, timeline=timeline)
    text = "\n".join(timeline.lines())
    for word in ("Hello version=2", "Publish session=", "Delivered consumer=", "Deliver consumer=…", "Confirmed"):
        assert word in text


def test_cluster_plans_are_valid_and_use_every_class_of_faults() -> None:
    plans = [make_cluster_plan(seed) for seed in range(200)]
    for plan in plans:
        plan.config.check()
        assert {"queue:a", "queue:b", "topic:t"} <= {
            reading.destination for client in plan.clients for reading in client.readings
        }
    assert all(len(plan.faults) >= FAULT_CLASSES_MIN for plan in plans)
    assert {fault for plan in plans for fault in plan.faults} == set(CLUSTER_FAULTS) >= set(STREAM_FAULTS)


@pytest.mark.requirement("API-18")
def test_strangers_come_in_some_runs_and_client_managers_ask_for_the_signet_there() -> None:
    plans = [make_cluster_plan(seed) for seed in range(1, 200)]
    assert {plan.has_strangers for plan in plans} == {True, False}
    run = ClusterRun(next(plan for plan in plans if plan.has_strangers))
    result = run.finish()
    assert not result.failure
    assert result.faults[FAULT]
    assert {bool(engine.signet) for engine in run.cluster.engines()} == {True}


def test_a_client_manager_that_starts_twice_at_once_has_two_names() -> None:
    """It has no disk to remember the first one by; a real process takes longer to start than ids can tell."""
    run = ClusterRun(msgspec.structs.replace(make_cluster_plan(1), together=False))
    run.cluster.found()
    node = run.cluster.client_managers[0].node
    origins = set()
    for _ in range(4):
        machine: Any = node.machine
        origins.add(machine.origin)
        node.end("crash")
        node.start_again()
    assert len(origins) == 4
