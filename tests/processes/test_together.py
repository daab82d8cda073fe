"""Clusters whose Client Managers are in the processes of Message Managers, and what dies there dies as one."""

import shutil

import pytest

import alphorn
import alphorn.testing
from alphorn.testing.cluster_chaos import ClusterFault, kill_in_turn
from alphorn.testing.clusters import Cluster
from tests.processes.test_failover import SMALL, disturb, is_well

pytestmark = pytest.mark.processes

WAIT_S = 60.0  # only a cluster that hangs meets it


def url_of(running: Cluster, name: str) -> str:
    """Of one Client Manager alone."""
    place = running.client_managers.index(name)
    return f"alphorn://{running.url.removeprefix('alphorn://').split(',')[place]}"


def send(url: str, bodies: range) -> None:
    with alphorn.connect(url, connect_timeout=WAIT_S) as connection:
        connection.session().producer("queue:orders").send_many(list(bodies), wait=True)


def receive(url: str, count: int) -> list[object]:
    with alphorn.connect(url, connect_timeout=WAIT_S) as connection:
        consumer = connection.session().consumer("queue:orders")
        found: list[object] = []
        while len(found) < count and (batch := consumer.receive_many(count - len(found), WAIT_S)):
            found += [message.body for message in batch]
        return found


@pytest.mark.requirement("HA-1", "HA-5", "HA-9", "HA-20", "CM-7", "API-11", "API-12")
def test_processes_that_are_both_killed_in_turn_lose_double_and_reorder_nothing(tmp_path):
    result = kill_in_turn(tmp_path, kills=3, together=True)
    assert is_well(result)
    assert list(result.injected.values()) == [1, 1, 1, 1]


@pytest.mark.requirement("HA-5", "HA-9")
def test_processes_that_are_both_are_frozen_and_stopped_without_loss():
    with alphorn.testing.cluster(client_managers=2, together=True) as running:
        assert is_well(disturb(running, ClusterFault.FREEZE_PRIMARY, ClusterFault.RESTART_PRIMARY))


@pytest.mark.requirement("HA-11", "HA-12")
def test_a_backup_with_a_client_manager_that_lost_its_disk_catches_up_and_serves_clients():
    with alphorn.testing.cluster(client_managers=2, together=True, checkpoint_interval=SMALL) as running:
        running.make_primary("mm1")
        running.kill("mm2")
        for number in range(3 * SMALL):
            send(url_of(running, "cm1"), range(number, number + 1))
        shutil.rmtree(running.directory / "mm2")
        running.restart("mm2")
        with alphorn.connect(url_of(running, "cm2"), connect_timeout=WAIT_S) as early:
            early.session().producer("queue:orders").send("early").result(WAIT_S)
        running.wait_in_sync()
        assert receive(url_of(running, "cm2"), 3 * SMALL + 1) == [*range(3 * SMALL), "early"]
        assert running.endings == {}


@pytest.mark.requirement("HA-5")
def test_a_cluster_that_is_killed_whole_goes_on_with_what_it_had_through_every_client_manager():
    with alphorn.testing.cluster(client_managers=2, together=True) as running:
        send(running.url, range(100))
        running.kill_together(list(running.nodes))
        running.start_together(list(running.nodes))
        running.wait_in_sync()
        assert receive(url_of(running, "cm1"), 50) == list(range(50))
        assert receive(url_of(running, "cm2"), 50) == list(range(50, 100))


def witness_of(running: Cluster) -> tuple[str, int | None]:
    """Role and process of the witness, as `alphorn status` tells them."""
    [found] = [node for node in running.status()["nodes"] if node["kind"] == "witness"]
    return found["role"], found["pid"]


@pytest.mark.requirement("HA-5")
def test_a_witness_that_is_a_node_of_its_own_votes_and_may_be_lost():
    with alphorn.testing.cluster(together=True) as running:
        assert running.beside("cm1") == ["ms1", "mm1", "cm1"]
        assert running.nodes["mm1"] == running.nodes["cm1"] != running.nodes["w1"]
        here, gone = ("witness", running.nodes["w1"]), ("unreachable", None)
        while (seen := witness_of(running)) != here:
            assert seen == gone, "each look is a question to the cluster, which notices in a moment"
        running.kill("w1")
        send(running.url, range(10))
        while (seen := witness_of(running)) != gone:
            assert seen == here
        running.restart("w1")
        running.make_primary("mm1")
        running.kill("mm2")
        send(running.url, range(10, 20))
        assert receive(running.url, 20) == list(range(20))
