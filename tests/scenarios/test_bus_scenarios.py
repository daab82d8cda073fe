"""Scenario files: each must print exactly its transcript. ALPHORN_REWRITE=1 writes what comes out; read the diff."""

import os
from pathlib import Path

import pytest

from alphorn.testing.scenario import read_blocks, run_scenario, write_blocks

FILES = sorted((Path(__file__).parent / "bus").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_transcript_is_as_written(path: Path) -> None:
    text = path.read_text()
    printed = write_blocks(run_scenario(read_blocks(text)))
    if os.environ.get("ALPHORN_REWRITE"):
        path.write_text(printed)
    else:
        assert printed == text
