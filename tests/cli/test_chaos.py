import json

import pytest

from alphorn.cli import chaos as command
from alphorn.model.errors import Unavailable
from alphorn.testing import transfer_chaos
from alphorn.testing.chaos import ChaosResult
from tests.cli.commands import run

pytestmark = pytest.mark.processes


def test_kills_are_counted_and_judged(capsys):
    assert run("chaos", "--kills", "1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["faults"] == []
    assert result["injected"] == {"kill -9 primary": 1, "kill -9 all at once": 1}


def test_transfers_are_counted_for_each_step_and_judged(capsys, monkeypatch):
    monkeypatch.setattr(command, "CRASH_POINTS", ("prepared",))
    monkeypatch.setattr(
        command,
        "run_transfers",
        lambda directory, **choices: transfer_chaos.run_transfers(directory, points=("prepared",), **choices),
    )
    assert run("chaos", "--transfers", "5", "--kills", "1") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "prepared" in shown
    assert "every unit is in exactly one account" in shown


def test_transfers_that_lose_a_unit_fail_the_command(tmp_path, capsys, monkeypatch):
    broken = transfer_chaos.TransferChaosResult(committed={"prepared": 9}, faults=["units [7] are in no account"])
    monkeypatch.setattr(command, "run_transfers", lambda directory, **choices: broken)
    monkeypatch.setattr(command.tempfile, "mkdtemp", lambda **named: str(tmp_path))
    assert run("chaos", "--transfers", "5", "--json") == 1
    assert json.loads(capsys.readouterr().out)["faults"] == ["units [7] are in no account"]
    assert run("chaos", "--transfers", "5", "--minutes", "1") == 1


def test_a_mixed_run_is_told_how_to_be_repeated(capsys):
    assert run("chaos", "--minutes", "0.01", "--seed", "2") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "all is well" in shown
    assert "alphorn chaos --minutes 0.01 --seed 2" in shown


def test_a_broken_promise_is_shown_and_fails_the_command(tmp_path, capsys, monkeypatch):
    broken = ChaosResult(injected={}, outages_s={}, ordered=9, refused=0, unknown=0, epoch=65_537, faults=["lost: 7"])
    monkeypatch.setattr(command, "_run", lambda *arguments, **named: broken)
    monkeypatch.setattr(command.tempfile, "mkdtemp", lambda **named: str(tmp_path))
    assert run("chaos", "--kills", "1") == 1
    shown = capsys.readouterr().out
    assert "broken: lost: 7" in shown
    assert "look at a store with" in shown


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What a run makes for its stores."""
    made = tmp_path / "chaos"
    made.mkdir()
    monkeypatch.setattr(command.tempfile, "mkdtemp", lambda **named: str(made))
    return made


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run_chaos(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(command, "_run", run_chaos)


def test_an_interrupted_run_leaves_nothing_behind(folder, capsys, monkeypatch):
    fail_with(monkeypatch, KeyboardInterrupt())
    assert run("chaos", "--kills", "1") == 130
    assert not folder.exists()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "error", "code"), [([], Unavailable("it does not heal"), 1), (["--keep"], KeyboardInterrupt(), 130)]
)
def test_stores_that_are_kept_are_named(folder, capsys, monkeypatch, options, error, code):
    fail_with(monkeypatch, error)
    assert run("chaos", "--kills", "1", *options) == code
    assert folder.exists()
    assert f"stores and logs are in {folder}" in capsys.readouterr().out
