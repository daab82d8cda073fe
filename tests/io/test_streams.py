"""Streams of frames: any cut of the bytes gives the same frames, and nobody can make a reader hold too much."""

import asyncio
from random import Random

import pytest

from alphorn.doors.tunnel import Tunnel
from alphorn.io.streams import FRAMES_MAX, LENGTH_BYTES, FrameStream, read_buffer
from alphorn.io.tunnel import TunnelStream


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


def test_behind_a_large_frame_little_of_the_next_is_read_so_that_little_has_to_move() -> None:
    reading = Reading()
    bodies = [bytes([number]) * 900_000 for number in range(4)]
    data, moved = framed(*bodies), []
    while data:
        room = reading.stream.get_buffer(-1)
        size, before = min(len(room), len(data)), len(reading.frames)
        room[:size] = data[:size]
        reading.stream.buffer_updated(size)
        data = data[size:]
        if before and len(reading.frames) > before:
            held = sum(len(frame) + LENGTH_BYTES for frame in reading.frames)
            moved.append(reading.stream.received_bytes - held)
    assert reading.frames == bodies
    assert max(moved) <= 64 << 10


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


class Poured:
    """A peer pours out frames at once; the other end notes how many it gets in each pass of the loop."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.passes: list[int] = []
        self.pauses_at = 0  # frames
        self.is_paused = asyncio.Event()
        self.reasons: list[str] = []
        self.stream: FrameStream | None = None
        self.is_closed = asyncio.Event()

    def on_frames(self, stream: FrameStream, frames: list[memoryview]) -> None:
        self.stream = stream
        self.frames.extend(map(bytes, frames))
        self.passes[-1] += len(frames)
        if self.pauses_at and len(self.frames) >= self.pauses_at:
            stream.pause_reading()
            self.is_paused.set()

    def on_closed(self, stream: FrameStream, reason: str) -> None:
        self.reasons.append(reason)
        self.is_closed.set()

    def note_pass(self) -> None:
        self.passes.append(0)
        asyncio.get_running_loop().call_soon(self.note_pass)

    async def pour(self, data: bytes, *, is_tunnelled: bool = False) -> None:
        """Serves somebody who says all of this and goes."""
        loop = asyncio.get_running_loop()
        choices = {"on_frames": self.on_frames, "on_closed": self.on_closed, "frame_bytes_max": 1000}
        self.note_pass()

        def serve() -> FrameStream:
            return TunnelStream(Tunnel.to_client(), **choices) if is_tunnelled else FrameStream(**choices)

        def call() -> FrameStream:
            plain = {"on_frames": lambda *_: None, "on_closed": lambda *_: None, "frame_bytes_max": 1000}
            return TunnelStream(Tunnel.to_server("here"), **plain) if is_tunnelled else FrameStream(**plain)

        server = await loop.create_server(serve, "127.0.0.1", 0)
        _, calling = await loop.create_connection(call, *server.sockets[0].getsockname())
        calling.send(data)
        while calling._waiting:  # a tunnel is open when hands are shaken
            calling.flush()
            await asyncio.sleep(0)
        calling.close("all is said")
        if not self.pauses_at:
            await self.is_closed.wait()
        server.close()


@pytest.mark.parametrize("is_tunnelled", [False, True])
def test_very_many_frames_are_handed_over_in_several_passes_and_others_get_their_turns(is_tunnelled: bool) -> None:
    bodies = [b"%d" % number for number in range(20 * FRAMES_MAX + 7)]
    poured = Poured()
    asyncio.run(poured.pour(framed(*bodies), is_tunnelled=is_tunnelled))
    assert poured.frames == bodies
    assert max(poured.passes) <= FRAMES_MAX
    assert len(poured.reasons) == 1, "the end is noticed after the last frame"


def test_an_owner_that_takes_nothing_gets_no_frame_that_has_come_before() -> None:
    asyncio.run(_pause_with_frames_left())


async def _pause_with_frames_left() -> None:
    bodies = [b"%d" % number for number in range(5 * FRAMES_MAX)]
    poured = Poured()
    poured.pauses_at = 2 * FRAMES_MAX
    await poured.pour(framed(*bodies))
    await poured.is_paused.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert poured.frames == bodies[: 2 * FRAMES_MAX]
    assert poured.stream is not None
    poured.pauses_at = 0
    poured.stream.resume_reading()
    poured.stream.resume_reading()
    await poured.is_closed.wait()
    assert poured.frames == bodies
    assert max(poured.passes) <= FRAMES_MAX


def test_frames_that_are_left_when_the_owner_closes_are_not_handed_over() -> None:
    asyncio.run(_close_with_frames_left())


async def _close_with_frames_left() -> None:
    poured = Poured()
    on_frames = poured.on_frames

    def close(stream: FrameStream, frames: list[memoryview]) -> None:
        on_frames(stream, frames)
        stream.close("enough")

    poured.on_frames = close  # type: ignore[method-assign]
    await poured.pour(framed(*[b"x"] * 5 * FRAMES_MAX))
    assert len(poured.frames) == FRAMES_MAX
    assert poured.reasons == ["enough"]


@pytest.mark.parametrize("is_tunnelled", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_frames_that_the_owner_holds_back_come_again_and_none_is_lost_or_doubled(seed: int, is_tunnelled: bool) -> None:
    random, poured = Random(seed), Poured()
    on_frames = poured.on_frames

    def take_some(stream: FrameStream, frames: list[memoryview]) -> None:
        taken = random.randint(0, len(frames))
        stream.hold_back(len(frames) - taken)
        on_frames(stream, frames[:taken])

    poured.on_frames = take_some  # type: ignore[method-assign]
    bodies = [random.randbytes(random.choice((0, 3, 900))) for _ in range(5 * FRAMES_MAX)]
    asyncio.run(poured.pour(framed(*bodies), is_tunnelled=is_tunnelled))
    assert poured.frames == bodies
