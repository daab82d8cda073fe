"""What a queue retains is read in the log after whoever served it was killed, and nobody is given it again."""

import shutil

import msgspec
import pytest

import alphorn
import alphorn.testing
from alphorn.client.log_reader import LogReader, entry
from alphorn.client.staging import ask_channels
from alphorn.testing.clusters import Cluster
from tests.semantics.waiting import WAIT_S, bodies, is_quiet, take, until

pytestmark = pytest.mark.processes

QUEUE = "queue:kept"
SMALL = 48  # log entries between checkpoints
SENT = list(range(4 * SMALL))
LEFT = 3  # are not consumed before somebody is killed


def read(running: Cluster) -> list[object]:
    """All that the log has of the queue, wherever it is."""
    found: list[object] = []
    with running.connect() as connection:
        for known in ask_channels(connection, timeout_s=WAIT_S):
            reader = LogReader(known.name, known.servers, timeout_s=WAIT_S)
            try:
                surveyed = reader.survey([QUEUE], applied=known.heard)
                for it in surveyed.destinations:
                    for batches in reader.scan([it.number], entry(it.kept_from), entry(surveyed.applied + 1)):
                        for batch in batches:
                            messages = msgspec.msgpack.decode(batch.blob)[batch.index : batch.index + batch.count]
                            found += [message[0] for message in messages]
            finally:
                reader.close()
    return found


def send_and_consume(running: Cluster) -> None:
    """Each message is an entry of its own, so that checkpoints are made; all but a few are consumed."""
    with running.connect() as connection, connection.session(ack="individual") as session:
        connection.destinations.create(QUEUE, retain=3600)
        producer = session.producer(QUEUE)
        for number in SENT:
            producer.send(number, wait=True)
        consumer = session.consumer(QUEUE, prefetch=SMALL)
        for _ in SENT[:-LEFT]:
            [message] = take(consumer, 1)
            message.acknowledge()


def kill_primary(running: Cluster) -> str:
    running.wait_in_sync()
    primary = running.primary()
    running.kill(primary)
    return primary


def expect_rest(running: Cluster) -> None:
    with running.connect() as connection, connection.session() as session, session.consumer(QUEUE) as consumer:
        assert bodies(take(consumer, LEFT)) == SENT[-LEFT:]
        assert is_quiet(consumer)


@pytest.mark.requirement("HA-5")
def test_what_was_consumed_is_read_after_the_primary_was_killed_and_given_to_nobody():
    with alphorn.testing.cluster(checkpoint_interval=SMALL) as running:
        send_and_consume(running)
        first = kill_primary(running)
        assert read(running) == SENT
        expect_rest(running)
        shutil.rmtree(running.directory / first / "log")
        running.restart(first)  # with a blank disk: it has a checkpoint, and what that needs
        kill_primary(running)
        assert read(running) == SENT
        running.start_together([name for name in running.message_managers if name != first])
        running.kill_together(list(running.nodes))
        running.start_together(list(running.nodes))
        running.wait_in_sync()
        assert read(running) == SENT
        with running.connect() as connection, connection.session() as session:
            assert is_quiet(session.consumer(QUEUE))
            connection.destinations.policy(QUEUE)
        assert until(lambda: read(running), lambda found: found == []) == []


def test_what_was_consumed_moves_along_and_is_read_after_the_primary_there_was_killed():
    with alphorn.testing.cluster(channels=2, checkpoint_interval=SMALL) as running:
        send_and_consume(running)
        [home] = [each["channel"] for each in running.status()["destinations"] if each["name"] == QUEUE]
        target = {"channel-1": "channel-2", "channel-2": "channel-1"}[home]
        with running.connect() as connection:
            connection.destinations.move(QUEUE, target)
        assert read(running) == SENT
        running.wait_in_sync()
        running.kill(running.primary(target))
        assert read(running) == SENT
        expect_rest(running)
        assert read(running) == SENT
