"""Dead messages of all channels are found where they lie, and stay there."""

import time

import pytest

import alphorn.testing
from alphorn.spark.jobs.dead_letters import browse

WAIT_S = 60.0

pytestmark = pytest.mark.processes


@pytest.mark.requirement("DMQ-3")
def test_dead_messages_of_every_channel_are_found_and_left_where_they_are() -> None:
    with alphorn.testing.cluster(channels=2) as cluster, cluster.connect() as connection:
        assert list(browse(cluster.url, "queue:_DMQ")) == []
        session = connection.session(ack="individual")
        for number in (1, 2):
            name = f"queue:dying.{number}"
            session.producer(name).send(f"message {number}", wait=True)
            connection.destinations.move(name, f"channel-{number}")
            message = session.consumer(name).receive(WAIT_S)
            assert message is not None
            message.reject(requeue=False)
        deadline = time.monotonic() + WAIT_S
        while len(list(browse(cluster.url, "queue:_DMQ"))) < 2:
            assert time.monotonic() < deadline, "what was rejected is not among the dead"
        expected = [
            ("queue:_DMQ@channel-1", "queue:dying.1", "rejected", "message 1"),
            ("queue:_DMQ@channel-2", "queue:dying.2", "rejected", "message 2"),
        ]
        for _ in range(2):
            found = [(row[0], row[2], row[3], row[8]) for row in browse(cluster.url, "queue:_DMQ")]
            assert found == expected
        assert [row[8] for row in browse(cluster.url, "queue:_DMQ@channel-2")] == ["message 2"]
