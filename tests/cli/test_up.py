"""`alphorn up` and `alphorn single`, with fake nodes in real processes."""

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest

from alphorn.cli.up import describe_shape
from alphorn.io.local_cluster import END_OF_PORTS, LocalShape, lay_out
from tests.cli.commands import run
from tests.cli.fake_up import command_line

pytestmark = pytest.mark.processes

DEADLINE_S = 60
PORT = 20_000 + os.getpid() % 90 * END_OF_PORTS  # below the ports that the system gives out


class Started:
    """A command that runs; its lines are read one by one."""

    def __init__(self, *arguments: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command_line(*arguments), stdout=pipe, stderr=pipe, text=True)
        self.said: list[str] = []

    def until(self, pattern: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.rstrip("\n"))
            if re.search(pattern, line):
                return line
        raise AssertionError(f"{pattern} was not said: {self.said}")

    def pid_of(self, name: str) -> int:
        found = re.search(r"pid (\d+)", self.until(f"{name} starts"))
        assert found is not None
        return int(found[1])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=DEADLINE_S)
        self.said += errors.splitlines()
        return self.process.returncode, output


def up(directory: Path, *arguments: str) -> Started:
    return Started("up", "--dir", str(directory), "--base-port", str(PORT), *arguments)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_channel_that_was_removed_is_not_counted(tmp_path):
    file = lay_out(tmp_path, LocalShape(channels=2))
    assert describe_shape(file) == "1 Client Manager, 2 channels with a primary and 1 backup each"
    channels = (file.channels[0], msgspec.structs.replace(file.channels[1], removed=True))
    nodes = tuple(node for node in file.nodes if node.channel != file.channels[1].name)
    file = msgspec.structs.replace(file, channels=channels, nodes=nodes)
    file.check()
    assert describe_shape(file) == "1 Client Manager, 1 channel with a primary and 1 backup"


def test_a_cluster_says_that_it_is_ready_and_stops_in_good_order(tmp_path):
    started = up(tmp_path / "data", "--client-managers", "2")
    pids = [started.pid_of(name) for name in ("mm1", "mm2", "cm1", "cm2")]
    started.until("try: alphorn send")
    code, output = started.stop()
    assert code == 0
    assert output == f"ready alphorn://127.0.0.1:{PORT},127.0.0.1:{PORT + 1}\n"
    assert started.said[-1].endswith("stopped; the data is kept, the next `alphorn up` continues")
    assert "only this machine reaches them" in "".join(started.said)
    assert not any(is_alive(pid) for pid in pids)
    stopped = (tmp_path / "data" / "stops").read_text().split()
    assert sorted(stopped[:4]) == ["cm1", "cm2", "ms1", "ms2"], "message servers are in the same processes"


def test_the_next_start_continues_and_founds_nobody(tmp_path):
    for _ in range(2):
        started = up(tmp_path)
        started.until("try: alphorn send")
        assert started.stop(signal.SIGINT)[0] == 0
    assert (tmp_path / "mm1" / "starts").read_text().split() == ["founding", "continuing"]
    assert f"the cluster in {tmp_path}: 1 Client Manager, 1 channel with a primary and 1 backup" in started.said[0]


def test_a_node_that_is_killed_comes_back(tmp_path):
    started = up(tmp_path)
    pid = started.pid_of("mm1")
    started.until("try: alphorn send")
    os.kill(pid, signal.SIGKILL)
    started.until("mm1 was ended by SIGKILL; it is started again")
    assert started.pid_of("mm1") != pid
    assert started.stop()[0] == 0


def test_a_node_that_dies_before_the_cluster_serves_ends_it_with_the_reason(tmp_path):
    (tmp_path / "cm1.does").write_text("refuse")
    started = up(tmp_path)
    output, errors = started.process.communicate(timeout=DEADLINE_S)
    assert started.process.returncode == 1
    assert output == ""
    assert errors.splitlines()[-1].startswith(
        "alphorn: cm1 ended with exit code 1: cm1 cannot start on this disk; replace it; it died 3 times"
    )


def test_a_cluster_that_serves_goes_on_when_a_node_is_given_up(tmp_path):
    started = up(tmp_path)
    pid = started.pid_of("mm2")
    started.until("try: alphorn send")
    (tmp_path / "mm2.does").write_text("refuse")
    os.kill(pid, signal.SIGKILL)
    started.until("mm2 .* stays down")
    assert started.process.poll() is None
    assert started.stop()[0] == 0


