"""Clients that do not read: a Client Manager's memory stays as it is, and everybody else is served."""

import pytest

import alphorn.testing
from tests.semantics.raw_client import RawClient
from tests.semantics.waiting import WAIT_S

pytestmark = pytest.mark.processes

MESSAGES = 200
GIVEN = 150  # to the frozen client, who takes a few of them
BODY = "x" * 500_000
LIMIT = 4 << 20  # consumer_bytes_max


@pytest.mark.requirement("FC-4", "FC-8", "FC-9", "FC-10", "MM-13")
def test_what_a_client_does_not_read_is_not_kept_for_it_and_nobody_else_waits():
    with alphorn.testing.cluster() as cluster, cluster.connect() as connection, RawClient(cluster.url) as frozen:
        producer = connection.session().producer("queue:shared")
        frozen.hello()
        frozen.consume("queue:shared", prefetch=GIVEN)
        for number in range(MESSAGES):
            producer.send([number, BODY])
        producer.flush(3 * WAIT_S)
        consumer = connection.session().consumer("queue:shared", prefetch=20)
        got = 0
        while (message := consumer.receive(timeout=1.0)) is not None:
            assert message.body[1] == BODY
            got += 1
        assert MESSAGES - GIVEN <= got < MESSAGES, "what the frozen client was not given goes to the other one"
        state = cluster.describe("cm1")["cm1"]
        assert 0 < state["unsent_bytes"] < LIMIT + len(BODY), "the rest waits by reference"
        assert state["client_manager"]["consuming"]["slow_clients"] == 1
