"""Message Managers with small disks: producers wait, consumers go on, and all is as before when they have drained."""

import contextlib
import threading
import time

import msgspec
import pytest

import alphorn
import alphorn.testing
from alphorn.client.staging import Stager, Staging, drop_staged, publish_staged
from alphorn.io.disk import tells_no_space
from tests.semantics.waiting import QUIET_S, WAIT_S, until
from tests.small_disks import fill, free, small_disk

pytestmark = pytest.mark.processes

LIMIT = 64 << 20
DISK = 192 << 20  # of two Message Managers
BODY = "x" * 20_000


def stores(cluster):
    return {node["name"]: node for node in cluster.status()["nodes"] if node["kind"] == "message_manager"}


def are_all_there(cluster):
    """Starts whatever has ended: one that found no room for something may end a moment after there is room again."""
    with contextlib.suppress(alphorn.Unavailable):
        cluster.start_together(list(cluster.endings))
        return [(channel["copies"], channel["copies_wanted"]) for channel in cluster.status()["channels"]] == [(2, 2)]
    return False


def disk_bytes(store):
    """What a store's tables and bodies take; the rest of its files does not grow."""
    return sum((store / name).stat().st_size for name in ("data.mdb", "bodies"))


@contextlib.contextmanager
def limited_cluster(tmp_path, *, by):
    """A cluster whose stores are small: by their own limit, or by that of the disk they share."""
    with contextlib.ExitStack() as stack:
        if by == "limit":
            settings = {"limits": {"store_bytes_max": LIMIT, "staged_bytes_max": 2 * LIMIT}}
        else:
            settings = {"directory": stack.enter_context(small_disk(tmp_path / "disk", DISK))}
        yield stack.enter_context(alphorn.testing.cluster(**settings))


@pytest.mark.requirement("FC-4", "FC-6", "FC-9", "API-14", "API-16")
@pytest.mark.parametrize("by", ["limit", "disk"])
def test_a_small_store_blocks_producers_and_not_consumers_and_recovers_when_it_is_drained(tmp_path, by):
    with (
        limited_cluster(tmp_path, by=by) as cluster,
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
        until(lambda: sending.status() and "store" in impatient._outbox.blocked)
        is_over.set()
        with pytest.raises(alphorn.Blocked, match="store of mm"):
            impatient.send("x")
        full = stores(cluster)
        assert any(node["blocked"] for node in full.values())
        if by == "limit":
            assert all(node["store_bytes"] < LIMIT for node in full.values())
            assert all(disk_bytes(cluster.directory / name / "log") <= LIMIT for name in full)
        consumer = receiving.session().consumer("queue:bulk")
        count, deadline = 0, time.monotonic() + 3 * WAIT_S
        while sender.is_alive() or count < len(receipts):  # its last message may be let in at any time
            assert time.monotonic() < deadline, count
            if (message := consumer.receive(timeout=QUIET_S if sender.is_alive() else WAIT_S)) is not None:
                assert message.body[0] == count
                count += 1
        producer.flush(WAIT_S)
        until(lambda: not any(node["blocked"] for node in stores(cluster).values()))
        until(lambda: sending.status() and not impatient.is_blocked())
        impatient.send("after", wait=True)
        assert not cluster.endings


@pytest.mark.requirement("FC-4")
def test_what_is_staged_waits_for_room_too_and_is_let_go_when_its_writer_gives_up(tmp_path):
    with limited_cluster(tmp_path, by="limit") as cluster, cluster.connect() as connection:
        staging = Staging(writer="w", batch=0, partition=0, attempt=1)
        stager = Stager(connection, staging, timeout_s=5.0)
        blob = msgspec.msgpack.encode([[BODY] for _ in range(10)])

        def stage_too_much():
            for _ in range(2 * LIMIT // len(blob)):
                stager.add("queue:bulk", blob, 10, 0)

        with pytest.raises(alphorn.Blocked, match=r"the store of mm\d has"):
            stage_too_much()
        assert all(node["store_bytes"] < LIMIT for node in stores(cluster).values())
        drop_staged(connection, "w", 0, [0])
        until(lambda: not any(node["blocked"] for node in stores(cluster).values()))
        again = Stager(connection, msgspec.structs.replace(staging, attempt=2))
        again.add("queue:bulk", blob, 10, 0)
        publish_staged(connection, "w", 0, [again.finish()])
        assert connection.session().consumer("queue:bulk").receive(timeout=WAIT_S).body == BODY
        assert not cluster.endings


@pytest.mark.requirement("FC-4", "BUS-25")
def test_whatever_others_leave_on_a_disk_nothing_confirmed_is_lost_and_nobody_speaks_of_damage(tmp_path):
    with (
        small_disk(tmp_path / "disk", DISK) as disk,
        alphorn.testing.cluster(directory=disk) as cluster,
        cluster.connect() as connection,
    ):
        producer = connection.session().producer("queue:bulk")
        for number in range(10):
            producer.send([number, BODY], wait=True)
        fill(disk)
        sent = [receipt for _ in range(50) if (receipt := producer.try_send([10, BODY * 20])) is not None]
        for name in set(cluster.message_managers) - set(cluster.endings):
            with contextlib.suppress(alphorn.Misuse):  # it may have ended by itself since
                cluster.kill(name)
        for name in set(cluster.message_managers) & set(cluster.endings):
            with contextlib.suppress(alphorn.Unavailable):  # it may find what it needs within its files
                cluster.start_together([name])
        assert all(tells_no_space(how) for how in cluster.endings.values())
        free(disk)
        until(lambda: are_all_there(cluster))
        producer.flush(WAIT_S)
        consumer = connection.session().consumer("queue:bulk")
        found = [consumer.receive(timeout=WAIT_S).body[0] for _ in range(10 + len(sent))]
        assert found == [*range(10), *[10] * len(sent)]
