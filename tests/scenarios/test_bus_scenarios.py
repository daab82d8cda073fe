"""Scenario files: each must print exactly its transcript. ALPHORN_REWRITE=1 writes what comes out; read the diff."""

import os
from pathlib import Path

import pytest

from alphorn.testing.scenario import run_scenario
from alphorn.testing.scenario_text import read_blocks, read_goal, read_proofs, write_blocks

FILES = sorted((Path(__file__).parent / "bus").glob("*.txt"))


def as_parameter(path: Path) -> object:
    """A scenario, marked with the requirements that its head says it proves."""
    proofs = read_proofs(path.read_text())
    return pytest.param(path, marks=[pytest.mark.requirement(*proofs)] if proofs else [], id=path.stem)


@pytest.mark.parametrize("path", [as_parameter(path) for path in FILES])
def test_the_transcript_is_as_written(path: Path) -> None:
    text = path.read_text()
    printed = write_blocks(run_scenario(read_blocks(text)))
    if os.environ.get("ALPHORN_REWRITE"):
        path.write_text(printed)
    else:
        assert printed == text


def test_every_file_says_its_goal_and_its_method() -> None:
    assert [path.name for path in FILES if len(read_goal(path.read_text())) < 2] == []
