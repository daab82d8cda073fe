"""One channel of a simulated message cluster: its group, the streams beside it, and its Message Managers.

Members S1, S2 … are Message Managers, W1 … witnesses. Client Managers add themselves (client_manager_room.py).
"""

from random import Random

import msgspec

from alphorn.bus.config import Role
from alphorn.message_manager.engine import Engine
from alphorn.testing.book import Book
from alphorn.testing.cluster_plan import ACCOUNTS, ClusterPlan
from alphorn.testing.disk import FSYNC_MEAN_S
from alphorn.testing.node import SimulatedNode
from alphorn.testing.replica import Replica
from alphorn.testing.rooms import EngineReplica, MessageManagerRoom
from alphorn.testing.schedule import Schedule
from alphorn.testing.simulator import Simulation
from alphorn.testing.streams import SimulatedStreams
from alphorn.testing.workload import Workload

DELAY_MEAN_S = 0.0005


class SimulatedChannel:
    """One channel, not yet started. In an `is_even` one every frame and every fsync takes as long as every other."""

    __slots__ = ("book", "message_managers", "number", "simulation", "streams", "workload")

    book: Book  # of the whole cluster

    def __init__(
        self, plan: ClusterPlan, number: int, schedule: Schedule | None, *, is_tracing: bool, is_even: bool
    ) -> None:
        self.number = number
        seed = plan.seed if plan.channels == 1 else plan.seed * 10 + number
        self.simulation = simulation = Simulation(
            seed,
            msgspec.structs.replace(plan.config, group=plan.config.group + number),
            budget=plan.budget,
            turn_s=plan.turn_s,
            install_s_max=plan.install_s_max,
            make_replica=_make_replica,
            is_tracing=is_tracing,
            delay_mean=0.0 if is_even else DELAY_MEAN_S,
            sync_mean_s=0.0 if is_even else FSYNC_MEAN_S,
            is_shuffled=not is_even,
            schedule=schedule,
        )
        self.workload = Workload(simulation, think_s=0.0, size_max=0, outstanding_max=0)
        self.streams = SimulatedStreams(
            simulation.schedule,
            simulation.network,
            Random(f"{seed}/streams"),
            record=simulation.around.record,
            said=simulation.watch.said,
        )
        self.message_managers: list[MessageManagerRoom] = []
        for node in simulation.servers():
            if Role.DATA in node.me.roles:
                room = MessageManagerRoom(node, self.workload)
                node.upper = room
                self.message_managers.append(room)
        simulation.watch.ended.append(lambda node, reason: self.streams.break_of(node.name, reason))

    @property
    def name(self) -> str:
        """What administrators call it."""
        return f"channel-{self.number + 1}"

    def engines(self) -> list[Engine]:
        """One replica's state."""
        return [self.message_managers[0].engine]

    def connections(self) -> set[bytes]:
        """Nobody's: programs belong to the cluster."""
        return set()

    def find_absent(self) -> str:
        """Which member is not there, or not up to date, in words; nothing when all are."""
        for node in self.simulation.nodes:
            if not node.is_up:
                return f"{node.name} of {self.name} is down: {node.last_words}"
            if not node.is_synchronised:
                return f"{node.name} of {self.name} is not synchronised"
        return ""

    def find_unfinished(self) -> str:
        """What is not as it must be when all is quiet, in words; nothing when all is well."""
        primaries = [room for room in self.message_managers if room.machine.is_primary]
        if len(primaries) != 1:
            return f"{len(primaries)} Message Managers of {self.name} are primary"
        sequence = primaries[0].engine.sequence
        for room in self.message_managers:
            where = f"{room.node.name} of {self.name}"
            if room.engine.sequence != sequence:
                return f"{where} has applied {room.engine.sequence} of {sequence}"
            moves = room.engine.moves
            if moves.leaving or moves.recalled or moves.incoming or moves.landing:
                return f"{where} has destinations on their way"
            for destination in room.engine.destinations.values():
                name = destination.destination
                if name.is_reserved or str(name) in ACCOUNTS:
                    continue
                for subscription, backlog in destination.backlogs():
                    if backlog.count:
                        return f"{where} has {backlog.count} messages in {name}, subscription {subscription}"
        return ""


def _make_replica(node: SimulatedNode) -> Replica:
    return EngineReplica(node.upper) if isinstance(node.upper, MessageManagerRoom) else Replica()
