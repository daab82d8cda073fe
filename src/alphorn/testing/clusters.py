"""A real small cluster for tests: processes, disks and sockets of this machine, gone when the test ends.

    with alphorn.testing.cluster(client_managers=2, backups=1) as cluster:
        with cluster.connect() as connection:
            ...
        cluster.kill("mm1")
        cluster.restart("mm1")

Each cluster has a loopback address, a directory and multicast groups of its own, so several may run beside each other.
Every node is a child process and is signalled by its own pid only. All of them end with the `with`, and also when the
test's own process dies. A node that was killed stays down until `restart`.
"""

import asyncio
import contextlib
import random
import signal
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from alphorn.client.blocking.connection import Connection, connect
from alphorn.io.cluster_file import BackupPolicy, ClusterFile, read_cluster_file
from alphorn.io.local_cluster import (
    FILE_NAME,
    LocalShape,
    check_ports,
    lay_out,
    tunnel_url_of,
    url_of,
    write_cluster_file,
)
from alphorn.io.probe import status_of, until_serving
from alphorn.io.supervisor import NodeProcess, Supervisor
from alphorn.model.errors import Misuse, Unavailable

DEADLINE_S = 60.0  # generous: only a cluster that hangs meets it
HOSTS_TRIED = 10
LOOK_S = 0.02  # between two looks at a state that is awaited

Result = TypeVar("Result")


@contextlib.contextmanager
def cluster(
    *,
    client_managers: int = 1,
    backups: int = 1,
    channels: int = 1,
    together: bool = False,
    directory: Path | str | None = None,
    deadline_s: float = DEADLINE_S,
    checkpoint_interval: int | None = None,
    limits: dict[str, int] | None = None,
    backup_policy: BackupPolicy = "",
    prepare: Literal["involved", "all"] = "involved",
) -> "Iterator[Cluster]":
    """Starts a cluster, waits until it serves with all its nodes, and ends it afterwards, whatever the body does.

    `together` lets a Client Manager and a Message Manager share a process; who kills one of them kills both.
    `directory` keeps what the nodes wrote, to be looked at; without it a temporary one is used and removed. A directory
    that holds such a cluster already is continued. `checkpoint_interval` is the number of log entries between two
    checkpoints; `backup_policy` and `prepare` are those of the cluster file. `limits` are fields of its nodes
    or of the cluster file: `store_bytes_max`, `destinations_max` and the like. Raises `Unavailable` when the cluster
    does not serve in time.
    """
    shape = LocalShape(client_managers=client_managers, backups=backups, channels=channels, together=together)
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="alphorn-cluster-")))
        path = Path(directory).absolute() / FILE_NAME
        if not path.exists():
            file = _with_interval(_lay_out_free(path.parent, shape), checkpoint_interval)
            of_all = {name: most for name, most in (limits or {}).items() if name in ClusterFile.__struct_fields__}
            of_nodes = {name: most for name, most in (limits or {}).items() if name not in of_all}
            file = msgspec.structs.replace(file, **of_all)
            nodes = tuple(msgspec.structs.replace(node, **of_nodes) for node in file.nodes)
            tables = tuple(msgspec.structs.replace(table, backup_policy=backup_policy) for table in file.channels)
            write_cluster_file(path, msgspec.structs.replace(file, nodes=nodes, channels=tables, prepare=prepare))
        made = Cluster(path, read_cluster_file(path), deadline_s=deadline_s)
        stack.callback(made.close)
        made.start()
        yield made


