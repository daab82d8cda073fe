"""Whole clusters under load lose nodes of every kind. `alphorn chaos --cluster` does the same for longer."""

import shutil
import signal

import pytest

import alphorn.testing
from alphorn.testing.cluster_chaos import ClusterChaos, ClusterChaosResult, ClusterFault, kill_in_turn
from alphorn.testing.clusters import Cluster
from alphorn.testing.traffic import Shape, Traffic
from tests.semantics.waiting import until

pytestmark = pytest.mark.processes

LATE_S = 60.0  # only a cluster that hangs meets it
SMALL = 48  # log entries between checkpoints: some hundred messages go over several of them


def disturb(running: Cluster, *faults: ClusterFault, shape: Shape | None = None) -> ClusterChaosResult:
    chaos = ClusterChaos(running, shape or Shape())
    chaos.begin()
    for fault in faults:
        chaos.inject(fault, pause_s=1.0)
    return chaos.finish()


def epoch_of(running: Cluster) -> int:
    """The epoch of the only channel, as soon as it has a primary: each takeover begins one."""
    [channel] = until(lambda: running.status()["channels"])
    return int(channel["epoch"])


def is_well(result: ClusterChaosResult) -> bool:
    assert result.faults == []
    assert result.traffic.confirmed == result.traffic.sent > 0
    return (result.traffic.lost, result.traffic.duplicates, result.traffic.disordered) == (0, 0, 0)


@pytest.mark.requirement(
    "HA-1", "HA-3", "HA-5", "HA-9", "HA-20", "CM-6", "CM-7", "API-10", "API-11", "API-12"
)  # fmt: skip
def test_every_kind_of_node_killed_in_turn_loses_doubles_and_reorders_nothing(tmp_path):
    result = kill_in_turn(tmp_path, kills=3)
    assert is_well(result)
    assert list(result.injected.values()) == [1, 1, 1, 1]


@pytest.mark.requirement("HA-5", "HA-9", "HA-20")
def test_a_primary_and_a_client_manager_that_die_together_are_replaced_without_loss():
    with alphorn.testing.cluster(client_managers=2) as running:
        assert is_well(disturb(running, ClusterFault.KILL_BOTH))


@pytest.mark.requirement("HA-5")
def test_a_frozen_message_manager_stops_nobody_and_wakes_up_as_a_backup():
    with alphorn.testing.cluster(client_managers=2) as running:
        primary, epoch = running.primary(), epoch_of(running)
        assert is_well(disturb(running, ClusterFault.FREEZE_BACKUP, ClusterFault.FREEZE_PRIMARY))
        assert running.primary() != primary
        assert epoch_of(running) > epoch
        names = set(running.message_managers)
        until(
            lambda: sorted(n["role"] for n in running.status()["nodes"] if n["name"] in names) == ["backup", "primary"]
        )


@pytest.mark.requirement("HA-5", "CM-7")
def test_nodes_that_stop_in_good_order_are_hardly_missed():
    with alphorn.testing.cluster(client_managers=2) as running:
        faults = (ClusterFault.RESTART_PRIMARY, ClusterFault.RESTART_CLIENT_MANAGER, ClusterFault.RESTART_BACKUP)
        assert is_well(disturb(running, *faults))


@pytest.mark.requirement("HA-2")
def test_of_three_copies_two_may_be_lost_at_once():
    with alphorn.testing.cluster(backups=2) as running:
        traffic = Traffic(running.url, Shape())
        traffic.start()
        running.wait_in_sync()
        traffic.until_all_receive()
        survivor = running.message_managers[-1]
        victims = [name for name in running.message_managers if name != survivor]
        running.kill_together(victims)
        running.start_together(victims)
        traffic.until_all_receive()
        result = traffic.finish()
    assert result.faults == []
    assert (result.lost, result.duplicates) == (0, 0)


@pytest.mark.requirement("HA-19")
def test_the_loss_of_one_channels_primary_moves_that_channel_only():
    with alphorn.testing.cluster(channels=2) as running:
        traffic = Traffic(running.url, Shape(queues=2, shared_queues=0, topics=0))
        traffic.start()
        lost, kept = running.primary("channel-1"), running.primary("channel-2")
        running.wait_in_sync()
        running.kill(lost)
        traffic.until_all_receive()
        assert running.primary("channel-1") != lost
        assert running.primary("channel-2") == kept
        running.restart(lost)
        result = traffic.finish()
        until(lambda: {each["channel"] for each in running.status()["destinations"]} == {"channel-1", "channel-2"})
    assert result.faults == []


