"""A whole cluster on this machine: which nodes it has, where they listen, and the file that remembers it.

The file is made at the first start and read at every later one, so that a directory always holds the same cluster. The
layout of ports, from the base port on:

    + 0 ... 19   native door of each Client Manager
    +20 ... 39   bus of each Message Manager (UDP and TCP)
    +40 ... 59   link of each Message Manager
    +60 ... 79   the witness of each channel (UDP and TCP)
    +80 ... 99   nothing yet
   +100 ...119   HTTP port of each Client Manager
   +120 ...139   internal connections of each message server

All of it binds to the loopback interface. Every channel gets a group id derived from the directory and the base port:
clusters on one machine do not hear each other.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import socket
from pathlib import Path

import msgspec

from alphorn.io.cluster_file import MESSAGE_SERVERS_MAX, ChannelTable, ClusterFile, NodeTable, read_cluster_file
from alphorn.io.store_files import sync_directory
from alphorn.model.errors import Misuse, Unavailable

FILE_NAME = "cluster.toml"
HOST = "127.0.0.1"
BASE_PORT = 7700
PORT_OPTION = "--base-port"
NODES_MAX = 20  # of each kind; the distance of the ranges of ports
BUS_PORTS, LINK_PORTS, WITNESS_PORTS, HTTP_PORTS, INTERNAL_PORTS, END_OF_PORTS = 20, 40, 60, 100, 120, 140
PORT_MAX = 65_535

Kinds = tuple[socket.SocketKind, ...]
PortUse = tuple[str, str, Kinds]  # address, what for, TCP and UDP

_HEAD = """\
# The nodes of this cluster and their places on the network. Written once, by `alphorn up` or `alphorn single`; what is
# not said here has its default. The groups' members and addresses are part of what their logs agree on: change none.
"""


class LocalShape(msgspec.Struct, frozen=True, kw_only=True):
    """How large a cluster on this machine is."""

    client_managers: int = 1
    backups: int = 1  # of each channel, besides its primary
    channels: int = 1
    base_port: int = BASE_PORT
    together: bool = False  # a Client Manager and a Message Manager share a process, as they would share a machine

    def check(self) -> None:
        """Raises `Misuse` that names every fault."""
        faults = []
        if not 1 <= self.client_managers <= NODES_MAX:
            faults.append(f"there are 1 to {NODES_MAX} Client Managers, not {self.client_managers}")
        if self.backups < 0 or self.channels < 1:
            faults.append("there is at least one channel, and no channel has less than 0 backups")
        elif (1 + self.backups) * self.channels > NODES_MAX:
            count = (1 + self.backups) * self.channels
            faults.append(f"{self.channels} channels with {self.backups} backups each are {count} Message Managers")
            faults.append(f"at most {NODES_MAX} fit on one machine")
        if not 1 <= self.base_port <= PORT_MAX - INTERNAL_PORTS:
            faults.append(f"the base port is 1 to {PORT_MAX - INTERNAL_PORTS}, not {self.base_port}")
        if faults:
            raise Misuse(f"such a cluster cannot be: {'; '.join(faults)}")


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; None leaves it to the directory, or to the default of a new cluster."""

    client_managers: int | None = None
    backups: int | None = None
    channels: int | None = None
    base_port: int | None = None
    together: bool | None = None

    def shape(self, default: LocalShape) -> LocalShape:
        """The shape that is wished for."""
        said = {field: value for field, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(default, **said)


def lay_out(directory: Path, shape: LocalShape, *, host: str = HOST) -> ClusterFile:
    """The cluster of this shape in this directory; raises `Misuse`.

    The number of voters of a channel is odd: where primary and backups are even in number, the first Client Manager
    hosts a witness. A second witness would make no more failures bearable.

    Together, the first Client Manager shares a process with the first Message Manager of each channel, the second with
    the second, and so on. A witness must not die with one of those, so it is a node of its own.

    Message servers share the processes of others (`with_message_servers`).
    """
    return with_message_servers(_lay_out(directory, shape, host), host=host, base_port=shape.base_port)


def _lay_out(directory: Path, shape: LocalShape, host: str) -> ClusterFile:
    """The same without message servers."""
    shape.check()
    channels = tuple(
        ChannelTable(name=f"channel-{number}", group=_group(directory, shape.base_port, number))
        for number in range(1, shape.channels + 1)
    )
    replicas = 1 + shape.backups
    witness = f"{host}:{shape.base_port + WITNESS_PORTS}" if replicas % 2 == 0 else ""

    def shared_process(place: int) -> str:
        return f"together-{place + 1}" if shape.together else ""

    nodes = [
        NodeTable(
            name=f"mm{place + 1}",
            kind="message_manager",
            channel=channels[place // replicas].name,
            bus=f"{host}:{shape.base_port + BUS_PORTS + place}",
            link=f"{host}:{shape.base_port + LINK_PORTS + place}",
            rank=place % replicas + 1,
            process=shared_process(place % replicas) if place % replicas < shape.client_managers else "",
        )
        for place in range(shape.channels * replicas)
    ]
    nodes += [
        NodeTable(
            name=f"cm{place + 1}",
            kind="client_manager",
            clients=f"{host}:{shape.base_port + place}",
            http=f"{host}:{shape.base_port + HTTP_PORTS + place}",
            witness=witness if place == 0 and not shape.together else "",
            process=shared_process(place) if place < replicas else "",
        )
        for place in range(shape.client_managers)
    ]
    if witness and shape.together:
        nodes.append(NodeTable(name="w1", kind="witness", witness=witness))
    return ClusterFile(name=directory.name or "local", directory=".", channels=channels, nodes=tuple(nodes))


def with_message_servers(file: ClusterFile, *, host: str, base_port: int) -> ClusterFile:
    """The same cluster, which has none, with message servers in the processes of its first two Client Managers.

    With one Client Manager the second is beside the last Message Manager, a backup where there is one; where all is in
    one process there is one message server. They cost no process, and no process takes both of them along. A base port
    so high that they would have no ports leaves the cluster without.
    """
    if base_port + END_OF_PORTS > PORT_MAX:
        return file
    hosts: dict[str, NodeTable] = {}  # by the word for the process
    servers = [node for node in file.nodes if node.kind == "message_manager"]
    for node in [*file.client_managers, *reversed(servers)]:
        if len(hosts) < MESSAGE_SERVERS_MAX:
            hosts.setdefault(node.process or node.name, node)
    names = {node.name: word for word, node in hosts.items()}
    nodes = [
        msgspec.structs.replace(node, process=names[node.name]) if node.name in names else node for node in file.nodes
    ]
    nodes += [
        NodeTable(
            name=f"ms{place + 1}",
            kind="message_server",
            process=word,
            internal=f"{host}:{base_port + INTERNAL_PORTS + place}",
        )
        for place, word in enumerate(hosts)
    ]
    return msgspec.structs.replace(file, nodes=tuple(nodes))


def shape_of(file: ClusterFile) -> LocalShape:
    """The shape of a cluster that `lay_out` made."""
    return LocalShape(
        client_managers=len(file.client_managers),
        backups=len(file.message_managers(file.channels[0].name)) - 1,
        channels=len(file.channels),
        base_port=int(file.client_managers[0].clients.rpartition(":")[2]),
        together=any(file.has_guest(node) for node in file.nodes if node.kind == "message_manager"),
    )


def open_local_cluster(
    directory: Path, wish: Wish, *, default: LocalShape, host: str = HOST, port_option: str = PORT_OPTION
) -> tuple[Path, bool]:
    """The path of the directory's cluster file, and whether it is new; raises `Misuse`, or `Unavailable`.

    A new one is written only where its ports are free, because they cannot be changed afterwards. A cluster that exists
    may get more or fewer Client Managers, which keep nothing, and gets message servers where it has none. Its other
    parts are as they were founded: a wish that differs is refused. `port_option` is what the user calls the base port.
    """
    path = directory / FILE_NAME
    if not path.exists():
        file = lay_out(directory.absolute(), wish.shape(default), host=host)
        check_ports(file, option=port_option)
        write_cluster_file(path, file)
        return path, True
    file = read_cluster_file(path)
    found = shape_of(file)
    wanted = wish.shape(found)
    wanted.check()
    for field in ("backups", "channels", "base_port", "together"):
        has, wants = getattr(found, field), getattr(wanted, field)
        if has != wants:
            option = port_option if field == "base_port" else f"--{field.replace('_', '-')}"
            raise Misuse(
                f"the cluster in {directory} was made with {option} {has}, which cannot become {wants}; "
                f"leave {option} out, or choose another --dir"
            )
    changed = file
    if wanted.client_managers != found.client_managers:
        changed = _with_client_managers(file, wanted)
    elif not file.message_servers:  # an earlier version made it
        changed = with_message_servers(file, host=_host_of(file), base_port=found.base_port)
    if changed is not file:
        write_cluster_file(path, msgspec.structs.replace(changed, directory="."))
    return path, False


def url_of(file: ClusterFile) -> str:
    """What clients connect to."""
    return f"alphorn://{','.join(node.clients for node in file.client_managers)}"


def tunnel_url_of(file: ClusterFile) -> str:
    """What clients connect to whose way leads through HTTP; empty where no Client Manager has a port for that."""
    addresses = [node.http for node in file.client_managers if node.http]
    return f"alphorn+ws://{','.join(addresses)}" if addresses else ""


def take_directory(directory: Path) -> int:
    """Makes the directory and locks it for this process; gives the descriptor of the lock, or raises `Misuse`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / "owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Misuse(f"the directory {directory} cannot be used: {error.strerror}; choose another --dir") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise Misuse(
            f"the cluster in {directory} runs already, by process {holder}; stop that one, or choose another --dir"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def check_ports(file: ClusterFile, *, option: str = "") -> None:
    """Raises `Unavailable` that names every port of the cluster that somebody else has.

    `option` is how the user chooses other ports; none can be chosen for a cluster that exists.
    """
    taken = [f"{address} ({use})" for address, use, kinds in _ports_of(file) if not _is_free(address, kinds, option)]
    if taken:
        other = f"choose another {option}" if option else "choose another --dir for a cluster on other ports"
        raise Unavailable(f"taken by another program: {', '.join(taken)}; end that program, or {other}")


def write_cluster_file(path: Path, file: ClusterFile) -> None:
    """Writes TOML, whole or not at all; raises `Misuse`."""
    new = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new.open("w", encoding="utf-8") as out:
            out.write(_HEAD + "\n".join(_toml_of(file)) + "\n")
            out.flush()
            os.fsync(out.fileno())
        new.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise Misuse(f"the cluster file {path} cannot be written: {error.strerror}; choose another --dir") from None


def _with_client_managers(file: ClusterFile, shape: LocalShape) -> ClusterFile:
    """The same cluster with more or fewer Client Managers; whatever else its file says of a node stays."""
    host = _host_of(file)
    made = _lay_out(Path(file.directory), shape, host)
    removed = {channel.name for channel in file.channels if channel.removed}
    there = {node.name: node for node in file.nodes}
    nodes = tuple(
        msgspec.structs.replace(there.get(node.name, node), process=node.process)  # with whom depends on how many
        for node in made.nodes
        if node.channel not in removed
    )
    changed = with_message_servers(msgspec.structs.replace(file, nodes=nodes), host=host, base_port=shape.base_port)
    nodes = tuple(
        msgspec.structs.replace(there[node.name], process=node.process)
        if node.kind == "message_server" and node.name in there
        else node
        for node in changed.nodes
    )
    return msgspec.structs.replace(changed, nodes=nodes)


def _host_of(file: ClusterFile) -> str:
    return file.client_managers[0].clients.rpartition(":")[0]


def _group(directory: Path, base_port: int, channel: int) -> int:
    seed = f"{directory} {base_port}".encode()
    start = int.from_bytes(hashlib.sha256(seed).digest()[:4], "big")
    return (start + channel) % 0xFFFF_FFFF + 1


def _toml_of(file: ClusterFile) -> list[str]:
    lines = [*_fields(file, ("buses", "channels", "nodes"))]
    for title, tables in (("buses", file.buses), ("channels", file.channels), ("nodes", file.nodes)):
        for table in tables:
            lines += ["", f"[[{title}]]", *_fields(table, ())]
    return lines


def _fields(table: msgspec.Struct, without: tuple[str, ...]) -> list[str]:
    """Every field that has not its default."""
    lines = []
    for field in msgspec.structs.fields(table):
        value = getattr(table, field.name)
        if field.name not in without and value != field.default:
            # JSON's strings, numbers and lists are TOML's, but for one character that TOML wants escaped.
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"{field.name} = {text}")
    return lines


def _ports_of(file: ClusterFile) -> list[PortUse]:
    stream: Kinds = (socket.SOCK_STREAM,)
    both: Kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
    found: list[PortUse] = []
    fields = (("clients", stream), ("http", stream), ("internal", stream), ("bus", both), ("link", stream))
    for node in file.nodes:
        for field, kinds in fields:
            if getattr(node, field):
                found.append((getattr(node, field), f"{field} of {node.name}", kinds))
        if node.witness:
            host, _, port = node.witness.rpartition(":")
            for place, channel in enumerate(file.channels):
                found.append((f"{host}:{int(port) + place}", f"witness of {channel.name}", both))
    return found


def _is_free(address: str, kinds: Kinds, option: str) -> bool:
    host, _, port = address.rpartition(":")
    for kind in kinds:
        with contextlib.closing(socket.socket(socket.AF_INET, kind)) as probe:
            if kind == socket.SOCK_STREAM:  # connections that ended a moment ago do not count
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, int(port)))
            except PermissionError:
                other = f"choose a {option} above 1023" if option else "start it with them"
                raise Misuse(f"port {port} needs an administrator's rights; {other}") from None
            except OSError:
                return False
    return True
