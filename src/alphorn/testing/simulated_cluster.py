"""A whole message cluster in one thread: Message Managers, Client Managers and clients on one simulated group.

Members S1, S2 … are Message Managers, W1 … witnesses, M1 … Client Managers; C1 … are clients, which are no members.
"""

from random import Random

from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.model.destinations import parse_destination
from alphorn.testing.book import Book
from alphorn.testing.client_manager_faults import crash_client_manager, slow_client
from alphorn.testing.client_manager_room import ClientManagerRoom
from alphorn.testing.cluster_plan import ACCOUNTS, ClusterPlan
from alphorn.testing.faults import FAULTS, Fault, Nemesis
from alphorn.testing.programs import SimulatedClient
from alphorn.testing.simulated_channel import SimulatedChannel
from alphorn.testing.transfers import TransferBook, TransferClient, units_of


class SimulatedCluster:
    """One cluster, not yet started. In an `is_even` one every frame and every fsync takes as long as every other."""

    __slots__ = (
        "book",
        "channel",
        "client_managers",
        "clients",
        "message_managers",
        "plan",
        "simulation",
        "streams",
        "tellers",
        "transfers",
        "workload",
    )

    def __init__(
        self,
        plan: ClusterPlan,
        *,
        is_tracing: bool = False,
        is_even: bool = False,
    ) -> None:
        self.plan = plan
        self.channel = SimulatedChannel(plan, 0, None, is_tracing=is_tracing, is_even=is_even)
        self.simulation = self.channel.simulation
        self.workload = self.channel.workload
        self.streams = self.channel.streams
        self.message_managers = self.channel.message_managers
        self.client_managers = [
            ClientManagerRoom(f"M{place + 1}", [self.channel], plan.limits) for place in range(plan.client_managers)
        ]
        self.book = Book(self.simulation.watch)
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

    @property
    def programs(self) -> list[SimulatedClient | TransferClient]:
        """All clients."""
        return [*self.clients, *self.tellers]

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
        return self.channel.find_unfinished()

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
        if isinstance(client, TransferClient):
            client.crash()
            return client.name
        client.end(says_goodbye=says_goodbye)
        client.start()
        return client.name
