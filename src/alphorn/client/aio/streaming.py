"""Large bodies with asyncio: sent from whatever can be read, and read as a stream while they are fetched."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from alphorn.client.choices import Sending, check_timeout
from alphorn.client.lane import FRAGMENT_BYTES, Lane
from alphorn.client.reading import Reading
from alphorn.client.refusals import again
from alphorn.client.streamed import bytes_of, check_piece, check_readable, reading_of
from alphorn.model.errors import Misuse

if TYPE_CHECKING:
    from alphorn.client.aio.line import AsyncLine
    from alphorn.client.message import Message


class StreamReceipt(msgspec.Struct, frozen=True):
    """What `send_stream` gives back: the message is committed."""

    id: str
    is_done: bool = True

    async def result(self, timeout: float | None = None) -> str:
        """The message's id."""
        check_timeout(timeout)
        return self.id


class BodySending:
    """Sends one body after the other on one lane."""

    __slots__ = ("_line", "channel", "lane")

    def __init__(self, line: "AsyncLine", lane: Lane, channel: int) -> None:
        self._line = line
        self.lane = lane
        self.channel = channel  # each has one, of which it knows the counters without gaps

    async def send(
        self,
        readable: Any,
        place: int,
        sending: Sending,
        fields: dict[str, Any],
        precede: Callable[[], Awaitable[None]],
    ) -> StreamReceipt:
        """Reads all there is and sends it as one message; `precede` waits for what must be committed before it."""
        lane = self.lane
        self._line.core.begin_body(lane, place)
        try:
            await self._send_body(_awaitable(check_readable(readable)))
            now_ms = time.time_ns() // 1_000_000
            parcel = sending.parcel(place, None, now_ms=now_ms, stream=lane.streamed(), **fields)
            await precede()
            counter = lane.finish(parcel.data, parcel.flags | sending.flags, now_ms)
            self._line.schedule()
            await self._await(lambda: lane.outcome(counter) is not False)
        except BaseException:
            if lane.is_open:
                lane.abandon()
                self._line.schedule()
            raise
        return StreamReceipt(lane.id_of(self._line.core.connection, counter))

    async def _send_body(self, read: Callable[[int], Awaitable[Any]]) -> None:
        """Full fragments while something is under way; what there is, when nothing is."""
        gathered = bytearray()
        while data := check_piece(await read(FRAGMENT_BYTES - len(gathered))):
            if not gathered and len(data) == FRAGMENT_BYTES:
                await self._add(data)
                continue
            gathered += data
            while len(gathered) >= FRAGMENT_BYTES:
                await self._add(gathered[:FRAGMENT_BYTES])
                del gathered[:FRAGMENT_BYTES]
            if gathered and self.lane.is_idle:
                await self._add(gathered)
                gathered = bytearray()
        if gathered:
            await self._add(gathered)

    async def _add(self, piece: bytes | bytearray | memoryview) -> None:
        await self._await(lambda: self.lane.has_room)
        self.lane.add(piece)
        self._line.schedule()

    async def _await(self, is_done: Callable[[], bool]) -> None:
        lane = self.lane
        await self._line.wait_for(lambda: is_done() or lane.refusal is not None or not lane.is_open, None)
        if lane.refusal is not None:
            raise again(lane.refusal)
        if lane.failure is not None:
            outcome = lane.outcome(lane.counter)
            raise again(outcome if isinstance(outcome, Exception) else lane.failure)
        if not lane.is_open:
            raise Misuse("this producer was closed while it sent a stream; make another with session.producer")


class BodyReader:
    """A message's body, read piece by piece: `await read(size)`, or `async for piece in reader`."""

    def __init__(self, line: "AsyncLine", reading: Reading | None, rest: bytes = b"") -> None:
        self._line = line
        self._reading = reading
        self._rest = memoryview(rest)

    async def __aenter__(self) -> "BodyReader":
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __aiter__(self) -> "BodyReader":
        """Pieces of any size, until the end."""
        return self

    async def __anext__(self) -> bytes:
        piece = await self.read(FRAGMENT_BYTES)
        if not piece:
            raise StopAsyncIteration
        return piece

    async def read(self, size: int = -1) -> bytes:
        """At most so many bytes, at least one before the end; all the rest where no size is given.

        Cancelled, it has read nothing.
        """
        if size < 0:
            return await self._read_all()
        if not self._rest and self._reading is not None and size:
            self._rest = memoryview(await self._next(self._reading))
        taken, self._rest = self._rest[:size], self._rest[size:]
        return bytes(taken)

    async def _read_all(self) -> bytes:
        pieces: list[bytes] = []
        try:
            while piece := await self.read(FRAGMENT_BYTES):
                pieces.append(piece)
        except BaseException:
            self._rest = memoryview(b"".join(pieces))
            raise
        return b"".join(pieces)

    def close(self) -> None:
        """Ends reading; the message stays as it is."""
        self._rest = memoryview(b"")
        if self._reading is not None:
            self._reading.close()

    async def _next(self, reading: Reading) -> bytes:
        reading.ask()
        self._line.schedule()
        await self._line.wait_for(lambda: reading.is_ready, None)
        piece = reading.take()
        self._line.schedule()
        return piece


def open_body(line: "AsyncLine", message: "Message") -> BodyReader:
    """A readable for a message's body, whether it came in fragments or not."""
    reading = reading_of(line.core, message)
    return BodyReader(line, reading, b"" if reading is not None else bytes_of(message))


def _awaitable(read: Callable[[int], Any]) -> Callable[[int], Awaitable[Any]]:
    """Reads without keeping the loop waiting: what is no coroutine function is called in a thread of its own."""

    async def read_all(size: int) -> Any:
        if inspect.iscoroutinefunction(read):
            return await read(size)
        data = await asyncio.to_thread(read, size)
        return await data if inspect.isawaitable(data) else data

    return read_all
