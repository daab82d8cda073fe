"""Nodes whose clocks are hours apart: the order of log lines shows it, and hardly anything else."""

import datetime
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import alphorn
from alphorn.cluster import Event
from alphorn.io.cluster_file import read_cluster_file
from alphorn.io.local_cluster import FILE_NAME, LocalShape, write_cluster_file
from alphorn.io.supervisor import Supervisor, node_command
from alphorn.testing.clusters import Cluster, _lay_out_free
from tests.semantics.waiting import WAIT_S, bodies, send, take, until

pytestmark = pytest.mark.processes

HOUR_S = 3600.0
SKEWS_S = {"mm1": HOUR_S, "mm2": -HOUR_S, "cm1": 0.0, "ms1": 0.0, "cm2": HOUR_S / 2, "ms2": HOUR_S / 2}


def skewed_command(path: Path, name: str) -> list[str]:
    """As `node_command`."""
    python, _, _, *arguments = node_command(path, name)
    return [python, str(Path(__file__).with_name("skewed_node.py")), str(SKEWS_S[name]), *arguments]


class Skewed(Cluster):
    """A cluster whose nodes have wrong clocks."""

    async def _make(self, path: Path) -> Supervisor:
        return Supervisor(path, self._file, say=lambda sentence: None, restarts=False, command=skewed_command)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    path = tmp_path / FILE_NAME
    write_cluster_file(path, _lay_out_free(tmp_path, LocalShape(client_managers=2)))
    cluster = Skewed(path, read_cluster_file(path))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def last_time(running: Cluster, name: str) -> datetime.datetime:
    line = (running.directory / name / "log.jsonl").read_text().splitlines()[-1]
    return datetime.datetime.fromisoformat(json.loads(line)["time"])


def test_with_clocks_hours_apart_nothing_is_lost_or_told_twice_whoever_is_primary(running: Cluster) -> None:
    """But for times to live and delays, which are by the sender's clock and end by the primary's."""
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
