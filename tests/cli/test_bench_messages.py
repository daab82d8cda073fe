import json

import pytest

from alphorn.testing.message_bench.works import WORKS
from tests.cli.commands import run

pytestmark = pytest.mark.processes

SMALL = ("--messages", "2000", "--seconds", "0.2", "--connections", "50", "--destinations", "20")
NODES = {"mm1", "mm2", "cm1", "clients"}
TARGETED = {  # the figures with a target
    "W1": {"end to end"},
    "W1-1k": {"end to end"},
    "W1-16k": {"end to end"},
    "W1-single": {"end to end"},
    "W2": {"p50", "p99"},
    "W3": {"deliveries"},
    "W4": {"end to end"},
    "W7": {"memory of a connection"},
    "backlog": {"drain to W1", "Message Manager RSS at most"},
    "destinations": {"many to few"},
}


def test_every_work_runs_and_its_report_is_complete(tmp_path, capsys):
    code = run("bench", "messages", *SMALL, "--no-limit", "--json", "--directory", str(tmp_path))
    report = json.loads(capsys.readouterr().out)

    assert code == 0
    assert report["machine"]
    assert [found["work"] for found in report["works"]] == list(WORKS)
    for found in report["works"]:
        assert {figure["name"] for figure in found["figures"] if figure["target"]} == TARGETED[found["work"]]
        assert all(figure["is_met"] in (True, False) for figure in found["figures"] if figure["target"])
        assert all(figure["limit"] is None for figure in found["figures"])
        assert found["setting"]
        if found["work"] != "W7":
            assert set(found["cpu_s_per_million"]) == NODES
            assert found["messages"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_rate_and_a_latency_stand_beside_their_yardstick(tmp_path, capsys):
    few = ("--messages", "300", "--seconds", "0.2")
    code = run("bench", "messages", "--work", "W1,W2", *few, "--json", "--directory", str(tmp_path))
    rate, latency = json.loads(capsys.readouterr().out)["works"]

    assert code == 0
    assert [figure["name"] for figure in rate["figures"]] == ["end to end", "share of the yardstick"]
    assert rate["figures"][0]["ratio"] == pytest.approx(rate["figures"][0]["value"] / rate["figures"][0]["limit"])
    assert set(rate["limit_cpu_s_per_million"]) == {"primary", "backup", "client_manager"}
    assert [bool(figure["limit"]) for figure in latency["figures"]] == [True, True, True, True, False, False]
    assert list(tmp_path.iterdir()) == []


def test_a_work_prints_tables_with_its_target(capsys):
    assert run("bench", "messages", "--work", "W7", "--connections", "20") == 0
    shown = capsys.readouterr().out
    assert "memory of a" in shown
    assert "W7: 20 connections to 1 Client Manager" in shown


def test_a_work_that_is_not_known_is_one_sentence(capsys):
    assert run("bench", "messages", "--work", "W1,W9") == 1
    assert "there is no work W9" in capsys.readouterr().err


def test_no_work_is_one_sentence(capsys):
    assert run("bench", "messages", "--work", ",") == 1
    assert "no work is named" in capsys.readouterr().err
