"""Clients that do not read: a Client Manager's memory stays as it is, and everybody else is served."""

from pathlib import Path

import pytest

import alphorn.testing
from tests.semantics.raw_client import RawClient
from tests.semantics.waiting import WAIT_S

pytestmark = pytest.mark.processes

MESSAGES = 200
GIVEN = 150  # to the frozen client, who takes a few of them
BODY = "x" * 500_000


def resident_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the process has no memory")


@pytest.mark.requirement("FC-4", "FC-8", "FC-9", "FC-10", "MM-13")
def test_a_client_that_does_not_read_costs_no_memory_and_delays_nobody():
    with alphorn.testing.cluster() as cluster, cluster.connect() as connection, RawClient(cluster.url) as frozen:
        producer = connection.session().producer("queue:shared")
        for number in range(140):  # what a Client Manager keeps of the log is there before
            producer.send([number, BODY], destination="queue:warm")
        producer.flush(3 * WAIT_S)
        frozen.hello()
        frozen.consume("queue:shared", prefetch=GIVEN)
        before = resident_bytes(cluster.nodes["cm1"])
        for number in range(MESSAGES):
            producer.send([number, BODY])
        producer.flush(3 * WAIT_S)
        consumer = connection.session().consumer("queue:shared", prefetch=20)
        got = 0
        while (message := consumer.receive(timeout=1.0)) is not None:
            assert message.body[1] == BODY
            got += 1
        assert got >= MESSAGES - GIVEN, "what the frozen client was not given goes to the other one"
        assert resident_bytes(cluster.nodes["cm1"]) - before < 40 << 20
