import json
import os

import pytest

from alphorn.testing import limit
from alphorn.testing.limit import run_limit
from alphorn.testing.message_bench import limit as message_limit
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


class Told:
    """A process of the yardstick, as far as it is looked at; it has delivered so much at each look."""

    pid = os.getpid()

    def __init__(self, *delivered: int) -> None:
        self._looks = iter(enumerate(delivered))

    def send(self, word: str) -> None:
        pass

    def recv(self) -> tuple[float, int]:
        at, count = next(self._looks)
        return float(at), count


def test_a_yardstick_on_a_machine_that_stood_still_for_the_whole_run_is_measured_a_little_longer(monkeypatch):
    monkeypatch.setattr(limit, "WARM_UP_S", 0.0)
    clients = {"client-1": Told(5, 5, 9), "client-2": Told(5, 5, 7)}
    result = limit._measure({name: (client, client) for name, client in clients.items()}, 1000, 0.0)
    assert (result.batches, result.megabytes_per_s) == (2, 0.001)


def test_the_yardstick_of_messages_begins_when_all_its_processes_are_ready(tmp_path, monkeypatch):
    monkeypatch.setattr(message_limit.time, "sleep", lambda seconds: pytest.fail("how long a start takes is not known"))
    places = message_limit.Places("239.198.77.7", f"127.{os.getpid() % 200 + 1}.7.13")
    found = message_limit.run(places, str(tmp_path), messages=40, size=100, batch=4, window=2)
    assert found["confirmed_per_s"] > 0
    assert found["received_per_s"] > 0
