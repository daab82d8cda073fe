"""A whole message cluster in one thread: a simulated group for each channel, on one clock, with Client Managers on all.

S1, S2 … are Message Managers, W1 … witnesses, M1 … Client Managers; C1 …, T1 … and J1 … are clients, no members.
Where there are several channels, clients may ask for destinations to be moved between them meanwhile.
"""

from collections.abc import Callable
from functools import partial
from itertools import cycle
from random import Random

import msgspec

from alphorn.client.core import State
from alphorn.client.requests import Answer
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.model.conversation import Administer, AnyClientFrame, Resolve
from alphorn.model.destinations import Policy
from alphorn.model.errors import Error
from alphorn.model.moving_conversation import Drain, Move
from alphorn.testing.book import Book
from alphorn.testing.client_manager_faults import crash_client_manager, delay_client_manager, slow_client
from alphorn.testing.client_manager_room import ClientManagerRoom
from alphorn.testing.cluster_plan import ACCOUNTS, DEAD_LETTER, DRAIN, MOVE, NAME, NAMES, ClientPlan, ClusterPlan
from alphorn.testing.drains import Drains
from alphorn.testing.faults import FAULTS, Fault, Nemesis
from alphorn.testing.late_arrival import arrive_late
from alphorn.testing.programs import SimulatedClient
from alphorn.testing.simulated_channel import SimulatedChannel
from alphorn.testing.simulator import Simulation
from alphorn.testing.staging import StagingBook, StagingClient
from alphorn.testing.transfers import TransferBook, TransferClient, units_of


