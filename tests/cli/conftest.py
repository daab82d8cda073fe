"""What holds for every test of commands."""

import pytest

from alphorn.cli import waiting


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, nobody is told that a command waits, unless a test is about that."""
    monkeypatch.setattr(waiting, "SILENT_S", 3600.0)
