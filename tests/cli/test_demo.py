import signal
import subprocess
import sys

import pytest

from tests.cli.commands import run

pytestmark = pytest.mark.processes

DEADLINE_S = 120


def test_a_demonstration_says_that_it_is_ready_and_stops_in_good_order(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("demo", "--seconds", "0.001", "--dir", "demo") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("ready")]
    assert any("=primary,epoch=" in line for line in lines)  # whichever member was elected
    assert lines[-1] == "stopped"
    assert (tmp_path / "demo" / "primary").is_dir()
    assert not (tmp_path / "demo" / "demo").exists()


def test_a_demonstration_stops_when_it_is_told_to(tmp_path):
    code = "from alphorn.cli.main import main; main()"
    command = [sys.executable, "-c", code, "demo", "--dir", str(tmp_path / "demo")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready"):
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(DEADLINE_S) == 0
    assert rest.endswith("stopped\n")


def test_a_directory_in_use_by_an_earlier_demonstration_is_one_sentence(tmp_path, capsys):
    (tmp_path / "primary.json").touch()
    assert run("demo", "--dir", str(tmp_path)) == 1
    assert "holds an earlier demonstration" in capsys.readouterr().err


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "letters").touch()
    assert run("demo", "--dir", str(tmp_path)) == 1
    assert f"{tmp_path} is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]
