"""Streams of frames over TCP: four bytes of length, then the frame. Read big, hand over many, write once per turn.

The owner gets all frames of one read at a time, as views that end with the call: what is kept must be copied. A peer
that announces a frame larger than allowed is disconnected at once.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

LENGTH_BYTES = 4
_READ_BYTES = 256 << 10
_KEEP_BYTES = 1 << 20  # a buffer that grew beyond this is given back when it is empty


class FrameStream(asyncio.BufferedProtocol):
    """One connection. `on_frames` gets the frames; `on_closed` the reason, once."""

    def __init__(
        self,
        *,
        on_frames: Callable[["FrameStream", list[memoryview]], None],
        on_closed: Callable[["FrameStream", str], None],
        on_open: Callable[["FrameStream"], None] = lambda stream: None,
        on_writable: Callable[["FrameStream", bool], None] = lambda stream, is_writable: None,
        frame_bytes_max: int,
        buffered_bytes_max: int = 8 << 20,
    ) -> None:
        self._on_frames = on_frames
        self._on_closed = on_closed
        self._on_open = on_open
        self._on_writable = on_writable
        self._frame_bytes_max = frame_bytes_max
        self._buffered_bytes_max = buffered_bytes_max
        self._buffer = bytearray(_READ_BYTES)
        self._start = self._end = 0
        self._waiting: list[bytes | memoryview] = []
        self._reason = "the peer closed the connection"
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio calls it."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(self._buffered_bytes_max)
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = str(self._transport.get_extra_info("peername"))
        self.is_open = True
        self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Asyncio calls it: where the next bytes go."""
        if self._end == self._start:
            self._start = self._end = 0
            if len(self._buffer) > _KEEP_BYTES:
                self._buffer = bytearray(_READ_BYTES)
        elif len(self._buffer) - self._end < _READ_BYTES // 2:
            held = self._buffer[self._start : self._end]
            wanted = int.from_bytes(held[:LENGTH_BYTES], "big") if len(held) >= LENGTH_BYTES else 0
            self._buffer = bytearray(max(_READ_BYTES, wanted + LENGTH_BYTES, len(held)) + _READ_BYTES)
            self._buffer[: len(held)] = held
            self._start, self._end = 0, len(held)
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Asyncio calls it: so many bytes came."""
        self._end += nbytes
        view = memoryview(self._buffer)
        frames: list[memoryview] = []
        start, end = self._start, self._end
        while end - start >= LENGTH_BYTES:
            length = int.from_bytes(view[start : start + LENGTH_BYTES], "big")
            if length > self._frame_bytes_max:
                self.close(f"a frame of {length} bytes was announced; at most {self._frame_bytes_max} are allowed")
                break
            if end - start - LENGTH_BYTES < length:
                break
            frames.append(view[start + LENGTH_BYTES : start + LENGTH_BYTES + length])
            start += LENGTH_BYTES + length
        self._start = start
        if frames:
            self._on_frames(self, frames)

    def send(self, *parts: bytes | memoryview) -> None:
        """Queues a frame, or parts of one, with its length; it leaves with `flush`."""
        self._waiting += parts

    def flush(self) -> None:
        """Writes what was queued, in one go."""
        if self._waiting and self.is_open:
            self._transport.writelines(self._waiting)
        self._waiting.clear()

    @property
    def unsent_bytes(self) -> int:
        """What the peer has not taken yet."""
        return self._transport.get_write_buffer_size() if self.is_open else 0

    def pause_writing(self) -> None:
        """Asyncio calls it: the peer is slow."""
        self._on_writable(self, False)

    def resume_writing(self) -> None:
        """Asyncio calls it: the peer has caught up."""
        self._on_writable(self, True)

    def pause_reading(self) -> None:
        """Takes nothing more from the peer until `resume_reading`."""
        if self.is_open:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Goes on."""
        if self.is_open:
            self._transport.resume_reading()

    def close(self, reason: str) -> None:
        """Sends what is queued and closes; `on_closed` gets the reason."""
        if self.is_open:
            self._reason = reason
            self.flush()
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Closes at once."""
        if self.is_open:
            self._reason = reason
            self._transport.abort()

    def eof_received(self) -> bool:
        """Asyncio calls it."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio calls it."""
        self.is_open = False
        if exc is not None:
            self._reason = str(exc)
        self._on_closed(self, self._reason)
