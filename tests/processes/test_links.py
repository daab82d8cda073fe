"""Which processes of a cluster speak to each other, as the kernel shows it."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import alphorn
import alphorn.testing
from alphorn.io.cluster_file import read_cluster_file
from alphorn.io.local_cluster import FILE_NAME
from alphorn.testing.clusters import Cluster
from alphorn.testing.spreading import spread
from alphorn.testing.traffic import Shape, Traffic
from tests.semantics.waiting import WAIT_S, bodies, send, take

pytestmark = pytest.mark.processes

ESTABLISHED = "01"
LOOK_S = 0.02

Pairs = set[frozenset[str]]


def sockets_of(pid: int) -> Iterator[str]:
    """The inodes of a process's sockets."""
    with suppress(OSError):  # it has ended
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it was closed
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]


def joined(running: Cluster, *, internal: bool = False) -> Pairs:
    """The nodes that have a connection with each other now: an internal one, or another. One name for each process."""
    file = read_cluster_file(running.directory / FILE_NAME)
    ports = {f":{int(server.internal.rpartition(':')[2]):04X}" for server in file.message_servers}
    node_of = {inode: name for name, pid in running.nodes.items() if pid for inode in sockets_of(pid)}
    ends: dict[tuple[str, str], str] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        is_internal = local[-5:] in ports or remote[-5:] in ports
        if state == ESTABLISHED and inode in node_of and is_internal is internal:
            ends[local, remote] = node_of[inode]
    return {frozenset((name, ends[there, here])) for (here, there), name in ends.items() if (there, here) in ends}


class Watch(threading.Thread):
    """Looks again and again, and remembers who was joined with whom."""

    def __init__(self, running: Cluster) -> None:
        super().__init__(daemon=True)
        self._running, self._is_over = running, threading.Event()
        self.seen: Pairs = set()
        self.internal: Pairs = set()

    def run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        self.seen |= joined(self._running)
        self.internal |= joined(self._running, internal=True)

    def finish(self) -> None:
        self._is_over.set()
        self.join()
        self._look()


@pytest.mark.requirement("CCM-2", "CM-27")
def test_client_managers_have_no_connection_with_each_other_whatever_their_clients_do():
    """Everything for which two Client Managers would have something to say to each other."""
    with alphorn.testing.cluster(client_managers=3, channels=2, backups=0) as running:
        watch, traffic = Watch(running), Traffic(running.url, Shape(per_s=50.0))
        watch.start()
        traffic.start()
        hosts = running.url.partition("://")[2].split(",")
        one, two, three = (alphorn.connect(f"alphorn://{host}", client_id=host) for host in hosts)
        with one, two, three:
            pass_messages(one, two)
            share_patterns(one, three)
            commit_over_channels(two, three)
            one.destinations.move("queue:traffic.queue.1", "channel-2")
            two.destinations.move("queue:traffic.queue.1", "channel-1")
            assert len(three.status()["nodes"]) == 7
        take_over_subscription(hosts)
        running.kill("cm3")
        traffic.until_all_receive()
        running.restart("cm3")
        running.wait()
        result = traffic.finish()
        watch.finish()
    assert (result.faults, result.lost) == ([], 0)
    managers, stores = set(running.client_managers), set(running.message_managers)
    assert {frozenset((manager, store)) for manager in managers for store in stores} <= watch.seen
    assert [pair for pair in watch.seen if pair <= managers] == []
    hosts_of_servers = {"cm1", "cm2"}
    assert {frozenset((name, host)) for name in managers | stores for host in hosts_of_servers} <= watch.internal
    assert [pair for pair in watch.internal if not pair & hosts_of_servers] == [], "nobody else is spoken to"


def pass_messages(one: alphorn.Connection, two: alphorn.Connection) -> None:
    session, answering = one.session(), two.session()
    answers = answering.producer()
    answering.consumer("queue:questions").listen(
        lambda message: answers.send(message.body, destination=message.reply_to, correlation_id=message.correlation_id)
    )
    assert session.request("queue:questions", "?", WAIT_S).body == "?"


def share_patterns(one: alphorn.Connection, three: alphorn.Connection) -> None:
    consumer = one.session().consumer(alphorn.glob("topic:news.*"))
    for name in spread("topic:news.", 4, 2):
        send(three.session(), name, [name])
        assert bodies(take(consumer, 1)) == [name]


def commit_over_channels(two: alphorn.Connection, three: alphorn.Connection) -> None:
    session, queues = two.session(transacted=True), spread("queue:committed", 2, 2)
    for queue in queues:
        session.producer(queue).send(queue)
    session.commit()
    for queue in queues:
        assert bodies(take(three.session().consumer(queue), 1)) == [queue]


def take_over_subscription(hosts: list[str]) -> None:
    for host in hosts:
        with alphorn.connect(f"alphorn://{host}", client_id="wanderer") as connection:
            session = connection.session()
            consumer = session.consumer("topic:wandering", subscription="s")
            send(session, "topic:wandering", [host])
            assert bodies(take(consumer, 1)) == [host]
