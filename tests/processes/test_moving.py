"""Destinations move between channels of real clusters, under load, while nodes die."""

import threading
from pathlib import Path

import msgspec
import pytest

import alphorn
import alphorn.testing
from alphorn.client.staging import ask_channels
from alphorn.io.cluster_file import read_cluster_file
from alphorn.io.local_cluster import FILE_NAME, write_cluster_file
from alphorn.testing.clusters import Cluster
from alphorn.testing.spreading import spread
from alphorn.testing.traffic import Shape, Traffic
from tests.semantics.waiting import until

pytestmark = pytest.mark.processes

WAIT_S = 60.0  # only a cluster that hangs meets it
CHANNELS = ("channel-1", "channel-2")
BACKLOG = 60_000
LOADED = ("queue:traffic.queue.1", "queue:traffic.shared.1", "topic:traffic.topic.1")


def home_of(running: Cluster, name: str) -> str:
    """The channel of a destination, as soon as its primary tells."""
    [found] = until(lambda: [each["channel"] for each in running.status()["destinations"] if each["name"] == name])
    return str(found)


def other(channel: str) -> str:
    return CHANNELS[1 - CHANNELS.index(channel)]


class Move(threading.Thread):
    """Moves a destination, or drains a channel, by a connection of its own."""

    def __init__(self, running: Cluster, name: str, channel: str) -> None:
        super().__init__(daemon=True)
        self.running, self.destination, self.channel = running, name, channel
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self.running.connect() as connection:
                self.do(connection)
        except BaseException as error:
            self.failure = error

    def do(self, connection: alphorn.Connection) -> None:
        connection.destinations.move(self.destination, self.channel)

    def finish(self) -> None:
        self.join(WAIT_S)
        assert not self.is_alive()
        assert self.failure is None, self.failure


class Drain(Move):
    """Drains a channel."""

    def do(self, connection: alphorn.Connection) -> None:
        connection.destinations.drain(self.channel)


@pytest.mark.requirement("CM-19", "MM-16")
def test_destinations_move_back_and_forth_under_load_and_nobody_notices():
    with alphorn.testing.cluster(client_managers=2, channels=2) as running:
        traffic = Traffic(running.url, Shape(per_s=300.0))
        traffic.start()
        with running.connect() as connection:
            for _ in range(2):
                for name in LOADED:
                    target = other(home_of(running, name))
                    connection.destinations.move(name, target)
                    assert home_of(running, name) == target
                traffic.until_all_receive()
        result = traffic.finish()
    assert result.faults == []
    assert (result.lost, result.duplicates, result.disordered) == (0, 0, 0)
    assert result.confirmed == result.sent > 0


@pytest.mark.requirement("HA-5", "HA-9")
@pytest.mark.parametrize("victim", ["source", "target", "client manager"])
def test_a_node_killed_during_a_move_loses_doubles_and_reorders_nothing(victim):
    """Goal: a move goes on whoever dies. Method: a backlog that takes a while, and kill -9 when it has begun."""
    with (
        alphorn.testing.cluster(client_managers=2, channels=2, checkpoint_interval=64) as running,
        running.connect() as connection,
    ):
        producer = connection.session().producer("queue:backlog")
        producer.send_many(range(BACKLOG))
        producer.flush(WAIT_S)
        traffic = Traffic(running.url, Shape(shared_queues=0, topics=0))
        traffic.start()
        source = home_of(running, "queue:backlog")
        names = {
            "source": running.primary(source),
            "target": running.primary(other(source)),
            "client manager": "cm1",
        }
        running.wait_in_sync()
        move = Move(running, "queue:backlog", other(source))
        move.start()
        until_moving(running, move)
        running.kill(names[victim])
        running.restart(names[victim])
        move.finish()
        assert home_of(running, "queue:backlog") == other(source)
        producer.send_many(range(BACKLOG, BACKLOG + 100))
        producer.flush(WAIT_S)
        with connection.session() as session:
            bodies = take(session.consumer("queue:backlog"), BACKLOG + 100)
        assert bodies == [(number, 1) for number in range(BACKLOG + 100)]  # nobody saw them before, and all know it
        result = traffic.finish()
    assert result.faults == []
    assert (result.lost, result.duplicates) == (0, 0)


def until_moving(running: Cluster, move: Move) -> None:
    """Waits until the state says that the move is under way, or it is over."""
    while move.is_alive() and not running.status()["moves"]:
        pass


