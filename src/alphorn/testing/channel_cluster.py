"""A message cluster of several channels in one thread: a simulated group for each, on one clock.

Client Managers are on all groups, Message Managers on one each. Destinations are moved between channels meanwhile, by
clients that ask for it.
"""

from functools import partial
from random import Random

import msgspec

from alphorn.bus.config import MemberConfig, Role
from alphorn.client.core import State
from alphorn.client.requests import Answer
from alphorn.message_manager.engine import Engine
from alphorn.model.conversation import Move
from alphorn.model.errors import Error
from alphorn.testing.book import Book
from alphorn.testing.channel_rooms import ChannelsRoom, Seat
from alphorn.testing.client_manager_faults import crash_client_manager, slow_client
from alphorn.testing.cluster_plan import ClusterPlan
from alphorn.testing.faults import FAULTS, Fault, Nemesis
from alphorn.testing.node import SimulatedNode
from alphorn.testing.programs import SimulatedClient
from alphorn.testing.replica import Replica
from alphorn.testing.rooms import CLIENT_MANAGER_TAG, EngineReplica, MessageManagerRoom
from alphorn.testing.schedule import Schedule
from alphorn.testing.simulator import Simulation
from alphorn.testing.streams import SimulatedStreams
from alphorn.testing.workload import Workload

DESTINATIONS = ("queue:a", "queue:b", "topic:t")


