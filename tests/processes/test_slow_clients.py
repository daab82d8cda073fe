"""Clients that do not read: little is kept for them, and everybody else is served."""

import pytest

import alphorn.testing
from tests.semantics.raw_client import RawClient
from tests.semantics.waiting import WAIT_S, until

pytestmark = pytest.mark.processes

BODY = "x" * 500_000
LIMIT = 4 << 20  # consumer_bytes_max


def blocked_consumers(cluster):
    """How many consumers the primary gives nothing because they take nothing."""
    name = cluster.primary()
    dispatcher = cluster.describe(name)[name]["message_manager"]["dispatcher"]
    outlets = [outlet for outlets in dispatcher["destinations"].values() for outlet in outlets.values()]
    return sum(consumer["is_blocked"] for outlet in outlets for consumer in outlet["consumers"])


@pytest.mark.requirement("FC-4", "FC-8", "FC-9", "FC-10", "MM-13")
def test_little_is_kept_for_a_client_that_does_not_read_and_its_queue_serves_others():
    with alphorn.testing.cluster() as cluster, cluster.connect() as connection, RawClient(cluster.url) as frozen:
        frozen.hello()
        frozen.consume("queue:shared", prefetch=10_000)
        producer = connection.session().producer("queue:shared")
        producer.send_many([[number, BODY] for number in range(60)])
        producer.flush(3 * WAIT_S)
        until(lambda: blocked_consumers(cluster) == 1)
        consumer = connection.session().consumer("queue:shared")
        producer.send_many([[number, BODY] for number in range(60, 100)])
        got = [consumer.receive(timeout=WAIT_S).body[0]]
        while got[-1] < 99:
            got.append(consumer.receive(timeout=WAIT_S).body[0])
        assert set(range(60, 100)) <= set(got)
        state = cluster.describe("cm1")["cm1"]
        assert 0 < state["unsent_bytes"] < LIMIT + LIMIT // 4 + 2 * len(BODY), "the rest waits by reference"
        assert state["client_manager"]["consuming"]["slow_clients"] == 1