class SimulatedCluster:
    """One cluster, not yet started. In an `is_even` one every frame and every fsync takes as long as every other."""

    __slots__ = (
        "book",
        "channels",
        "client_managers",
        "clients",
        "drains",
        "jobs",
        "message_managers",
        "moves",
        "plan",
        "staging_book",
        "tellers",
        "transfers",
    )

    def __init__(self, plan: ClusterPlan, *, is_tracing: bool = False, is_even: bool = False) -> None:
        self.plan = plan
        self.channels: list[SimulatedChannel] = []
        for number in range(plan.channels):
            schedule = self.simulation.schedule if self.channels else None
            channel = SimulatedChannel(plan, number, schedule, is_tracing=is_tracing, is_even=is_even)
            self.channels.append(channel)
        self.message_managers = [room for channel in self.channels for room in channel.message_managers]
        self.client_managers = [self._make_client_manager(number) for number in range(plan.client_managers)]
        self.book = Book(*(channel.simulation.watch for channel in self.channels))
        for channel in self.channels:
            channel.book = self.book
        self.clients = [self._make_client(client) for client in plan.clients]
        self.transfers = TransferBook()
        self.tellers = [self._make_teller(number) for number in range(plan.tellers)]
        self.staging_book = StagingBook()
        self.jobs = [self._make_job(number) for number in range(plan.jobs)]
        self.moves: dict[str, int] = {"asked": 0, "done": 0, "refused": 0, "late": 0}
        self.drains = Drains([channel.name for channel in self.channels])

    def _make_client_manager(self, number: int) -> ClientManagerRoom:
        """In a process of its own, or beside the so-manieth Message Manager of each channel where there is one."""
        beside = [channel.message_managers[number : number + 1] for channel in self.channels]
        hosts = [room for rooms in beside for room in rooms] if self.plan.together else []
        knows = not self.plan.has_strangers
        return ClientManagerRoom(f"M{number + 1}", self.channels, self.plan.limits, hosts, knows_signet=knows)

    def _make_client(self, client: ClientPlan) -> SimulatedClient:
        made = SimulatedClient(
            client.name,
            client_id=client.client_id,
            place=self.client_managers[client.home].place,
            book=self.book,
            streams=self.channels[0].streams,
            stream=Random(f"{self.plan.seed}/{client.name}"),
            managers=self.client_managers,
            targets=client.targets,
            late=client.late,
            readings=client.readings,
            max_lengths=self.plan.limits.max_lengths,
            policies=self.plan.policies,
            retained=self.plan.retained,
            tell=self._tell,
        )
        if MOVE in self.plan.faults:
            made.streams = False  # a destination that is being moved takes none, which these programs do not expect
        return made

    def _make_teller(self, number: int) -> TransferClient:
        name = f"T{number + 1}"
        return TransferClient(
            name,
            place=self.client_managers[number % len(self.client_managers)].place,
            accounts=list(ACCOUNTS),
            managers=self.client_managers,
            streams=self.channels[0].streams,
            stream=Random(f"{self.plan.seed}/{name}"),
            book=self.transfers,
            tell=self._tell,
        )

    def _make_job(self, number: int) -> StagingClient:
        name = f"J{number + 1}"
        return StagingClient(
            name,
            place=self.client_managers[number % len(self.client_managers)].place,
            targets=self.plan.job_targets,
            channels=[channel.name for channel in self.channels] if MOVE in self.plan.faults else (),
            managers=self.client_managers,
            streams=self.channels[0].streams,
            stream=Random(f"{self.plan.seed}/{name}"),
            mishaps=Random(f"{self.plan.seed}/{name}/mishaps"),
            book=self.book,
            staging_book=self.staging_book,
            tell=self._tell,
        )

    @property
    def simulation(self) -> Simulation:
        """The first channel's group, on whose network clients are."""
        return self.channels[0].simulation

    @property
    def programs(self) -> list[SimulatedClient | TransferClient | StagingClient]:
        """All clients."""
        return [*self.clients, *self.tellers, *self.jobs]

    def found(self) -> None:
        """Starts every Message Manager and witness for the very first time, then every Client Manager and client."""
        for channel in self.channels:
            for node in channel.simulation.servers():
                if not node.is_up:
                    node.start(founding=True)
        for room in self.client_managers:
            if not room.node.is_up:
                room.node.start()
        for program in self.programs:
            program.start()

    def start_again(self) -> None:
        """Starts what is down."""
        for channel in self.channels:
            for node in channel.simulation.nodes:
                if not node.is_up:
                    node.start_again()

    def engines(self) -> list[Engine]:
        """One replica's state for each channel."""
        return [engine for channel in self.channels for engine in channel.engines()]

    def connections(self) -> set[bytes]:
        """Of programs that run."""
        return {client.core.connection for client in self.programs}

    def homes(self) -> dict[str, list[int]]:
        """Which channels have each destination."""
        found: dict[str, list[int]] = {}
        for number, engine in enumerate(self.engines()):
            for destination in engine.numbers:
                if not destination.is_reserved:
                    found.setdefault(str(destination), []).append(number)
        return found

    def check_transfers(self) -> None:
        """In the end every unit is in one account; raises `Violation`."""
        if self.tellers:
            units = [
                (str(account.destination), *unit)
                for room in self.message_managers
                if room.machine.is_primary
                for account in room.engine.destinations.values()
                if isinstance(account, Queue) and str(account.destination) in ACCOUNTS
                for unit in units_of(account, room.read)
            ]
            self.transfers.check(units, self.plan.units)

    def find_unfinished(self) -> str:
        """What is not as it must be when all is quiet, in words; nothing when all is well."""
        for part in (*self.programs, *self.channels):
            if unfinished := part.find_unfinished():
                return unfinished
        return ""

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
            "crash-client": partial(self._end_client, says_goodbye=False),
            "goodbye": partial(self._end_client, says_goodbye=True),
            "late-client-manager": lambda nemesis: delay_client_manager(nemesis, self.client_managers),
            "slow-client": lambda nemesis: slow_client(nemesis, self.client_managers),
            MOVE: self._move,
            DRAIN: self._drain,
            NAME: self._name,
        }

    def _break_streams(self, nemesis: Nemesis) -> str:
        share = nemesis.stream.choice((0.2, 0.5, 1.0))
        count = sum(channel.streams.break_some(share) for channel in self.channels)
        return f"{count} streams" if count else ""

    def _end_client(self, nemesis: Nemesis, *, says_goodbye: bool) -> str:
        client = nemesis.stream.choice(self.programs)
        if not isinstance(client, SimulatedClient):
            client.crash()
            return client.name
        client.end(says_goodbye=says_goodbye)
        client.start()
        return client.name

    def _move(self, nemesis: Nemesis) -> str:
        open_clients = [client for client in self.clients if client.core.state is State.OPEN]
        if not open_clients:
            return ""
        client = nemesis.stream.choice(open_clients)
        destination, channel = nemesis.stream.choice(self.plan.movable), nemesis.stream.choice(self.channels).name
        self.moves["asked"] += 1
        client.ask(lambda request: Move(request, destination, channel), self.on_moved)
        return f"{destination} to {channel}, asked by {client.name}"

    def _drain(self, nemesis: Nemesis) -> str:
        open_clients = [client for client in self.clients if client.core.state is State.OPEN]
        if not open_clients:
            return ""
        channel, is_over = nemesis.stream.choice(self.channels[1:]), nemesis.stream.random() < 0.4
        on_answer = self.drains.opened(channel.number) if is_over else self.drains.drained(channel.number)
        nemesis.stream.choice(open_clients).ask(lambda request: Drain(request, channel.name, is_over), on_answer)
        return f"{channel.name} is {'opened' if is_over else 'drained'}"

    def last_acts(self) -> list[Callable[[], None]]:
        """What is done when all is quiet, one after the other: all is opened, wanted, moved and drained.

        In the end a channel is opened once more, and drained before all has come that is on its way there.
        """
        drains = [self._open_all, self._name_all, self._move_all, self._drain_all]
        return [*drains, self._open_all, partial(arrive_late, self)]

    def _open_all(self) -> None:
        for client, channel in zip(cycle(self.clients), self.channels, strict=False):
            on_answer = self.drains.awaited(self.drains.opened(channel.number))
            client.ask(partial(Drain, channel=channel.name, is_over=True), on_answer)

    def _name_all(self) -> None:
        policy = msgspec.msgpack.encode(Policy(dead_letter=DEAD_LETTER))
        for client, name in zip(cycle(self.clients), NAMES, strict=False):
            client.ask(partial(Resolve, destination=name, policy=policy), self.drains.awaited())

    def _move_all(self) -> None:
        draw = Random(f"{self.plan.seed}/{self.simulation.now}")
        for client, name in zip(cycle(self.clients), self.plan.movable, strict=False):
            target = draw.choice(self.channels).name
            client.ask(partial(Move, destination=name, channel=target), self.drains.awaited(self.on_moved))

    def _drain_all(self) -> None:
        self._move_all()
        for client, channel in zip(cycle(self.clients), self.channels[1:], strict=False):
            on_answer = self.drains.awaited(self.drains.drained(channel.number))
            client.ask(partial(Drain, channel=channel.name), on_answer)

    def _name(self, nemesis: Nemesis) -> str:
        """Names come and go while channels are closed: each is on one channel at a time."""
        open_clients = [client for client in self.clients if client.core.state is State.OPEN]
        if not open_clients:
            return ""
        name, draw = nemesis.stream.choice(NAMES), nemesis.stream.random()
        policy = msgspec.msgpack.encode(Policy(dead_letter=DEAD_LETTER)) if draw < 0.3 else b""

        def make(request: int) -> AnyClientFrame:
            return Resolve(request, name, policy=policy) if draw < 0.7 else Administer(request, "delete", name)

        nemesis.stream.choice(open_clients).ask(make, lambda answer: None)
        return f"{name} is {'wanted' if draw < 0.7 else 'deleted'}"

    def on_moved(self, answer: Answer | Error) -> None:
        """A destination was moved, or not."""
        self.moves["refused" if isinstance(answer, Error) else "done"] += 1
