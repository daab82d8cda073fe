"""The simulator itself: one seed is one trace, and its parts do what the fault model says."""

import os
import random
import subprocess
import sys

import pytest

from alphorn.testing.node import moment_of
from alphorn.testing.run import run_seed
from alphorn.testing.timeline import Timeline
from tests.simulation.groups import run_gently

_PRINT_TRACE = "from alphorn.testing.run import run_seed; print(run_seed(3).trace_hash)"


def test_a_sound_protocol_passes_every_checker() -> None:
    results = [run_gently(seed) for seed in range(1, 6)]
    assert [result.failure for result in results] == [""] * 5
    assert all(result.ordered > 20 for result in results)


def test_one_seed_gives_one_trace() -> None:
    assert run_seed(3).trace_hash == run_seed(3).trace_hash
    assert run_seed(3).trace_hash != run_seed(4).trace_hash


def test_the_trace_does_not_depend_on_the_order_of_hashed_strings() -> None:
    traces = {
        subprocess.run(
            [sys.executable, "-c", _PRINT_TRACE],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(traces) == 1


def test_watching_a_run_does_not_change_it() -> None:
    timeline = Timeline()
    assert run_gently(2, timeline=timeline).trace_hash == run_gently(2).trace_hash
    assert len(list(timeline.lines())) > 100


def test_a_timeline_keeps_only_the_last_lines_it_was_asked_for() -> None:
    timeline = Timeline(60)
    run_gently(1, timeline=timeline)
    assert len(list(timeline.lines())) == 60
    assert len(list(timeline.lines(5))) == 5


def test_a_timeline_has_a_column_for_each_node() -> None:
    timeline = Timeline()
    run_gently(1, timeline=timeline)
    first = next(timeline.lines())
    assert first.split()[1:4] == ["*xxxx", "S1", "start"]


@pytest.mark.parametrize(
    ("mistake", "checker"),
    [
        ("eager", "acknowledged is durable"),
        ("minority", "nothing is delivered before commit"),
        ("gap", "no gap at delivery"),
        ("reorder", "delivery"),
    ],
)
def test_a_checker_catches_the_mistake_it_is_for(mistake: str, checker: str) -> None:
    caught = {run_gently(seed, mistake).checker for seed in range(1, 9)}
    assert checker in caught


def test_a_clock_that_was_asked_for_a_moment_shows_it_then() -> None:
    choices = random.Random(1)
    for _ in range(100_000):
        local, offset = choices.uniform(0, 100), choices.uniform(-5, 200)
        assert moment_of(local, offset) + offset >= local
