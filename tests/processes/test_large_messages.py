"""Large messages over real processes that die in the middle, and how much memory they take."""

import hashlib
import shutil
import time
from pathlib import Path

import pytest

import alphorn.testing
from alphorn.testing.clusters import Cluster
from tests.semantics.pouring import Source, digest_of
from tests.semantics.waiting import WAIT_S, is_quiet, take

pytestmark = pytest.mark.processes

QUEUE = "queue:films"
LARGE = 32_000_000
SMALL = 24  # log entries between checkpoints: a large message goes over some of them
HUGE = 200 << 20
GROWTH_MAX = 100 << 20


def strike(cluster: Cluster, connection, who: str) -> str:
    """Kills the Client Manager of a connection or the primary, when it may be lost; gives its name."""
    victim = connection._line.core.server if who == "client manager" else cluster.primary()
    cluster.wait_in_sync()
    cluster.kill(victim)
    return victim


def resident_bytes(cluster: Cluster) -> dict[str, int]:
    sizes = {}
    for name, pid in cluster.nodes.items():
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        sizes[name] = int(fields["VmRSS"].split()[0]) << 10
    return sizes


def retained_bytes(cluster: Cluster) -> list[int]:
    """Of each Message Manager."""
    names = cluster.message_managers
    return [cluster.describe(name)[name]["bus"]["store"]["retained_bytes"] for name in names]  # type: ignore[index,call-overload]


def pass_marks_until(session, is_so):
    """Checkpoints are written beside the traffic, so how many marks one takes is not known before."""
    producer = session.producer("queue:other")
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        for number in range(SMALL):
            producer.send(number, wait=True)


@pytest.fixture(scope="module", name="cluster")
def make_cluster():
    with alphorn.testing.cluster(client_managers=2, checkpoint_interval=SMALL) as cluster:
        yield cluster


@pytest.mark.requirement("VLM-5", "VLM-6")
@pytest.mark.parametrize("who", ["client manager", "primary"])
def test_a_stream_goes_on_when_a_node_in_its_way_dies(cluster, who):
    source = Source(LARGE)
    with cluster.connect() as connection, connection.session() as session:
        victims = []
        source._at = {LARGE // 2: lambda: victims.append(strike(cluster, connection, who))}
        session.producer(QUEUE).send_stream(source)
        consumer = session.consumer(QUEUE)
        [message] = take(consumer, 1)
        assert digest_of(message) == source.digest.digest()
        assert is_quiet(consumer)
    cluster.restart(*victims)
    cluster.wait_in_sync()


@pytest.mark.requirement("VLM-4")
@pytest.mark.parametrize("who", ["client manager", "primary"])
def test_a_body_is_read_on_when_a_node_in_its_way_dies(cluster, who):
    source = Source(LARGE)
    with cluster.connect() as connection, connection.session(ack="individual") as session:
        session.producer(QUEUE).send_stream(source)
        consumer = session.consumer(QUEUE)
        [message] = take(consumer, 1)
        with message.open() as body:
            data = body.read(LARGE // 2)
            victim = strike(cluster, connection, who)
            data += body.read()
        assert hashlib.sha256(data).digest() == source.digest.digest()
        message.acknowledge()
    cluster.restart(victim)
    cluster.wait_in_sync()


def test_a_body_outlives_restarts_and_a_lost_disk_and_its_place_on_disk_is_given_back(cluster):
    source = Source(LARGE)
    with cluster.connect() as connection, connection.session(ack="individual") as session:
        session.producer(QUEUE).send_stream(source)
        pass_marks_until(session, lambda: all(held > LARGE // 2 for held in retained_bytes(cluster)))
        backup = next(name for name in cluster.message_managers if name != cluster.primary())
        cluster.kill(backup)
        shutil.rmtree(cluster.directory / backup / "log")
        cluster.restart(backup)
        cluster.wait_in_sync()
        pass_marks_until(session, lambda: all(held > LARGE // 2 for held in retained_bytes(cluster)))
        cluster.kill_together(cluster.message_managers)
        cluster.start_together(cluster.message_managers)
        cluster.wait_in_sync()
        [message] = take(session.consumer(QUEUE), 1)
        assert digest_of(message) == source.digest.digest()
        message.acknowledge()
        pass_marks_until(session, lambda: all(held < LARGE // 2 for held in retained_bytes(cluster)))


@pytest.mark.requirement("VLM-5")
def test_memory_does_not_grow_with_a_message():
    source = Source(HUGE, piece=1 << 20)
    with alphorn.testing.cluster(client_managers=1) as cluster, cluster.connect() as connection:
        session = connection.session(ack="individual")
        producer, consumer = session.producer(QUEUE), session.consumer(QUEUE)
        producer.send_stream(Source(LARGE))
        warm = consumer.receive(WAIT_S)
        digest_of(warm)
        warm.acknowledge()
        before = resident_bytes(cluster)
        producer.send_stream(source)
        sent = resident_bytes(cluster)
        assert digest_of(consumer.receive(WAIT_S)) == source.digest.digest()
        read = resident_bytes(cluster)
    growth = {name: max(sent[name], read[name]) - size for name, size in before.items()}
    assert max(growth.values()) < GROWTH_MAX, growth


def test_one_producer_streams_to_destinations_of_several_channels():
    names = [f"queue:films.{number}" for number in range(6)]
    with alphorn.testing.cluster(channels=2) as cluster, cluster.connect() as connection:
        with connection.session() as session:
            producer = session.producer()
            for _ in range(2):
                sources = {name: Source(LARGE // 8) for name in names}
                for name, source in sources.items():
                    producer.send_stream(source, destination=name)
                for name, source in sources.items():
                    with session.consumer(name) as consumer:
                        assert digest_of(take(consumer, 1)[0]) == source.digest.digest()
        channels = {each["channel"] for each in cluster.status()["destinations"] if each["name"] in names}
    assert len(channels) == 2
