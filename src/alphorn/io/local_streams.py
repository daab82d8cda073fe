"""Streams between two parts of one process: what one end is told the other hears, by no socket.

Frames are encoded all the same, so that neither side holds anything of the other's.
"""

import asyncio
from collections.abc import Callable

from alphorn.io.streams import LENGTH_BYTES, FrameStream


class LocalStream(FrameStream):
    """One end. It never fills up: what is flushed has been heard."""

    _other: "LocalStream"

    def flush(self) -> None:
        """The other end hears what was queued, within this call."""
        if not self._waiting:
            return
        data = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        if not self.is_open:
            return
        frames: list[memoryview] = []
        start = 0
        while start < len(data):
            end = start + LENGTH_BYTES + int.from_bytes(data[start : start + LENGTH_BYTES], "big")
            frames.append(data[start + LENGTH_BYTES : end])
            start = end
        self._other._on_frames(self._other, frames)

    @property
    def unsent_bytes(self) -> int:
        """Nothing, ever."""
        return 0

    def pause_reading(self) -> None:
        """Nobody does: both ends are of one program."""
        raise AssertionError("a stream within a process is always read")

    def close(self, reason: str) -> None:
        """Sends what is queued and closes both ends."""
        if self.is_open:
            self.flush()
            self.abort(reason)

    def abort(self, reason: str) -> None:
        """Closes both ends; their owners hear of it soon."""
        loop = asyncio.get_running_loop()
        for end in (self, self._other):
            if end.is_open:
                end.is_open = False
                loop.call_soon(end._on_closed, end, reason)


def connect(accept: Callable[..., FrameStream], make: Callable[..., FrameStream]) -> None:
    """Joins what `accept` makes, the end that is called, and what `make` does, the end that calls."""
    called, calling = accept(LocalStream), make(LocalStream)
    assert isinstance(called, LocalStream)
    assert isinstance(calling, LocalStream)
    called._other, calling._other = calling, called
    for end in (called, calling):
        end.is_open, end.peer = True, "this process"
    called._on_open(called)
    calling._on_open(calling)
