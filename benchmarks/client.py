"""How fast the client library is: against a server that stores nothing and answers at once, in a process of its own.

    python benchmarks/client.py [--seconds 2] [--bytes 100] [--json]

Columns: messages a second in the program, and processor microseconds per message of the program's process and of the
server's. Sending counts what is confirmed at the end; receiving acknowledges everything (ack="auto").
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection as Pipe
from typing import Any

import uvloop

import alphorn
from alphorn.client.packing import encode as pack
from alphorn.doors.native import VERSION, decode_client, encode, encode_delivered
from alphorn.io.streams import FrameStream
from alphorn.model.conversation import (
    FRAME_BYTES_MAX,
    Acknowledge,
    CloseConsumer,
    CloseSession,
    Confirmed,
    Consume,
    Delivered,
    Done,
    Hello,
    Publish,
    Resolve,
    Resolved,
    Welcome,
)

BATCH = 600
PREFETCH = 20_000


class NullServer:
    """Answers what a client asks, confirms what it sends, and delivers the same batch for ever."""

    def __init__(self, body_bytes: int) -> None:
        self.blob = memoryview(pack([("x" * body_bytes,)] * BATCH))
        self.position = 1
        self.consumer = 0
        self.room = 0

    def on_frames(self, stream: FrameStream, frames: list[memoryview]) -> None:
        for data in frames:
            match decode_client(data):
                case Publish(producer=producer, counter=counter, count=count):
                    stream.send(encode(Confirmed(producer, counter + count - 1)))
                case Acknowledge(request=request, positions=positions):
                    self.room += sum(b - a + 1 for a, b in zip(positions[::2], positions[1::2], strict=True))
                    stream.send(encode(Done(request)))
                case Hello():
                    stream.send(encode(Welcome(VERSION, bytes(16), "null", [])))
                case Resolve(request=request, destination=destination):
                    stream.send(encode(Resolved(request, 1, destination)))
                case Consume(request=request, consumer=consumer, prefetch=prefetch):
                    self.consumer, self.room = consumer, prefetch
                    stream.send(encode(Done(request)))
                case CloseSession(request=request) | CloseConsumer(request=request):
                    self.consumer = 0
                    stream.send(encode(Done(request)))
        while self.consumer and self.room >= BATCH:
            self.room -= BATCH
            frame = Delivered(self.consumer, self.position, 1, 1, 0, bytes(20), self.position, 0, b"", self.blob)
            stream.send(*encode_delivered(frame))
            self.position += BATCH
        stream.flush()


def serve(body_bytes: int, pipe: Pipe) -> None:
    async def main() -> None:
        def make() -> FrameStream:
            server = NullServer(body_bytes)
            return FrameStream(
                on_frames=server.on_frames, on_closed=lambda stream, reason: None, frame_bytes_max=FRAME_BYTES_MAX
            )

        loop = asyncio.get_running_loop()
        listening = await loop.create_server(make, "127.0.0.1", 0)
        pipe.send(listening.sockets[0].getsockname()[1])
        asked = asyncio.Event()
        loop.add_reader(pipe.fileno(), asked.set)
        while True:
            await asked.wait()
            asked.clear()
            if pipe.recv() == "over":
                return
            pipe.send(processor_s())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def send_each(connection: alphorn.Connection, body: str, until: float) -> int:
    with connection.session() as session:
        producer = session.producer("queue:q")
        count = 0
        while time.monotonic() < until:
            for _ in range(1000):
                producer.send(body)
            count += 1000
        producer.flush()
    return count


def send_many(connection: alphorn.Connection, body: str, until: float) -> int:
    with connection.session() as session:
        producer = session.producer("queue:q")
        bodies, count = [body] * 5000, 0
        while time.monotonic() < until:
            producer.send_many(bodies)
            count += len(bodies)
        producer.flush()
    return count


def receive_each(connection: alphorn.Connection, body: str, until: float) -> int:
    with connection.session() as session:
        consumer = session.consumer("queue:q", prefetch=PREFETCH)
        count = 0
        while time.monotonic() < until:
            for _ in range(1000):
                consumer.receive()
            count += 1000
    return count


def iterate(connection: alphorn.Connection, body: str, until: float) -> int:
    with connection.session() as session:
        count = 0
        for _ in session.consumer("queue:q", prefetch=PREFETCH):
            count += 1
            if count % 1000 == 0 and time.monotonic() >= until:
                break
    return count


def receive_many(connection: alphorn.Connection, body: str, until: float) -> int:
    with connection.session() as session:
        consumer = session.consumer("queue:q", prefetch=PREFETCH)
        count = 0
        while time.monotonic() < until:
            count += len(consumer.receive_many(1000))
    return count


async def aio_send_each(connection: alphorn.aio.Connection, body: str, until: float) -> int:
    async with connection.session() as session:
        producer = await session.producer("queue:q")
        count = 0
        while time.monotonic() < until:
            for _ in range(1000):
                await producer.send(body)
            count += 1000
        await producer.flush()
    return count


async def aio_iterate(connection: alphorn.aio.Connection, body: str, until: float) -> int:
    async with connection.session() as session:
        count = 0
        async for _ in await session.consumer("queue:q", prefetch=PREFETCH):
            count += 1
            if count % 1000 == 0 and time.monotonic() >= until:
                break
    return count


BLOCKING: dict[str, Callable[[alphorn.Connection, str, float], int]] = {
    "send": send_each,
    "send_many": send_many,
    "receive": receive_each,
    "iteration": iterate,
    "receive_many": receive_many,
}
ASYNCIO: dict[str, Callable[[alphorn.aio.Connection, str, float], Awaitable[int]]] = {
    "aio send": aio_send_each,
    "aio iteration": aio_iterate,
}


def run_blocking(url: str, name: str, body: str, seconds: float) -> tuple[int, float]:
    with alphorn.connect(url) as connection:
        start = time.monotonic()
        count = BLOCKING[name](connection, body, start + seconds)
        return count, time.monotonic() - start


def run_asyncio(url: str, name: str, body: str, seconds: float) -> tuple[int, float]:
    async def main() -> tuple[int, float]:
        async with alphorn.aio.connect(url) as connection:
            start = time.monotonic()
            count = await ASYNCIO[name](connection, body, start + seconds)
            return count, time.monotonic() - start

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def measure(pipe: Pipe, run: Callable[..., tuple[int, float]], *arguments: Any) -> dict[str, float]:
    pipe.send("usage")
    server, own = pipe.recv(), processor_s()
    count, took_s = run(*arguments)
    pipe.send("usage")
    return {
        "messages/s": count / took_s,
        "own us": (processor_s() - own) / count * 1e6,
        "server us": (pipe.recv() - server) / count * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pipe, child = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(options.bytes, child))
    process.start()
    url = f"alphorn://127.0.0.1:{pipe.recv()}"
    rows = {}
    for name in (*BLOCKING, *ASYNCIO):
        run = run_blocking if name in BLOCKING else run_asyncio
        rows[name] = measure(pipe, run, url, name, "x" * options.bytes, options.seconds)
        if not options.json:
            figures = "  ".join(f"{figure} {value:>13,.2f}" for figure, value in rows[name].items())
            print(f"{name:<14} {figures}", flush=True)
    pipe.send("over")
    process.join()
    if options.json:
        print(json.dumps({"body_bytes": options.bytes, "work": rows}))


if __name__ == "__main__":
    main()
