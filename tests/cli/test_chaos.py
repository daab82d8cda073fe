import json

import pytest

from alphorn.cli import chaos as command
from alphorn.testing.chaos import ChaosResult
from tests.cli.commands import run

pytestmark = pytest.mark.processes


def test_kills_are_counted_and_judged(capsys):
    assert run("chaos", "--kills", "1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["faults"] == []
    assert result["injected"] == {"kill -9 primary": 1, "kill -9 all at once": 1}


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
