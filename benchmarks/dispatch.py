"""What the dispatcher costs per batch: giving it out and hearing that it was acknowledged.

    python benchmarks/dispatch.py [--batches 10000] [--destinations 10000] [--json]

Every batch is its own log entry of 450 messages. Microseconds are CPU time of this process within the dispatcher
alone; what the engine costs is in benchmarks/engine.py.
"""

import argparse
import json
import time
from collections.abc import Iterable

import msgspec
from rich.console import Console
from rich.table import Table

from alphorn.message_manager.dispatch import Delivery, Dispatcher
from alphorn.message_manager.effects import Effect, Subscribed
from alphorn.message_manager.engine import Engine
from alphorn.model.commands import Acknowledge, AnyCommand, CreateDestination, Entry, Publish, Subscribe, key_of
from alphorn.model.destinations import Destination, DestinationKind, Policy
from alphorn.model.messages import Flag, Packed

MESSAGES = 450
PRODUCER = key_of(bytes(15) + b"\x01", 1)
PLAIN = msgspec.msgpack.encode([[b"x" * 100]] * MESSAGES)
COLOURED = msgspec.msgpack.encode([Packed(b"x" * 100, {"colour": "rb"[n % 2]}) for n in range(MESSAGES)])
KEYED = msgspec.msgpack.encode([Packed(b"x" * 100, key=f"k{n % 50}") for n in range(MESSAGES)])


class Bench:
    """A primary whose dispatcher is timed."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.entries: dict[int, Entry] = {}
        self.dispatcher = Dispatcher(self.engine, self.entries.get)
        self.counter = 1
        self.seconds = 0.0

    def apply(self, *commands: AnyCommand) -> list[Effect]:
        sequence = self.engine.sequence + 1
        entry = self.entries[sequence] = Entry(list(commands))
        self.entries.pop(sequence - 10, None)
        return self.engine.apply(sequence, entry)

    def create(self, kind: DestinationKind, count: int = 1, policy: Policy | None = None) -> None:
        for number in range(count):
            self.apply(CreateDestination(Destination(kind, f"d{number}"), policy or Policy()))

    def publish(self, destination: int, blob: bytes = PLAIN, flags: int = 0) -> list[Effect]:
        self.counter += MESSAGES
        view = memoryview(blob)
        return self.apply(Publish(destination, PRODUCER, self.counter - MESSAGES, MESSAGES, flags, 0, view))

    def attach(
        self, number: int, destination: int, subscription: int = 0, prefetch: int = 10_000, selector: str = ""
    ) -> None:
        self.dispatcher.attach(
            key_of(bytes(16), number),
            client_manager=1,
            destination=destination,
            subscription=subscription,
            selector=selector,
            prefetch=prefetch,
            held=[],
        )

    def give(self, effects: list[Effect]) -> list[Delivery]:
        begin = time.process_time()
        self.dispatcher.on_effects(effects)
        deliveries = self.dispatcher.take_deliveries()
        while self.dispatcher.has_more:
            deliveries += self.dispatcher.take_deliveries()
        self.seconds += time.process_time() - begin
        return deliveries

    def acknowledge(self, deliveries: Iterable[Delivery], subscriptions: dict[bytes, int]) -> list[Delivery]:
        further = []
        for delivery in deliveries:
            deliver = delivery.deliver
            positions = [number for run in deliver.runs for number in (run.position, run.position + run.count - 1)]
            subscription = subscriptions.get(deliver.consumer, 0)
            further += self.give(
                self.apply(Acknowledge(deliver.destination, subscription, deliver.consumer, positions))
            )
        return further

    def pump(
        self, batches: int, destinations: int = 1, blob: bytes = PLAIN, flags: int = 0, **subscriptions: int
    ) -> float:
        """Microseconds per batch, acknowledged one batch later."""
        keys = {key_of(bytes(16), int(name[1:])): number for name, number in subscriptions.items()}
        waiting: list[Delivery] = []
        for batch in range(batches):
            given = self.give(self.publish(1 + batch % destinations, blob, flags))
            waiting = self.acknowledge(waiting, keys) + given
        while waiting:
            waiting = self.acknowledge(waiting, keys)
        return self.seconds / batches * 1e6


def one_queue(batches: int, consumers: int, prefetch: int) -> float:
    bench = Bench()
    bench.create(DestinationKind.QUEUE)
    for number in range(consumers):
        bench.attach(number, 1, prefetch=prefetch)
    return bench.pump(batches)


def subscribers(batches: int, count: int) -> float:
    bench = Bench()
    bench.create(DestinationKind.TOPIC)
    numbers = {}
    for number in range(count):
        key = key_of(bytes(16), number)
        effects = bench.apply(Subscribe(1, f"s{number}", "", key, "", True, True, b"", -1))
        numbers[f"n{number}"] = next(effect.subscription for effect in effects if isinstance(effect, Subscribed))
        bench.attach(number, 1, subscription=numbers[f"n{number}"])
    return bench.pump(batches, **numbers)


def many_destinations(batches: int, count: int) -> float:
    bench = Bench()
    bench.create(DestinationKind.QUEUE, count)
    for number in range(count):
        bench.attach(number, 1 + number)
    bench.give([])
    bench.seconds = 0.0
    return bench.pump(batches, count)


def backlog(batches: int) -> float:
    bench = Bench()
    bench.create(DestinationKind.QUEUE)
    for _ in range(batches):
        bench.publish(1)
    bench.attach(0, 1, prefetch=4 * MESSAGES)
    waiting = bench.give([])
    while waiting:
        waiting = bench.acknowledge(waiting, {})
    return bench.seconds / batches * 1e6


def choosy(batches: int, policy: Policy, selector: str, blob: bytes, flags: int) -> float:
    bench = Bench()
    bench.create(DestinationKind.QUEUE, policy=policy)
    bench.attach(0, 1, selector=selector)
    bench.attach(1, 1)
    return bench.pump(batches, blob=blob, flags=flags)


def measure(batches: int, destinations: int) -> list[tuple[str, float]]:
    few = max(1, batches // 50)
    return [
        ("one consumer", one_queue(batches, 1, 10_000)),
        ("one consumer, prefetch 700: batches are split", one_queue(batches, 1, 700)),
        ("10 competing consumers", one_queue(batches, 10, 10_000)),
        ("1,000 competing consumers", one_queue(batches, 1_000, 10_000)),
        ("10 subscriptions of a topic, all together", subscribers(batches // 5, 10)),
        (f"{destinations:,} queues with a consumer each", many_destinations(batches, destinations)),
        (f"a backlog of {batches:,} batches, drained", backlog(batches)),
        ("with a selector that takes every other message", choosy(few, Policy(), "colour = 'r'", COLOURED, 1)),
        ("in groups of 50 keys", choosy(few, Policy(groups=True), "", KEYED, int(Flag.KEY))),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--destinations", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options.batches, options.destinations)
    if options.json:
        print(json.dumps([{"work": work, "batch_us": round(micros, 1)} for work, micros in rows]))
        return
    table = Table("work", "µs a batch", "ns a message")
    for work, micros in rows:
        table.add_row(work, f"{micros:,.1f}", f"{micros / MESSAGES * 1e3:,.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
