"""Who connects and says nothing must go, in time and alone."""

import asyncio
import socket

from alphorn.io.strangers import Strangers
from alphorn.io.streams import FrameStream
from tests.io.loops import on_both_loops, run, until

PATIENCE_S = 0.3


class Door:
    """A server whose callers have to say something."""

    def __init__(self) -> None:
        self.strangers = Strangers(PATIENCE_S, lambda number, stream: stream.abort("too late"))
        self.heard: list[bytes] = []
        self.closed: list[tuple[int, str]] = []
        self.number = 0

    def accept(self) -> FrameStream:
        self.number += 1
        number = self.number

        def on_frames(stream: FrameStream, frames: list[memoryview]) -> None:
            self.strangers.forget(number)
            self.heard += map(bytes, frames)

        def on_closed(stream: FrameStream, reason: str) -> None:
            self.strangers.forget(number)
            self.closed.append((number, reason))

        stream = FrameStream(on_frames=on_frames, on_closed=on_closed, frame_bytes_max=100)
        self.strangers.add(number, stream)
        return stream


@on_both_loops
def test_whoever_says_nothing_is_dismissed_and_others_stay(loop_name: str) -> None:
    async def test() -> None:
        door, loop = Door(), asyncio.get_running_loop()
        server = await loop.create_server(door.accept, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        with socket.create_connection(address) as speaking, socket.create_connection(address):
            speaking.sendall(b"\x00\x00\x00\x01a")
            await until(lambda: bool(door.closed))
            assert door.closed == [(2, "too late")]
            with socket.create_connection(address):
                await until(lambda: len(door.closed) == 2)
            assert door.closed[1] == (3, "too late")
            assert (door.heard, len(door.strangers)) == ([b"a"], 0)
        server.close()

    run(test, loop_name)


@on_both_loops
def test_whoever_leaves_by_itself_is_not_dismissed_as_well(loop_name: str) -> None:
    async def test() -> None:
        door, loop = Door(), asyncio.get_running_loop()
        server = await loop.create_server(door.accept, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            await until(lambda: door.number == 1)
        await until(lambda: bool(door.closed))
        assert len(door.strangers) == 0
        server.close()

    run(test, loop_name)