def backlog_of(running: Cluster, name: str) -> int:
    """Nothing, while its channel has no primary who could tell."""
    return sum(each["depth"] for each in running.status()["destinations"] if each["name"] == name)


def keeps_a_backlog(running: Cluster, name: str) -> bool:
    """Whether this one holds entries behind a checkpoint; one of its own is told when its drop is on disk."""
    store = running.describe(name)[name]["bus"]["store"]
    return store["checkpoint"] > 0 and store["retained"] > 0  # type: ignore[index,call-overload,no-any-return]


@pytest.mark.requirement(
    "HA-11", "HA-12", "HA-13", "HA-14", "HA-15", "HA-16", "HA-17"
)  # fmt: skip
def test_a_backup_with_a_blank_disk_takes_over_the_backlog_while_traffic_runs_and_can_serve_it():
    with alphorn.testing.cluster(client_managers=2, checkpoint_interval=SMALL) as running:
        traffic = Traffic(running.url, Shape(per_s=200.0, prefetch=20))
        traffic.start()
        primary = running.primary()
        [backup] = [name for name in running.message_managers if name != primary]
        running.wait_in_sync()
        traffic.pause_consumers()
        running.kill(backup)
        shutil.rmtree(running.directory / backup / "log")
        while backlog_of(running, "queue:traffic.queue.1") < 5 * SMALL:
            traffic.check()
        running.restart(backup)
        running.wait_in_sync()
        while not keeps_a_backlog(running, backup):
            traffic.check()
        running.wait_in_sync()
        running.kill(primary)
        traffic.resume_consumers()
        traffic.until_all_receive()
        result = traffic.finish()
    assert result.faults == []
    assert (result.lost, result.duplicates, result.disordered) == (0, 0, 0)


@pytest.mark.requirement("HA-5", "CM-7")
def test_a_cluster_that_is_killed_as_a_whole_goes_on_from_its_disks():
    with alphorn.testing.cluster(checkpoint_interval=SMALL) as running:
        leave_things_behind(running)
        running.kill_together(list(running.nodes))
        running.start_together(list(running.nodes))
        running.wait()
        find_things_again(running)
        primary = running.primary()
        running.wait_in_sync()
        running.kill(primary, signal.SIGTERM)
        running.wait(whole=False)


def leave_things_behind(running: Cluster) -> None:
    """Messages, one of them refused once, a durable subscription with one waiting, and one to be delivered later."""
    with running.connect(client_id="reader") as connection, connection.session(ack="individual") as session:
        orders = session.producer("queue:orders")
        orders.send_many([f"order {number}" for number in range(4 * SMALL)]).result(LATE_S)
        for number in range(2 * SMALL):  # each one entry of the log, so that checkpoints are made
            session.producer("queue:filling").send(number, wait=True)
        session.producer("queue:later").send("delayed", delay=4.0, wait=True)
        consumer = session.consumer("queue:orders", prefetch=2)
        first, second = consumer.receive(LATE_S), consumer.receive(LATE_S)
        assert (first.body, second.body) == ("order 0", "order 1")
        first.reject()  # before there is room for any other
        again = consumer.receive(LATE_S)
        assert (again.body, again.delivery_count) == ("order 0", 2)
        second.acknowledge()
        again.reject()
        consumer.close()
        session.consumer("topic:news", subscription="daily").close()
        session.producer("topic:news").send("headline", wait=True)


def find_things_again(running: Cluster) -> None:
    with running.connect(client_id="reader") as connection, connection.session() as session:
        consumer = session.consumer("queue:orders")
        received = [consumer.receive(LATE_S) for _ in range(4 * SMALL - 1)]
        assert [message.body for message in received[:2]] == ["order 0", "order 2"]
        assert received[-1].body == f"order {4 * SMALL - 1}"
        assert received[0].delivery_count >= 3, "twice given out and refused"
        assert received[0].redelivered
        assert received[-1].delivery_count <= 2, "at most marked, because nobody is left who knows"
        news = session.consumer("topic:news", subscription="daily")
        assert news.receive(LATE_S).body == "headline"
        later = session.consumer("queue:later")
        assert later.receive(LATE_S).body == "delayed"
