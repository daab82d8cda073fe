"""How fast the transport is: one sender, several receivers, real multicast over the loopback interface.

    python benchmarks/transport.py [--seconds 3] [--sealed] [--frame-bytes 60000] [--receivers 1 2 4]

The sender keeps at most a window of frames that not every receiver has answered for, as the bus does; a receiver
answers once per wake-up. Columns: frames and megabytes a second; bytes the sender put on the wire per byte of frames,
which must not depend on the receivers; processor microseconds per frame in Python and its libraries (user) and in the
kernel (system), for the sender and for the busiest receiver; datagrams a receive buffer had no room for.
"""

import argparse
import asyncio
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from alphorn.bus.frames import Data, Heartbeat, Parts, decode_all, encode
from alphorn.bus.machine import DATA_GROUP
from alphorn.io.multicast import MulticastSettings
from alphorn.io.process import keep_freed_memory
from alphorn.io.sealing import write_cluster_key
from alphorn.io.transport import Transport, TransportSettings
from alphorn.model.ids import make_origin

WINDOW_BYTES = 2_400_000
WINDOW_FRAMES = 1_000


def make_transport(group: int, key: Path | None, on_frames: Callable[[list[bytes]], None]) -> Transport:
    keep_freed_memory()
    multicast = MulticastSettings(group=group, host="127.0.0.1")
    transport = Transport(TransportSettings(multicast=multicast, cluster_key=key), on_frames=on_frames)
    transport.open()
    return transport


def word(origin: bytes, number: int, count: int) -> Parts:
    return encode(group=1, epoch=1, number=number, origin=origin, body=Heartbeat(count, 0, 0, 0))


def processor_s() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


async def receive(group: int, key: Path | None, number: int, sender: str, pipe: Connection) -> None:
    """Counts frames and answers the sender until the pipe says that it is over."""
    origin = make_origin(bytes((127, 0, 0, 1)), number, os.getpid())
    count = 0

    def on_frames(frames: list[bytes]) -> None:
        nonlocal count
        count += len(frames)
        transport.send(sender, word(origin, number, count))
        transport.flush()

    transport = make_transport(group, key, on_frames)
    await transport.start(origin)
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), over.set)
    start = processor_s()
    pipe.send("ready")
    await over.wait()
    asyncio.get_running_loop().remove_reader(pipe.fileno())
    received = transport.describe()["datagrams"]["received"]  # type: ignore[index]
    pipe.send((count, start, processor_s(), received[DATA_GROUP]["kernel_drops"]))
    await transport.close()


class Sender:
    """Sends frames for a while, within the window of the slowest receiver."""

    def __init__(self, group: int, key: Path | None, receivers: int, frame_bytes: int) -> None:
        self.origin = make_origin(bytes((127, 0, 0, 1)), 0, os.getpid())
        self.transport = make_transport(group, key, self.on_frames)
        payload = os.urandom(frame_bytes - 92)
        self.body = Data(bytes(16), 0, 0, 0, len(payload), 0, 0, 1, payload)
        self.window = min(WINDOW_BYTES // frame_bytes, WINDOW_FRAMES)
        self.answered = dict.fromkeys(range(1, receivers + 1), 0)
        self.sent = 0
        self.is_over = False
        self.done = asyncio.Event()

    def on_frames(self, frames: list[bytes]) -> None:
        for datagram in frames:
            for frame in decode_all(datagram):
                assert isinstance(frame.body, Heartbeat)
                self.answered[frame.number] = max(self.answered[frame.number], frame.body.committed)
        self.fill()

    def fill(self) -> None:
        slowest = min(self.answered.values())
        if self.is_over and slowest == self.sent:
            self.done.set()
        while not self.is_over and self.sent - slowest < self.window:
            self.transport.send(DATA_GROUP, encode(group=1, epoch=1, number=0, origin=self.origin, body=self.body))
            self.transport.flush()  # One datagram for each frame, whatever its size.
            self.sent += 1


async def measure(sender: Sender, pipes: list[Connection], seconds: float) -> dict[str, float]:
    await sender.transport.start(sender.origin)
    start_s, start = time.monotonic(), processor_s()
    sender.fill()
    await asyncio.sleep(seconds)
    sender.is_over = True
    sender.fill()
    await asyncio.wait_for(sender.done.wait(), 10)
    took_s, end = time.monotonic() - start_s, processor_s()
    busiest, drops = (0.0, 0.0), 0
    for pipe in pipes:
        pipe.send("over")
        count, before, after, dropped = pipe.recv()
        busiest = max(busiest, ((after[0] - before[0]) / count, (after[1] - before[1]) / count))
        drops += dropped
    wire = sender.transport.describe()["datagrams"]["sent"][DATA_GROUP]  # type: ignore[index]
    frame_bytes = 92 + len(sender.body.payload)
    await sender.transport.close()
    return {
        "frames/s": sender.sent / took_s,
        "MB/s": sender.sent * frame_bytes / took_s / 1e6,
        "wire": wire["bytes"] / (sender.sent * frame_bytes),
        "sender user": (end[0] - start[0]) / sender.sent * 1e6,
        "system": (end[1] - start[1]) / sender.sent * 1e6,
        "receiver user": busiest[0] * 1e6,
        "system ": busiest[1] * 1e6,
        "drops": drops,
    }


def run_receiver(group: int, key: Path | None, number: int, sender: str, pipe: Connection) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(receive(group, key, number, sender, pipe))


def run_once(group: int, key: Path | None, receivers: int, frame_bytes: int, seconds: float) -> dict[str, float]:
    async def main() -> dict[str, float]:
        sender = Sender(group, key, receivers, frame_bytes)
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(receivers)]
        processes = [
            context.Process(target=run_receiver, args=(group, key, number, sender.transport.address, pair[1]))
            for number, pair in enumerate(pairs, 1)
        ]
        for process in processes:
            process.start()
        pipes = [pair[0] for pair in pairs]
        for pipe in pipes:
            assert pipe.recv() == "ready"
        try:
            return await measure(sender, pipes, seconds)
        finally:
            for process in processes:
                process.join(5)
                process.kill()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--sealed", action="store_true")
    parser.add_argument("--frame-bytes", type=int, default=60_000)
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        key = None
        if options.sealed:
            key = Path(folder) / "key"
            write_cluster_key(key)
        for place, receivers in enumerate(options.receivers):
            group = (os.getpid() & 0x7FFF) << 4 | place
            row = run_once(group, key, receivers, options.frame_bytes, options.seconds)
            if not place:
                print("receivers  " + "  ".join(f"{name.strip():>13}" for name in row))
            print(f"{receivers:>9}  " + "  ".join(f"{value:>13,.2f}" for value in row.values()))


if __name__ == "__main__":
    main()
