import json

import pytest

from alphorn.testing.limit import run_limit
from tests.cli.commands import run

pytestmark = pytest.mark.processes


def test_a_short_run_reports_the_log_beside_its_yardstick(tmp_path, capsys):
    code = run("bench", "log", "--backups", "1", "--size", "2000", "--seconds", "0.2", "--no-wire", "--json",
               "--directory", str(tmp_path))  # fmt: skip
    report = json.loads(capsys.readouterr().out)

    assert code == 0
    assert report["log"]["batches"] > 0
    assert report["limit"]["batches"] > 0
    assert set(report["log"]["cost"]) == {"primary", "backup-1", "client-1", "client-2"}
    assert set(report["limit"]["cpu_ms_per_batch"]) == set(report["log"]["cost"])
    assert set(report["wire"]) == {"1"}
    assert 1.0 < report["log"]["wire_per_payload"] < 2.0
    assert list(tmp_path.iterdir()) == []


def test_a_short_run_prints_tables_and_how_to_repeat_it(capsys):
    assert run("bench", "log", "--backups", "1", "--size", "2000", "--seconds", "0.1", "--no-wire") == 0
    shown = capsys.readouterr().out
    assert "yardstick" in shown
    assert "repeat with: alphorn bench log --backups 1 --size 2000" in shown


def test_a_directory_that_is_not_there_is_one_sentence(tmp_path, capsys):
    assert run("bench", "log", "--directory", str(tmp_path / "none")) == 1
    assert "is no directory" in capsys.readouterr().err


def test_the_yardstick_cuts_batches_that_do_not_fit_a_datagram(tmp_path):
    result = run_limit(backups=1, size=65_536, seconds=0.1, directory=tmp_path)
    assert result.batches > 0
