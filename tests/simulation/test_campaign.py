"""Campaigns: totals, the way to replay a failure, and mutants that must be caught."""

import json

import pytest
import typer
from typer.testing import CliRunner

from alphorn.cli import sim
from alphorn.testing import campaign
from alphorn.testing.mutants import Mutant
from alphorn.testing.run import Result


class _Subject:
    def answer(self) -> int:
        return 1


def _failing(seed: int, *_: object, **__: object) -> Result:
    return Result(seed=seed, failure="same log everywhere: broken", checker="same log everywhere", trace_hash="0")


def test_a_mutant_is_in_force_only_while_applied() -> None:
    mutant = Mutant(name="m", description="d", patch=lambda: [(_Subject, "answer", lambda self: 2)])
    with mutant.apply():
        assert _Subject().answer() == 2
    assert _Subject().answer() == 1


def test_totals_count_faults_by_class() -> None:
    totals = campaign.Totals()
    totals.add(Result(seed=1, faults={"crash": 2}, virtual_s=3.0, ordered=5))
    totals.add(Result(seed=2, faults={"crash": 1, "loss": 1}, failure="x"))
    assert totals.faults == {"crash": 3, "loss": 1}
    assert (totals.seeds, totals.virtual_s, totals.ordered, len(totals.failures)) == (2, 3.0, 5, 1)


def test_a_second_trace_that_differs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = iter(["a", "b"])
    monkeypatch.setattr(campaign, "run_seed", lambda seed, kind: Result(seed=seed, trace_hash=next(traces)))
    assert campaign.run_checked(campaign.TWICE_EVERY).checker == "one seed, one trace"


def test_the_command_prints_how_to_replay_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "run_seed", _failing)
    monkeypatch.setattr(sim, "run_seed", _failing)
    result = CliRunner().invoke(_app(), ["sim", "--seeds", "2", "--jobs", "1"])
    assert result.exit_code == 1
    assert "alphorn sim --seed 1 --kind log --last 60" in result.output


def test_the_command_prints_the_timeline_of_one_seed() -> None:
    result = CliRunner().invoke(_app(), ["sim", "--seed", "3", "--last", "7"])
    assert "trace " in result.output
    assert len(result.output.splitlines()) >= 9


def test_the_command_prints_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "run_seed", lambda seed, kind: Result(seed=seed, trace_hash="0"))
    result = CliRunner().invoke(_app(), ["sim", "--seeds", "3", "--jobs", "1", "--json"])
    assert json.loads(result.stdout)["seeds"] == 3


def test_the_command_tells_how_far_it_is_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "run_seed", lambda seed, kind: Result(seed=seed, trace_hash="0"))
    lines = CliRunner().invoke(_app(), ["sim", "--seeds", "250", "--jobs", "1"]).output.splitlines()
    assert [line.rsplit(",", 1)[0] for line in lines if " of 250 seeds" in line] == [
        "100 of 250 seeds, 0 failed",
        "200 of 250 seeds, 0 failed",
    ]
    printed = CliRunner().invoke(_app(), ["sim", "--seeds", "250", "--jobs", "1", "--json"])
    assert " of 250 seeds" not in printed.output


def test_every_fourth_seed_of_a_campaign_is_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "run_seed", lambda seed, kind: Result(seed=seed, kind=kind.of(seed).value))
    for choice, clusters in (("all", 2), ("log", 0), ("cluster", 8), ("transfers", 0)):
        arguments = ["sim", "--seeds", "8", "--jobs", "1", "--json", "--kind", choice]
        assert json.loads(CliRunner().invoke(_app(), arguments).stdout)["clusters"] == clusters


def _app() -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    sim.register(app)
    return app
