"""Disks that are lost for good: what was confirmed is on the others."""

import shutil
from pathlib import Path

import msgspec
import pytest

import alphorn.testing
from alphorn.io.cluster_file import ClusterFile
from alphorn.io.local_cluster import FILE_NAME, WITNESS_PORTS, LocalShape, write_cluster_file
from alphorn.testing.clusters import Cluster, _lay_out_free
from alphorn.testing.traffic import Shape, Traffic
from tests.semantics.waiting import QUIET_S, WAIT_S, until

pytestmark = pytest.mark.processes

SMALL = 48  # log entries between checkpoints: the messages that wait go over several of them


def three_copies(directory: Path) -> ClusterFile:
    """Nothing is confirmed on fewer than three disks, however long that takes.

    Two witnesses vote as well, so that one Message Manager which still has its disk is in a majority with them.
    """
    file = _lay_out_free(directory, LocalShape(client_managers=2, backups=2))
    host, _, port = file.client_managers[0].clients.rpartition(":")
    witnesses = {
        node.name: f"{host}:{int(port) + place}" for place, node in enumerate(file.client_managers, WITNESS_PORTS)
    }
    nodes = [msgspec.structs.replace(node, witness=witnesses.get(node.name, "")) for node in file.nodes]
    [channel] = file.channels
    channel = msgspec.structs.replace(channel, copies=3, copies_min=3, checkpoint_interval=SMALL)
    return msgspec.structs.replace(file, nodes=tuple(nodes), channels=(channel,))


def depth_of(running: Cluster, name: str) -> int:
    return sum(each["depth"] for each in running.status()["destinations"] if each["name"] == name)


@pytest.mark.requirement("HA-4")
def test_of_three_disks_any_two_may_be_lost_at_once(tmp_path):
    """Goal: what is confirmed is on all three. Method: the disk that is left was of one that was away at the end, so
    what it has not is lost with the others; and these come back with nothing."""
    write_cluster_file(tmp_path / FILE_NAME, three_copies(tmp_path))
    with alphorn.testing.cluster(directory=tmp_path) as running:
        traffic = Traffic(running.url, Shape())
        traffic.start()
        traffic.pause_consumers()
        until(lambda: depth_of(running, "queue:traffic.queue.1") > 5 * SMALL)
        primary = running.primary()
        survivor = [name for name in running.message_managers if name != primary][-1]
        lost = [name for name in running.message_managers if name != survivor]
        with running.connect() as connection:
            producer = connection.session().producer("queue:two.disks")
            producer.send("on three", wait=True)
            running.kill(survivor)
            receipt = producer.send("on two")
            with pytest.raises(TimeoutError):
                receipt.result(QUIET_S)
            running.kill_together(lost)
            for name in lost:
                shutil.rmtree(running.directory / name)
            running.start_together(running.message_managers)
            receipt.result(WAIT_S)
        traffic.resume_consumers()
        traffic.until_all_receive()
        result = traffic.finish()
    assert result.faults == []
    assert result.confirmed == result.sent > 5 * SMALL
    assert (result.lost, result.duplicates, result.disordered) == (0, 0, 0)
