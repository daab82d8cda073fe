"""Bytes of a stream into frames: four bytes of length, then the frame (doors/native.py)."""

from alphorn.doors.native import LENGTH_BYTES, oversized
from alphorn.model.conversation import FRAME_BYTES_MAX
from alphorn.model.errors import PeerViolation
from alphorn.model.messages import FRAGMENT_BYTES_MAX

# Is read into again and again: to be given new memory costs more than to copy out of this. A fragment fits.
BUFFER_BYTES = FRAGMENT_BYTES_MAX + (64 << 10)


class Intake:
    """A buffer that is read into; frames are views that end with the next `room`."""

    __slots__ = ("_buffer", "_end", "_start")

    def __init__(self) -> None:
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = self._end = 0

    def room(self) -> memoryview:
        """Where the next bytes go. What has come of a frame moves to the front once, not with every read."""
        start, held = self._start, self._end - self._start
        announced = int.from_bytes(self._buffer[start : start + LENGTH_BYTES], "big") if held >= LENGTH_BYTES else 0
        wanted = max(BUFFER_BYTES, LENGTH_BYTES + announced)
        if start or wanted != len(self._buffer):
            rest = self._buffer[start : self._end]
            if wanted != len(self._buffer):
                self._buffer = bytearray(wanted)
            self._buffer[:held] = rest
            self._start, self._end = 0, held
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
