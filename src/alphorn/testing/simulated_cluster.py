"""A whole message cluster in one thread: Message Managers, Client Managers and clients on one simulated group.

Members S1, S2 … are Message Managers, W1 … witnesses, M1 … Client Managers; C1 … are clients, which are no members.
"""

from random import Random

from alphorn.bus.config import MemberConfig, Role
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.model.destinations import parse_destination
from alphorn.testing.book import Book
from alphorn.testing.client_manager_faults import crash_client_manager, slow_client
from alphorn.testing.cluster_plan import ACCOUNTS, ClusterPlan
from alphorn.testing.disk import FSYNC_MEAN_S
from alphorn.testing.faults import FAULTS, Fault, Nemesis
from alphorn.testing.node import SimulatedNode
from alphorn.testing.programs import SimulatedClient
from alphorn.testing.replica import Replica
from alphorn.testing.rooms import CLIENT_MANAGER_TAG, ClientManagerRoom, EngineReplica, MessageManagerRoom
from alphorn.testing.simulator import Simulation
from alphorn.testing.staging import StagingBook, StagingClient
from alphorn.testing.streams import SimulatedStreams
from alphorn.testing.surroundings import MachineFactory
from alphorn.testing.transfers import TransferBook, TransferClient, units_of
from alphorn.testing.workload import Workload

DELAY_MEAN_S = 0.0005


