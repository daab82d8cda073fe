"""Every example runs as its own program, twice against one cluster of two channels: as at a reader's own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import alphorn.testing

EXAMPLES = Path(__file__).parents[2] / "examples"
# Those for Spark have a test of their own in tests/spark.
PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if path.name != "start.py" and path.stem[:6] != "spark_")
PAGES = ("README.md", "docs/client.md", "docs/cluster.md")
LOCAL = "alphorn://127.0.0.1:7700"  # in blocks that are whole programs, for a reader to paste


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with alphorn.testing.cluster(channels=2) as cluster:
        yield cluster.url


@pytest.mark.parametrize("turn", ["first", "again"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_runs_to_its_end(program: Path, turn: str, url: str) -> None:
    run_to_its_end(str(program), url=url)


def blocks(page: str) -> list[str]:
    """The programs of a page."""
    text = (EXAMPLES.parent / page).read_text()
    return [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if LOCAL in block]


@pytest.mark.parametrize(("page", "place"), [(page, place) for page in PAGES for place in range(len(blocks(page)))])
def test_a_program_on_a_page_for_readers_runs_as_it_stands(page: str, place: int, url: str) -> None:
    # Somebody has tried `alphorn send queue:orders hello` before, as the README says.
    with alphorn.connect(url) as connection:
        connection.session().producer("queue:orders").send("hello", wait=True)
    run_to_its_end("-c", blocks(page)[place].replace(LOCAL, url), url=url)


def run_to_its_end(*arguments: str, url: str) -> None:
    environment = {**os.environ, "ALPHORN_URL": url}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
