"""The yardstick: the least code that keeps the log's promise on a good day, to measure the log against in the same run.

One sender multicasts batches; a primary and its backups put them into LMDB, with an fsync per group; the primary gives
numbers, waits until its own copy and one more are durable, and says so; the sender and a second client count. There is
no repair, no takeover, no checksum, no membership: one lost datagram and it stands still. A limit, not a design.

    python -m alphorn.testing.limit [--backups 2] [--size 65536] [--seconds 5]
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import uvloop

from alphorn.io.process import keep_freed_memory
from alphorn.io.sockets import grow_buffers
from alphorn.model.errors import Misuse

PART_BYTES = 60_000
WINDOW_BYTES = 3 << 20  # as the log's own
KEPT_ENTRIES = 1024  # as many as a log whose checkpoint interval is that
BUFFER_BYTES = 4 << 20
DRAIN_MAX = 64
WARM_UP_S = 1.0
STILL_S = 10.0  # without a batch, after which it is not the machine that is slow
COPIES = 2

_HEAD = struct.Struct(">QB")  # counter of the batch, part
_NUMBER = struct.Struct(">Q")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class LimitResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the yardstick did."""

    megabytes_per_s: float
    batches: int
    cpu_ms_per_batch: dict[str, float]


class _Places(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    host: str
    data: int = 21_001
    control: int = 21_002
    primary: int = 21_003


class _GroupCommit:
    """One transaction and one fsync for all that arrived meanwhile, off the event loop."""

    def __init__(self, path: Path, durable: Callable[[int], None]) -> None:
        self._store = lmdb.open(str(path), map_size=1 << 36)
        self._loop, self._durable = asyncio.get_running_loop(), durable
        self._waiting: list[tuple[int, list[bytes]]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, sequence: int, parts: list[bytes]) -> None:
        with self._changed:
            self._waiting.append((sequence, parts))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                entries, self._waiting = self._waiting, []
            with self._store.begin(write=True) as transaction:
                for sequence, parts in entries:
                    transaction.put(_NUMBER.pack(sequence), b"".join(parts), append=True)
                    transaction.delete(_NUMBER.pack(max(0, sequence - KEPT_ENTRIES)))
            self._loop.call_soon_threadsafe(self._durable, entries[-1][0])


class _Batches:
    """Puts parts together; `whole` is called once for each batch, in the order in which they became whole."""

    def __init__(self, parts: int, whole: Callable[[int, list[bytes]], None]) -> None:
        self._parts, self._whole = parts, whole
        self._open: dict[int, list[bytes]] = {}

    def on_data(self, datagram: bytes) -> None:
        counter, _ = _HEAD.unpack_from(datagram)
        held = self._open.setdefault(counter, [])
        held.append(datagram)
        if len(held) == self._parts:
            self._whole(counter, self._open.pop(counter))


def _receive(places: _Places, port: int, take: Callable[[bytes], None], *, is_group: bool = True) -> None:
    """Drains a socket into `take` for as long as the loop runs."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    grow_buffers(sock, BUFFER_BYTES)
    sock.bind((places.group if is_group else places.host, port))
    if is_group:
        membership = socket.inet_aton(places.group) + socket.inet_aton("127.0.0.1")
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)

    def drain() -> None:
        for _ in range(DRAIN_MAX):
            try:
                take(sock.recv(65_535))
            except BlockingIOError:
                return

    asyncio.get_running_loop().add_reader(sock, drain)


def _sender_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    grow_buffers(sock, BUFFER_BYTES)
    return sock


async def _run_primary(places: _Places, parts: int, path: Path) -> None:
    group, order = _sender_socket(), list[int]()
    copies: dict[int, int] = {}
    committed = 0

    def on_copy(server: int, sequence: int) -> None:
        nonlocal committed
        copies[server] = sequence
        others = sorted((copy for number, copy in copies.items() if number), reverse=True)
        safe = min(copies.get(0, 0), others[COPIES - 2]) if len(others) >= COPIES - 1 else 0
        if safe > committed:
            named = order[committed:safe]
            group.sendto(b"C" + struct.pack(f">{len(named)}Q", *named), (places.group, places.control))
            committed = safe

    def on_whole(counter: int, held: list[bytes]) -> None:
        order.append(counter)
        group.sendto(b"S" + _NUMBER.pack(counter), (places.group, places.control))
        log.put(len(order), held)

    log = _GroupCommit(path, lambda sequence: on_copy(0, sequence))
    _receive(places, places.data, _Batches(parts, on_whole).on_data)
    _receive(places, places.primary, lambda datagram: on_copy(*struct.unpack(">QQ", datagram)), is_group=False)
    await asyncio.Event().wait()


async def _run_backup(places: _Places, parts: int, path: Path, number: int) -> None:
    primary, held, order = _sender_socket(), dict[int, list[bytes]](), list[int]()
    stored = 0

    def on_durable(sequence: int) -> None:
        primary.sendto(struct.pack(">QQ", number, sequence), (places.host, places.primary))

    def store() -> None:
        nonlocal stored
        while stored < len(order) and order[stored] in held:
            stored += 1
            log.put(stored, held.pop(order[stored - 1]))

    def on_whole(counter: int, batch: list[bytes]) -> None:
        held[counter] = batch
        store()

    def on_control(datagram: bytes) -> None:
        if datagram[:1] == b"S":
            order.append(_NUMBER.unpack_from(datagram, 1)[0])
            store()

    log = _GroupCommit(path, on_durable)
    _receive(places, places.data, _Batches(parts, on_whole).on_data)
    _receive(places, places.control, on_control)
    await asyncio.Event().wait()


async def _run_client(places: _Places, parts: int, size: int, said: Connection, *, is_sender: bool) -> None:
    group, held, sent, delivered = _sender_socket(), dict[int, list[bytes]](), 0, 0
    filling = os.urandom(size)
    loop = asyncio.get_running_loop()

    def send() -> None:
        nonlocal sent
        while len(held) < max(1, WINDOW_BYTES // size):
            sent += 1
            held[sent] = []
            for part in range(parts):
                piece = memoryview(filling)[part * PART_BYTES : (part + 1) * PART_BYTES]
                group.sendmsg([_HEAD.pack(sent, part), piece], [], 0, (places.group, places.data))

    def on_control(datagram: bytes) -> None:
        nonlocal delivered
        if datagram[:1] == b"C":
            for (counter,) in struct.iter_unpack(">Q", datagram[1:]):
                held.pop(counter, None)
                delivered += 1
            if is_sender:
                send()

    def on_asked() -> None:
        said.recv()
        said.send((time.monotonic(), delivered))

    if not is_sender:
        _receive(places, places.data, _Batches(parts, held.__setitem__).on_data)
    _receive(places, places.control, on_control)
    loop.add_reader(said.fileno(), on_asked)
    if is_sender:
        send()
    await asyncio.Event().wait()


def _enter(role: str, places: _Places, parts: int, size: int, path: Path, number: int, said: Connection) -> None:
    keep_freed_memory()
    sys.setswitchinterval(0.0001)
    match role:
        case "primary":
            work = _run_primary(places, parts, path)
        case "backup":
            work = _run_backup(places, parts, path, number)
        case _:
            work = _run_client(places, parts, size, said, is_sender=role == "sender")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_with_word(work, said))


async def _with_word(work: Coroutine[Any, Any, None], said: Connection) -> None:
    asyncio.get_running_loop().call_later(0.05, said.send, "ready")
    await work


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def run_limit(*, backups: int, size: int, seconds: float, directory: Path | None = None) -> LimitResult:
    """Runs the yardstick in processes of its own; raises `Misuse` when it lost a datagram and stands still."""
    drawn, context = random.SystemRandom(), multiprocessing.get_context("spawn")
    third, fourth = drawn.randrange(255), drawn.randrange(1, 255)
    places = _Places(group=f"239.199.{third}.{fourth}", host=f"127.{drawn.randrange(1, 255)}.{third}.{fourth}")
    parts = -(-size // PART_BYTES)
    names = ["primary", *(f"backup-{number}" for number in range(1, backups + 1)), "client-2", "client-1"]
    with tempfile.TemporaryDirectory(prefix="alphorn-limit-", dir=directory) as folder:
        started: dict[str, tuple[BaseProcess, Connection]] = {}
        try:
            for number, name in enumerate(names):
                ours, theirs = context.Pipe()
                role = {"client-1": "sender", "client-2": "receiver"}.get(name, name.partition("-")[0])
                arguments = (role, places, parts, size, Path(folder) / name, number, theirs)
                process: BaseProcess = context.Process(target=_enter, args=arguments, daemon=True)
                process.start()
                theirs.close()  # so that the end of the process is the end of the pipe
                started[name] = (process, ours)
                ours.recv()  # The sender is last: nobody misses its first batch.
            return _measure(started, size, seconds)
        finally:
            for process, _ in started.values():
                process.kill()
                process.join()


def _measure(started: dict[str, tuple[BaseProcess, Connection]], size: int, seconds: float) -> LimitResult:
    def look() -> tuple[dict[str, tuple[float, int]], dict[str, float]]:
        delivered = {}
        for name in ("client-1", "client-2"):
            started[name][1].send("look")
            delivered[name] = started[name][1].recv()
        return delivered, {name: _cpu_s(process.pid or 0) for name, (process, _) in started.items()}

    time.sleep(WARM_UP_S)
    before, cpu_before = look()
    time.sleep(seconds)
    after, cpu_after = look()
    patience = time.monotonic() + STILL_S
    while any(after[name][1] == before[name][1] for name in before) and time.monotonic() < patience:
        time.sleep(seconds)  # a run shorter than one turn of a busy machine is prolonged
        after, cpu_after = look()
    rates = [(after[name][1] - before[name][1]) / (after[name][0] - before[name][0]) for name in before]
    batches = min(after[name][1] - before[name][1] for name in before)
    if not batches:
        raise Misuse("the yardstick lost a datagram and stands still, for it has no repair; run it again")
    return LimitResult(
        megabytes_per_s=min(rates) * size / 1e6,
        batches=batches,
        cpu_ms_per_batch={name: (cpu_after[name] - cpu_before[name]) / batches * 1e3 for name in started},
    )


def main() -> None:
    """Prints one run as JSON."""
    parser = argparse.ArgumentParser(prog="alphorn.testing.limit", description="The yardstick of `alphorn bench log`.")
    parser.add_argument("--backups", type=int, default=2)
    parser.add_argument("--size", type=int, default=65_536)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    result = run_limit(backups=options.backups, size=options.size, seconds=options.seconds)
    print(json.dumps(msgspec.to_builtins(result)))


if __name__ == "__main__":
    main()
