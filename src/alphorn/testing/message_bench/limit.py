"""The limit probe: the least work that still keeps alphorn's promise, to measure alphorn against in the same run.

producer -> client manager -> UDP multicast -> primary and backup (LMDB, fsync on both) -> commit -> client manager
-> consumer, each its own process on loopback. It has no repair, failover, destinations or errors: it loses messages if
a datagram is lost. It is a yardstick, not a design to copy.

    python benchmarks/limit.py --messages 3000000 --size 100 --batch 450 --window 64     # throughput
    python benchmarks/limit.py --messages 5000 --size 100 --batch 1 --window 1           # one message in flight
    python benchmarks/limit.py --messages 10000 --size 100 --batch 1 --per-second 1000   # at a pace
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, cast

import lmdb
import msgspec
import uvloop

DATA_PORT, CONTROL_PORT, PRIMARY_PORT, CLIENT_PORT = 9901, 9902, 9903, 9910
LOOPBACK = socket.inet_aton("127.0.0.1")
Ready = Callable[[], object]  # says that a process can do its part
KEPT_ENTRIES = 400  # older log entries are deleted, as acknowledged ones would be


class Places(msgspec.Struct, frozen=True):
    """Where the processes meet; probes with different places do not hear each other."""

    group: str = "239.9.9.9"
    host: str = "127.0.0.1"


class Message(msgspec.Struct, array_like=True, gc=False):
    """What is sent, as a client library would pack it."""

    id: int
    sent_ns: int
    priority: int
    expiration: int
    properties: dict[str, Any] | None
    body: bytes


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(list[Message]).decode


def multicast_receiver(places: Places, port: int) -> socket.socket:
    """A socket that hears the group."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    s.bind((places.group, port))
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(places.group) + LOOPBACK)
    s.setblocking(False)
    return s


def multicast_sender() -> socket.socket:
    """A socket that speaks to the group."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, LOOPBACK)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    return s


def on_datagram(s: socket.socket, handle: Callable[[bytes], None]) -> None:
    """Drains up to 64 datagrams per wake-up."""

    def drain() -> None:
        for _ in range(64):
            try:
                datagram = s.recv(65535)
            except BlockingIOError:
                return
            handle(datagram)

    asyncio.get_running_loop().add_reader(s, drain)


class GroupCommit:
    """One LMDB transaction and one fsync for all that arrived meanwhile, off the event loop."""

    def __init__(self, path: str, durable: Callable[[int], None]) -> None:
        self.store = lmdb.open(path, map_size=1 << 36, sync=True)
        self.loop, self.durable = asyncio.get_running_loop(), durable
        self.waiting: list[tuple[int, bytes]] = []
        self.lock, self.work = threading.Lock(), threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def put(self, sequence: int, entry: bytes) -> None:
        """Stores an entry with the next group."""
        with self.lock:
            self.waiting.append((sequence, entry))
        self.work.set()

    def run(self) -> None:
        """The thread."""
        while True:
            self.work.wait()
            self.work.clear()
            with self.lock:
                entries, self.waiting = self.waiting, []
            if not entries:
                continue
            with self.store.begin(write=True) as transaction:
                for sequence, entry in entries:
                    transaction.put(sequence.to_bytes(8, "big"), entry, append=True)
                    if sequence > KEPT_ENTRIES:
                        transaction.delete((sequence - KEPT_ENTRIES).to_bytes(8, "big"))
            self.loop.call_soon_threadsafe(self.durable, entries[-1][0])


async def primary(ready: Ready, places: Places, path: str) -> None:
    """Numbers batches, stores them, and commits what both replicas have stored."""
    group, ids = multicast_sender(), dict[int, bytes]()
    assigned = own = backup = committed = 0

    def commit() -> None:
        nonlocal committed
        safe = min(own, backup)
        if safe > committed:
            names = b"".join(ids.pop(n) for n in range(committed + 1, safe + 1))
            group.sendto(b"C" + names, (places.group, CONTROL_PORT))
            committed = safe

    def on_durable(sequence: int) -> None:
        nonlocal own
        own = sequence
        commit()

    def on_data(datagram: bytes) -> None:
        nonlocal assigned
        assigned += 1
        ids[assigned] = datagram[:8]
        log.put(assigned, datagram)
        group.sendto(b"S" + struct.pack("!Q", assigned) + datagram[:8], (places.group, CONTROL_PORT))

    def on_acknowledge(datagram: bytes) -> None:
        nonlocal backup
        backup = struct.unpack("!Q", datagram)[0]
        commit()

    log = GroupCommit(path, on_durable)
    acknowledgements = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    acknowledgements.bind((places.host, PRIMARY_PORT))
    acknowledgements.setblocking(False)
    on_datagram(multicast_receiver(places, DATA_PORT), on_data)
    on_datagram(acknowledgements, on_acknowledge)
    ready()
    await asyncio.Event().wait()


async def backup(ready: Ready, places: Places, path: str) -> None:
    """Stores batches under the primary's numbers."""
    data: dict[bytes, bytes] = {}
    submitted: list[tuple[int, bytes]] = []
    reply = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def on_durable(sequence: int) -> None:
        reply.sendto(struct.pack("!Q", sequence), (places.host, PRIMARY_PORT))

    def store() -> None:
        while submitted and submitted[0][1] in data:
            sequence, name = submitted.pop(0)
            log.put(sequence, data.pop(name))

    def on_data(datagram: bytes) -> None:
        data[datagram[:8]] = datagram
        store()

    def on_control(datagram: bytes) -> None:
        if datagram[:1] == b"S":
            submitted.append((struct.unpack("!Q", datagram[1:9])[0], datagram[9:17]))
            store()

    log = GroupCommit(path, on_durable)
    on_datagram(multicast_receiver(places, DATA_PORT), on_data)
    on_datagram(multicast_receiver(places, CONTROL_PORT), on_control)
    ready()
    await asyncio.Event().wait()


