"""Which buses carry which channels, and where each node is on them.

A bus is a network that nodes are on. Without any named in the cluster file there is one, and everybody is on it. With
several, each channel names those that carry it:

- each channel on one bus, Client Managers on all of them: traffic of one bus does not load another (TOP-1);
- every channel on all buses, each Client Manager on one: clients are spread over networks (TOP-2).

Either way a channel's Message Managers, the primary and its backups, are on the same buses, which `check` sees to. A
member of several buses speaks on each of them, and one that is not on the first bus of a channel knows the others by
the addresses that they have on its own.
"""

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from alphorn.io.addresses import Lane, group_address
from alphorn.io.homes import Home

if TYPE_CHECKING:
    from alphorn.io.cluster_file import BusTable, ChannelTable, ClusterFile, NodeTable

_BUS_STEP = 7919  # between the multicast addresses of one channel on different buses of one machine


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """Where one member of a channel's group is."""

    address: str  # "host:port" that others know it by
    home: Home
    further: tuple[Home, ...] = ()  # on further buses
    aliases: dict[str, str] = {}  # address of a member as it is configured → as it is reached from here


def seat_of(file: "ClusterFile", node: "NodeTable", number: int, *, port: int = 0) -> Seat:
    """The place of a node in a channel's group; a Client Manager's member takes this port there."""
    channel = file.channels[number]
    if node.kind == "message_manager":
        addresses = [node.bus, *node.further_buses]
        homes = [_home(file, channel, address, place) for place, address in enumerate(addresses)]
        return Seat(address=node.bus, home=homes[0], further=tuple(homes[1:]))
    host, place = host_on(file, node, number)
    aliases = {}
    if place:
        aliases = {each.bus: each.further_buses[place - 1] for each in file.message_managers(channel.name)}
    address = f"{host}:{port}"
    return Seat(address=address, home=_home(file, channel, address, place), aliases=aliases)


def link_from(file: "ClusterFile", node: "NodeTable", server: "NodeTable", number: int) -> str:
    """Where a Client Manager reaches a Message Manager: on the bus that both are on."""
    host, _, port = server.link.rpartition(":")
    alias = seat_of(file, node, number).aliases.get(server.bus)
    return f"{alias.rpartition(':')[0]}:{port}" if alias else f"{host}:{port}"


def link_hosts(server: "NodeTable") -> list[str]:
    """All addresses that a Message Manager listens at for Client Managers."""
    addresses = (server.link, *server.further_buses)
    return list(dict.fromkeys(address.rpartition(":")[0] for address in addresses))


def host_on(file: "ClusterFile", node: "NodeTable", number: int) -> tuple[str, int]:
    """A Client Manager's address on the first of a channel's buses that it is on, and which of them that is."""
    hosts = node.hosts or ((node.clients or node.witness).rpartition(":")[0],)
    for place, bus in enumerate(buses_of(file, number)):
        for host in hosts:
            if is_on(host, bus):
                return host, place
    return hosts[0], 0


def buses_of(file: "ClusterFile", number: int) -> "list[BusTable]":
    """The buses that carry a channel; none where the file names none."""
    tables = {bus.name: bus for bus in file.buses}
    return [tables[name] for name in file.channels[number].buses if name in tables]


def is_on(host: str, bus: "BusTable") -> bool:
    """Whether an address belongs to a bus."""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(bus.network)
    except ValueError:
        return False


def faults_of(file: "ClusterFile") -> list[str]:
    """What does not fit in a file that names buses, as clauses."""
    names = [bus.name for bus in file.buses]
    faults = [f"two buses are named {name}" for name in sorted({n for n in names if names.count(n) > 1})]
    for bus in file.buses:
        try:
            ipaddress.ip_network(bus.network)
        except ValueError:
            faults.append(f"the network of bus {bus.name} is {bus.network!r}; write it like 10.1.0.0/16")
    for number, channel in enumerate(file.channels):
        faults += [f"channel {channel.name} is on bus {name}, which is not listed" for name in _unknown(channel, names)]
        if file.buses and not channel.buses:
            faults.append(f"channel {channel.name} names no bus")
        elif not faults:
            faults += _faults_of_members(file, channel, buses_of(file, number))
    return faults


def _faults_of_members(file: "ClusterFile", channel: "ChannelTable", buses: "Sequence[BusTable]") -> list[str]:
    faults = []
    for node in file.message_managers(channel.name):
        addresses = [node.bus, *node.further_buses]
        if len(addresses) != max(1, len(buses)):
            faults.append(
                f"node {node.name} has {len(addresses)} addresses on buses, and its channel {len(buses)} buses"
            )
        for address, bus in zip(addresses, buses, strict=False):
            if not is_on(address.rpartition(":")[0], bus):
                faults.append(
                    f"node {node.name} is at {address}, which is not on bus {bus.name}: "
                    f"a primary and its backups are on the same buses"
                )
    for node in file.client_managers:
        hosts = node.hosts or ((node.clients or node.witness).rpartition(":")[0],)
        if buses and not any(is_on(host, bus) for host in hosts for bus in buses):
            faults.append(f"node {node.name} is on no bus that carries channel {channel.name}; name one in its hosts")
    return faults


def _unknown(channel: "ChannelTable", names: Sequence[str]) -> list[str]:
    return [name for name in channel.buses if name not in names]


def _home(file: "ClusterFile", channel: "ChannelTable", address: str, place: int) -> Home:
    """The first bus has the addresses that follow from the group; the others differ, also on one machine."""
    network = buses_of(file, file.channels.index(channel))[place].network if channel.buses else ""
    if not place:
        return Home(address=address, network=network)
    group = (channel.group + place * _BUS_STEP) & 0xFFFF_FFFF
    data, control = group_address(group, Lane.DATA), group_address(group, Lane.CONTROL)
    return Home(address=address, network=network, data=data, control=control)
