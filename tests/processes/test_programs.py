"""Programs that have joined a real cluster, and commands that operators hang on its events, while nodes are killed."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import alphorn
import alphorn.testing
from alphorn.testing.clusters import Cluster
from tests.cluster.serving import PATIENCE_S, Heard, is_about

pytestmark = pytest.mark.processes

ALPHORN = str(Path(sys.executable).parent / "alphorn")
PROGRAM = """
import sys, threading
import alphorn

def work(event):
    print(event.kind, event.node, flush=True)
    threading.Event().wait()

process = alphorn.cluster.join(sys.argv[1], name=sys.argv[2])
process.events.on(sys.argv[3], work, once_per="cluster")
process.on_message(lambda message: print(message.sender, message.body, flush=True))
print("joined", flush=True)
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with alphorn.testing.cluster(client_managers=2) as made:
        yield made


class Program:
    """A program with a process of its own, which does one kind of work for the cluster and never ends it."""

    def __init__(self, url: str, name: str, kind: str = "destination_created") -> None:
        command = [sys.executable, "-c", PROGRAM, url, name, kind]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.line() == "joined"

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def line(self) -> str:
        """The next that it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends it, and nothing of it is left."""
        with self._process:
            self.kill()

    @property
    def output(self) -> Any:
        return self._process.stdout


def create(running: Cluster, name: str) -> None:
    with running.connect() as connection:
        connection.destinations.create(name)


@pytest.mark.requirement("CCM-1", "CCM-2", "CCM-4", "CCM-6", "CCM-7")
def test_a_node_that_is_killed_calls_a_function_in_every_program_and_one_once_in_the_cluster(running: Cluster) -> None:
    every, once = [Heard(), Heard(), Heard()], Heard()
    programs = [alphorn.cluster.join(running.url, name=f"watcher-{number}") for number in range(3)]
    for program, heard in zip(programs, every, strict=True):
        program.events.on("node_down", heard)
        program.events.on("node_down", once, once_per="cluster")
        program.events.on("node_up", heard)
    running.wait_in_sync()
    running.kill("mm2")
    for heard in every:
        assert heard.until(is_about("node_down", "mm2")).details["kind"] == "message_manager"
    assert once.next().node == "mm2"
    running.restart("mm2")
    for heard in every:
        heard.until(is_about("node_up", "mm2"))
    assert once.is_empty
    for program in programs:
        program.close()


def test_a_program_that_is_started_again_at_once_has_gone_and_come(running: Cluster) -> None:
    heard = Heard()
    with alphorn.cluster.join(running.url, name="watcher") as watcher:
        watcher.events.on("node_down", heard)
        watcher.events.on("node_up", heard)
        with Program(running.url, "worker"):
            assert heard.until(lambda event: event.node == "worker").kind == "node_up"
        with Program(running.url, "worker"):
            assert [heard.next().kind for _ in range(2)] == ["node_down", "node_up"]


@pytest.mark.requirement("CCM-7")
def test_what_a_killed_program_was_doing_for_the_cluster_another_one_does(running: Cluster) -> None:
    with Program(running.url, "doer-1") as one, Program(running.url, "doer-2") as two:
        create(running, "queue:to-be-done")
        ready, _, _ = select.select([one.output, two.output], [], [], PATIENCE_S)
        first, second = (one, two) if one.output in ready else (two, one)
        said = first.line()
        assert said.startswith("destination_created")
        first.kill()
        assert second.line() == said


@pytest.mark.requirement("CCM-3", "CCM-5", "CCM-8", "CCM-9", "CCM-10")
def test_what_programs_tell_each_other_arrives_once_while_a_message_server_is_killed(running: Cluster) -> None:
    count, lost = 60, running.beside("ms1")
    heard, others = Heard(), Heard()
    with (
        alphorn.cluster.join(running.url, name="teller") as teller,
        alphorn.cluster.join(running.url, name="listener") as listener,
        alphorn.cluster.join(running.url, name="bystander") as bystander,
    ):
        listener.on_message(heard)
        bystander.on_message(others)
        for number in range(count):
            if number == count // 3:
                running.kill("ms1")
            if number == 2 * count // 3:
                running.restart("ms1")
            teller.tell("listener", number, timeout=PATIENCE_S)
            teller.tell_others({"number": number}, timeout=PATIENCE_S)
        bodies = [heard.next().body for _ in range(2 * count)]
        assert [body for body in bodies if isinstance(body, int)] == list(range(count))
        assert [body["number"] for body in bodies if isinstance(body, dict)] == list(range(count))
        assert [others.next().body["number"] for _ in range(count)] == list(range(count))
    assert "ms1" in lost
    running.wait()


@pytest.mark.requirement("CCM-7")
def test_a_command_hung_on_events_runs_when_a_node_is_killed(running: Cluster, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ncat > {tmp_path}/$ALPHORN_EVENT_NODE\necho ran for $ALPHORN_EVENT_NODE\n")
    hook.chmod(0o755)
    running.wait_in_sync()
    command = [ALPHORN, "events", "-f", "--kind", "node_down", "--exec", str(hook), "--url", running.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        output: Any = following.stdout
        listens = select.poll()
        listens.register(output.fileno(), select.POLLIN)
        while not listens.poll(0):  # until it shows something that happens
            alphorn.cluster.join(running.url, name="looker").close()
        running.kill("mm2")
        while output.readline() != "ran for mm2\n":
            pass
        following.send_signal(signal.SIGINT)
        assert following.wait(PATIENCE_S) == 0
    event = json.loads((tmp_path / "mm2").read_text())
    assert (event["kind"], event["node"]) == ("node_down", "mm2")
    running.restart("mm2")


@pytest.mark.requirement("CCM-8", "CCM-9")
def test_a_node_has_what_the_command_says_that_it_has(running: Cluster) -> None:
    text = "somebody was here"
    said = subprocess.run(
        [ALPHORN, "tell", "cm2", text], env=os.environ | {"ALPHORN_URL": running.url}, capture_output=True, check=True
    )
    assert said.stdout == b"cm2 has it\n"
    with running.connect() as connection:
        consumer = connection.session().consumer("topic:_LOG", start="earliest")
        while text not in str(consumer.receive(timeout=PATIENCE_S).body):  # type: ignore[union-attr]
            pass


def test_the_name_of_a_node_that_is_down_is_kept_for_it(running: Cluster) -> None:
    running.wait_in_sync()
    running.kill("mm2")
    with pytest.raises(alphorn.Misuse, match="mm2 is a message manager of this cluster; join under another name"):
        alphorn.cluster.join(running.url, name="mm2")
    running.restart("mm2")


def test_status_shows_programs(running: Cluster) -> None:
    with Program(running.url, "shown"):
        rows = {row["name"]: row["kind"] for row in running.status()["nodes"]}
    assert rows["shown"] == "program"
    assert rows["ms1"] == "message_server"
