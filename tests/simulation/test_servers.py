"""A few seeds of message servers at every test run; `make sim` and `alphorn sim --kind servers` run many."""

import os
import subprocess
import sys

import pytest

from alphorn.model import internal
from alphorn.testing.servers.faults import PROCESS_FRAMES, SERVER_FRAMES
from alphorn.testing.servers.plan import CHAPTERS, FAULTS, FAULTS_MIN, make_servers_plan
from alphorn.testing.servers.run import run_servers
from alphorn.testing.timeline import Timeline

SEEDS = range(1, 16)
_TRACE = "from alphorn.testing.servers.run import run_servers; print(run_servers(2).trace_hash)"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.requirement("CCM-5", "CCM-7", "CCM-8", "CCM-9", "CCM-10")
def test_every_promise_of_message_servers_holds_whoever_dies_at_whatever_frame(seed: int) -> None:
    result = run_servers(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind servers\n{result.failure}\n{result.details}"
    assert result.messages
    assert result.receipts


def test_a_server_that_stood_still_does_not_answer_an_earlier_link_on_the_next_one() -> None:
    seed = 125
    result = run_servers(seed)
    assert not result.failure, f"alphorn sim --seed {seed} --kind servers\n{result.failure}\n{result.details}"


def test_plans_have_every_fault_and_every_chapter_and_now_and_then_one_server() -> None:
    plans = [make_servers_plan(seed) for seed in range(200)]
    assert all(len(plan.faults) >= FAULTS_MIN for plan in plans)
    assert {fault for plan in plans for fault in plan.faults} == set(FAULTS)
    assert {chapter for plan in plans for chapter in plan.chapters} == set(CHAPTERS)
    assert {plan.servers for plan in plans} == {1, 2}


def test_the_frames_at_which_somebody_dies_exist() -> None:
    for step in SERVER_FRAMES + PROCESS_FRAMES:
        assert issubclass(getattr(internal, step.split()[1]), object)


def test_a_seed_gives_one_trace_whatever_the_hash_seed_is() -> None:
    traces = {
        subprocess.run(
            [sys.executable, "-c", _TRACE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(traces) == 1
    assert traces != {"\n"}


def test_a_timeline_shows_what_was_said_and_changes_nothing() -> None:
    timeline = Timeline()
    result = run_servers(3, timeline=timeline)
    assert result.trace_hash == run_servers(3).trace_hash
    lines = list(timeline.lines())
    assert any("SayAll" in line for line in lines)
    assert any("FAULT" in line for line in lines)
