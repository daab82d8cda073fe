"""What a cluster file must not say about names, groups and places on the network, as clauses for one sentence."""

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from alphorn.io.cluster_file import ClusterFile, NodeTable

GROUP_MAX: Final = 0xFFFF_FFFF
PORT_MAX: Final = 0xFFFF
NAME_BYTES_MAX: Final = 200  # what file systems allow, less the endings of a node's files

_ADDRESS_FIELDS = ("bus", "link", "clients", "http", "witness", "internal")
_SOUGHT_FIELDS = ("bus", "link", "witness", "internal")  # other nodes know these from the file alone


def faults_of_names(file: "ClusterFile") -> list[str]:
    """Each node has a folder of its name, which must not be outside of the cluster's directory."""
    return [
        f"node {node.name!r} cannot have a folder of that name; write letters and digits"
        for node in file.nodes
        if not _is_plain(node.name)
    ]


def faults_of_groups(file: "ClusterFile") -> list[str]:
    """A group is told from others by its number alone."""
    faults = [
        f"group of channel {channel.name} is {channel.group}; write a number from 0 to {GROUP_MAX}"
        for channel in file.channels
        if not 0 <= channel.group <= GROUP_MAX
    ]
    groups: dict[int, str] = {}
    for channel in file.channels:
        other = groups.setdefault(channel.group, channel.name)
        if other != channel.name:
            faults.append(f"channels {other} and {channel.name} have both the group {channel.group}")
    return faults


def faults_of_addresses(file: "ClusterFile") -> list[str]:
    """Every address is one, and nobody else's."""
    faults = [fault for node in file.nodes for fault in _faults_of_node(node, len(file.channels))]
    if faults:
        return faults
    uses: dict[str, str] = {}
    for address, use in _uses(file):
        other = uses.setdefault(address, use)
        if other != use:
            faults.append(f"{other} and {use} are both {address}")
    return faults


def faults_of_limits(file: "ClusterFile") -> list[str]:
    """There is room for something."""
    faults = [
        f"{field} is {getattr(file, field)}; write 1 or more"
        for field in ("destinations_max", "subscriptions_max")
        if getattr(file, field) < 1
    ]
    if file.staged_bytes_max < 0:
        faults.append(
            f"staged_bytes_max is {file.staged_bytes_max}; write 0 for an eighth of the smallest store, or more"
        )
    return faults


def faults_of_copies(file: "ClusterFile") -> list[str]:
    """Nothing is confirmed that nobody has, and there are log numbers between two checkpoints."""
    return [
        f"{field} of channel {channel.name} is {getattr(channel, field)}; write 1 or more"
        for channel in file.channels
        for field in ("copies", "copies_min", "checkpoint_interval")
        if getattr(channel, field) < 1
    ]


def faults_of_promises(file: "ClusterFile") -> list[str]:
    """Who asks for more copies than there can be must not believe that they are there.

    A channel of one Message Manager has one copy of everything, whatever the file says.
    """
    faults = []
    for channel in file.channels:
        servers = len(file.message_managers(channel.name))
        if channel.copies > servers > 1 and not channel.backup_policy:
            faults.append(f"copies of channel {channel.name} is {channel.copies}; there are {servers} message_managers")
        if channel.copies_min > channel.copies and not channel.backup_policy:
            faults.append(f"copies_min of channel {channel.name} is {channel.copies_min}, and copies {channel.copies}")
    return faults


def faults_of_ranks(file: "ClusterFile") -> list[str]:
    """Message Managers of one rank ask at the same time to be primary, and hinder each other."""
    faults = []
    for channel in file.channels:
        ranks: dict[int, str] = {}
        for node in file.message_managers(channel.name):
            other = ranks.setdefault(node.rank, node.name)
            if other != node.name:
                faults.append(f"{other} and {node.name} of channel {channel.name} have both rank {node.rank}")
    return faults


def _is_plain(name: str) -> bool:
    is_path = "/" in name or name in (".", "..")
    return name.isprintable() and not is_path and 0 < len(name.encode()) <= NAME_BYTES_MAX


def _faults_of_node(node: "NodeTable", channels: int) -> Iterator[str]:
    # Members of a group are sent to without asking anybody for an address. A Client Manager's is the one for clients,
    # unless it has others.
    numeric = {"bus", "witness"} | ({"clients"} if not node.hosts else set())
    for field in _ADDRESS_FIELDS:
        address = getattr(node, field)
        if not address:
            continue
        host, _, port = address.rpartition(":")
        ports = channels if field == "witness" else 1
        if not (_is_port(port) and host):
            yield f"{field} of node {node.name} is {address!r}; write host:port"
        elif field in numeric and not _is_numeric(host):
            yield f"{field} of node {node.name} is {address!r}; write an IPv4 address, like 10.0.0.7:{port}"
        elif field in _SOUGHT_FIELDS and not int(port):
            yield f"{field} of node {node.name} is {address!r}, where nobody would find it; choose a port"
        elif int(port) + ports - 1 > PORT_MAX:
            yield f"{field} of node {node.name} is {address!r}, and {ports} ports are needed from there on"
    for address in node.further_buses:
        host, _, port = address.rpartition(":")
        if not (_is_numeric(host) and _is_port(port) and int(port)):
            yield f"further_buses of node {node.name} has {address!r}; write an IPv4 address and a port"
    for host in node.hosts:
        if not _is_numeric(host):
            yield f"hosts of node {node.name} has {host!r}; write an IPv4 address"


def _is_port(port: str) -> bool:
    return port.isascii() and port.isdigit() and int(port) <= PORT_MAX


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def _uses(file: "ClusterFile") -> Iterator[tuple[str, str]]:
    """Every address that somebody listens at, with what for; a witness has a port for each channel."""
    for node in file.nodes:
        listening = {field: getattr(node, field) for field in ("bus", "link", "clients", "http", "internal")}
        for field, address in listening.items():
            if address and not address.endswith(":0"):
                yield address, f"{field} of {node.name}"
        for address in node.further_buses:
            yield address, f"further_buses of {node.name}"
        if node.witness:
            host, _, port = node.witness.rpartition(":")
            for number, channel in enumerate(file.channels):
                yield f"{host}:{int(port) + number}", f"witness of {node.name} for channel {channel.name}"
