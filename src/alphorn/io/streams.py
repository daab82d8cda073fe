"""Streams of frames over TCP: four bytes of length, then the frame. Read big, hand over many, write once per turn.

The owner gets all frames of one read at a time, as views that end with the call: what is kept must be copied. Of very
many it gets the rest in the loop's next passes, and no more is read meanwhile: a peer that pours out small frames costs
others no more than its share. What the owner does not want yet it holds back, and gets again. A peer that announces a
frame larger than allowed is disconnected at once. What a peer only announces takes no memory: the buffer for a frame
grows with what has come of it.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from alphorn.doors.native import oversized
from alphorn.io.sockets import forget_unsent, notice_absence

LENGTH_BYTES = 4
FRAMES_MAX = 500  # handed over in one pass of the loop: a read of a megabyte may have a hundred thousand
_READ_BYTES = 1 << 20
_BUSY_BYTES = 256 << 10  # a peer that sends so much at a time is read big
_ROOM_BYTES = 64 << 10  # beyond an incomplete frame, for the beginning of the next ones
_LEAST_BYTES = 4096  # that can be read at a time
_GROWTH = 32  # times what has come is room for the rest: even the largest frames are copied twice at most


def read_buffer() -> bytearray:
    """A buffer that streams of one event loop may share."""
    return bytearray(_READ_BYTES)


class FrameStream(asyncio.BufferedProtocol):
    """One connection. `on_frames` gets the frames; `on_closed` the reason, once.

    `on_oversized` gets the reason when the peer announced too large a frame, and must close; by default that is all. A
    peer whose machine has been silent for `absent_s`, or that has taken nothing, is gone; 0 is never.
    """

    def __init__(
        self,
        *,
        on_frames: Callable[["FrameStream", list[memoryview]], None],
        on_closed: Callable[["FrameStream", str], None],
        on_open: Callable[["FrameStream"], None] = lambda stream: None,
        on_oversized: "Callable[[FrameStream, str], None] | None" = None,
        on_writable: Callable[["FrameStream", bool], None] = lambda stream, is_writable: None,
        frame_bytes_max: int,
        buffered_bytes_max: int = 8 << 20,
        shared: bytearray | None = None,
        absent_s: float = 0.0,
    ) -> None:
        # Streams of one event loop may read into one buffer: asyncio asks for it and says what came in one go. What a
        # read leaves incomplete moves to a buffer of the stream's own, so ten thousand idle connections hold none.
        # TCP gives what has come, so the next read of a busy peer needs as much room again.
        self._shared = read_buffer() if shared is None else shared
        self._on_frames = on_frames
        self._on_closed = on_closed
        self._on_open = on_open
        self._on_oversized = on_oversized or FrameStream.close
        self._on_writable = on_writable
        self._frame_bytes_max = frame_bytes_max
        self._buffered_bytes_max = buffered_bytes_max
        self._absent_s = absent_s
        self._part: bytearray | None = None  # begins with an incomplete frame
        self._part_bytes = 0
        self._part_end = 0  # nothing is read behind it
        self._waiting: list[bytes | memoryview] = []
        self._reason = "the peer closed the connection"
        self._is_behind = False  # frames have come that the owner is still to get
        self._held_back = 0  # of the frames that it just got
        self._is_paused = False  # the owner takes nothing at the moment
        self._next: asyncio.Handle | None = None  # hands over more
        self.is_open = False
        self.is_writable = True
        self.received_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio calls it."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(self._buffered_bytes_max)
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._absent_s:
            notice_absence(sock, self._absent_s)
        self.peer = str(self._transport.get_extra_info("peername"))
        self.is_open = True
        self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Asyncio calls it: where the next bytes go."""
        if self._part is None:
            return memoryview(self._shared)
        return memoryview(self._part)[self._part_bytes : self._part_end]

    def buffer_updated(self, nbytes: int) -> None:
        """Asyncio calls it: so many bytes came."""
        self.received_bytes += nbytes
        source, end = (self._shared, nbytes) if self._part is None else (self._part, self._part_bytes + nbytes)
        view, is_busy = memoryview(source)[:end], nbytes >= _BUSY_BYTES
        if self._is_behind:  # what a tunnel has unwrapped comes all the same
            self._keep(view, LENGTH_BYTES, has_given=False, is_busy=is_busy)
        else:
            self._hand_over(view, is_busy=is_busy)

    def _hand_over(self, view: memoryview, *, is_busy: bool) -> None:
        frames: list[memoryview] = []
        start, wanted, end = 0, LENGTH_BYTES, len(view)
        while end - start >= LENGTH_BYTES and len(frames) < FRAMES_MAX:
            wanted = LENGTH_BYTES + int.from_bytes(view[start : start + LENGTH_BYTES], "big")
            if wanted - LENGTH_BYTES > self._frame_bytes_max or end - start < wanted:
                break
            frames.append(view[start + LENGTH_BYTES : start + wanted])
            start += wanted
            wanted = LENGTH_BYTES
        self._held_back = 0
        if frames:
            self._on_frames(self, frames)
        if self._held_back:
            start -= sum(LENGTH_BYTES + len(frame) for frame in frames[-self._held_back :])
            wanted = LENGTH_BYTES
        if wanted - LENGTH_BYTES > self._frame_bytes_max:
            self._on_oversized(self, oversized(wanted - LENGTH_BYTES, self._frame_bytes_max))
            return
        self._keep(view[start:end], wanted, has_given=start > 0, is_busy=is_busy)
        if (len(frames) == FRAMES_MAX or self._held_back) and self._part is not None:
            self._is_behind = True
            self._regulate()

    def _go_on(self) -> None:
        """Hands over more of what has come, where the owner still takes it."""
        self._next = None
        if self._is_paused or self._is_over:
            return
        self._is_behind = False
        assert self._part is not None
        self._hand_over(memoryview(self._part)[: self._part_bytes], is_busy=False)
        if not self._is_behind:
            self._regulate()

    def _regulate(self) -> None:
        """Reads from the network only where the owner takes what comes, and has all that came before."""
        if self._is_over:
            return
        if self._is_paused or self._is_behind:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
        if self._is_behind and not self._is_paused and self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._go_on)

    @property
    def _is_over(self) -> bool:
        return not self.is_open or self._transport.is_closing()

    def _keep(self, rest: memoryview, wanted: int, *, has_given: bool, is_busy: bool) -> None:
        """Remembers an incomplete frame. The owner has had its frames: views into the old buffer are over.

        While a peer sends much at a time it is read big, into a buffer that stays its own and is not made anew.
        """
        if not rest:
            self._part, self._part_bytes = None, 0
            return
        held = len(rest)
        whole = max(min(wanted, self._frame_bytes_max), held)
        if (
            self._part is None
            or len(self._part) < min(whole, held + held // 16) + _LEAST_BYTES
            or (has_given and not is_busy)
        ):
            size = min(whole, _GROWTH * held)
            size += _ROOM_BYTES if size > _ROOM_BYTES else _LEAST_BYTES
            self._part = bytearray(max(size, _READ_BYTES) if is_busy else size)
            memoryview(self._part)[: len(rest)] = rest
        elif has_given:
            memoryview(self._part)[: len(rest)] = rest  # they may overlap: a bytearray would copy it twice more
        self._part_bytes = len(rest)
        # Behind a large frame little is read: what is there of the next one moves to the front.
        self._part_end = whole + _ROOM_BYTES if whole >= _BUSY_BYTES else len(self._part)

    def hold_back(self, count: int) -> None:
        """Of the frames that the owner is just getting, the last so many come again, in the loop's next passes."""
        self._held_back = count

    def allow(self, frame_bytes_max: int) -> None:
        """From now on the peer may send frames of so many bytes."""
        self._frame_bytes_max = frame_bytes_max

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
        self.is_writable = False
        self._on_writable(self, False)

    def resume_writing(self) -> None:
        """Asyncio calls it: the peer has caught up."""
        self.is_writable = True
        self._on_writable(self, True)

    def pause_reading(self) -> None:
        """Takes nothing more from the peer until `resume_reading`."""
        self._is_paused = True
        self._regulate()

    def resume_reading(self) -> None:
        """Goes on."""
        self._is_paused = False
        self._regulate()

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

    def forsake(self, reason: str) -> None:
        """Closes at once, and what has not reached the other side never will: it is said elsewhere."""
        if self.is_open:
            forget_unsent(self._transport.get_extra_info("socket"))
            self.abort(reason)

    def eof_received(self) -> bool:
        """Asyncio calls it."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio calls it."""
        self.is_open = False
        if exc is not None:
            self._reason = str(exc)
        self._on_closed(self, self._reason)