class Frames(asyncio.Protocol):
    """Four bytes of length, then the payload; many frames per wake-up."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio calls it."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(1 << 24)

    def data_received(self, data: bytes) -> None:
        """Asyncio calls it."""
        buffer = self.buffer
        buffer += data
        start, end = 0, len(buffer)
        while end - start >= 4:
            length = int.from_bytes(buffer[start : start + 4], "big")
            if end - start - 4 < length:
                break
            self.on_frame(bytes(memoryview(buffer)[start + 4 : start + 4 + length]))
            start += 4 + length
        if start:
            del buffer[:start]
        self.on_turn()

    def on_frame(self, payload: bytes) -> None:
        """A frame came."""

    def on_turn(self) -> None:
        """All frames of one wake-up came."""

    def send(self, payload: bytes) -> None:
        """Sends a frame."""
        self.transport.write(len(payload).to_bytes(4, "big") + payload)


async def client_manager(ready: Ready, places: Places) -> None:
    """Passes batches from the producer to the group, and to the consumer once they are committed."""
    group, cache, senders = multicast_sender(), dict[bytes, bytes](), dict[bytes, Frames]()
    counter = 0
    consumer: Frames | None = None

    class Client(Frames):
        def on_frame(self, payload: bytes) -> None:
            nonlocal counter, consumer
            if payload[:1] == b"c":
                consumer = self
                self.send(payload)
                return
            counter += 1
            name = counter.to_bytes(8, "big")
            if payload[:1] == b"P":
                cache[name], senders[name] = payload, self
            group.sendto(name + payload, (places.group, DATA_PORT))

    def on_control(datagram: bytes) -> None:
        if datagram[:1] != b"C":
            return
        deliveries, confirmed = list[bytes](), 0
        sender: Frames | None = None
        for start in range(1, len(datagram), 8):
            payload = cache.pop(datagram[start : start + 8], None)
            if payload is None:
                continue  # an acknowledgement batch
            sender = senders.pop(datagram[start : start + 8])
            confirmed += 1
            deliveries += (len(payload).to_bytes(4, "big"), payload)
        if deliveries and consumer:
            consumer.transport.writelines(deliveries)
        if sender:
            sender.send(confirmed.to_bytes(4, "big"))

    on_datagram(multicast_receiver(places, CONTROL_PORT), on_control)
    await asyncio.get_running_loop().create_server(Client, places.host, CLIENT_PORT)
    ready()
    await asyncio.Event().wait()


async def producer(
    ready: Ready, places: Places, messages: int, size: int, batch: int, window: int, per_second: float
) -> dict[str, float]:
    """Sends, with at most `window` unconfirmed batches; at a pace, where one is given."""
    in_flight, opened = 0, asyncio.Event()

    class Producer(Frames):
        def on_frame(self, payload: bytes) -> None:
            nonlocal in_flight
            in_flight -= int.from_bytes(payload, "big")
            opened.set()

    _, link = await asyncio.get_running_loop().create_connection(Producer, places.host, CLIENT_PORT)
    ready()
    body, begun, sent = b"x" * size, time.perf_counter(), 0
    while sent < messages or in_flight:
        if in_flight >= window or sent >= messages:
            opened.clear()
            await opened.wait()
            continue
        if per_second and (early_s := begun + sent / per_second - time.perf_counter()) > 0:
            await asyncio.sleep(early_s)
            continue
        link.send(b"P" + encode([Message(sent + i, time.monotonic_ns(), 4, 0, None, body) for i in range(batch)]))
        in_flight, sent = in_flight + 1, sent + batch
        await asyncio.sleep(0)
    return {"confirmed_per_s": round(sent / (time.perf_counter() - begun))}


async def consume(ready: Ready, places: Places, messages: int) -> dict[str, float]:
    """Receives, looks at each message, and acknowledges."""
    received, checksum, begun, latencies, done = 0, 0, 0.0, list[int](), asyncio.Event()

    class Consumer(Frames):
        acknowledged = 0

        def on_frame(self, payload: bytes) -> None:
            nonlocal received, checksum, begun
            if payload[:1] == b"c":
                ready()
                return
            begun = begun or time.perf_counter()
            now = time.monotonic_ns()
            for message in decode(memoryview(payload)[1:]):
                received += 1
                checksum ^= message.id
            latencies.append(now - message.sent_ns)

        def on_turn(self) -> None:
            if self.acknowledged != received:
                self.acknowledged = received
                self.send(b"A" + received.to_bytes(8, "big"))
            if received >= messages:
                done.set()

    _, link = await asyncio.get_running_loop().create_connection(Consumer, places.host, CLIENT_PORT)
    link.send(b"c")
    await done.wait()
    latencies.sort()
    return {
        "received_per_s": round(received / (time.perf_counter() - begun)),
        "latency_ms_p50": round(latencies[len(latencies) // 2] / 1e6, 2),
        "latency_ms_p99": round(latencies[int(len(latencies) * 0.99)] / 1e6, 2),
    }


def spawn(work: Callable[..., Coroutine[Any, Any, dict[str, float] | None]], *arguments: Any) -> tuple[int, int]:
    """Runs a coroutine in a forked process, and waits until that is ready or has ended.

    Its result comes back through a pipe as JSON.
    """
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ready = partial(os.write, writable, b"\n")
            os.write(writable, json.dumps(asyncio.run(work(ready, *arguments))).encode())
        finally:
            os._exit(0)
    os.close(writable)
    os.read(readable, 1)
    return pid, readable


def run(
    places: Places, folder: str, *, messages: int, size: int, batch: int, window: int, per_second: float = 0.0
) -> dict[str, float]:
    """One run, all of its processes started and ended here."""
    servers = {
        "primary": spawn(primary, places, f"{folder}/primary")[0],
        "backup": spawn(backup, places, f"{folder}/backup")[0],
        "client_manager": spawn(client_manager, places)[0],
    }
    try:
        consumer = spawn(consume, places, messages)
        sender = spawn(producer, places, messages, size, batch, window, per_second)
        result: dict[str, float] = {}
        for pid, readable in (sender, consumer):
            result |= json.loads(os.read(readable, 65536) or b"{}")
            os.waitpid(pid, 0)
        for name, pid in servers.items():
            fields = Path(f"/proc/{pid}/stat").read_text().split()
            result[f"{name}_cpu_s_per_million"] = round((int(fields[13]) + int(fields[14])) / 100 / messages * 1e6, 2)
        return result
    finally:
        for pid in servers.values():
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Prints one run as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=3_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument(
        "--batch", type=int, default=450, help="messages per batch; a batch must fit one 60 KB datagram"
    )
    parser.add_argument("--window", type=int, default=64, help="unconfirmed batches")
    parser.add_argument("--per-second", type=float, default=0.0, help="messages a second; 0 for as many as it can")
    parser.add_argument("--group", default=Places().group, help="multicast group")
    parser.add_argument("--host", default=Places().host, help="loopback address")
    parser.add_argument("--directory", help="where stores are made")
    a = parser.parse_args()
    if (a.size + 40) * a.batch > 64_000:
        parser.error("a batch must fit one datagram: lower --batch or --size")
    uvloop.install()
    folder = tempfile.mkdtemp(prefix="limit-", dir=a.directory)
    try:
        messages = a.messages // a.batch * a.batch
        places = Places(a.group, a.host)
        work = {"messages": messages, "size": a.size, "batch": a.batch, "window": a.window}
        print(json.dumps(run(places, folder, **work, per_second=a.per_second)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
