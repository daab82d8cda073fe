"""Processes with fake nodes in them: founding, stopping, failing, sharing a process, ending with a parent."""

import json
import os
import signal
import subprocess

import pytest

from alphorn.io.cluster_file import read_cluster_file
from alphorn.io.local_cluster import FILE_NAME, LocalShape, lay_out, write_cluster_file
from alphorn.node.main import KINDS, find_kind, main
from tests.node.fake_nodes import fake_command, find_fake

pytestmark = pytest.mark.processes

DEADLINE_S = 60
HOST = f"127.{os.getpid() % 200 + 1}.7.10"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / FILE_NAME
    write_cluster_file(path, lay_out(tmp_path, LocalShape(client_managers=2), host=HOST))
    return path


def start(path, *names: str, without: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    command = [part for part in fake_command(path, names[0]) if part not in without]
    for name in names[1:]:
        command += ["--name", name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def say(process: subprocess.Popen[bytes], word: str) -> dict[str, object]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(word.encode() + b"\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def until_started(process: subprocess.Popen[bytes]) -> list[str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    return json.loads(line)["names"]


def stop(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> tuple[int, bytes]:
    process.send_signal(number)
    _, errors = process.communicate(timeout=DEADLINE_S)
    return process.returncode, errors


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Waits for a process that ends by itself; its input stays open until then."""
    code = process.wait(DEADLINE_S)
    return code, *process.communicate()


def run_once(path, name: str) -> None:
    process = start(path, name)
    until_started(process)
    assert stop(process)[0] == 0


def starts(path, name: str) -> list[str]:
    return (path.parent / name / "starts").read_text().split()


def log_of(path, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (path.parent / name / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_node_in_good_order(path, number):
    process = start(path, "mm1")
    assert until_started(process) == ["mm1"]
    assert stop(process, number) == (0, b"")
    assert (path.parent / "stops").read_text() == "mm1\n"
    assert [line["event"] for line in log_of(path, "mm1")] == ["node_started", "node_stopped"]


def test_a_node_ends_with_the_program_that_started_it(path):
    process = start(path, "mm1")
    until_started(process)
    process.communicate(timeout=DEADLINE_S)  # closes its input
    assert process.returncode == 0
    assert (path.parent / "stops").read_text() == "mm1\n"


def test_a_node_is_founded_once(path):
    run_once(path, "mm1")
    run_once(path, "mm1")
    assert starts(path, "mm1") == ["founding", "continuing"]


def test_a_node_that_lost_its_disk_is_not_founded_again(path):
    run_once(path, "mm1")
    for file in (path.parent / "mm1").iterdir():
        file.unlink()
    run_once(path, "mm1")
    assert starts(path, "mm1") == ["continuing"]
    assert log_of(path, "mm1")[0]["event"] == "disk_lost"


def test_a_node_that_could_not_start_is_founded_at_the_next_start(path):
    (path.parent / "mm1.does").write_text("refuse")
    process = start(path, "mm1")
    assert ended(process)[0] == 1
    (path.parent / "mm1.does").unlink()
    run_once(path, "mm1")
    assert starts(path, "mm1") == ["founding", "founding"]


def test_nobody_is_founded_without_being_told_to(path):
    process = start(path, "mm1", without=("--found",))
    until_started(process)
    assert stop(process)[0] == 0
    assert starts(path, "mm1") == ["continuing"]


def test_a_client_manager_is_founded_only_with_a_witness(path):
    run_once(path, "cm1")
    run_once(path, "cm2")
    assert starts(path, "cm1") == ["founding"]
    assert starts(path, "cm2") == ["continuing"]


def test_a_node_that_cannot_start_says_why_in_one_sentence(path):
    (path.parent / "mm1.does").write_text("refuse")
    process = start(path, "mm1")
    code, output, errors = ended(process)
    assert code == 1
    assert errors == b"alphorn: mm1 cannot start on this disk; replace it\n"
    assert json.loads(output) == {"type": "node_failed", "reason": "mm1 cannot start on this disk; replace it"}
    assert log_of(path, "mm1")[-1]["reason"] == "mm1 cannot start on this disk; replace it"


def test_a_node_that_falls_silent_ends_its_process(path):
    (path.parent / "mm1.does").write_text("fall")
    process = start(path, "mm1")
    code, _, errors = ended(process)
    assert code == 1
    assert errors.startswith(b"alphorn: node mm1 cannot go on: fsync failed; see ")
    assert errors.count(b"\n") == 1
    assert (path.parent / "stops").read_text() == "mm1\n"


def test_a_node_that_hangs_at_its_start_can_be_stopped(path):
    (path.parent / "mm1.does").write_text("hang")
    process = start(path, "mm1", "mm2")
    state = say(process, '{"type":"node_describe"}')  # answered although no node runs yet
    assert state["type"] == "node_described"
    assert stop(process)[0] == 0
    assert not (path.parent / "mm1.founded").exists()


def test_a_second_process_of_a_node_is_refused(path):
    process = start(path, "mm1")
    until_started(process)
    second = start(path, "mm1")
    code, _, errors = ended(second)
    assert code == 1
    assert f"mm1 runs already in {path.parent / 'mm1'}, as process {process.pid}".encode() in errors
    assert stop(process)[0] == 0


@pytest.mark.requirement("MM-15")
def test_several_nodes_share_a_process_and_stop_client_managers_first(path):
    process = start(path, "mm1", "cm1", "mm2")
    assert until_started(process) == ["mm1", "ms1", "cm1", "mm2"]
    state = say(process, '{"type":"node_describe"}')["state"]
    assert isinstance(state, dict)
    assert [state[name]["name"] for name in ("mm1", "mm2", "cm1")] == ["mm1", "mm2", "cm1"]
    assert stop(process)[0] == 0
    assert (path.parent / "stops").read_text().split() == ["cm1", "mm1", "mm2", "ms1"]
    for name in ("mm1", "mm2", "cm1", "ms1"):
        assert {line["node"] for line in log_of(path, name)} == {name}


@pytest.mark.parametrize("name", ["mm1", "cm1"])
def test_to_name_one_node_of_a_process_starts_all_of_it_and_client_managers_last(tmp_path, name):
    path = tmp_path / FILE_NAME
    write_cluster_file(path, lay_out(tmp_path, LocalShape(together=True), host=HOST))
    process = start(path, name)
    assert until_started(process) == ["ms1", "mm1", "cm1"]
    assert stop(process) == (0, b"")
    assert (tmp_path / "stops").read_text() == "cm1\nmm1\nms1\n"


def test_a_taken_port_is_one_sentence(path):
    first = start(path, "cm1")
    until_started(first)
    text = path.read_text().replace(":7700", ":7702").replace(":7701", ":7700")
    path.with_name("other.toml").write_text(text)
    second = start(path.with_name("other.toml"), "cm2")
    code, _, errors = ended(second)
    assert code == 1
    assert errors.startswith(b"alphorn: node cm2 cannot start: ")
    assert errors.count(b"\n") == 1
    assert stop(first)[0] == 0


def test_two_equal_ranks_are_refused_at_the_founding_and_never_after_it(path):
    text = path.read_text()
    path.write_text(text.replace("rank = 2", "rank = 1"))
    code, _, errors = ended(start(path, "mm1"))
    assert code == 1
    assert b"mm1 and mm2 of channel channel-1 have both rank 1" in errors
    path.write_text(text)
    run_once(path, "mm1")
    path.write_text(text.replace("rank = 2", "rank = 1"))
    run_once(path, "mm1")
    assert starts(path, "mm1") == ["founding", "continuing"]


def test_an_unknown_name_is_one_sentence(path, capsys):
    assert main(["--config", str(path), "--name", "mm9"], find=find_fake) == 1
    assert capsys.readouterr().err == (
        f"alphorn: the cluster {path.parent.name} has no node named 'mm9'; it has mm1, mm2, cm1, cm2, ms1, ms2\n"
    )


def test_a_message_server_that_cannot_go_on_begins_anew_and_takes_nobody_along(path):
    (path.parent / "ms1.does").write_text("fall")
    process = start(path, "cm1")
    assert until_started(process) == ["ms1", "cm1"]
    while not (failed := [line for line in log_of(path, "ms1") if line["event"] == "node_failed"]):
        assert process.poll() is None
    (path.parent / "ms1.does").unlink()
    while len(starts(path, "ms1")) < 2:
        assert process.poll() is None
    assert failed[0]["reason"] == "fsync failed"
    state = say(process, '{"type":"node_describe"}')["state"]
    assert isinstance(state, dict)
    assert state["cm1"]["name"] == "cm1"
    assert stop(process)[0] == 0


def test_a_log_may_go_to_standard_error(path):
    path.write_text(path.read_text().replace("directory =", 'log = ["standard_error"]\ndirectory ='))
    assert read_cluster_file(path).log == ("standard_error",)
    process = start(path, "mm1")
    until_started(process)
    code, errors = stop(process)
    assert code == 0
    assert [json.loads(line)["event"] for line in errors.splitlines()] == ["node_started", "node_stopped"]
    assert not (path.parent / "mm1" / "log.jsonl").exists()


def test_python_without_assertions_is_refused(path):
    command = fake_command(path, "mm1")
    command[1:1] = ["-O"]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=DEADLINE_S)
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"alphorn: Python runs with -O")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_node_is_there(kind):
    assert find_kind(kind).__name__ == KINDS[kind].partition(":")[2]
