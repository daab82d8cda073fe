"""What the engine costs per batch: plain publishing and acknowledging in order, alone and among many destinations.

    python benchmarks/engine.py [--batches 20000] [--destinations 10000] [--json]

Every batch is its own log entry of 450 messages of 100 bytes. `backlog` publishes without acknowledging and shows the
memory of it; `features` publishes batches that must be opened. Microseconds are CPU time of this process.
"""

import argparse
import json
import time
import tracemalloc
from collections.abc import Callable

import msgspec
from rich.console import Console
from rich.table import Table

from alphorn.message_manager.engine import Engine
from alphorn.message_manager.snapshot import Snapshot
from alphorn.model.commands import Acknowledge, CreateDestination, Entry, Publish, Subscribe, key_of
from alphorn.model.destinations import Destination, DestinationKind, Policy
from alphorn.model.messages import Flag, Packed
from alphorn.node.checkpointing import SLICE_S

MESSAGES = 450
PRODUCER = key_of(bytes(15) + b"\x01", 1)
PLAIN = msgspec.msgpack.encode([[b"x" * 100]] * MESSAGES)
FEATURED = msgspec.msgpack.encode([Packed(b"x" * 100, {"n": n}, n % 10, 1 << 41) for n in range(MESSAGES)])
PLAIN_POLICY = Policy()

Row = dict[str, object]


def made_engine(
    destinations: int, kind: DestinationKind = DestinationKind.QUEUE, policy: Policy = PLAIN_POLICY
) -> Engine:
    engine = Engine()
    commands = [CreateDestination(Destination(kind, f"d{number}"), policy) for number in range(destinations)]
    engine.apply(1, Entry(commands))
    return engine


def publish(batch: int, destinations: int, *, blob: bytes = PLAIN, flags: int = 0) -> Entry:
    counter = 1 + batch * MESSAGES
    destination = 1 + batch % destinations
    return Entry([Publish(destination, PRODUCER, counter, MESSAGES, flags, 0, memoryview(blob))])


def acknowledge(batch: int, destinations: int, subscription: int = 0) -> Entry:
    first = 1 + batch // destinations * MESSAGES
    positions = [first, first + MESSAGES - 1]
    return Entry([Acknowledge(1 + batch % destinations, subscription, PRODUCER, positions)])


def timed(engine: Engine, entries: list[Entry]) -> float:
    """Microseconds per entry."""
    sequence = engine.sequence
    begin = time.process_time()
    for number, entry in enumerate(entries, start=sequence + 1):
        engine.apply(number, entry)
    return (time.process_time() - begin) / len(entries) * 1e6


def row(work: str, micros: float, messages: int = MESSAGES) -> Row:
    return {"work": work, "us_per_batch": round(micros, 2), "batches_per_s": round(1e6 / micros), "messages": messages}


def measure_queues(batches: int, destinations: int, policy: Policy = PLAIN_POLICY) -> list[Row]:
    engine = made_engine(destinations, policy=policy)
    published = timed(engine, [publish(batch, destinations) for batch in range(batches)])
    consumed = timed(engine, [acknowledge(batch, destinations) for batch in range(batches)])
    among = f"{destinations} queue{'s' if destinations > 1 else ''}{' with retain' * bool(policy.retain_s)}"
    return [row(f"publish, {among}", published), row(f"acknowledge in order, {among}", consumed)]


def measure_topic(batches: int, subscriptions: int) -> list[Row]:
    engine = made_engine(1, DestinationKind.TOPIC)
    commands = [Subscribe(1, f"s{number}", "", PRODUCER, "", True, False, b"", -1) for number in range(subscriptions)]
    engine.apply(2, Entry(commands))
    published = timed(engine, [publish(batch, 1) for batch in range(batches)])
    return [row(f"publish, topic with {subscriptions} subscriptions", published)]


def measure_features(batches: int) -> list[Row]:
    engine = made_engine(1)
    flags = Flag.PROPERTIES | Flag.PRIORITY | Flag.EXPIRATION
    entries = [publish(batch, 1, blob=FEATURED, flags=flags) for batch in range(max(1, batches // 20))]
    return [row("publish with priorities and expiration", timed(engine, entries))]


def measure_backlog(messages: int) -> list[Row]:
    """A backlog of so many messages: memory, and what the parts of a checkpoint cost."""
    engine = made_engine(1)
    tracemalloc.start()
    for batch in range(messages // MESSAGES):
        engine.apply(batch + 2, publish(batch, 1))
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    retained = _once(lambda: len(engine.retained()))
    written = _once(lambda: sum(map(len, engine.checkpoint())))
    return [
        {"work": f"backlog of {messages:,} messages", "bytes": size},
        {"work": "its retained()", "ms": round(retained, 2)},
        {"work": "its checkpoint()", "ms": round(written, 2)},
    ]


def measure_checkpoint(destinations: int) -> list[Row]:
    """A checkpoint as a Message Manager takes it: at the mark, then in slices with its other work between them."""
    engine = made_engine(destinations)
    timed(engine, [publish(batch, destinations) for batch in range(destinations)])
    pieces: list[bytes] = []
    begin = time.process_time()
    snapshot = engine.snapshot()
    marked = time.process_time() - begin
    slices = []
    while not slices or slices[-1][1]:
        slices.append(_slice(snapshot, pieces))
    longest = max(spent for spent, _ in slices)
    read = _once(lambda: Engine.restore(pieces).sequence)
    whole = marked + sum(spent for spent, _ in slices)
    among = f"of {destinations:,} destinations"
    return [
        {"work": f"checkpoint {among}, {len(slices):,} slices", "ms": _ms(whole), "bytes": sum(map(len, pieces))},
        {"work": "  at the mark", "ms": _ms(marked)},
        {"work": "  longest slice", "ms": _ms(longest)},
        {"work": f"restore() {among}", "ms": round(read, 1)},
    ]


def _slice(snapshot: Snapshot, pieces: list[bytes]) -> tuple[float, bool]:
    """Seconds that a slice takes, and whether there is more."""
    begin = time.process_time()
    while (spent := time.process_time() - begin) < SLICE_S:
        piece = next(snapshot, None)
        if piece is None:
            return spent, False
        pieces.append(piece)
    return spent, True


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


def _once(work: Callable[[], int]) -> float:
    begin = time.process_time()
    work()
    return (time.process_time() - begin) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--destinations", type=int, default=10_000)
    parser.add_argument("--backlog", type=int, default=20_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure_queues(options.batches, 1)
    rows += measure_queues(options.batches, options.destinations)
    rows += measure_queues(options.batches, 1, Policy(retain_s=3600.0))
    rows += measure_topic(options.batches, 10)
    rows += measure_features(options.batches)
    rows += measure_backlog(options.backlog)
    rows += measure_checkpoint(options.destinations)
    if options.json:
        print(json.dumps(rows))
        return
    table = Table("work", "µs per batch", "batches/s", "ms", "bytes", title=f"the engine, {MESSAGES} messages a batch")
    for one in rows:
        names = ("work", "us_per_batch", "batches_per_s", "ms", "bytes")
        table.add_row(
            *(f"{one[name]:,}" if isinstance(one.get(name), int) else str(one.get(name, "")) for name in names)
        )
    Console().print(table)


if __name__ == "__main__":
    main()
