import pytest

from alphorn.client_manager import channel, consuming


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements wait for no company: only some tests are about that."""
    monkeypatch.setattr(consuming, "ACKNOWLEDGE_S", 0.0)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry leaves at once: for tests of what happens while several are under way."""
    monkeypatch.setattr(channel, "LITTLE_BYTES", 0)
