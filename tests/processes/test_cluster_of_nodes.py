"""Real nodes in real processes, as users run them: started, used, killed, wiped, continued."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

import alphorn
import alphorn.testing
from alphorn.io.local_cluster import END_OF_PORTS, FILE_NAME, LocalShape, lay_out, url_of, write_cluster_file
from tests.node.fake_nodes import ROOT
from tests.semantics.waiting import until

pytestmark = pytest.mark.processes

DEADLINE_S = 120
PORT = 12_000 + os.getpid() % 57 * END_OF_PORTS  # below the ports that the system gives out, and other tests' choice


def command_line(*arguments: str) -> list[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); from alphorn.cli.main import main; main()"
    return [sys.executable, "-c", code, *arguments]


class Server:
    """`alphorn up` or `alphorn single`, ready, until the block ends."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(command_line(*arguments), stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready alphorn://")
        return line.split()[1]

    def __exit__(self, *error: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        rest, _ = self._process.communicate(timeout=DEADLINE_S)
        assert (self._process.returncode, rest) == (0, "")


def call(url: str, *arguments: str) -> str:
    ended = subprocess.run(
        command_line(*arguments, "--url", url), capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    return ended.stdout


def users_destinations(status: dict) -> list[dict]:
    """All but the system's own, whose names begin with _."""
    return [found for found in status["destinations"] if ":_" not in found["name"]]


@pytest.mark.parametrize(
    ("command", "port"),
    [("up", "--base-port"), pytest.param("single", "--port", marks=pytest.mark.requirement("API-22"))],
)
def test_messages_outlive_the_server_that_took_them(tmp_path, command, port):
    with Server(command, "--dir", str(tmp_path), port, str(PORT)) as url:
        call(url, "send", "orders", "hello", "--property", "n=5")
        call(url, "send", "orders", "x", "--count", "2000")
    with Server(command, "--dir", str(tmp_path)) as url:
        assert call(url, "browse", "orders", "--count", "1") == "hello\n"
        first, *rest = call(url, "receive", "orders", "--count", "2001", "--json").splitlines()
        assert json.loads(first)["properties"] == {"n": 5}
        assert {json.loads(line)["body"] for line in rest} == {"x"}
        (found,) = users_destinations(json.loads(call(url, "status", "--json")))
        assert (found["name"], found["depth"]) == ("queue:orders", 0)


def roles(cluster: alphorn.testing.Cluster) -> dict[str, str]:
    return {node["name"]: node["role"] for node in cluster.status()["nodes"] if node["kind"] == "message_manager"}


def backup_of(cluster: alphorn.testing.Cluster) -> str:
    """The one that is not primary, when there are two."""
    primary = cluster.primary()
    (backup,) = [name for name in cluster.message_managers if name != primary]
    return backup


def until_copies(cluster: alphorn.testing.Cluster, there: int, wanted: int) -> None:
    """Waits until there are so many of what is committed, of so many as there should be; a primary tells."""
    until(
        lambda: [(each["copies"], each["copies_wanted"]) for each in cluster.status()["channels"]] == [(there, wanted)]
    )


def test_a_primary_that_is_killed_loses_nothing_and_comes_back():
    with alphorn.testing.cluster() as cluster, cluster.connect() as connection:
        session = connection.session()
        producer = session.producer("queue:orders")
        producer.send_many([str(number) for number in range(500)])
        producer.flush(timeout=DEADLINE_S)
        primary = cluster.primary()
        cluster.wait_in_sync()
        cluster.kill(primary)
        producer.send_many([str(number) for number in range(500, 1000)])
        producer.flush(timeout=DEADLINE_S)
        consumer = session.consumer("queue:orders")
        received = []
        while len(received) < 1000:
            messages = consumer.receive_many(1000, timeout=DEADLINE_S)
            assert messages, f"only {len(received)} came"
            received += [message.body for message in messages]
        assert received == [str(number) for number in range(1000)]
        assert roles(cluster)[primary] == "unreachable"
        until_copies(cluster, 1, 2)
        cluster.restart(primary)
        until_copies(cluster, 2, 2)
        until(lambda: sorted(roles(cluster).values()) == ["backup", "primary"])


def test_the_state_is_told_while_a_message_manager_is_frozen():
    with alphorn.testing.cluster() as cluster:
        backup = backup_of(cluster)
        cluster.kill(backup, signal.SIGSTOP)
        try:
            assert roles(cluster)[backup] == "unreachable"
        finally:
            cluster.kill(backup, signal.SIGCONT)


def test_a_backup_that_lost_its_disk_is_told_the_log_by_the_others():
    with alphorn.testing.cluster() as cluster, cluster.connect() as connection:
        producer = connection.session().producer("queue:orders")
        producer.send_many(["x"] * 100)
        producer.flush(timeout=DEADLINE_S)
        backup = backup_of(cluster)
        cluster.kill(backup)
        shutil.rmtree(cluster.directory / backup)
        cluster.restart(backup)
        cluster.wait()
        first = (cluster.directory / backup / "log.jsonl").read_text().splitlines()[0]
        assert json.loads(first)["event"] == "disk_lost"
        producer.send("after")
        producer.flush(timeout=DEADLINE_S)


def test_two_clusters_on_one_machine_do_not_hear_each_other():
    with alphorn.testing.cluster(backups=0) as one, alphorn.testing.cluster(backups=0) as other:
        with one.connect() as connection:
            producer = connection.session().producer("queue:only.here")
            producer.send("x")
            producer.flush(timeout=DEADLINE_S)
        assert [found["name"] for found in users_destinations(one.status())] == ["queue:only.here"]
        assert users_destinations(other.status()) == []


@pytest.mark.requirement("MM-15")
def test_several_message_managers_share_a_process(tmp_path):
    file = lay_out(tmp_path, LocalShape(backups=1, base_port=PORT))
    write_cluster_file(tmp_path / FILE_NAME, file)
    arguments = ["node", "--config", str(tmp_path / FILE_NAME), "--found"]
    for name in ("mm1", "mm2", "cm1"):
        arguments += ["--name", name]
    with subprocess.Popen(command_line(*arguments), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("alphorn: mm1 runs, pid ")
        with alphorn.connect(url_of(file), connect_timeout=DEADLINE_S) as connection:
            producer = connection.session().producer("queue:orders")
            producer.send("x")
            producer.flush(timeout=DEADLINE_S)
            # The backup is about to be linked.
            until(lambda: [node["pid"] for node in connection.status()["nodes"]] == [process.pid] * 5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def test_up_says_what_happens_in_the_cluster(tmp_path):
    arguments = ("up", "--dir", str(tmp_path), "--base-port", str(PORT))
    with subprocess.Popen(command_line(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        assert up.stderr is not None
        with alphorn.connect(up.stdout.readline().split()[1], connect_timeout=DEADLINE_S) as connection:

            def rows(kind: str) -> list[dict]:
                return [node for node in connection.status()["nodes"] if node["kind"] == kind]

            nodes = len(connection.status()["nodes"])
            until(lambda: [row.get("connections") for row in rows("message_server")] == [nodes + 1] * 2)
            assert len(connection.status()["nodes"]) == nodes, "whoever only looks is not counted"
            primary = next(row for row in rows("message_manager") if row["role"] == "primary")
            os.kill(primary["pid"], signal.SIGKILL)
            backup = {"mm1": "mm2", "mm2": "mm1"}[primary["name"]]
            said = f"alphorn: {backup} is primary of channel-1 now\n"
            assert said in iter(up.stderr.readline, "")
        up.send_signal(signal.SIGTERM)
        output, errors = up.communicate(timeout=DEADLINE_S)
    assert (up.returncode, output) == (0, "")
    assert said not in errors
