"""The file that says what a cluster is: its channels, and its nodes with their places on the network.

The same file on every node; each finds itself by name. TOML for people, JSON for programs; the same fields. Paths are
relative to the file.

    name = "example"
    directory = "/var/lib/alphorn"      # each node keeps its data in a folder of its own name below

    [[channels]]
    name = "main"
    group = 7                           # 32-bit id on the network, different for each channel of each cluster

    [[nodes]]
    name = "mm1"
    kind = "message_manager"
    channel = "main"
    bus = "10.0.0.1:7720"               # its member of the channel's group
    link = "10.0.0.1:7740"              # where Client Managers reach it

    [[nodes]]
    name = "cm1"
    kind = "client_manager"
    clients = "10.0.0.3:7700"           # where clients reach it
    http = "10.0.0.3:80"                # the same inside of a WebSocket; leave out for none
    witness = "10.0.0.3:7730"           # hosts a commit server of each channel; leave out for none

    [[nodes]]
    name = "ms1"
    kind = "message_server"
    process = "front-1"                 # nodes with the same word here run in one process
    internal = "10.0.0.3:7820"          # where nodes, and programs that join, keep their internal connections
"""

from pathlib import Path
from typing import Literal

import msgspec

from alphorn.bus.config import Budget, GroupConfig, MemberConfig, Role
from alphorn.io import cluster_faults, topology
from alphorn.io.store import MAP_BYTES
from alphorn.model.errors import Misuse
from alphorn.model.fitting import fit
from alphorn.model.messages import BATCH_BYTES_MAX

SERVER = Role.SEQUENCER | Role.DATA | Role.COMMIT | Role.CHECKPOINT
NodeKind = Literal["message_manager", "client_manager", "witness", "message_server"]
START_ORDER = ("message_server", "witness", "message_manager", "client_manager")
NEEDED = {
    "message_manager": ("channel", "bus", "link"),
    "client_manager": ("clients",),
    "witness": ("witness",),
    "message_server": ("internal",),
}
LogPlace = Literal["file", "standard_error"]
BackupPolicy = Literal["", "optimistic", "optimum", "conservative"]
MESSAGE_MANAGER_TAG = "message_manager"
CLIENT_MANAGER_TAG = "client_manager"
SHARED_TAG = "message_manager+client_manager"  # of a member that both stand on
WITNESS_TAG = "witness"  # a running one adds its process, as "witness:4711"
LIMIT_BYTES_MIN = 64 << 10
MESSAGE_SERVERS_MAX = 2  # the second goes on where the first dies
STORE_BYTES_MOST = 1 << 46  # of address space, which a process has twice as much of
CHANNEL_BYTES_MAX = 16 << 20


class BusTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bus: a network that carries channels. A file that names none has one, with everybody on it."""

    name: str  # by which channels name it
    network: str  # the addresses that are on it, like 10.1.0.0/16


class ChannelTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One channel: one log. But for `removed`, all of it stays as it was when the cluster was founded."""

    name: str  # as nodes, `alphorn move` and `alphorn status` name it
    group: int  # 32-bit id on the network, different for each channel of each cluster
    copies: int = 2  # data servers that have a message on disk before it is confirmed
    copies_min: int = 1  # how far that may fall when data servers are away, by a recorded decision
    backup_policy: BackupPolicy = ""  # instead of both: who must have a transaction, or anything, before it is done
    buses: tuple[str, ...] = ()  # names of the buses that carry it; needed where the file names any
    removed: bool = False  # it was drained and its nodes are gone; it keeps its place among the channels
    checkpoint_interval: int = 4096  # log numbers between checkpoints, or 64 MB; raising it lengthens replay

    def copies_of(self, servers: int) -> tuple[int, int]:
        """How many of so many Message Managers must have an entry, and how far that may fall.

        Optimistic asks for the primary alone, optimum for one backup as well, conservative for all backups; the last
        two rather wait than do with less.
        """
        if not self.backup_policy:
            copies = min(self.copies, servers)
            return copies, min(self.copies_min, copies)
        wanted = {"optimistic": 1, "optimum": 2, "conservative": servers}[self.backup_policy]
        return min(wanted, servers), min(wanted, servers)


class NodeTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node. Of a voter (a Message Manager, or who has a `witness`) these stay as they were when it was founded.

    That is its `name`, `channel`, `bus`, `rank` and `witness`, and its place among the others.
    """

    name: str  # also of its folder below the cluster's directory, so a plain file name
    kind: NodeKind  # what it does
    process: str = ""  # nodes with the same word here run in one process; empty for a process of its own
    channel: str = ""  # of a Message Manager
    bus: str = ""  # "host:port" of a Message Manager's member, on the first bus of its channel
    further_buses: tuple[str, ...] = ()  # the same on the further buses of its channel, in their order
    link: str = ""  # "host:port" where Client Managers reach a Message Manager
    rank: int = 0  # of a Message Manager: lower is asked first to be primary; each of a channel has its own
    store_bytes_max: int = MAP_BYTES  # of a Message Manager: most that its store may take on disk
    clients: str = ""  # "host:port" of a Client Manager's native door
    http: str = ""  # "host:port" where the same is to be had inside of a WebSocket; empty for nowhere
    hosts: tuple[str, ...] = ()  # addresses of a Client Manager on the buses that it is on; else that of `clients`
    witness: str = ""  # "host:port" of a Client Manager's commit server; one port more for each further channel
    internal: str = ""  # "host:port" of a message server's internal connections
    session_bytes_max: int = 16 << 20  # of a Client Manager: what one session has sent and is not yet confirmed
    consumer_bytes_max: int = 4 << 20  # of a Client Manager: what is on its way to one client that does not take it


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole cluster."""

    name: str  # for people
    directory: str  # each node keeps its stores and its log in a folder of its own name below
    channels: tuple[ChannelTable, ...]  # a table [[channels]] for each
    nodes: tuple[NodeTable, ...]  # a table [[nodes]] for each
    buses: tuple[BusTable, ...] = ()  # a table [[buses]] for each, where machines have several networks
    cluster_key: str = ""  # file with the key that seals everything said on the bus; empty leaves it open
    prepare: Literal["involved", "all"] = "involved"  # channels that prepare a transaction over several of them
    log: tuple[LogPlace, ...] = ("file",)  # where each node's log goes; the file is log.jsonl in its folder
    destinations_max: int = 250_000  # of one channel: no more are created, be they temporary; each takes some 3 KB
    subscriptions_max: int = 250_000  # of one channel, of those that have names: no more are made; each takes some 2 KB
    staged_bytes_max: int = 0  # of one writer on a channel, and half of all; 0 for an eighth of the smallest store

    def node(self, name: str) -> NodeTable:
        """A node by its name; raises `Misuse`."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise Misuse(
            f"the cluster {self.name} has no node named {name!r}; it has {', '.join(n.name for n in self.nodes)}"
        )

    def beside(self, name: str) -> list[NodeTable]:
        """The nodes of this one's process, itself included, in the order in which they start."""
        me = self.node(name)
        nodes = [node for node in self.nodes if node is me or (me.process and node.process == me.process)]
        return sorted(nodes, key=lambda node: START_ORDER.index(node.kind))

    def has_guest(self, node: NodeTable) -> bool:
        """Whether a Client Manager shares a Message Manager's process."""
        return any(other.kind == "client_manager" for other in self.beside(node.name))

    @property
    def key_path(self) -> Path | None:
        """The file of the cluster's key, if it has one."""
        return Path(self.cluster_key) if self.cluster_key else None

    def message_managers(self, channel: str) -> list[NodeTable]:
        """The Message Managers of a channel."""
        return [node for node in self.nodes if node.kind == "message_manager" and node.channel == channel]

    @property
    def client_managers(self) -> list[NodeTable]:
        """All Client Managers."""
        return [node for node in self.nodes if node.kind == "client_manager"]

    @property
    def message_servers(self) -> list[NodeTable]:
        """All message servers, in the order in which they are preferred."""
        return [node for node in self.nodes if node.kind == "message_server"]

    def group(self, number: int) -> GroupConfig:
        """What the members of a channel's group agree on."""
        channel = self.channels[number]
        servers = self.message_managers(channel.name)
        members = [
            MemberConfig(
                number=place,
                name=node.name,
                address=node.bus,
                roles=SERVER,
                rank=node.rank,
                tag=MESSAGE_MANAGER_TAG,
            )
            for place, node in enumerate(servers, 1)
        ]
        for node in self.nodes:
            if node.witness:
                host, _, port = node.witness.rpartition(":")
                host = topology.host_on(self, node, number)[0] if self.buses else host
                members.append(
                    MemberConfig(
                        number=len(members) + 1,
                        name=node.name,
                        address=f"{host}:{int(port) + number}",
                        roles=Role.COMMIT,
                        tag=WITNESS_TAG,
                    )
                )
        copies, copies_min = channel.copies_of(len(servers))
        return GroupConfig(
            group=channel.group,
            members=tuple(members),
            bus="+".join(channel.buses) or channel.name,
            copies=copies,
            copies_min=copies_min,
            checkpoint_interval=channel.checkpoint_interval,
        )

    @property
    def channel_bytes_max(self) -> int:
        """What a Client Manager keeps of a channel that the bus has not taken; of a small disk, an eighth for all."""
        smallest = min(node.store_bytes_max for node in self.nodes if node.kind == "message_manager")
        return max(LIMIT_BYTES_MIN, min(CHANNEL_BYTES_MAX, smallest // (8 * len(self.client_managers))))

    @property
    def writer_bytes_max(self) -> int:
        """What one writer may have staged on a channel; twice as much may all of them."""
        smallest = min(node.store_bytes_max for node in self.nodes if node.kind == "message_manager")
        return self.staged_bytes_max or smallest // 8

    def reserve_bytes(self, limit: int) -> int:
        """What must be free on a Message Manager's disk when messages are let in no more.

        That much may be under way: on the bus, and at each Client Manager; and an eighth is for the log's own records,
        checkpoints, and acknowledgements, which are always let in.
        """
        each = self.channel_bytes_max + BATCH_BYTES_MAX
        return Budget().window_bytes + len(self.client_managers) * each + limit // 8

    def sharers_of(self, node: NodeTable) -> int:
        """How many Message Managers fill this one's disk, itself included: those of one machine share its directory."""
        host = node.bus.rpartition(":")[0]
        return sum(other.bus.rpartition(":")[0] == host for other in self.nodes if other.kind == "message_manager")

    def check(self) -> None:
        """Raises `Misuse` that names every fault."""
        faults = []
        names = [node.name for node in self.nodes]
        faults += [f"two nodes are named {name}" for name in sorted({n for n in names if names.count(n) > 1})]
        channels = [channel.name for channel in self.channels]
        faults += [f"two channels are named {name}" for name in sorted({n for n in channels if channels.count(n) > 1})]
        if not channels:
            faults.append("there is no channel")
        for node in self.nodes:
            needed = NEEDED[node.kind]
            faults += [f"node {node.name} needs {field}" for field in needed if not getattr(node, field)]
            if node.channel and node.channel not in channels:
                faults.append(f"node {node.name} is of channel {node.channel}, which is not listed")
            faults += self._limit_faults(node)
        for channel in self.channels:
            if channel.removed == bool(self.message_managers(channel.name)):
                fault = "has no message_manager (removed = true says that it was drained and taken out)"
                if channel.removed:
                    fault = "is removed and has a message_manager"
                faults.append(f"channel {channel.name} {fault}")
        faults += cluster_faults.faults_of_names(self)
        faults += cluster_faults.faults_of_groups(self)
        faults += cluster_faults.faults_of_copies(self)
        faults += cluster_faults.faults_of_limits(self)
        faults += cluster_faults.faults_of_addresses(self)
        faults += self._process_faults()
        faults += topology.faults_of(self)
        if not self.client_managers:
            faults.append("there is no client_manager")
        self._refuse(faults)

    def check_new(self) -> None:
        """Raises `Misuse` for what a new cluster must not have, and one that was founded with it cannot change."""
        self._refuse(cluster_faults.faults_of_ranks(self) + cluster_faults.faults_of_promises(self))

    def _refuse(self, faults: list[str]) -> None:
        if faults:
            raise Misuse(f"the cluster file of {self.name} does not fit: {'; '.join(faults)}")

    def _process_faults(self) -> list[str]:
        """Nodes that must not share a process, because they would die together or be taken for each other."""
        faults = []
        for process in dict.fromkeys(node.process for node in self.nodes if node.process):
            nodes = [node for node in self.nodes if node.process == process]
            channels = [node.channel for node in nodes if node.kind == "message_manager"]
            if len(channels) > len(set(channels)):
                faults.append(f"process {process} has two message_managers of one channel: both would be lost at once")
            if channels and any(node.witness for node in nodes):
                faults.append(f"process {process} has a message_manager and a witness: both would be lost at once")
            if sum(node.kind == "client_manager" for node in nodes) > 1:
                faults.append(f"process {process} has two client_managers: one of them is enough")
            if sum(node.kind == "message_server" for node in nodes) > 1:
                faults.append(f"process {process} has two message_servers: both would be lost at once")
        if len(self.message_servers) > MESSAGE_SERVERS_MAX:
            faults.append(f"there are {len(self.message_servers)} message_servers; write {MESSAGE_SERVERS_MAX} at most")
        return faults

    def _limit_faults(self, node: NodeTable) -> list[str]:
        """Limits that leave no room to work in."""
        limit = node.store_bytes_max
        if limit > STORE_BYTES_MOST:
            return [f"store_bytes_max of node {node.name} is {limit}; {STORE_BYTES_MOST} is the most"]
        if node.kind == "message_manager" and self.client_managers and limit - self.reserve_bytes(limit) < limit // 4:
            return [f"store_bytes_max of node {node.name} is {limit}, which leaves no room for messages; take more"]
        if node.kind == "client_manager":
            return [
                f"{field} of node {node.name} is {getattr(node, field)}; {LIMIT_BYTES_MIN} is the least"
                for field in ("session_bytes_max", "consumer_bytes_max")
                if getattr(node, field) < LIMIT_BYTES_MIN
            ]
        return []


def read_cluster_file(path: Path) -> ClusterFile:
    """Reads TOML or JSON, by the file's name; raises `Misuse`."""
    try:
        data = path.read_bytes()
        decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
        file = fit(decode(data), ClusterFile)
    except OSError as error:
        raise Misuse(f"the cluster file {path} cannot be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise Misuse(f"the cluster file {path} is no text; put back what you wrote, or a copy of it") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise Misuse(f"the cluster file {path} cannot be understood: {error}; correct it there") from None
    file.check()
    start = path.absolute().parent
    return msgspec.structs.replace(
        file,
        directory=str(start / file.directory),
        cluster_key=str(start / file.cluster_key) if file.cluster_key else "",
    )
