"""`alphorn chaos --cluster` and `alphorn bench failover`."""

import json

import pytest

from alphorn.cli import chaos as chaos_command
from alphorn.cli import failover as failover_command
from alphorn.testing.cluster_chaos import ClusterChaosResult, ClusterFault
from alphorn.testing.traffic_account import TrafficResult
from tests.cli.commands import run

pytestmark = pytest.mark.processes


def result_of(*faults: str) -> ClusterChaosResult:
    traffic = TrafficResult(
        sent=9,
        confirmed=9,
        refused=0,
        received=8,
        redelivered=2,
        marked=1,
        lost=len(faults),
        duplicates=0,
        disordered=0,
        faults=list(faults),
    )
    gaps = {str(ClusterFault.KILL_PRIMARY): [0.5, 0.25, 0.3]}
    return ClusterChaosResult(injected=dict.fromkeys(gaps, 3), gaps_s=gaps, traffic=traffic, faults=list(faults))


def test_killing_a_cluster_is_counted_timed_and_judged(capsys):
    assert run("chaos", "--cluster", "--kills", "1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["faults"] == []
    assert result["injected"] == {"kill -9 primary": 1, "kill -9 all at once": 1}
    assert all(len(gaps) == 1 and gaps[0] > 0 for gaps in result["gaps_s"].values())
    assert (result["traffic"]["lost"], result["traffic"]["duplicates"]) == (0, 0)


def test_a_cluster_that_lost_something_is_shown_and_fails_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(chaos_command, "_run_cluster", lambda *arguments, **named: result_of("lost: 7"))
    monkeypatch.setattr(chaos_command.tempfile, "mkdtemp", lambda **named: str(tmp_path))
    assert run("chaos", "--cluster", "--minutes", "1", "--seed", "4") == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "broken: lost: 7" in shown
    assert "alphorn chaos --cluster --minutes 1 --seed 4" in shown
    assert "0.300 │ 0.500" in shown


def test_a_cluster_cannot_be_traced(capsys):
    assert run("chaos", "--cluster", "--trace") == 1
    assert "do not trace the protocol" in capsys.readouterr().err


def test_the_gap_is_measured_for_each_kill(capsys):
    assert run("bench", "failover", "--kills", "1", "--per-s", "100", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["gaps_s"]) == 1
    assert report["median_s"] == report["longest_s"] == report["gaps_s"][0] > 0
    assert (report["lost"], report["duplicates"], report["faults"]) == (0, 0, [])


def test_a_broken_promise_fails_the_measurement(capsys, monkeypatch):
    monkeypatch.setattr(failover_command, "kill_primaries_of_cluster", lambda *_, **__: result_of("lost: 7"))
    assert run("bench", "failover") == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "median │ 300 (at most 400)" in shown
    assert "broken: lost: 7" in shown
