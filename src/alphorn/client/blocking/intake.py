"""Bytes of a stream into frames: four bytes of length, then the frame (doors/native.py)."""

from alphorn.doors.native import LENGTH_BYTES, oversized
from alphorn.model.conversation import FRAME_BYTES_MAX
from alphorn.model.errors import PeerViolation

BUFFER_BYTES = 512 << 10  # is read into again and again: to be given new memory costs more than to copy out of this


class Intake:
    """A buffer that is read into; frames are views that end with the next `room`."""

    __slots__ = ("_buffer", "_end", "_start")

    def __init__(self) -> None:
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = self._end = 0

    def room(self) -> memoryview:
        """Where the next bytes go."""
        rest = self._buffer[self._start : self._end]
        announced = int.from_bytes(rest[:LENGTH_BYTES], "big") if len(rest) >= LENGTH_BYTES else 0
        wanted = max(BUFFER_BYTES, LENGTH_BYTES + announced)
        if wanted != len(self._buffer):
            self._buffer = bytearray(wanted)
        self._buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)
        return memoryview(self._buffer)[self._end :]

    def take(self, count: int) -> list[memoryview]:
        """So many bytes came; the frames that are whole now. Raises `PeerViolation` for one that is too large."""
        self._end += count
        view = memoryview(self._buffer)
        frames: list[memoryview] = []
        start, end = self._start, self._end
        while end - start >= LENGTH_BYTES:
            size = int.from_bytes(view[start : start + LENGTH_BYTES], "big")
            if size > FRAME_BYTES_MAX:
                raise PeerViolation(oversized(size, FRAME_BYTES_MAX))
            if end - start < LENGTH_BYTES + size:
                break
            start += LENGTH_BYTES
            frames.append(view[start : start + size])
            start += size
        self._start, self._end = (0, 0) if start == end else (start, end)
        return frames
