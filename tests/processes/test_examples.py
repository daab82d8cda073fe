"""Every example runs as its own program, twice against one cluster of two channels: as at a reader's own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import alphorn.testing

EXAMPLES = Path(__file__).parents[2] / "examples"
# Those for Spark have a test of their own in tests/spark.
PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if path.name != "start.py" and path.stem[:6] != "spark_")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with alphorn.testing.cluster(channels=2) as cluster:
        yield cluster.url


@pytest.mark.parametrize("turn", ["first", "again"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_runs_to_its_end(program: Path, turn: str, url: str) -> None:
    environment = {**os.environ, "ALPHORN_URL": url}
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