class SimulatedCluster:
    """One cluster, not yet started. In an `is_even` one every frame and every fsync takes as long as every other."""

    __slots__ = (
        "book",
        "client_managers",
        "clients",
        "jobs",
        "message_managers",
        "plan",
        "simulation",
        "staging_book",
        "streams",
        "tellers",
        "transfers",
        "workload",
    )

    def __init__(
        self,
        plan: ClusterPlan,
        *,
        machine: MachineFactory | None = None,
        is_tracing: bool = False,
        is_even: bool = False,
    ) -> None:
        self.plan = plan
        self.simulation = simulation = Simulation(
            plan.seed,
            plan.config,
            budget=plan.budget,
            machine=machine,
            turn_s=plan.turn_s,
            install_s_max=plan.install_s_max,
            make_replica=_make_replica,
            is_tracing=is_tracing,
            delay_mean=0.0 if is_even else DELAY_MEAN_S,
            sync_mean_s=0.0 if is_even else FSYNC_MEAN_S,
            is_shuffled=not is_even,
        )
        self.workload = Workload(simulation, think_s=0.0, size_max=0, outstanding_max=0)
        self.streams = SimulatedStreams(
            simulation.schedule,
            simulation.network,
            Random(f"{plan.seed}/streams"),
            record=simulation.around.record,
            said=simulation.watch.said,
        )
        self.message_managers: list[MessageManagerRoom] = []
        for node in simulation.servers():
            if Role.DATA in node.me.roles:
                room = MessageManagerRoom(node, self.workload)
                node.upper = room
                self.message_managers.append(room)
        self.client_managers = [self._add_client_manager(f"M{i + 1}") for i in range(plan.client_managers)]
        simulation.watch.ended.append(lambda node, reason: self.streams.break_of(node.name, reason))
        self.book = Book(simulation.watch)
        self.clients = [
            SimulatedClient(
                client.name,
                client_id=client.client_id,
                home=client.home,
                book=self.book,
                streams=self.streams,
                stream=Random(f"{plan.seed}/{client.name}"),
                managers=self.client_managers,
                targets=client.targets,
                late=client.late,
                readings=client.readings,
                max_lengths=plan.limits.max_lengths,
                tell=self._tell,
            )
            for client in plan.clients
        ]

        self.transfers = TransferBook()
        homes = [room.place for room in self.client_managers]
        self.tellers = [
            TransferClient(
                f"T{number + 1}",
                place=homes[number % len(homes)],
                accounts=list(ACCOUNTS),
                managers=self.client_managers,
                streams=self.streams,
                stream=Random(f"{plan.seed}/T{number + 1}"),
                book=self.transfers,
                tell=self._tell,
            )
            for number in range(plan.tellers)
        ]
        self.staging_book = StagingBook()
        self.jobs = [
            StagingClient(
                f"J{number + 1}",
                place=homes[number % len(homes)],
                targets=plan.job_targets,
                managers=self.client_managers,
                streams=self.streams,
                stream=Random(f"{plan.seed}/J{number + 1}"),
                book=self.book,
                staging_book=self.staging_book,
                tell=self._tell,
            )
            for number in range(plan.jobs)
        ]

    @property
    def programs(self) -> list[SimulatedClient | TransferClient | StagingClient]:
        """All clients."""
        return [*self.clients, *self.tellers, *self.jobs]

    def check_transfers(self) -> None:
        """In the end every unit is in one account; raises `Violation`."""
        if self.tellers:
            room = next(room for room in self.message_managers if room.machine.is_primary)
            accounts = [room.engine.destinations[room.engine.numbers[parse_destination(name)]] for name in ACCOUNTS]
            units = [
                (str(account.destination), *unit)
                for account in accounts
                if isinstance(account, Queue)
                for unit in units_of(account, room.read)
            ]
            self.transfers.check(units, self.plan.units)

    def engines(self) -> list[Engine]:
        """One replica's state for each channel, of which there is one."""
        return [self.message_managers[0].engine]

    def connections(self) -> set[bytes]:
        """Of programs that run."""
        return {client.core.connection for client in self.programs}

    def find_unfinished(self) -> str:
        """What is not as it must be when all is quiet, in words; nothing when all is well."""
        for client in self.programs:
            if unfinished := client.find_unfinished():
                return unfinished
        primaries = [room for room in self.message_managers if room.machine.is_primary]
        if len(primaries) != 1:
            return f"{len(primaries)} Message Managers are primary"
        for room in self.message_managers:
            if room.engine.sequence != primaries[0].engine.sequence:
                return f"{room.node.name} has applied {room.engine.sequence} of {primaries[0].engine.sequence}"
            for destination in room.engine.destinations.values():
                if destination.destination.is_reserved or str(destination.destination) in ACCOUNTS:
                    continue
                for subscription, backlog in destination.backlogs():
                    if backlog.count:
                        name = destination.destination
                        return f"{room.node.name} has {backlog.count} messages in {name}, subscription {subscription}"
        return ""

    def _add_client_manager(self, name: str) -> ClientManagerRoom:
        me = MemberConfig(number=0, name=name, address=name, roles=Role.NONE, tag=CLIENT_MANAGER_TAG)
        node = self.simulation.add_node(me)
        limits = self.plan.limits
        room = ClientManagerRoom(
            node,
            self.workload,
            self.streams,
            self.message_managers,
            session_bytes_max=limits.session_bytes_max,
            consumer_bytes_max=limits.consumer_bytes_max,
        )
        node.upper = room
        return room

    def _tell(self, name: str, details: str) -> None:
        for callback in self.simulation.watch.told:
            callback(name, details)

    # --- faults of its own ---

    def faults(self) -> dict[str, Fault]:
        """All classes that a nemesis may be given."""
        return {
            **FAULTS,
            "break-streams": self._break_streams,
            "crash-client-manager": lambda nemesis: crash_client_manager(nemesis, self.client_managers),
            "crash-client": lambda nemesis: self._end_client(nemesis, says_goodbye=False),
            "goodbye": lambda nemesis: self._end_client(nemesis, says_goodbye=True),
            "slow-client": lambda nemesis: slow_client(nemesis, self.client_managers),
        }

    def _break_streams(self, nemesis: Nemesis) -> str:
        count = self.streams.break_some(nemesis.stream.choice((0.2, 0.5, 1.0)))
        return f"{count} streams" if count else ""

    def _end_client(self, nemesis: Nemesis, *, says_goodbye: bool) -> str:
        client = nemesis.stream.choice(self.programs)
        if not isinstance(client, SimulatedClient):
            client.crash()
            return client.name
        client.end(says_goodbye=says_goodbye)
        client.start()
        return client.name


def _make_replica(node: SimulatedNode) -> Replica:
    return EngineReplica(node.upper) if isinstance(node.upper, MessageManagerRoom) else Replica()