class Cluster:
    """A running cluster. Its calls block, and may be made from any thread."""

    def __init__(self, path: Path, file: ClusterFile, *, deadline_s: float = DEADLINE_S) -> None:
        self._file = file
        self._deadline_s = deadline_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="alphorn cluster", daemon=True)
        self._thread.start()
        self._supervisor = self._run(self._make(path))

    @property
    def url(self) -> str:
        """What clients connect to: every Client Manager."""
        return url_of(self._file)

    @property
    def tunnel_url(self) -> str:
        """The same through HTTP: every Client Manager's WebSocket."""
        return tunnel_url_of(self._file)

    @property
    def directory(self) -> Path:
        """Where the nodes keep their stores and logs."""
        return Path(self._file.directory)

    @property
    def nodes(self) -> dict[str, int]:
        """The pid of each node; 0 for one that is down."""
        return {name: node.pid for name, node in self._supervisor.nodes.items()}

    @property
    def client_managers(self) -> list[str]:
        """The names of all Client Managers."""
        return [node.name for node in self._file.client_managers]

    @property
    def message_managers(self) -> list[str]:
        """The names of all Message Managers."""
        return [node.name for node in self._file.nodes if node.kind == "message_manager"]

    @property
    def message_servers(self) -> list[str]:
        """The names of all message servers, which share the processes of others."""
        return [node.name for node in self._file.message_servers]

    def beside(self, name: str) -> list[str]:
        """The names of the nodes that share a node's process, its own included."""
        return [table.name for table in self._file.beside(name)]

    @property
    def endings(self) -> dict[str, str]:
        """Of each node that is down, how it ended, as a clause."""
        return {name: node.how_it_ended() for name, node in self._supervisor.nodes.items() if not node.pid}

    def connect(self, **settings: Any) -> Connection:
        """A connection of the client library, with its settings but the URL; it is as patient as the cluster."""
        return connect(self.url, **{"connect_timeout": self._deadline_s, **settings})

    def status(self) -> dict[str, Any]:
        """The cluster's state, as `alphorn status --json` shows it, from the first Client Manager that answers."""
        return self._run(self._status())

    def describe(self, name: str) -> dict[str, object]:
        """The whole printable state of one node's process, for finding faults."""
        return self._run(self._node(name).describe(answer_s=self._deadline_s))

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signals one node. After SIGKILL or SIGTERM it has ended when this returns."""
        self._run(self._kill(name, number))

    def die_at(self, name: str, step: str, count: int = 1) -> None:
        """Lets a node kill itself when it takes a step for the so-manieth time; 0 lets it live.

        Steps are those of `alphorn.io.crash_points`: a Client Manager's, or a primary's. The node has
        heard it when this returns; raises `Unavailable` when it is down, or has died meanwhile.
        """
        self._run(self._die_at(name, step, count))

    def restart(self, name: str) -> None:
        """Starts a node that is down, or stops it in good order and starts it again; waits until it takes part."""
        self._run(self._restart(name))

    def kill_together(self, names: Sequence[str]) -> None:
        """Kills these at the same moment; they have ended when this returns."""
        self._run(self._kill_together(names))

    def start_together(self, names: Sequence[str]) -> None:
        """Starts these, which are down, at the same time; waits until all of them take part."""
        self._run(self._start_together(names))

    def primary(self, channel: str | None = None) -> str:
        """The name of the primary of a channel (of the first one), by the newest epoch.

        While one takes over there is none: it is waited for. Raises `Unavailable` when that takes too long.
        """
        return self._run(self._primary(channel or self._file.channels[0].name))

    def make_primary(self, name: str) -> None:
        """Lets a Message Manager be primary, of a channel that has two: the other one is restarted if it is now."""
        self.wait_in_sync()
        primary = self.primary(self._file.node(name).channel)
        if primary != name:
            self.restart(primary)
            self.wait_in_sync()

    def wait_in_sync(self) -> None:
        """Waits until every channel has all its copies again, so that any one Message Manager may be lost.

        Raises `Unavailable` when that takes too long.
        """
        self.wait()
        self._run(self._until_in_sync())

    def wait(self, *, whole: bool = True) -> None:
        """Waits until the cluster serves; `whole` asks for every node. Raises `Unavailable` that says what it lacks."""
        self._run(until_serving(self._file, deadline_s=self._deadline_s, whole=whole))

    def start(self) -> None:
        """Starts all nodes and waits until the cluster serves with all of them."""
        self._run(self._start())

    def close(self) -> None:
        """Stops every node, by force where it must; calling it again does nothing."""
        if self._loop.is_closed():
            return
        try:
            self._run(self._supervisor.stop())
        finally:
            self._supervisor.kill()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _make(self, path: Path) -> Supervisor:
        return Supervisor(path, self._file, say=lambda sentence: None, restarts=False)

    async def _start(self) -> None:
        await self._supervisor.until_free()
        await self._supervisor.start()
        for node in self._supervisor.processes:
            await self._until_started(node)
        await until_serving(self._file, deadline_s=self._deadline_s, whole=True)

    async def _until_in_sync(self) -> None:
        deadline = time.monotonic() + self._deadline_s
        servers = {channel.name: self._file.message_managers(channel.name) for channel in self._file.channels}
        wanted = {name: len(found) for name, found in servers.items() if found}  # one that was removed has none
        while True:
            counts = await asyncio.gather(*map(self._in_sync, wanted))  # of one moment, as near as can be
            lacking = [name for name, count in zip(wanted, counts, strict=True) if count < wanted[name]]
            if not lacking:
                return
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{lacking[0]} has not all its {wanted[lacking[0]]} copies in sync after {self._deadline_s:.0f} s; "
                    f"its nodes' logs are in {self.directory}"
                )
            await asyncio.sleep(LOOK_S)

    async def _in_sync(self, channel: str) -> int:
        with contextlib.suppress(Unavailable):
            name = await self._primary(channel)
            described = cast(Any, await self._node(name).describe(answer_s=self._deadline_s))
            return len(described[name]["bus"]["endpoint"]["state"]["in_sync"])
        return 0

    async def _primary(self, channel: str) -> str:
        deadline = time.monotonic() + self._deadline_s
        while True:
            found = await self._status(destinations_max=0)
            nodes = [n for n in found["nodes"] if n["channel"] == channel and n["role"] == "primary"]
            if nodes:
                return str(max(nodes, key=lambda node: int(node["epoch"]))["name"])
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"channel {channel} has no primary after {self._deadline_s:.0f} s; "
                    f"its nodes' logs are in {self.directory}"
                )
            await asyncio.sleep(LOOK_S)

    async def _status(self, *, destinations_max: int | None = None) -> dict[str, Any]:
        deadline = time.monotonic() + self._deadline_s
        reason = "no Client Manager runs"
        while running := [node for node in self._file.client_managers if self._supervisor.nodes[node.name].pid]:
            for node in running:
                try:
                    return await status_of(node.clients, destinations_max=destinations_max)
                except Unavailable as error:
                    reason = str(error)
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(LOOK_S)
        raise Unavailable(f"the cluster cannot be asked for its state: {reason}; restart a Client Manager")

    async def _die_at(self, name: str, step: str, count: int) -> None:
        node = self._node(name)
        node.die_at(step, count)
        await node.describe(answer_s=self._deadline_s)  # who answers has heard what was said before

    async def _kill(self, name: str, number: signal.Signals) -> None:
        node = self._node(name)
        if not node.pid:
            raise Misuse(f"node {name} is down already; restart it first")
        node.signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            await node.ended()

    async def _kill_together(self, names: Sequence[str]) -> None:
        nodes = self._processes(names)
        for node in nodes:
            node.signal(signal.SIGKILL)
        await asyncio.gather(*(node.ended() for node in nodes))

    async def _start_together(self, names: Sequence[str]) -> None:
        nodes = self._processes(names)
        for node in nodes:
            await node.start()
        await asyncio.gather(*(node.until_started() for node in nodes))

    async def _restart(self, name: str) -> None:
        node = self._node(name)
        await node.stop()
        await node.start()
        await self._until_started(node)

    async def _until_started(self, node: NodeProcess) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                await node.until_started()
        except TimeoutError:
            raise Unavailable(
                f"node {node.name} (pid {node.pid}) does not take part after {self._deadline_s:.0f} s; "
                f"see {node.directory.log}"
            ) from None

    def _node(self, name: str) -> NodeProcess:
        self._file.node(name)
        return self._supervisor.nodes[name]

    def _processes(self, names: Sequence[str]) -> list[NodeProcess]:
        return list(dict.fromkeys(self._node(name) for name in names))

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _with_interval(file: ClusterFile, checkpoint_interval: int | None) -> ClusterFile:
    if checkpoint_interval is None:
        return file
    channels = tuple(
        msgspec.structs.replace(channel, checkpoint_interval=checkpoint_interval) for channel in file.channels
    )
    return msgspec.structs.replace(file, channels=channels)


def _lay_out_free(directory: Path, shape: LocalShape) -> ClusterFile:
    """A cluster on a loopback address of its own, where its ports are free."""
    drawn = random.SystemRandom()
    for _ in range(HOSTS_TRIED):
        host = f"127.{drawn.randrange(1, 255)}.{drawn.randrange(255)}.{drawn.randrange(1, 255)}"
        file = lay_out(directory, shape, host=host)
        with contextlib.suppress(Unavailable):
            check_ports(file)
            return file
    raise Unavailable(f"{HOSTS_TRIED} loopback addresses were tried, and ports were taken on each; end other clusters")
