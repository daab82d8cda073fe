"""What the child processes of the benchmark do; each says one line of JSON when it is ready, and one with what it
found.

    python -m alphorn.testing.process_bench.parts PART ARGUMENTS

`relay` is the yardstick: it passes frames from one connection to
another and does nothing else. The others are work processes, or the two ends of the yardstick.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from alphorn.io.streams import FrameStream
from alphorn.io.work_process import Given, WorkProcessRunner
from alphorn.model.internal import PROGRAM, SECRET_BYTES, Row, run_of

JOIN_S = 30.0
TIMEOUT_S = 60.0
FRAME_BYTES_MAX = 2 << 20
ROUND_TRIPS = 2_000

Servers = list[tuple[str, str]]


def say(**found: object) -> None:
    """One line for the program that started this one."""
    print(json.dumps(found), flush=True)


async def until_told() -> None:
    """Waits for the end of standard input, or a line."""
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def join(servers: Servers, name: str, others: int = 0) -> WorkProcessRunner:
    """A work process that takes at once whatever it is given, is joined everywhere, and knows so many others."""
    joined, changed = asyncio.Semaphore(0), asyncio.Event()

    def on_given(given: Given) -> None:
        runner.take(given)

    secret = os.urandom(SECRET_BYTES)
    runner = WorkProcessRunner(
        Row(name, run_of(secret), PROGRAM, os.getpid()),
        servers,
        secret=secret,
        on_given=on_given,
        on_joined=lambda server: joined.release(),
        on_changed=changed.set,
    )
    await runner.start()
    async with asyncio.timeout(JOIN_S):
        for _ in servers:
            await joined.acquire()
        while len(runner.half.others) < others:
            changed.clear()
            await changed.wait()
    return runner


async def listeners(servers: Servers, prefix: str, count: int) -> None:
    """So many work processes that only listen."""
    runners = [await join(servers, f"{prefix}{number}") for number in range(count)]
    say(ready=os.getpid())
    await until_told()
    for runner in runners:
        await runner.close()
    say(ended=True)


async def sender(servers: Servers, name: str, to: str, size: int, count: int, window: int, others: int) -> None:
    """Tells one process, or all others, one by one and then so many at a time."""
    runner = await join(servers, name, others)
    say(ready=os.getpid())
    await until_told()
    body = bytes(size)
    trips = sorted([await _timed(runner, to, body) for _ in range(min(count, ROUND_TRIPS))])
    began = time.perf_counter()
    await _many(lambda: runner.tell(to, body, TIMEOUT_S), count, window)
    seconds = time.perf_counter() - began
    await runner.close()
    say(p50_ms=1000 * trips[len(trips) // 2], p99_ms=1000 * trips[len(trips) * 99 // 100], per_s=count / seconds)


async def _timed(runner: WorkProcessRunner, to: str, body: bytes) -> float:
    began = time.perf_counter()
    await runner.tell(to, body, TIMEOUT_S)
    return time.perf_counter() - began


async def _many(tell: Callable[[], Awaitable[None]], count: int, window: int) -> None:
    async def some(number: int) -> None:
        for _ in range(number):
            await tell()

    async with asyncio.TaskGroup() as group:
        for place in range(window):
            group.create_task(some(count // window + (place < count % window)))


# --- the yardstick ---


class _Relay:
    """Passes whatever one connection says to the other."""

    def __init__(self) -> None:
        self._streams: list[FrameStream] = []

    def accept(self) -> FrameStream:
        """One of the two ends connects."""
        return FrameStream(
            on_open=self._streams.append,
            on_frames=self._on_frames,
            on_closed=lambda stream, reason: None,
            frame_bytes_max=FRAME_BYTES_MAX,
        )

    def _on_frames(self, stream: FrameStream, frames: list[memoryview]) -> None:
        other = next(other for other in self._streams if other is not stream)
        for frame in frames:
            other.send(len(frame).to_bytes(4, "big"), bytes(frame))
        other.flush()


async def relay(address: str) -> None:
    """The yardstick's server, until told to end."""
    host, _, port = address.rpartition(":")
    served = await asyncio.get_running_loop().create_server(_Relay().accept, host, int(port))
    say(ready=os.getpid())
    await until_told()
    served.close()
    say(ended=True)


async def _end(address: str, on_frames: Callable[[FrameStream, list[memoryview]], None]) -> FrameStream:
    host, _, port = address.rpartition(":")
    _, stream = await asyncio.get_running_loop().create_connection(
        lambda: FrameStream(
            on_frames=on_frames, on_closed=lambda stream, reason: None, frame_bytes_max=FRAME_BYTES_MAX
        ),
        host,
        int(port),
    )
    return stream


async def echo(address: str) -> None:
    """Answers each frame with eight bytes, those of one read together."""

    def on_frames(stream: FrameStream, frames: list[memoryview]) -> None:
        for _ in frames:
            stream.send(b"\0\0\0\x08", b"answered")
        stream.flush()

    await _end(address, on_frames)
    say(ready=os.getpid())
    await until_told()
    say(ended=True)


async def caller(address: str, size: int, count: int, window: int) -> None:
    """Sends frames, one by one and then so many at a time, and waits for their answers."""
    answered = asyncio.Semaphore(0)

    def on_frames(stream: FrameStream, frames: list[memoryview]) -> None:
        for _ in frames:
            answered.release()

    stream = await _end(address, on_frames)
    say(ready=os.getpid())
    await until_told()
    frame = size.to_bytes(4, "big") + bytes(size)

    async def call() -> None:
        stream.send(frame)
        stream.flush()
        await answered.acquire()

    trips = []
    for _ in range(min(count, ROUND_TRIPS)):
        began = time.perf_counter()
        await call()
        trips.append(time.perf_counter() - began)
    trips.sort()
    began = time.perf_counter()
    await _many(call, count, window)
    say(
        p50_ms=1000 * trips[len(trips) // 2],
        p99_ms=1000 * trips[len(trips) * 99 // 100],
        per_s=count / (time.perf_counter() - began),
    )


PARTS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "listeners": listeners,
    "sender": sender,
    "relay": relay,
    "echo": echo,
    "caller": caller,
}


def main(arguments: list[str]) -> None:
    """The process."""
    part, *rest = arguments
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(PARTS[part](*map(json.loads, rest)))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    main(sys.argv[1:])
