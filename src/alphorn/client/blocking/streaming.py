"""Large bodies: sent from whatever can be read, and read as a stream while they are fetched."""

import io
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from alphorn.client.choices import Sending, check_timeout
from alphorn.client.lane import FRAGMENT_BYTES, Lane, room
from alphorn.client.reading import Reading
from alphorn.client.refusals import again
from alphorn.client.streamed import bytes_of, check_count, check_piece, check_readable, into_of, reading_of
from alphorn.model.errors import Misuse

if TYPE_CHECKING:
    from alphorn.client.blocking.line import Line
    from alphorn.client.message import Message


class StreamReceipt(msgspec.Struct, frozen=True):
    """What `send_stream` gives back: the message is committed."""

    id: str
    is_done: bool = True

    def result(self, timeout: float | None = None) -> str:
        """The message's id."""
        check_timeout(timeout)
        return self.id


class BodySending:
    """Sends one body after the other on one lane."""

    __slots__ = ("_line", "channel", "lane")

    def __init__(self, line: "Line", lane: Lane, channel: int) -> None:
        self._line = line
        self.lane = lane
        self.channel = channel  # each has one, of which it knows the counters without gaps

    def send(
        self, readable: Any, place: int, sending: Sending, fields: dict[str, Any], precede: Callable[[], None]
    ) -> StreamReceipt:
        """Reads all there is and sends it as one message; `precede` waits for what must be committed before it."""
        line, lane = self._line, self.lane
        line.change(partial(line.core.begin_body, lane, place))
        try:
            read, read_into = check_readable(readable), into_of(readable)
            if read_into is None:
                self._send_read(read)
            else:
                self._send_filled(read_into)
            now_ms = time.time_ns() // 1_000_000
            parcel = sending.parcel(place, None, now_ms=now_ms, stream=lane.streamed(), **fields)
            precede()
            counter = line.change(partial(lane.finish, parcel.data, parcel.flags | sending.flags, now_ms))
            self._await(lambda: lane.outcome(counter) is not False)
        except BaseException:
            if lane.is_open:
                line.change(lane.abandon)
                line.wake()
            raise
        return StreamReceipt(lane.id_of(line.core.connection, counter))

    def _send_filled(self, read_into: Callable[[memoryview], Any]) -> None:
        """Full fragments while something is under way; what there is, when nothing is."""
        is_over = False
        while not is_over:
            with self._line.lock:
                buffer = self.lane.buffer()
            space, size = room(buffer), 0
            while size < len(space) and not (size and self.lane.is_idle):
                count = check_count(read_into(space[size:]), len(space) - size)
                size += count
                if not count:
                    is_over = True
                    break
            if size:
                self._await(lambda: self.lane.has_room)
                self._line.change(partial(self.lane.add_from, buffer, size))
                if self._line.is_asleep:
                    self._line.wake()

    def _send_read(self, read: Callable[[int], Any]) -> None:
        """The same of something that gives bytes of its own."""
        gathered = bytearray()
        while data := check_piece(read(FRAGMENT_BYTES - len(gathered))):
            if not gathered and len(data) == FRAGMENT_BYTES:
                self._add(data)
                continue
            gathered += data
            while len(gathered) >= FRAGMENT_BYTES:
                self._add(gathered[:FRAGMENT_BYTES])
                del gathered[:FRAGMENT_BYTES]
            if gathered and self.lane.is_idle:
                self._add(gathered)
                gathered = bytearray()
        if gathered:
            self._add(gathered)

    def _add(self, piece: bytes | bytearray | memoryview) -> None:
        self._await(lambda: self.lane.has_room)
        self._line.change(partial(self.lane.add, piece))
        if self._line.is_asleep:
            self._line.wake()

    def _await(self, is_done: Callable[[], bool]) -> None:
        line, lane = self._line, self.lane
        line.check_thread()
        if line.is_asleep:
            line.wake()
        line.wait_for(lambda: is_done() or lane.refusal is not None or not lane.is_open, None)
        if lane.refusal is not None:
            raise again(lane.refusal)
        if lane.failure is not None:
            outcome = lane.outcome(lane.counter)
            raise again(outcome if isinstance(outcome, Exception) else lane.failure)
        if not lane.is_open:
            raise Misuse("this producer was closed while it sent a stream; make another with session.producer")


class BodyReader(io.RawIOBase):
    """A streamed body, read piece by piece."""

    def __init__(self, line: "Line", reading: Reading) -> None:
        self._line = line
        self._reading = reading
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Some bytes; 0 at the end."""
        if not self._rest:
            self._rest = memoryview(self._next())
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        """Ends reading; the message stays as it is. A file that nobody closed is closed wherever it is noticed, so
        this must not wait for a lock.
        """
        self._reading.close()
        super().close()

    def _next(self) -> bytes:
        line, reading = self._line, self._reading
        line.check_thread()
        line.change(reading.ask)
        if line.is_asleep:
            line.wake()
        line.changed.wait_for(lambda: reading.is_ready)
        piece = line.change(reading.take)
        if line.is_asleep:
            line.wake()
        return piece


def open_body(line: "Line", message: "Message") -> io.BufferedIOBase:
    """A readable for a message's body, whether it came in fragments or not."""
    reading = reading_of(line.core, message)
    if reading is None:
        return io.BytesIO(bytes_of(message))
    return io.BufferedReader(BodyReader(line, reading), FRAGMENT_BYTES)
