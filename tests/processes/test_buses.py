"""Real clusters on several buses: each channel on one of them, and every channel on all."""

import random

import pytest

import alphorn
from alphorn.io.cluster_file import BusTable, ChannelTable, ClusterFile, NodeTable, read_cluster_file
from alphorn.io.local_cluster import FILE_NAME, write_cluster_file
from alphorn.testing.clusters import Cluster

pytestmark = pytest.mark.processes

WAIT_S = 60.0  # only a cluster that hangs meets it
NAMES = [f"queue:bus.{number}" for number in range(6)]


def lay_out(*, is_mirror: bool) -> ClusterFile:
    """Two networks of the loopback interface; each has multicast addresses of its own for a channel on both."""
    drawn = random.SystemRandom()
    red, blue = (f"127.{place}.{drawn.randrange(250)}" for place in drawn.sample(range(1, 250), 2))
    group = drawn.randrange(1 << 31)
    nodes = []
    for place in range(4):
        net = red if is_mirror else (red, blue)[place // 2]
        nodes.append(
            NodeTable(
                name=f"mm{place + 1}",
                kind="message_manager",
                channel=f"channel-{place // 2 + 1}",
                bus=f"{net}.1:{7720 + place}",
                further_buses=(f"{blue}.1:{7720 + place}",) if is_mirror else (),
                link=f"{net}.1:{7740 + place}",
                rank=place % 2 + 1,
            )
        )
    for place, net in enumerate((red, blue)):
        nodes.append(
            NodeTable(
                name=f"cm{place + 1}",
                kind="client_manager",
                clients=f"{net}.1:7700",
                hosts=(f"{net}.1",) if is_mirror else (f"{red}.1", f"{blue}.1"),
                witness=f"{red}.1:7760" if place == 0 else "",
            )
        )
    buses = [("red", "blue")] * 2 if is_mirror else [("red",), ("blue",)]
    return ClusterFile(
        name="buses",
        directory=".",
        buses=(BusTable(name="red", network=f"{red}.0/24"), BusTable(name="blue", network=f"{blue}.0/24")),
        channels=tuple(
            ChannelTable(name=f"channel-{number + 1}", group=group + number, buses=buses[number]) for number in range(2)
        ),
        nodes=tuple(nodes),
    )


@pytest.mark.parametrize(
    "is_mirror",
    [
        pytest.param(False, marks=pytest.mark.requirement("TOP-1", "TOP-4")),
        pytest.param(True, marks=pytest.mark.requirement("TOP-2", "TOP-4")),
    ],
)
def test_messages_cross_between_client_managers_and_a_takeover_disturbs_one_channel_only(tmp_path, is_mirror):
    path = tmp_path / FILE_NAME
    write_cluster_file(path, lay_out(is_mirror=is_mirror))
    running = Cluster(path, read_cluster_file(path))
    try:
        running.start()
        doors = [f"alphorn://{address}" for address in running.url.partition("://")[2].split(",")]
        with alphorn.connect(doors[0]) as here, alphorn.connect(doors[1]) as there:
            cross(here, there)
            cross(there, here)
            lost, kept = running.primary("channel-1"), running.primary("channel-2")
            running.wait_in_sync()
            running.kill(lost)
            cross(here, there)
            assert running.primary("channel-2") == kept
            assert {each["channel"] for each in here.destinations.list()} == {"channel-1", "channel-2"}
    finally:
        running.close()


def cross(sender: alphorn.Connection, receiver: alphorn.Connection) -> None:
    """Messages from one client to the other, by every queue."""
    producing, consuming = sender.session(), receiver.session()
    for name in NAMES:
        with producing.producer(name) as producer:
            producer.send_many(range(50))
        with consuming.consumer(name) as consumer:
            for number in range(50):
                message = consumer.receive(WAIT_S)
                assert message is not None
                assert message.body == number
        consuming.acknowledge()
