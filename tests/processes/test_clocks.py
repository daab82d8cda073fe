"""Nodes whose clocks are hours apart: the order of log lines shows it, and nothing else."""

import datetime
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import alphorn
from alphorn.cluster import Event
from alphorn.io.cluster_file import read_cluster_file
from alphorn.io.local_cluster import FILE_NAME, LocalShape, write_cluster_file
from alphorn.io.supervisor import Supervisor, node_command
from alphorn.testing.clusters import Cluster, _lay_out_free
from tests.semantics.waiting import WAIT_S, bodies, is_quiet, send, take, until

pytestmark = pytest.mark.processes

HOUR_S = 3600.0
SKEWS_S = {"mm1": HOUR_S, "mm2": -HOUR_S, "cm1": 0.0, "ms1": 0.0, "cm2": HOUR_S / 2, "ms2": HOUR_S / 2}


def skewed_command(sign: int, path: Path, name: str) -> list[str]:
    """As `node_command`."""
    python, _, _, *arguments = node_command(path, name)
    return [python, str(Path(__file__).with_name("skewed_node.py")), str(sign * SKEWS_S[name]), *arguments]


class Skewed(Cluster):
    """A cluster whose nodes have wrong clocks."""

    def __init__(self, path: Path, sign: int) -> None:
        self._sign = sign
        super().__init__(path, read_cluster_file(path))

    async def _make(self, path: Path) -> Supervisor:
        command = partial(skewed_command, self._sign)
        return Supervisor(path, self._file, say=lambda sentence: None, restarts=False, command=command)


@pytest.fixture
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    path = tmp_path / FILE_NAME
    write_cluster_file(path, _lay_out_free(tmp_path, LocalShape(client_managers=2)))
    cluster = Skewed(path, getattr(request, "param", 1))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def last_time(running: Cluster, name: str) -> datetime.datetime:
    line = (running.directory / name / "log.jsonl").read_text().splitlines()[-1]
    return datetime.datetime.fromisoformat(json.loads(line)["time"])


@pytest.mark.requirement("LOG-4")
def test_with_clocks_hours_apart_nothing_is_lost_or_told_twice_whoever_is_primary(running: Cluster) -> None:
    running.make_primary("mm1")
    events: list[Event] = []
    with (
        alphorn.cluster.join(running.url, name="watcher", connect_timeout=WAIT_S) as process,
        alphorn.connect(running.url, connect_timeout=WAIT_S) as connection,
    ):
        process.events.on("*", events.append)
        until(lambda: process.others() == sorted(running.nodes))
        assert last_time(running, "mm1") - last_time(running, "mm2") > datetime.timedelta(hours=1.5)
        session = connection.session()
        consumer = session.consumer("queue:order")
        send(session, "queue:order", ["1", "2"])
        running.kill("mm1")
        send(session, "queue:order", ["3"])
        process.tell("cm2", "later", timeout=WAIT_S)
        running.restart("mm1")
        running.make_primary("mm1")
        send(session, "queue:order", ["4"])
        assert bodies(take(consumer, 4)) == ["1", "2", "3", "4"]
        connection.destinations.create("queue:after")
        until(lambda: any(event.details.get("destination") == "queue:after" for event in events))
    told = Counter((event.kind, event.node) for event in events)
    assert told["primary_changed", "mm2"] == told["primary_changed", "mm1"] == 1
    assert set(Counter(event.name for event in events).values()) == {1}


@pytest.mark.parametrize("running", [1, -1], indirect=True, ids=["primary ahead", "primary behind"])
@pytest.mark.requirement("LOG-4")
def test_times_to_live_and_delays_are_as_long_as_they_should_be_whoever_is_primary(running: Cluster) -> None:
    """The first primary is an hour before or after the client, and the next one two hours from that one."""
    with alphorn.connect(running.url, connect_timeout=WAIT_S) as connection:
        connection.destinations.create("queue:short", dead_letter="dead")
        session = connection.session()
        short, later, dead = (session.consumer(f"queue:{name}") for name in ("short", "later", "dead"))

        def look(turn: str) -> None:
            send(session, "queue:long", [f"lives {turn}"], ttl=1800.0)
            send(session, "queue:short", [f"expires {turn}"], ttl=0.1, delay=1800.0)
            send(session, "queue:later", [f"in half an hour {turn}"], delay=1800.0)
            send(session, "queue:later", [f"soon {turn}"], delay=0.5)
            assert bodies(take(later, 1)) == [f"soon {turn}"]
            assert bodies(take(dead, 1)) == [f"expires {turn}"]

        look("at first")
        send(session, "queue:short", ["expires under the next"], ttl=5.0, delay=1800.0)
        running.kill("mm1")
        assert bodies(take(dead, 1)) == ["expires under the next"]
        look("later")
        assert bodies(take(session.consumer("queue:long"), 2)) == ["lives at first", "lives later"]
        assert is_quiet(short)
        assert is_quiet(later)
