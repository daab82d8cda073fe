"""Client Managers over several model channels, and the streams between all processes."""

import random
from collections.abc import Callable
from typing import Any

from alphorn.client_manager import machine as cm
from alphorn.client_manager.core import ClientManager
from alphorn.client_manager.desk import Settings
from alphorn.doors import native
from alphorn.message_manager import machine as mm
from alphorn.model import link
from alphorn.model.commands import SIGNET_BYTES
from alphorn.model.conversation import Delivered
from alphorn.model.ids import IdSource
from alphorn.testing.model_channels import LEFT_S, Cursor, ModelChannel, Process, Replica, StepReached, Tell
from alphorn.testing.network import SimulatedNetwork
from alphorn.testing.node import UNIX_START_S
from alphorn.testing.schedule import Schedule
from alphorn.testing.streams import SimulatedStreams, StreamEnd

REPLICAS = 2
RELINK_S = (0.02, 0.3)
CHANNEL_NAMES = ("first", "second", "third")
SIGNET = b"s" * SIGNET_BYTES
CACHE_BYTES = 10_000  # so little that bodies are often fetched


class Manager(Process):
    """One Client Manager."""

    def __init__(
        self, name: str, place: int, streams: SimulatedStreams, tell: Tell, channels: list[ModelChannel]
    ) -> None:
        super().__init__(name, place, streams, tell)
        self._channels = channels

    def start(self) -> None:
        """Begins, with nothing."""
        self.run += 1
        ids = IdSource(bytes((10, 0, 0, self.place)), 7000, unix_s=UNIX_START_S + self.schedule.now)
        count = len(self._channels)
        settings = Settings(
            name=self.name, channels=count, channel_names=CHANNEL_NAMES[:count], cache_bytes=CACHE_BYTES
        )
        self.machine = ClientManager(settings, ids, origins=[self.origin for _ in self._channels], signet=SIGNET)
        machine: Any = self.machine
        machine._entering.identity.know(SIGNET)
        self.machine.watch_steps(self._on_step)
        self._clients: dict[int, StreamEnd] = {}
        self._links: dict[str, StreamEnd] = {}
        self._next_stream = 0
        self.begin(self.machine, self._perform)
        self.tell(self.name, "starts")
        for channel in self._channels:
            Cursor(self, channel, self._deliverer(channel), len(channel.log))
            for replica in channel.replicas:
                self._open_link(self.run, channel, replica)

    def accept(self, end: StreamEnd) -> bool:
        """A client connects; False where nobody listens."""
        if not self.is_up:
            return False
        self._next_stream += 1
        number, run = self._next_stream, self.run
        self._clients[number] = end
        end.on_frame = lambda data: self.receive(cm.Said(number, native.decode_client(data[native.LENGTH_BYTES :])))
        end.on_closed = lambda reason: self._on_closed(number, run, reason)
        self.receive(cm.Opened(number))
        return True

    def on_crashed(self) -> None:
        """See `Process`. Message Managers hear of it from the log, some time later."""
        origin = self.origin
        for channel in self._channels:
            self.schedule.after(self.streams.stream.uniform(*LEFT_S), self._leave, channel, origin)

    @staticmethod
    def _leave(channel: ModelChannel, origin: bytes) -> None:
        for replica in channel.replicas:
            replica.receive(mm.ClientManagerLeft(origin))

    def _on_step(self, step: str) -> None:
        if step == self.dies_at:
            self.dies_at = ""
            raise StepReached(step)

    def _deliverer(self, channel: ModelChannel) -> Callable[[int], None]:
        def deliver(sequence: int) -> None:
            origin, handle, payload, epoch = channel.log[sequence - 1]
            mine = handle if origin == self.origin else 0
            self.receive(cm.Committed(channel.number, sequence, mine, payload, epoch))

        return deliver

    def _on_closed(self, number: int, run: int, reason: str) -> None:
        if run == self.run and self._clients.pop(number, None) is not None:
            self.receive(cm.Closed(number, reason))

    def _perform(self, output: cm.Output) -> None:
        match output:
            case cm.Reply(number, frame):
                end = self._clients.get(number)
                if end is not None and isinstance(frame, Delivered):
                    end.send(b"".join(native.encode_parts(frame)))
                elif end is not None:
                    end.send(native.encode(frame))
            case cm.Order(number, handle, payload):
                self._channels[number].order(self, handle, payload)
            case cm.Ask(_, name, asked):
                end = self._links.get(name)
                if end is not None:
                    end.send(link.encode(asked))
            case cm.Hang(number, _):
                end = self._clients.pop(number, None)
                if end is not None:
                    end.close()
            case cm.Log(_, event, details):
                self.tell(self.name, f"{event} {details}")

    def _open_link(self, run: int, channel: ModelChannel, replica: Replica) -> None:
        def done(end: StreamEnd | None) -> None:
            if run != self.run or not self.is_up:
                if end is not None:
                    end.close()
            elif end is None:
                self.schedule.after(self.streams.stream.uniform(*RELINK_S), self._open_link, run, channel, replica)
            else:
                self._on_link(run, channel, replica, end)

        if run == self.run and self.is_up:
            here, there = (self.place, self.name), (replica.place, replica.name)
            self.streams.connect(here, there, replica.accept, done)

    def _on_link(self, run: int, channel: ModelChannel, replica: Replica, end: StreamEnd) -> None:
        number, name = channel.number, replica.name

        def on_closed(reason: str) -> None:
            if run == self.run and self.is_up:
                del self._links[name]
                self.receive(cm.Linked(number, name, False))
                self._open_link(run, channel, replica)

        end.on_frame = lambda data: self.receive(cm.Told(number, name, link.decode_told(data[link.LENGTH_BYTES :])))
        end.on_closed = on_closed
        self._links[name] = end
        self.receive(cm.Linked(number, name, True))


class ModelCluster:
    """Channels with their replicas, and Client Managers on all of them."""

    def __init__(
        self,
        stream: random.Random,
        *,
        channels: int,
        managers: int,
        record: Callable[[bytes], None],
        tell: Tell,
    ) -> None:
        self.schedule = Schedule(stream)
        self.stream = stream
        network = SimulatedNetwork(self.schedule, stream, lambda index, data: None)
        self.streams = SimulatedStreams(self.schedule, network, stream, record=record, said=[])
        self.place_of = network.add_member
        self.channels = [ModelChannel(number, self.schedule, stream) for number in range(channels)]
        for channel in self.channels:
            for place in range(REPLICAS):
                Replica(channel, f"S{channel.number}{'ab'[place]}", self.place_of(), self.streams, tell)
            channel.client_managers = self._origins
        self.managers = [
            Manager(f"M{number + 1}", self.place_of(), self.streams, tell, self.channels) for number in range(managers)
        ]

    @property
    def processes(self) -> list[Replica | Manager]:
        """All that can die."""
        return [*(replica for channel in self.channels for replica in channel.replicas), *self.managers]

    def start(self) -> None:
        """Starts what is down."""
        for process in self.processes:
            if not process.is_up:
                process.start()

    def _origins(self) -> tuple[bytes, ...]:
        return tuple(manager.origin for manager in self.managers if manager.is_up)
