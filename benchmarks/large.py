"""Very large messages: throughput, memory of every process, and what small messages on the same connection notice.

    python benchmarks/large.py [--gigabytes 1] [--rate 100] [--idle 10] [--directory DIR] [--together] [--json]

A cluster of real processes (one Client Manager, in a process of its own or in the primary's, a primary and a backup,
each with its store) gets one message of so
many bytes by `send_stream`, and gives it back by `message.open()`. Meanwhile the same connection sends small messages,
so many a second, and receives them; the time from `send` to receipt is measured, and before that with nothing else
going on. Memory is the largest resident size seen meanwhile, less that after a warm-up. The yardstick is `cat` of a
file of the same size through a pipe into two files, each synced at the end.
"""

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

import alphorn
import alphorn.testing
from alphorn.testing.clusters import Cluster

PIECE = 1 << 20
LOOK_S = 0.1
WARM_BYTES = 32 << 20
RATIO_TARGET = 0.5  # of the yardstick's throughput
LATENCY_TARGET = 3.0  # times the idle p99
GROWTH_TARGET_MB = 200.0


class Source:
    """So many bytes that no two pieces share, made as they are read."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.digest = xxhash.xxh3_128()
        self._pattern = os.urandom(PIECE)
        self._count = 0

    def read(self, size: int) -> bytes:
        """The next bytes."""
        data = bytearray(min(size, self.left, PIECE))
        self.readinto(memoryview(data))
        return bytes(data)

    def readinto(self, buffer: memoryview) -> int:
        """The same into a buffer, as a file does."""
        taken = min(len(buffer), self.left, PIECE)
        buffer[:taken] = memoryview(self._pattern)[:taken]
        mark = self._count.to_bytes(8, "big")[:taken]
        buffer[: len(mark)] = mark
        self._count += 1
        self.left -= taken
        self.digest.update(buffer[:taken])
        return taken


class Memory:
    """The largest resident size of each process."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self.before = self._look()
        self.most = dict(self.before)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def growth_mb(self) -> dict[str, float]:
        """Ends, and gives by how much each process has grown."""
        self._is_over.set()
        self._thread.join()
        return {name: round((self.most[name] - size) / 1e6, 1) for name, size in self.before.items()}

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_S):
            for name, size in self._look().items():
                self.most[name] = max(self.most[name], size)

    def _look(self) -> dict[str, int]:
        return {name: _resident_bytes(pid) for name, pid in self._pids.items()}


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class SmallMessages:
    """A trickle of small messages there and back on one connection; `during` gives what it measured."""

    def __init__(self, connection: alphorn.Connection, per_s: float) -> None:
        session = connection.session()
        self._pause_s = 1 / per_s
        self._producer = session.producer("queue:small")
        self._consumer = connection.session(ack="dups_ok").consumer("queue:small")
        self._is_over = threading.Event()
        self._seconds: list[float] = []
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    @contextmanager
    def during(self) -> Iterator[dict[str, float]]:
        """Fills in what was measured between entering and leaving."""
        found: dict[str, float] = {}
        self._seconds = []
        yield found
        times = sorted(self._seconds)
        found["messages"] = len(times)
        for name, share in (("p50_ms", 0.50), ("p99_ms", 0.99)):
            found[name] = round(1000 * times[min(len(times) - 1, int(share * len(times)))], 2) if times else 0.0

    def close(self) -> None:
        """Ends."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        due = time.monotonic()
        while not self._is_over.is_set():
            self._producer.send(time.monotonic_ns())
            due += self._pause_s
            self._is_over.wait(max(0.0, due - time.monotonic()))

    def _receive(self) -> None:
        while not self._is_over.is_set():
            for message in self._consumer.receive_many(100, 0.2):
                self._seconds.append((time.monotonic_ns() - message.body) / 1e9)


def _send(producer: alphorn.Producer, size: int) -> tuple[float, bytes]:
    source = Source(size)
    began = time.monotonic()
    producer.send_stream(source)
    return time.monotonic() - began, source.digest.digest()


def _read(consumer: alphorn.Consumer) -> tuple[float, bytes]:
    message = consumer.receive(60)
    assert message is not None
    digest = xxhash.xxh3_128()
    began = time.monotonic()
    with message.open() as body:
        while data := body.read(PIECE):
            digest.update(data)
    message.acknowledge()
    return time.monotonic() - began, digest.digest()


def measure(cluster: Cluster, size: int, *, rate: float, idle_s: float) -> dict[str, Any]:
    """One message of so many bytes there and back."""
    with cluster.connect() as connection:
        session = connection.session(ack="individual")
        producer, consumer = session.producer("queue:large"), session.consumer("queue:large")
        small = SmallMessages(connection, rate)
        _send(producer, WARM_BYTES)
        _read(consumer)
        with small.during() as idle:
            time.sleep(idle_s)
        memory = Memory({**cluster.nodes, "client": os.getpid()})
        with small.during() as sending:
            send_s, sent = _send(producer, size)
        with small.during() as reading:
            read_s, read = _read(consumer)
        assert sent == read, "what came is not what was sent"
        growth = memory.growth_mb()
        small.close()
    return {
        "bytes": size,
        "send_mb_s": round(size / send_s / 1e6, 1),
        "read_mb_s": round(size / read_s / 1e6, 1),
        "small_idle": idle,
        "small_while_sending": sending,
        "small_while_reading": reading,
        "growth_mb": growth,
    }


def yardstick(size: int, directory: Path) -> float:
    """Bytes a second of `cat` into two files that are synced at the end."""
    source = directory / "source"
    made = Source(size)
    with source.open("wb") as file:
        while data := made.read(PIECE):
            file.write(data)
        os.fsync(file.fileno())
    began = time.monotonic()
    targets = [directory / "first", directory / "second"]
    command = f"cat '{source}' | tee '{targets[0]}' > '{targets[1]}'"
    subprocess.run(["/bin/sh", "-c", command], check=True)
    for target in targets:
        with target.open("rb+") as file:
            os.fsync(file.fileno())
    seconds = time.monotonic() - began
    for path in (source, *targets):
        path.unlink()
    return size / seconds


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the message")
    parser.add_argument("--rate", type=float, default=100.0, help="small messages a second")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds to measure small messages alone")
    parser.add_argument("--directory", type=Path, help="where stores and files are made; its disk is what is measured")
    parser.add_argument("--together", action="store_true", help="the Client Manager is in the primary's process")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    size = int(options.gigabytes * (1 << 30))
    with tempfile.TemporaryDirectory(prefix="alphorn-large-", dir=options.directory) as folder:
        plain = yardstick(size, Path(folder))
        with alphorn.testing.cluster(directory=Path(folder) / "cluster", together=options.together) as cluster:
            if options.together:
                cluster.make_primary("mm1")
            found = measure(cluster, size, rate=options.rate, idle_s=options.idle)
    found["cat_mb_s"] = round(plain / 1e6, 1)
    found["send_to_cat"] = round(found["send_mb_s"] / found["cat_mb_s"], 3)
    idle = found["small_idle"]["p99_ms"]
    worst = max(found["small_while_sending"]["p99_ms"], found["small_while_reading"]["p99_ms"])
    found["p99_to_idle"] = round(worst / idle, 3)
    found["load"] = os.getloadavg()[0]
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:>20}  {value}")
    print(
        f"targets: send_to_cat at least {RATIO_TARGET}, p99_to_idle at most {LATENCY_TARGET}, "
        f"growth_mb of every process below {GROWTH_TARGET_MB:g}"
    )


if __name__ == "__main__":
    main()