def take(consumer: alphorn.Consumer, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while len(found) < count:
        part = consumer.receive_many(5_000, WAIT_S)
        assert part, f"{len(found)} of {count} came"
        found += [(message.body, message.delivery_count) for message in part]
    return found


@pytest.mark.requirement("TOP-4")
def test_a_drained_channel_can_be_removed(tmp_path):
    names = [f"queue:drained.{number}" for number in range(12)]
    with alphorn.testing.cluster(channels=2, directory=tmp_path) as running, running.connect() as connection:
        session = connection.session()
        producers = {name: session.producer(name) for name in names}
        for name, producer in producers.items():
            producer.send(name, wait=True)
        on_second = [name for name in names if home_of(running, name) == "channel-2"]
        assert on_second
        with pytest.raises(alphorn.Misuse, match="stays"):
            connection.destinations.drain("channel-1")
        assert connection.destinations.drain("channel-2") == len(on_second)
        connection.destinations.create("queue:new")
        for name in (*names, "queue:new"):
            assert home_of(running, name) == "channel-1"
        producers[on_second[0]].send("sent to the old place", wait=True)
        connection.destinations.open("channel-2")
        assert connection.destinations.drain("channel-2") == 0
    remove_second_channel(tmp_path)
    with alphorn.testing.cluster(directory=tmp_path) as running, running.connect() as connection:
        session = connection.session()
        for name in names:
            message = session.consumer(name).receive(WAIT_S)
            assert message is not None
            assert message.body == name


@pytest.mark.requirement("TOP-4", "HA-5", "DMQ-2")
def test_two_channels_are_drained_while_nodes_die_and_one_is_removed_and_the_other_opened(tmp_path):
    """Goal: nothing is lost and no name split. Method: kill -9 during both drains, then a cluster without channel-2."""
    names, count = spread("queue:kept", 9, 3), 900  # no more than a consumer is given at once
    shape = {"client_managers": 2, "channels": 3, "directory": tmp_path}
    with alphorn.testing.cluster(**shape) as running, running.connect() as connection:
        for name in names:
            connection.destinations.create(name, dead_letter="broken")
            connection.session().producer(name).send_many(range(count))
        drains = [Drain(running, "", channel) for channel in ("channel-2", "channel-3")]
        running.wait_in_sync()
        for drain in drains:
            drain.start()
        until_moving(running, drains[0])
        for victim in (running.primary("channel-2"), "cm1"):
            running.kill(victim)
            running.restart(victim)
        for drain in drains:
            drain.finish()
        connection.destinations.open("channel-3")
    remove_second_channel(tmp_path)
    with alphorn.testing.cluster(directory=tmp_path) as running, running.connect() as connection:
        for name in names:
            with connection.session(ack="individual") as session:
                assert [body for body, _ in take(session.consumer(name), count)] == list(range(count))
            session = connection.session(ack="individual")
            message = session.consumer(name).receive(WAIT_S)
            assert message is not None
            message.reject(requeue=False)
        known = [each["name"] for each in connection.destinations.list()]
        assert sorted(name for name in known if name in names) == sorted(names)
        broken = connection.session().consumer(alphorn.glob("queue:broken*"))
        assert [body for body, _ in take(broken, len(names))] == [0] * len(names)


def remove_second_channel(directory: Path) -> None:
    path = directory / FILE_NAME
    file = read_cluster_file(path)
    first, second, *others = file.channels
    channels = (first, msgspec.structs.replace(second, removed=True), *others)
    nodes = tuple(node for node in file.nodes if node.channel != "channel-2")
    write_cluster_file(path, msgspec.structs.replace(file, directory=".", channels=channels, nodes=nodes))


@pytest.mark.requirement("TOP-4")
def test_a_cluster_whose_channel_was_removed_asks_nobody_there(tmp_path):
    with alphorn.testing.cluster(channels=2, backups=0, directory=tmp_path) as running, running.connect() as connection:
        connection.destinations.drain("channel-2")
    remove_second_channel(tmp_path)
    with alphorn.testing.cluster(directory=tmp_path) as running, running.connect(client_id="me") as connection:
        session = connection.session()
        patterns = session.consumer(alphorn.glob("topic:news.*"))
        durable = session.consumer("topic:news.today", subscription="mine")
        session.producer("topic:news.today").send("hello", wait=True)
        for consumer in (patterns, durable):
            message = consumer.receive(WAIT_S)
            assert message is not None
            assert message.body == "hello"
        durable.close()
        session.unsubscribe("mine")
        with pytest.raises(alphorn.InvalidDestination, match="this client has no subscription named 'mine'"):
            session.unsubscribe("mine")
        with pytest.raises(alphorn.InvalidDestination, match="no channel is named channel-2"):
            session.consumer("queue:_DMQ@channel-2")
        assert [known.name for known in ask_channels(connection) if known.servers] == ["channel-1"]
        assert connection.status()["lost"] == []


@pytest.mark.requirement("DMQ-1")
def test_each_channel_has_dead_messages_of_its_own_and_they_can_be_reached():
    with alphorn.testing.cluster(channels=2) as running, running.connect() as connection:
        session = connection.session(ack="individual")
        for name in ("queue:one", "queue:two"):
            session.producer(name).send(name, wait=True)
            channel = "channel-1" if name == "queue:one" else "channel-2"
            connection.destinations.move(name, channel)
            message = session.consumer(name).receive(WAIT_S)
            assert message is not None
            message.reject(requeue=False)
        session.acknowledge()
        for name, dead in (("queue:one", "queue:_DMQ@channel-1"), ("queue:two", "queue:_DMQ@channel-2")):
            message = session.consumer(dead).receive(WAIT_S)
            assert message is not None
            assert message.body == name
        with pytest.raises(alphorn.InvalidDestination, match="no channel is named"):
            session.consumer("queue:_DMQ@nowhere")


@pytest.mark.requirement("TOP-4")
def test_a_queue_that_was_new_while_its_channel_was_closed_is_found_when_that_is_open_again():
    name = spread("queue:late", 2, 2)[1]
    with alphorn.testing.cluster(channels=2) as running:
        with running.connect() as connection:
            connection.destinations.drain("channel-2")
            connection.session().producer(name).send("kept", wait=True)
            connection.destinations.open("channel-2")
        running.kill("cm1")
        running.restart("cm1")
        with running.connect() as connection:
            message = connection.session().consumer(name).receive(WAIT_S)
            assert message is not None
            assert (message.body, home_of(running, name)) == ("kept", "channel-1")


@pytest.mark.requirement("DMQ-2")
def test_destinations_of_all_channels_share_a_dead_letter_queue():
    names, broken = spread("queue:fragile", 2, 2), spread("queue:broken", 1, 2)[0]
    parts = (broken, f"{broken}@channel-2")
    with alphorn.testing.cluster(channels=2) as running:
        with running.connect() as connection:
            session = connection.session(ack="individual")
            for name in names:
                connection.destinations.create(name, delivery_limit=1, dead_letter=broken.removeprefix("queue:"))
                session.producer(name).send(name, wait=True)
                message = session.consumer(name).receive(WAIT_S)
                assert message is not None
                message.reject()
        running.kill("cm1")
        running.restart("cm1")
        with running.connect() as connection:
            session = connection.session(ack="individual")
            for name, part in zip(names, parts, strict=True):
                connection.destinations.create(name, delivery_limit=1, dead_letter=broken.removeprefix("queue:"))
                dead = session.consumer(part).receive(WAIT_S)
                assert dead is not None
                assert (dead.body, home_of(running, part)) == (name, home_of(running, name))
                dead.reject()
                connection.destinations.redrive(part)
                message = session.consumer(name).receive(WAIT_S)
                assert message is not None
                message.acknowledge()
                connection.destinations.delete(part)
            session.close()
            left = {each["name"] for each in connection.destinations.list()}
            assert left.isdisjoint(parts)


def test_one_producer_sends_to_destinations_of_all_channels_in_order():
    names = [f"queue:spread.{number}" for number in range(8)]
    with alphorn.testing.cluster(client_managers=2, channels=2) as running, running.connect() as connection:
        session = connection.session()
        producer = session.producer()
        receipts = [producer.send(number, destination=names[number % 8]) for number in range(4_000)]
        running.kill("cm1")
        receipts += [producer.send(number, destination=names[number % 8]) for number in range(4_000, 8_000)]
        assert len({receipt.result(WAIT_S) for receipt in receipts}) == 8_000
        assert {home_of(running, name) for name in names} == set(CHANNELS)
        for place, name in enumerate(names):
            bodies = [body for body, _ in take(session.consumer(name), 1_000)]
            assert bodies == list(range(place, 8_000, 8))
