import pytest

from alphorn.client_manager import channel


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry leaves at once: for tests of what happens while several are under way."""
    monkeypatch.setattr(channel, "LITTLE_BYTES", 0)
