"""Streams of frames: any cut of the bytes gives the same frames, and nobody can make a reader hold too much."""

import asyncio
from random import Random

import pytest

from alphorn.io.streams import LENGTH_BYTES, FrameStream, read_buffer


class Reading:
    """A stream without a network: bytes are put where asyncio would put them."""

    def __init__(self, frame_bytes_max: int = 1 << 20, shared: bytearray | None = None) -> None:
        self.frames: list[bytes] = []
        self.stream = FrameStream(
            on_frames=lambda stream, frames: self.frames.extend(map(bytes, frames)),
            on_closed=lambda stream, reason: None,
            frame_bytes_max=frame_bytes_max,
            shared=shared,
        )

    def feed(self, data: bytes) -> None:
        while data:
            room = self.stream.get_buffer(-1)
            assert len(room) > 0
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self.stream.buffer_updated(size)
            data = data[size:]


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(LENGTH_BYTES, "big") + body for body in bodies)


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_out_whole_however_the_bytes_are_cut(seed: int) -> None:
    random = Random(seed)
    bodies = [random.randbytes(random.choice([0, 1, 3, 100, 5_000, 300_000])) for _ in range(30)]
    data = framed(*bodies)
    reading = Reading()
    while data:
        size = random.choice([1, 2, 3, 5, 1000, 65_536, 400_000])
        reading.feed(data[:size])
        data = data[size:]
    assert reading.frames == bodies


def test_two_streams_that_share_the_buffer_do_not_mix_their_incomplete_frames() -> None:
    shared = read_buffer()
    one, two = Reading(shared=shared), Reading(shared=shared)
    first, second = framed(b"a" * 10_000), framed(b"b" * 20_000)
    for start in range(0, 30_000, 1000):
        one.feed(first[start : start + 1000])
        two.feed(second[start : start + 1000])
    assert (one.frames, two.frames) == ([b"a" * 10_000], [b"b" * 20_000])


def test_a_stream_with_nothing_incomplete_holds_no_buffer_of_its_own() -> None:
    reading = Reading()
    reading.feed(framed(b"x" * 100_000)[:50])
    assert reading.stream._part is not None
    reading.feed(framed(b"x" * 100_000)[50:])
    assert reading.stream._part is None


def test_what_is_only_announced_takes_no_memory() -> None:
    reading = Reading(frame_bytes_max=64 << 20)
    reading.feed((64 << 20).to_bytes(LENGTH_BYTES, "big") + b"x")
    assert reading.stream._part is not None
    assert len(reading.stream._part) < 10_000
    reading.feed(b"x" * (1 << 20))
    assert len(reading.stream._part) < 40 << 20


def test_a_large_frame_that_comes_bit_by_bit_is_copied_a_few_times_at_most() -> None:
    reading = Reading(frame_bytes_max=16 << 20)
    body = bytes(range(256)) * (1 << 15)
    data = memoryview(framed(body))
    buffers: list[bytearray | None] = []
    for start in range(0, len(data), 1460):
        reading.feed(bytes(data[start : start + 1460]))
        if not buffers or buffers[-1] is not reading.stream._part:
            buffers.append(reading.stream._part)
    assert reading.frames == [body]
    assert len(buffers) < 8


def test_a_peer_may_send_larger_frames_once_that_is_allowed() -> None:
    reading = Reading(frame_bytes_max=100)
    reading.stream.allow(1000)
    reading.feed(framed(b"x" * 1000))
    assert reading.frames == [b"x" * 1000]


def test_a_peer_that_sends_much_is_read_big_in_one_buffer_until_it_sends_little() -> None:
    reading = Reading()
    bodies = [bytes([number]) * 300_000 for number in range(12)]
    data = framed(*bodies)
    reading.feed(data[:1_000_000])
    own = reading.stream._part
    assert own is not None
    assert len(own) >= 1 << 20
    reading.feed(data[1_000_000:3_000_000])
    assert reading.stream._part is own
    assert reading.frames == bodies[:9]
    reading.feed(data[3_000_000:3_010_000])
    assert reading.frames == bodies[:10]
    assert reading.stream._part is not None
    assert len(reading.stream._part) < 1 << 20
    reading.feed(data[3_010_000:])
    assert reading.frames == bodies
    assert reading.stream._part is None


def test_a_peer_that_announces_too_much_is_disconnected_and_nothing_of_it_is_kept() -> None:
    asyncio.run(_announce_too_much())


async def _announce_too_much() -> None:
    closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    seen: list[bytes] = []

    def serve() -> FrameStream:
        return FrameStream(
            on_frames=lambda stream, frames: seen.extend(map(bytes, frames)),
            on_closed=lambda stream, reason: closed.set_result(reason),
            frame_bytes_max=100,
        )

    server = await asyncio.get_running_loop().create_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(framed(b"fine") + (101).to_bytes(LENGTH_BYTES, "big"))
    assert await closed == "a frame of 101 bytes was announced; at most 100 are allowed"
    assert await reader.read() == b""
    assert seen == [b"fine"]
    writer.close()
    server.close()


def test_frames_queued_in_a_turn_leave_together_in_order() -> None:
    asyncio.run(_queue_frames())


async def _queue_frames() -> None:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.read())
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)

    def connect() -> FrameStream:
        return FrameStream(
            on_frames=lambda stream, frames: None, on_closed=lambda stream, reason: None, frame_bytes_max=100
        )

    _, stream = await asyncio.get_running_loop().create_connection(connect, *server.sockets[0].getsockname())
    stream.send(framed(b"one"))
    stream.send(framed(b"two"), framed(b"three"))
    stream.close("done")
    assert await received == framed(b"one", b"two", b"three")
    server.close()
