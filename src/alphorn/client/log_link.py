"""One blocking connection to a Message Manager, for readers of the log. Every call has a deadline.

Times are those of `time.monotonic`. What goes wrong on the way raises `OSError` (a time that is over too) or
`PeerViolation`; the link is closed then, and its owner turns to another Message Manager.
"""

import os
import select
import socket
import struct
import time

from alphorn.client.url import parse_address
from alphorn.model import frame_kinds, link
from alphorn.model.errors import PeerViolation

CONNECT_S = 3.0
_LENGTH = struct.Struct(">I")


class LogLink:
    """A connection; `is_primary` is what the other side said last of itself."""

    def __init__(self, address: str, deadline: float) -> None:
        self.address = address
        self.is_primary = False
        self._request = 0
        timeout = min(CONNECT_S, _left(deadline))
        self._socket = socket.create_connection(parse_address(address), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._has_role = False
        try:
            while not self._has_role:  # it is told first
                self._take(min(deadline, time.monotonic() + CONNECT_S))
        except BaseException:
            self.close()
            raise

    def number(self) -> int:
        """A number for the next question."""
        self._request += 1
        return self._request

    def send(self, frame: frame_kinds.Asked, deadline: float) -> None:
        """Asks; `receive` gives the answer."""
        self._settle()
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(link.encode(frame))

    def receive(self, request: int, deadline: float) -> frame_kinds.Told:
        """The answer to a question; answers to others, which nobody waits for any more, are dropped."""
        while True:
            frame = self._take(deadline)
            if getattr(frame, "request", 0) == request:
                return frame

    def refresh(self) -> None:
        """Hears what was said meanwhile: that the role changed, or that the connection is gone (`OSError`)."""
        while select.select([self._socket], [], [], 0)[0]:
            self._take(time.monotonic() + CONNECT_S)

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def _settle(self) -> None:
        if self._socket.fileno() < 0:
            raise OSError("the link is closed")

    def _take(self, deadline: float) -> frame_kinds.Told:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > link.FRAME_BYTES_MAX:
            raise PeerViolation(f"a frame of {length} bytes was announced on a link")
        frame = link.decode_told(self._read(length, deadline))
        if isinstance(frame, link.Role):
            self.is_primary = frame.is_primary
            self._has_role = True
        return frame

    def _read(self, size: int, deadline: float) -> memoryview:
        data = memoryview(bytearray(size))
        read = 0
        while read < size:
            self._socket.settimeout(_left(deadline))
            count = self._socket.recv_into(data[read:])
            if not count:
                raise ConnectionResetError("the Message Manager closed the connection")
            read += count
        return data


class LinkPool:
    """Links of this process that nobody uses just now, by address. A forked child has none of its parent's."""

    __slots__ = ("_idle", "_process")

    def __init__(self) -> None:
        self._idle: dict[str, LogLink] = {}
        self._process = 0

    def take(self, address: str, deadline: float) -> LogLink:
        """A link that works; raises `OSError` or `PeerViolation`."""
        if self._process != os.getpid():
            self._idle, self._process = {}, os.getpid()
        found = self._idle.pop(address, None)
        if found is not None:
            try:
                found.refresh()
            except (OSError, PeerViolation):
                found.close()
            else:
                return found
        return LogLink(address, deadline)

    def give_back(self, link_: LogLink) -> None:
        """A link whose questions are answered, or whose answers may be dropped."""
        older = self._idle.pop(link_.address, None)
        if older is not None:
            older.close()
        self._idle[link_.address] = link_


LINKS = LinkPool()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left
