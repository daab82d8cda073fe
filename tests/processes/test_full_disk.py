"""Message Managers with small disks: producers wait, consumers go on, and all is as before when they have drained."""

import threading
import time

import pytest

import alphorn
import alphorn.testing
from tests.semantics.waiting import WAIT_S

pytestmark = pytest.mark.processes

LIMIT = 64 << 20
BODY = "x" * 20_000


def until(connection, is_done):
    """Looks again after each answer of the cluster, for a while."""
    deadline = time.monotonic() + 3 * WAIT_S
    while not is_done() and time.monotonic() < deadline:
        connection.status()
    assert is_done()


def stores(cluster):
    return {node["name"]: node for node in cluster.status()["nodes"] if node["kind"] == "message_manager"}


def disk_bytes(store):
    """What a store's tables and bodies take; the rest of its files does not grow."""
    return sum((store / name).stat().st_size for name in ("data.mdb", "bodies"))


@pytest.mark.requirement("FC-4", "FC-6", "FC-9", "API-14", "API-16")
def test_a_store_of_64_mib_blocks_producers_and_not_consumers_and_recovers_when_it_is_drained():
    with (
        alphorn.testing.cluster(limits={"store_bytes_max": LIMIT}) as cluster,
        cluster.connect() as sending,
        cluster.connect() as receiving,
    ):
        producer = sending.session().producer("queue:bulk")
        impatient = sending.session().producer("queue:other", on_block="raise")
        impatient.send("before", wait=True)
        receipts = []
        is_over = threading.Event()

        def send():
            while not is_over.is_set():
                receipts.append(producer.send([len(receipts), BODY]))

        sender = threading.Thread(target=send)
        sender.start()
        until(sending, lambda: "store" in impatient._outbox.blocked)
        is_over.set()
        with pytest.raises(alphorn.Blocked, match="store of mm"):
            impatient.send("x")
        full = stores(cluster)
        assert any(node["blocked"] for node in full.values())
        assert all(node["store_bytes"] < LIMIT for node in full.values())
        assert all(disk_bytes(cluster.directory / name / "log") <= LIMIT for name in full)
        consumer = receiving.session().consumer("queue:bulk")
        count = 0
        while (message := consumer.receive(timeout=2.0)) is not None:
            assert message.body[0] == count
            count += 1
        sender.join()
        producer.flush(WAIT_S)
        while count < len(receipts):
            assert consumer.receive(timeout=WAIT_S).body[0] == count
            count += 1
        impatient.send("after", wait=True)
        assert not cluster.endings
        assert not any(node["blocked"] for node in stores(cluster).values())
