"""A whole group in one thread: nodes, network, disks and virtual time, all from one seed.

The simulation only runs the world; what goes wrong in it is `faults`, what is asked of it is `workload`, what must hold
is `checkers`. `trace_hash` covers every frame sent, every write handed over and every event of the upper layers, with
its time: two runs of one seed must end with the same hash.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import xxhash

from alphorn.bus.config import Budget, GroupConfig, MemberConfig, Role, Timing
from alphorn.bus.endpoint import Endpoint
from alphorn.bus.machine import Machine, Persist, Received
from alphorn.testing.disk import FSYNC_MEAN_S
from alphorn.testing.network import SimulatedNetwork
from alphorn.testing.node import WITHOUT_HISTORY, NodeState, SimulatedNode
from alphorn.testing.replica import Replica
from alphorn.testing.schedule import Schedule, Streams
from alphorn.testing.surroundings import MachineFactory, Surroundings
from alphorn.testing.watch import Watch

_STAMP = struct.Struct(">dHBQ")


class Simulation:
    """One group. Nodes are added first, then started; `run_until` moves time."""

    __slots__ = ("_hash", "around", "budget", "by_name", "config", "network", "nodes", "schedule", "streams", "watch")

    def __init__(
        self,
        seed: int,
        config: GroupConfig,
        *,
        timing: Timing | None = None,
        budget: Budget | None = None,
        machine: MachineFactory | None = None,
        turn_s: float = 0.0,
        delay_min: float = 0.0001,
        delay_mean: float = 0.0005,
        sync_mean_s: float = FSYNC_MEAN_S,
        keeps: int = 0,
        install_s_max: float = 0.0,
        checkpoint_s_max: float = 0.0,
        datagrams: Sequence[int] = (),
        make_replica: Callable[[SimulatedNode], Replica] | None = None,
        is_tracing: bool = False,
        is_shuffled: bool = True,
        schedule: Schedule | None = None,
    ) -> None:
        config.check()
        self.config = config
        self.budget = budget or Budget()
        self.streams = Streams(seed)
        self.schedule = schedule or Schedule(self.streams.schedule if is_shuffled else None)
        self.watch = Watch()
        self.nodes: list[SimulatedNode] = []
        self.by_name: dict[str, SimulatedNode] = {}
        self._hash = xxhash.xxh3_128(str(seed).encode())
        self.network = SimulatedNetwork(
            self.schedule, self.streams.network, self._arrived, delay_min=delay_min, delay_mean=delay_mean
        )
        self.around = Surroundings(
            config=config,
            timing=timing or Timing(),
            budget=self.budget,
            machine=machine or Endpoints(is_tracing=is_tracing),
            schedule=self.schedule,
            network=self.network,
            watch=self.watch,
            machines_stream=self.streams.machines,
            find=self._find,
            servers=self.servers,
            record=self._record,
            turn_s=turn_s,
            sync_mean_s=sync_mean_s,
            keeps=keeps,
            install_s_max=install_s_max,
            checkpoint_s_max=checkpoint_s_max,
            datagrams=datagrams,
            make_replica=make_replica,
        )
        self._observe()
        for member in config.members:
            self.add_node(member)

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.schedule.now

    @property
    def trace_hash(self) -> str:
        """The rolling hash of everything that happened so far."""
        return self._hash.hexdigest()

    def add_node(self, member: MemberConfig) -> SimulatedNode:
        """Adds a member, down for now. Number 0 is a client that joins by itself."""
        assert member.name == member.address, "simulated members are addressed by name"
        assert member.name not in self.by_name, member.name
        node = SimulatedNode(self.around, member, self.network.add_member(), self.streams.disk)
        self.nodes.append(node)
        self.by_name[node.name] = node
        return node

    def add_client(self, name: str) -> SimulatedNode:
        """Adds a member that is not configured."""
        return self.add_node(MemberConfig(number=0, name=name, address=name, roles=Role.NONE))

    def found(self) -> None:
        """Starts every configured member for the very first time, and every client."""
        for node in self.nodes:
            node.start(founding=not node.is_client)

    def run_until(self, end: float) -> None:
        """Lets virtual time pass. Raises whatever a checker or a machine raises."""
        self.schedule.run_until(end)

    def up(self) -> list[SimulatedNode]:
        """Nodes whose process exists and is not paused."""
        return [node for node in self.nodes if node.state is NodeState.UP]

    def servers(self) -> list[SimulatedNode]:
        """Configured members."""
        return [node for node in self.nodes if not node.is_client]

    def tell_fault(self, fault: str, details: str) -> None:
        """Notes that something is about to go wrong."""
        self._hash.update(f"{self.now}{fault}{details}".encode())
        for callback in self.watch.fault:
            callback(fault, details)

    def _arrived(self, index: int, data: bytes) -> None:
        self.nodes[index].feed(Received(data))

    def _find(self, address: str) -> int | None:
        node = self.by_name.get(address)
        return None if node is None else node.index

    def _record(self, data: bytes) -> None:
        self._hash.update(_STAMP.pack(self.schedule.now, 0, 0, len(data)))
        self._hash.update(data)

    def _stamp(self, node: SimulatedNode, kind: int, value: int) -> None:
        self._hash.update(_STAMP.pack(self.schedule.now, node.index, kind, value & (1 << 64) - 1))

    def _observe(self) -> None:
        watch, stamp = self.watch, self._stamp
        watch.started.append(lambda node: stamp(node, 1, node.run))
        watch.ended.append(lambda node, reason: stamp(node, 2, len(reason)))
        watch.persisted.append(self._stamp_persist)
        watch.delivered.append(lambda node, output: stamp(node, 4, output.sequence ^ output.assignment.digest))
        watch.ordered.append(lambda node, handle, sequence: stamp(node, 5, handle << 32 | sequence))
        watch.refused.append(lambda node, handle, reason, is_unknown: stamp(node, 6, handle))
        watch.checkpoint.append(lambda node, sequence: stamp(node, 7, sequence))
        watch.installed.append(lambda node, sequence: stamp(node, 8, sequence))

    def _stamp_persist(self, node: SimulatedNode, persist: Persist) -> None:
        self._stamp(node, 3, persist.token << 16 | len(persist.writes))


def join_names(nodes: Iterable[SimulatedNode]) -> str:
    """Names for people, in order."""
    return ",".join(node.name for node in nodes)


class Endpoints:
    """Makes the real machine: a member that only votes is a witness and wants no batches."""

    __slots__ = ("_is_tracing",)

    def __init__(self, *, is_tracing: bool) -> None:
        self._is_tracing = is_tracing

    def __call__(self, *, me: MemberConfig, **settings: Any) -> Machine:
        """A machine for one start of one member."""
        reads = me.roles != Role.COMMIT
        history = me.tag not in WITHOUT_HISTORY
        return Endpoint(me=me, reads=reads, history=history, is_tracing=self._is_tracing, **settings)
