"""Buses in the cluster file: who is on which, and what is refused at the start."""

import msgspec
import pytest

from alphorn.io.cluster_file import BusTable, ChannelTable, ClusterFile, NodeTable
from alphorn.io.topology import link_from, link_hosts, seat_of
from alphorn.model.errors import Misuse

RED = BusTable(name="red", network="10.1.0.0/16")
BLUE = BusTable(name="blue", network="10.2.0.0/16")


def server(number: int, channel: str, bus: str, **fields: object) -> NodeTable:
    link = f"{bus.rpartition(':')[0]}:7740"
    return NodeTable(
        name=f"mm{number}", kind="message_manager", channel=channel, bus=bus, link=link, rank=number, **fields
    )  # type: ignore[arg-type]


def apart() -> ClusterFile:
    """Each channel on a bus of its own; the Client Managers on both."""
    return ClusterFile(
        name="apart",
        directory=".",
        buses=(RED, BLUE),
        channels=(
            ChannelTable(name="one", group=1, buses=("red",)),
            ChannelTable(name="two", group=2, buses=("blue",)),
        ),
        nodes=(
            server(1, "one", "10.1.0.1:7720"),
            server(2, "one", "10.1.0.2:7720"),
            server(3, "two", "10.2.0.1:7720"),
            server(4, "two", "10.2.0.2:7720"),
            NodeTable(
                name="cm1",
                kind="client_manager",
                clients="192.168.0.1:7700",
                hosts=("10.1.0.9", "10.2.0.9"),
                witness="10.1.0.9:7760",
            ),
        ),
    )


def mirror() -> ClusterFile:
    """Every channel on both buses; each Client Manager on one."""
    return ClusterFile(
        name="mirror",
        directory=".",
        buses=(RED, BLUE),
        channels=(ChannelTable(name="one", group=1, buses=("red", "blue")),),
        nodes=(
            server(1, "one", "10.1.0.1:7720", further_buses=("10.2.0.1:7720",)),
            server(2, "one", "10.1.0.2:7720", further_buses=("10.2.0.2:7720",)),
            NodeTable(name="cm1", kind="client_manager", clients="10.1.0.8:7700"),
            NodeTable(name="cm2", kind="client_manager", clients="10.2.0.9:7700", witness="10.2.0.9:7760"),
        ),
    )


def change(file: ClusterFile, name: str, **fields: object) -> ClusterFile:
    nodes = tuple(msgspec.structs.replace(node, **fields) if node.name == name else node for node in file.nodes)
    return msgspec.structs.replace(file, nodes=nodes)


def faults_of(file: ClusterFile) -> str:
    with pytest.raises(Misuse) as caught:
        file.check()
    return str(caught.value)


@pytest.mark.requirement("TOP-1", "TOP-4")
def test_a_client_manager_is_on_the_bus_of_each_channel_and_a_message_manager_on_one() -> None:
    file = apart()
    file.check()
    client_manager = file.node("cm1")
    assert [seat_of(file, client_manager, number).address for number in range(2)] == ["10.1.0.9:0", "10.2.0.9:0"]
    assert [member.address for member in file.group(1).members] == ["10.2.0.1:7720", "10.2.0.2:7720", "10.2.0.9:7761"]
    assert seat_of(file, file.node("mm3"), 1).further == ()


@pytest.mark.requirement("TOP-2", "TOP-4")
def test_in_the_mirror_message_managers_are_on_all_buses_and_a_client_manager_on_one() -> None:
    file = mirror()
    file.check()
    seat = seat_of(file, file.node("mm1"), 0)
    assert [seat.home.network, *(home.network for home in seat.further)] == ["10.1.0.0/16", "10.2.0.0/16"]
    near, far = seat_of(file, file.node("cm1"), 0), seat_of(file, file.node("cm2"), 0)
    assert (near.address, near.aliases) == ("10.1.0.8:0", {})
    assert (far.address, far.aliases["10.1.0.2:7720"]) == ("10.2.0.9:0", "10.2.0.2:7720")
    assert (far.home.data, far.home.control) == (seat.further[0].data, seat.further[0].control)
    assert near.home.data != far.home.data
    assert link_from(file, file.node("cm2"), file.node("mm1"), 0) == "10.2.0.1:7740"
    assert link_hosts(file.node("mm1")) == ["10.1.0.1", "10.2.0.1"]


@pytest.mark.requirement("TOP-3")
def test_a_backup_on_another_bus_than_its_primary_is_refused() -> None:
    assert "a primary and its backups are on the same buses" in faults_of(change(apart(), "mm2", bus="10.2.0.7:7720"))
    assert "mm2 has 1 addresses on buses" in faults_of(change(mirror(), "mm2", further_buses=()))
    assert apart().group(0).digest() != mirror().group(0).digest()


def test_whoever_cannot_be_reached_on_any_bus_is_named() -> None:
    assert "cm1 is on no bus that carries channel two" in faults_of(change(apart(), "cm1", hosts=("10.1.0.9",)))


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"buses": (RED, RED)}, "two buses are named red"),
        ({"buses": (RED, BusTable(name="blue", network="here"))}, "the network of bus blue is 'here'"),
        ({"buses": (RED,)}, "channel two is on bus blue, which is not listed"),
        ({"channels": (ChannelTable(name="one", group=1), ChannelTable(name="two", group=2))}, "names no bus"),
    ],
)
def test_buses_that_do_not_fit_are_named(fields: dict[str, object], fault: str) -> None:
    assert fault in faults_of(msgspec.structs.replace(apart(), **fields))


@pytest.mark.requirement("TOP-5")
def test_nodes_of_all_kinds_may_share_a_machine_and_a_file_needs_no_buses() -> None:
    file = mirror()
    nodes = tuple(
        msgspec.structs.replace(node, further_buses=(), bus=node.bus and f"10.1.0.1:77{place}0")
        for place, node in enumerate(file.nodes, 1)
    )
    channels = (ChannelTable(name="one", group=1),)
    alone = msgspec.structs.replace(file, buses=(), channels=channels, nodes=nodes)
    alone.check()
    assert seat_of(alone, alone.node("cm2"), 0).address == "10.2.0.9:0"


def test_a_removed_channel_keeps_its_place_and_has_no_nodes() -> None:
    file = apart()
    channels = (file.channels[0], msgspec.structs.replace(file.channels[1], removed=True))
    removed = msgspec.structs.replace(file, channels=channels)
    assert "channel two is removed and has a message_manager" in faults_of(removed)
    nodes = tuple(node for node in file.nodes if node.channel != "two")
    msgspec.structs.replace(removed, nodes=nodes).check()
