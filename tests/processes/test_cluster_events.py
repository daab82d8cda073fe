"""Events of a cluster of real processes: told once, whoever notices them and whoever dies, and nobody needs them."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import alphorn
import alphorn.testing
from alphorn.cluster import Event, WorkProcess
from alphorn.model.errors import Unavailable
from alphorn.testing.clusters import Cluster
from tests.processes.test_links import Watch, sockets_of
from tests.semantics.waiting import WAIT_S, bodies, send, take, until

pytestmark = pytest.mark.processes

SERVERS = {"ms1": "cm1", "ms2": "cm2"}  # and in whose processes they are


class Heard:
    """What a program has been told, from when it joined on."""

    def __init__(self, process: WorkProcess) -> None:
        self.process = process
        self.events: list[Event] = []
        self._came = threading.Condition()
        process.events.on("*", self._on_event)

    def _on_event(self, event: Event) -> None:
        with self._came:
            self.events.append(event)
            self._came.notify_all()

    def until(self, kind: str, **fields: object) -> Event:
        """Waits for such an event, which may have come already; the latest of them."""

        def matching() -> list[Event]:
            return [it for it in self.events if it.kind == kind and fields.items() <= it.as_dict().items()]

        with self._came:
            assert self._came.wait_for(matching, WAIT_S), f"no {kind} of {fields} in {self.events}"
            return matching()[-1]

    def repeated(self) -> dict[tuple[object, ...], int]:
        """Names of events that were told more than once."""
        return {name: count for name, count in Counter(event.name for event in self.events).items() if count > 1}


def url_of(running: Cluster, name: str) -> str:
    [address] = [node["address"] for node in running.status()["nodes"] if node["name"] == name]
    return f"alphorn://{address}"


def servers_of(running: Cluster) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in running.status()["nodes"] if node["kind"] == "message_server"}


def until_all_are_joined(running: Cluster, *, programs: int = 1) -> None:
    wanted = len(running.nodes) + programs
    until(lambda: [row.get("connections") for row in servers_of(running).values()] == [wanted] * len(SERVERS))


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """The third Client Manager has no message server beside it."""
    with alphorn.testing.cluster(client_managers=3, channels=2) as made:
        yield made


@pytest.fixture(scope="module")
def third(running: Cluster) -> str:
    return url_of(running, "cm3")


@pytest.fixture
def heard(running: Cluster, third: str) -> Iterator[Heard]:
    """Through the third, and joined with everybody else."""
    running.wait_in_sync()
    with alphorn.cluster.join(third, name="watcher", connect_timeout=WAIT_S) as process:
        heard = Heard(process)
        until_all_are_joined(running)
        yield heard


def create(url: str, heard: Heard, name: str) -> Event:
    """What is told of something that happens now."""
    with alphorn.connect(url, connect_timeout=WAIT_S) as connection:
        connection.destinations.create(name)
    return heard.until("destination_created", destination=name)


@pytest.mark.requirement("CCM-1", "CCM-3", "CCM-8")
def test_every_node_is_a_work_process_and_message_servers_are_seen_with_them(running: Cluster, heard: Heard) -> None:
    rows = {node["name"]: node for node in running.status()["nodes"]}
    assert rows["watcher"]["kind"] == "program"
    assert sorted(rows) == sorted([*running.nodes, "watcher"])
    assert heard.process.others() == sorted(running.nodes)
    for name, host in SERVERS.items():
        assert rows[name]["pid"] == rows[host]["pid"] == running.nodes[host]
        assert rows[name]["connections"] == len(rows)
    assert sorted(rows[name]["role"] for name in SERVERS) == ["active", "standby"]


@pytest.mark.requirement("CCM-4", "CCM-6", "CCM-7")
def test_what_every_replica_notices_is_told_once(running: Cluster, third: str, heard: Heard) -> None:
    created = create(third, heard, "queue:noticed")
    other = {"channel-1": "channel-2", "channel-2": "channel-1"}[created.channel]
    with alphorn.connect(third) as connection:
        connection.destinations.move("queue:noticed", other)
        moved = heard.until("destination_moved", destination="queue:noticed")
        connection.destinations.delete("queue:noticed")
    deleted = heard.until("destination_deleted", destination="queue:noticed")
    assert (moved.channel, deleted.channel) == (other, other)
    assert 0 < moved.number < deleted.number
    create(third, heard, "queue:after")  # what was told before it has come
    kinds = [event.kind for event in heard.events if event.details.get("destination") == "queue:noticed"]
    assert kinds == ["destination_created", "destination_moved", "destination_deleted"]


@pytest.mark.requirement("CCM-4", "CCM-6")
def test_a_takeover_is_told_once_though_all_notice_it_and_who_reported_it_dies(
    running: Cluster, third: str, heard: Heard
) -> None:
    first = running.primary("channel-1")
    [second] = {"mm1", "mm2"} - {first}
    running.kill(first)
    change = heard.until("primary_changed", channel="channel-1")
    assert change.node == second
    running.kill(second)
    heard.until("channel_lost", channel="channel-1")
    assert heard.until("channel_lost").epoch == change.epoch
    for name in (first, second):
        heard.until("node_down", node=name)
    running.start_together([first, second])
    again = heard.until("primary_changed", channel="channel-1", node=running.primary("channel-1"))
    assert again.epoch > change.epoch
    create(third, heard, "queue:after a takeover")
    assert heard.repeated() == {}
    told = [event.epoch for event in heard.process.events.recent(1_000) if event.kind == "primary_changed"]
    assert told.count(change.epoch) == told.count(again.epoch) == 1
    assert {"primary_changed", "channel_lost", "node_down"} <= logged_kinds(third)


def logged_kinds(url: str) -> set[str]:
    """The kinds of events on `_LOG` by now, as far as these that are there before a mark."""
    with alphorn.connect(url) as connection:
        consumer = connection.session().consumer("topic:_LOG", start="earliest")
        kinds: set[str] = set()
        while not {"primary_changed", "channel_lost", "node_down"} <= kinds:
            message = consumer.receive(WAIT_S)
            assert message is not None, f"only {sorted(kinds)} are on _LOG"
            line = json.loads(message.body)
            if line["event"] == "cluster_event":
                kinds.add(line["kind"])
        return kinds


@pytest.mark.requirement("CCM-3", "CCM-4")
@pytest.mark.parametrize("server", SERVERS)
def test_when_one_message_server_dies_events_are_told_by_the_other(
    running: Cluster, third: str, heard: Heard, server: str
) -> None:
    host = SERVERS[server]
    running.kill(host)
    create(third, heard, f"queue:without {server}")
    for name in (server, host):
        assert heard.until("node_down", node=name).details["reason"] == "away"
    running.restart(host)
    until_all_are_joined(running)
    create(third, heard, f"queue:with {server}")
    assert heard.repeated() == {}
    assert {event.node for event in heard.events if event.kind == "node_down"} == {server, host}


@pytest.mark.requirement("CCM-2", "CCM-3")
def test_without_any_message_server_nobody_else_notices_and_all_join_again(
    running: Cluster, third: str, heard: Heard
) -> None:
    before = epochs(running)
    with alphorn.connect(third) as connection:
        session = connection.session()
        consumer = session.consumer("queue:unharmed")
        running.kill_together(list(SERVERS.values()))
        with pytest.raises(Unavailable, match="no message server"):
            heard.process.tell("mm1", "?", timeout=WAIT_S)
        send(session, "queue:unharmed", [str(number) for number in range(200)])
        assert bodies(take(consumer, 200)) == [str(number) for number in range(200)]
        connection.destinations.create("queue:made without them")
        assert {row["role"] for row in servers_of(running).values()} == {"unreachable"}
    assert epochs(running) == before, "no Message Manager was suspected"
    running.start_together(list(SERVERS.values()))
    until_all_are_joined(running)
    create(third, heard, "queue:with both again")
    heard.process.tell("mm1", "welcome back", timeout=WAIT_S)
    assert heard.repeated() == {}


def epochs(running: Cluster) -> dict[str, int]:
    return {channel["name"]: channel["epoch"] for channel in running.status()["channels"]}


def multicast_of(pid: int) -> set[str]:
    """The multicast addresses that a process hears."""
    inodes = set(sockets_of(pid))
    lines = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    return {line[1] for line in lines if line[9] in inodes and 224 <= int(line[1][6:8], 16) < 240}


@pytest.mark.requirement("MM-18")
def test_message_managers_have_no_connection_with_those_of_another_channel(running: Cluster, third: str) -> None:
    groups = {node["name"]: node["channel"] for node in running.status()["nodes"] if node["kind"] == "message_manager"}
    watch = Watch(running)
    watch.start()
    with alphorn.connect(third) as connection:
        for number, channel in enumerate(["channel-1", "channel-2"] * 3):
            send(connection.session(), "queue:to and fro", [str(number)])
            connection.destinations.move("queue:to and fro", channel)
        assert len(take(connection.session().consumer("queue:to and fro"), 6)) == 6
    backup = next(name for name in groups if name != running.primary(groups[name]))
    running.restart(backup)
    running.wait_in_sync()
    watch.finish()
    heard = {name: multicast_of(running.nodes[name]) for name in groups}
    assert all(heard.values())
    for one, other in combinations(groups, 2):
        assert bool(heard[one] & heard[other]) is (groups[one] == groups[other]), (one, other)
    pairs = [pair for pair in watch.seen | watch.internal if pair <= groups.keys() and len(pair) == 2]
    assert {len({groups[name] for name in pair}) for pair in pairs} <= {1}
