"""A message cluster of several channels in one thread: a simulated group for each, on one clock.

Client Managers are on all groups, Message Managers on one each. Destinations are moved between channels meanwhile, by
clients that ask for it.
"""

from functools import partial
from random import Random

from alphorn.client.core import State
from alphorn.client.requests import Answer
from alphorn.message_manager.engine import Engine
from alphorn.model.conversation import Move
from alphorn.model.errors import Error
from alphorn.testing.book import Book
from alphorn.testing.client_manager_faults import crash_client_manager, slow_client
from alphorn.testing.client_manager_room import ClientManagerRoom
from alphorn.testing.cluster_plan import ClusterPlan
from alphorn.testing.faults import FAULTS, Fault, Nemesis
from alphorn.testing.programs import SimulatedClient
from alphorn.testing.rooms import MessageManagerRoom
from alphorn.testing.simulated_channel import SimulatedChannel
from alphorn.testing.simulator import Simulation

DESTINATIONS = ("queue:a", "queue:b", "topic:t")


class ChannelCluster:
    """One cluster of several channels, not yet started."""

    __slots__ = ("book", "channels", "client_managers", "clients", "moves", "plan")

    def __init__(self, plan: ClusterPlan, *, is_tracing: bool = False) -> None:
        self.plan = plan
        self.channels: list[SimulatedChannel] = []
        self.moves: dict[str, int] = {"asked": 0, "done": 0, "refused": 0}
        for number in range(plan.channels):
            schedule = self.channels[0].simulation.schedule if self.channels else None
            channel = SimulatedChannel(plan, number, schedule, is_tracing=is_tracing, is_even=False)
            self.channels.append(channel)
        self.client_managers = [
            ClientManagerRoom(f"M{place + 1}", self.channels, plan.limits) for place in range(plan.client_managers)
        ]
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