def test_the_second_signal_kills(tmp_path):
    (tmp_path / "mm1.does").write_text("stuck")
    started = up(tmp_path)
    started.until("try: alphorn send")
    started.process.send_signal(signal.SIGINT)
    started.until("stopping all nodes in good order")
    started.process.send_signal(signal.SIGINT)
    started.until("killing all nodes")
    _, errors = started.process.communicate(timeout=DEADLINE_S)
    assert started.process.returncode == 1
    assert errors.splitlines()[-1].startswith("alphorn: all nodes were killed")


def test_nodes_do_not_outlive_a_cluster_that_is_killed_and_the_next_one_waits_for_them(tmp_path):
    started = up(tmp_path)
    started.until("try: alphorn send")
    assert started.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    again = up(tmp_path)
    again.until("try: alphorn send")
    assert again.stop()[0] == 0


def test_a_taken_port_is_an_error_that_names_it(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", PORT + 41))
        other.listen()
        started = up(tmp_path)
        _, errors = started.process.communicate(timeout=DEADLINE_S)
    assert started.process.returncode == 1
    assert errors.splitlines()[-1] == (
        f"alphorn: taken by another program: 127.0.0.1:{PORT + 41} (link of mm2); "
        "end that program, or choose another --base-port"
    )


def test_a_single_server_with_a_taken_port_names_its_own_option_and_may_take_another(tmp_path, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", PORT))
        other.listen()
        assert run("single", "--dir", str(tmp_path), "--port", str(PORT)) == 1
    assert capsys.readouterr().err.endswith("(clients of cm1); end that program, or choose another --port\n")
    assert not (tmp_path / "cluster.toml").exists()


def test_a_second_cluster_in_a_directory_is_refused(tmp_path):
    started = up(tmp_path)
    started.until("try: alphorn send")
    second = up(tmp_path)
    _, errors = second.process.communicate(timeout=DEADLINE_S)
    assert second.process.returncode == 1
    assert f"runs already, by process {started.process.pid}" in errors
    assert started.stop()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--gateways", "1"], "gateways are not there yet; leave --gateways out"),
        (["--transport", "relay"], "the relay transport is not there yet"),
        (["--console"], "the console is not there yet"),
        (["--client-managers", "0"], "1 to 20 Client Managers"),
        (["--base-port", "70000"], "the base port is 1 to"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path, capsys, arguments, reason):
    assert run("up", "--dir", str(tmp_path / "data"), *arguments) == 1
    captured = capsys.readouterr()
    assert reason in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.requirement("API-22")
def test_a_single_server_is_one_process_and_continues(tmp_path):
    for _ in range(2):
        started = Started("single", "--dir", str(tmp_path), "--port", str(PORT))
        started.until("try: alphorn send")
        code, output = started.stop()
        assert (code, output) == (0, f"ready alphorn://127.0.0.1:{PORT}\n")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["cm1", "mm1", "ms1"]
    assert (tmp_path / "mm1" / "starts").read_text().split() == ["founding", "continuing"]


def test_a_single_server_that_falls_silent_says_why(tmp_path):
    (tmp_path / "mm1.does").write_text("fall")
    started = Started("single", "--dir", str(tmp_path), "--port", str(PORT))
    _, errors = started.process.communicate(timeout=DEADLINE_S)
    assert started.process.returncode == 1
    assert errors.splitlines()[-1].startswith("alphorn: node mm1 cannot go on: fsync failed; see ")


def test_a_cluster_of_several_nodes_is_not_run_as_one(tmp_path, capsys):
    started = up(tmp_path)
    started.until("try: alphorn send")
    started.stop()
    assert run("single", "--dir", str(tmp_path)) == 1
    assert f"run it with `alphorn up --dir {tmp_path}`" in capsys.readouterr().err


def test_a_node_without_a_cluster_file_is_one_sentence(tmp_path, capsys):
    assert run("node", "--config", str(tmp_path / "none.toml"), "--name", "mm1") == 1
    assert capsys.readouterr().err == (
        f"alphorn: the cluster file {tmp_path / 'none.toml'} cannot be read: "
        "No such file or directory; check the path\n"
    )