class SimulatedChannel:
    """One channel's group with its replicas."""

    __slots__ = ("book", "message_managers", "number", "simulation", "streams", "workload")

    book: Book  # of the whole cluster

    def __init__(self, plan: ClusterPlan, number: int, schedule: Schedule | None, *, is_tracing: bool) -> None:
        self.number = number
        seed = plan.seed * 10 + number
        self.simulation = simulation = Simulation(
            seed,
            msgspec.structs.replace(plan.config, group=plan.config.group + number),
            budget=plan.budget,
            turn_s=plan.turn_s,
            install_s_max=plan.install_s_max,
            make_replica=_make_replica,
            is_tracing=is_tracing,
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
        """Nobody's: there are no tellers here."""
        return set()

    def find_unfinished(self) -> str:
        """What is not as it must be when all is quiet, in words; nothing when all is well."""
        primaries = [room for room in self.message_managers if room.machine.is_primary]
        if len(primaries) != 1:
            return f"{len(primaries)} Message Managers of {self.name} are primary"
        for room in self.message_managers:
            if room.engine.sequence != primaries[0].engine.sequence:
                return f"{room.node.name} of {self.name} has applied {room.engine.sequence}"
            moves = room.engine.moves
            if moves.leaving or moves.incoming or moves.landing:
                return f"{self.name} has destinations on their way"
            for destination in room.engine.destinations.values():
                for subscription, backlog in destination.backlogs():
                    if backlog.count and not destination.destination.is_reserved:
                        name = destination.destination
                        return f"{self.name} has {backlog.count} messages in {name}, subscription {subscription}"
        return ""


class ChannelCluster:
    """One cluster of several channels, not yet started."""

    __slots__ = ("book", "channels", "client_managers", "clients", "moves", "plan")

    def __init__(self, plan: ClusterPlan, channels: int, *, is_tracing: bool = False) -> None:
        self.plan = plan
        self.channels: list[SimulatedChannel] = []
        self.moves: dict[str, int] = {"asked": 0, "done": 0, "refused": 0}
        for number in range(channels):
            schedule = self.channels[0].simulation.schedule if self.channels else None
            self.channels.append(SimulatedChannel(plan, number, schedule, is_tracing=is_tracing))
        self.client_managers = [self._add_client_manager(f"M{place + 1}") for place in range(plan.client_managers)]
        self.book = Book(*(channel.simulation.watch for channel in self.channels))
        for channel in self.channels:
            channel.book = self.book
        first = self.channels[0]
        self.clients = [
            SimulatedClient(
                client.name,
                client_id=client.client_id,
                home=client.home,
                book=self.book,
                streams=first.streams,
                stream=Random(f"{plan.seed}/{client.name}"),
                managers=self.client_managers,
                targets=client.targets,
                readings=client.readings,
                late=client.late,
                max_lengths=plan.limits.max_lengths,
                tell=self._tell,
            )
            for client in plan.clients
        ]

        for program in self.clients:
            program.streams = False  # a destination that is being moved takes none, which these programs do not expect

    @property
    def simulation(self) -> Simulation:
        """The first channel's group, on whose network clients are."""
        return self.channels[0].simulation

    @property
    def message_managers(self) -> list[MessageManagerRoom]:
        """Those of all channels."""
        return [room for channel in self.channels for room in channel.message_managers]

    def connections(self) -> set[bytes]:
        """Of programs that run."""
        return {client.core.connection for client in self.clients}

    def engines(self) -> list[Engine]:
        """One replica's state for each channel."""
        return [channel.message_managers[0].engine for channel in self.channels]

    def find_unfinished(self) -> str:
        """What is not as it must be when all is quiet, in words; nothing when all is well."""
        for client in self.clients:
            if unfinished := client.find_unfinished():
                return unfinished
        for channel in self.channels:
            if unfinished := channel.find_unfinished():
                return unfinished
        return ""

    def homes(self) -> dict[str, list[int]]:
        """Which channels have each destination."""
        found: dict[str, list[int]] = {}
        for number, engine in enumerate(self.engines()):
            for destination in engine.numbers:
                if not destination.is_reserved:
                    found.setdefault(str(destination), []).append(number)
        return found

    def faults(self) -> dict[str, Fault]:
        """All classes that the nemesis of the first channel may be given."""
        return {
            **FAULTS,
            "break-streams": self._break_streams,
            "crash-client-manager": lambda nemesis: crash_client_manager(nemesis, self.client_managers),
            "crash-client": partial(self._end_client, says_goodbye=False),
            "goodbye": partial(self._end_client, says_goodbye=True),
            "slow-client": lambda nemesis: slow_client(nemesis, self.client_managers),
            "move": self._move,
        }

    def _add_client_manager(self, name: str) -> ChannelsRoom:
        room = ChannelsRoom(tuple(channel.name for channel in self.channels), self.plan.limits)
        for channel in self.channels:
            me = MemberConfig(number=0, name=name, address=name, roles=Role.NONE, tag=CLIENT_MANAGER_TAG)
            node = channel.simulation.add_node(me)
            seat = Seat(room, channel.number, node, channel.workload, channel.streams, channel.message_managers)
            node.upper = seat
            room.seats.append(seat)
        return room

    def _tell(self, name: str, details: str) -> None:
        for callback in self.simulation.watch.told:
            callback(name, details)

    def _move(self, nemesis: Nemesis) -> str:
        open_clients = [client for client in self.clients if client.core.state is State.OPEN]
        if not open_clients:
            return ""
        client = nemesis.stream.choice(open_clients)
        destination, channel = nemesis.stream.choice(DESTINATIONS), nemesis.stream.choice(self.channels).name
        self.moves["asked"] += 1
        client.ask(lambda request: Move(request, destination, channel), self._on_moved)
        return f"{destination} to {channel}, asked by {client.name}"

    def _on_moved(self, answer: Answer | Error) -> None:
        self.moves["refused" if isinstance(answer, Error) else "done"] += 1

    def _break_streams(self, nemesis: Nemesis) -> str:
        share = nemesis.stream.choice((0.2, 0.5, 1.0))
        count = sum(channel.streams.break_some(share) for channel in self.channels)
        return f"{count} streams" if count else ""

    def _end_client(self, nemesis: Nemesis, *, says_goodbye: bool) -> str:
        client = nemesis.stream.choice(self.clients)
        client.end(says_goodbye=says_goodbye)
        client.start()
        return client.name


def _make_replica(node: SimulatedNode) -> Replica:
    return EngineReplica(node.upper) if isinstance(node.upper, MessageManagerRoom) else Replica()
