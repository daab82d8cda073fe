"""A primary on a stage: a real engine and dispatcher, a log in memory, consumers by short names."""

from typing import Any

import msgspec

from alphorn.message_manager.dispatch import Dispatcher
from alphorn.message_manager.effects import Answer, Created, Effect, Subscribed
from alphorn.message_manager.engine import Engine
from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    CreateDestination,
    Entry,
    Publish,
    Return,
    SetPolicy,
    Subscribe,
    Tick,
    decode_entry,
    encode_entry,
    key_of,
)
from alphorn.model.destinations import Destination, DestinationKind, Policy
from alphorn.model.link import DeliveredRun
from alphorn.model.messages import PRIORITY_DEFAULT, Flag, Packed

PRODUCER = key_of(b"producer of all ", 1)
Received = dict[str, list[tuple[int, int]]]  # consumer → positions with their delivery counts


def key(name: str) -> bytes:
    """The key of the consumer with this short name."""
    return name.encode().ljust(20, b"-")


class Stage:
    """What a test acts on."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.log: dict[int, Entry] = {}
        self.unreadable: set[int] = set()
        self.reads: list[int] = []
        self.dispatcher = Dispatcher(self.engine, self.read)
        self.counter = 1
        self.runs: dict[str, list[DeliveredRun]] = {}  # of the last `deliver`
        self.managers: dict[str, int] = {}  # of the last `deliver`

    def read(self, sequence: int) -> Entry | None:
        self.reads.append(sequence)
        return None if sequence in self.unreadable else self.log[sequence]

    def become_primary(self, *client_managers: int) -> None:
        """Another member takes over with the same replicated state."""
        self.dispatcher = Dispatcher(self.engine, self.read, client_managers)

    def order(self, *commands: AnyCommand) -> list[Effect]:
        sequence = self.engine.sequence + 1
        self.log[sequence] = decode_entry(encode_entry(Entry(list(commands))))
        effects = self.engine.apply(sequence, self.log[sequence])
        assert not [effect for effect in effects if isinstance(effect, Answer) and effect.error], effects
        self.dispatcher.on_effects(effects)
        return effects

    def create(self, name: str, kind: DestinationKind, **policy: Any) -> int:
        """A destination's number. Its dead letter queue is made too, as Client Managers do."""
        dead_letter = policy.pop("dead_letter", None)
        effects = self.order(CreateDestination(Destination(kind, name), Policy(**policy)))
        number = next(effect.number for effect in effects if isinstance(effect, Created))
        if dead_letter is not None:
            self.order(CreateDestination(Destination(DestinationKind.QUEUE, dead_letter), Policy()))
            self.order(SetPolicy(number, Policy(dead_letter=dead_letter, **policy)))
        return number

    def queue(self, name: str = "orders", **policy: Any) -> int:
        return self.create(name, DestinationKind.QUEUE, **policy)

    def topic(self, name: str = "prices", **policy: Any) -> int:
        return self.create(name, DestinationKind.TOPIC, **policy)

    def subscribe(self, topic: int, name: str, *, is_shared: bool = False, **other: Any) -> int:
        given = {"client": "", "selector": "", "no_local": b"", "start": -1, "consumer": key(name), **other}
        effects = self.order(Subscribe(destination=topic, name=name, is_durable=True, is_shared=is_shared, **given))
        return next(effect.subscription for effect in effects if isinstance(effect, Subscribed))

    def publish(self, destination: int, messages: int | list[Packed] = 1) -> None:
        batch = [Packed("body")] * messages if isinstance(messages, int) else messages
        flags = Flag(0)
        for message in batch:
            flags |= Flag.PROPERTIES if message.properties else Flag(0)
            flags |= Flag.KEY if message.key is not None else Flag(0)
            flags |= Flag.PRIORITY if message.priority != PRIORITY_DEFAULT else Flag(0)
            flags |= Flag.DELAY if message.deliver_at else Flag(0)
            flags |= Flag.EXPIRATION if message.expiration else Flag(0)
        blob = memoryview(msgspec.msgpack.encode(batch))
        self.order(Publish(destination, PRODUCER, self.counter, len(batch), int(flags), 1_000, blob))
        self.counter += len(batch)

    def attach(self, name: str, destination: int, prefetch: int = 1000, **other: Any) -> None:
        given = {"client_manager": 1, "subscription": 0, "selector": "", "held": [], **other}
        self.dispatcher.attach(key(name), destination=destination, prefetch=prefetch, **given)

    def deliver(self) -> Received:
        """All that can be delivered now."""
        self.runs, self.managers = {}, {}
        while True:
            for delivery in self.dispatcher.take_deliveries():
                name = delivery.deliver.consumer.decode().rstrip("-")
                self.runs.setdefault(name, []).extend(delivery.deliver.runs)
                self.managers[name] = delivery.client_manager
            if not self.dispatcher.has_more:
                return {name: _positions(runs) for name, runs in self.runs.items()}

    def acknowledge(self, name: str, destination: int, *positions: int, subscription: int = 0) -> None:
        """Positions are flat pairs."""
        self.order(Acknowledge(destination, subscription, key(name), list(positions)))

    def give_back(self, name: str, destination: int, *positions: int, subscription: int = 0, **other: Any) -> None:
        self.order(Return(destination, subscription, key(name), list(positions), **other))

    def detach(self, name: str) -> list[Return]:
        return self.dispatcher.detach(key(name))

    def lose(self, client_manager: int) -> list[Return]:
        """A Client Manager is gone and its clients do not come back: what the machine does then."""
        consumers = self.dispatcher.consumers_at(client_manager)
        self.dispatcher.suspend(consumers)
        self.dispatcher.leave(client_manager)
        return [command for consumer in consumers for command in self.dispatcher.detach(consumer)]

    def tick(self, now_ms: int) -> None:
        """The time, as the primary puts it into the log."""
        self.order(Tick(now_ms, *self.dispatcher.names_of(self.engine.expiring(now_ms))))

    def state(self, destination: int, subscription: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.dispatcher.describe()["destinations"][destination][subscription]
        return found


def _positions(runs: list[DeliveredRun]) -> list[tuple[int, int]]:
    return [(run.position + place, run.delivery_count) for run in runs for place in range(run.count)]


def first_time(first: int, last: int) -> list[tuple[int, int]]:
    """These positions, each delivered for the first time."""
    return [(position, 1) for position in range(first, last + 1)]
