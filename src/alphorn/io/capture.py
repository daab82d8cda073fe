"""Frame captures: every datagram and stream frame a member sent or received, appended to a file for later reading.

The file begins with the eight bytes `AHCAP` 0 0 1, the last being the version. Then come records:

     0        8     12          13              14
     | time   | len | direction | address bytes | address | frames ...

time       Unix time in nanoseconds          len  of the frames
direction  1 sent, 2 received                address  where the frames were sent to, for both directions, as text

Frames are recorded before sealing and after opening. Integers are big-endian. A file that ends inside a record was cut
by a crash: what precedes is good. `bus.frames.decode_all` reads the frames of a record.
"""

import contextlib
import enum
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from alphorn.bus.frames import FRAME_BYTES_MAX
from alphorn.model.errors import Corruption, Misuse

START = b"AHCAP\x00\x00\x01"
CAPTURE_BYTES_MAX = 1 << 30  # where a capture stops growing, so that a forgotten one does not fill the disk

_RECORD = struct.Struct(">QIBB")


class Direction(enum.IntEnum):
    """Which way frames went."""

    SENT = 1
    RECEIVED = 2


class Captured(msgspec.Struct, frozen=True):
    """One record of a capture."""

    unix_ns: int
    direction: Direction
    address: str
    data: bytes


class Capture:
    """Appends records to a new file readable by its owner only.

    Stops silently, but countably, when it is full, or its disk: a member does not fall silent for being listened to.
    """

    __slots__ = ("_bytes_max", "_clock", "_file", "bytes", "records", "skipped")

    def __init__(
        self, path: Path, *, bytes_max: int = CAPTURE_BYTES_MAX, clock: Callable[[], int] = time.time_ns
    ) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Misuse(f"capture {path} cannot be made ({error.strerror}); choose a new file") from error
        self._file = open(descriptor, "wb")  # noqa: SIM115 - the capture lives as long as its member
        self._clock = clock
        self._bytes_max = bytes_max
        self.bytes = self._file.write(START)
        self.records = 0
        self.skipped = 0

    def record(self, direction: Direction, address: str, parts: Sequence[bytes | memoryview]) -> None:
        """Appends one datagram or stream frame; its bytes are copied before this returns."""
        size = sum(map(len, parts))
        name = address.encode()[:255]
        if self.bytes + _RECORD.size + len(name) + size > self._bytes_max:
            self.skipped += 1
            return
        write = self._file.write
        try:
            write(_RECORD.pack(self._clock(), size, direction, len(name)) + name)
            for part in parts:
                write(part)
        except OSError:
            self._bytes_max = 0  # what follows half a record could not be read
            self.skipped += 1
            return
        self.bytes += _RECORD.size + len(name) + size
        self.records += 1

    def close(self) -> None:
        """Writes out what is buffered, if the disk takes it."""
        with contextlib.suppress(OSError):
            self._file.close()


def read_capture(path: Path) -> Iterator[Captured]:
    """The records of a capture, in order; raises `Misuse` or `Corruption` for a file that is none."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise Misuse(f"capture {path} cannot be read ({error.strerror}); check the path") from error
    with file:
        if file.read(len(START)) != START:
            raise Corruption(f"{path} is not a frame capture of version {START[-1]}; choose another file")
        while len(head := file.read(_RECORD.size)) == _RECORD.size:
            unix_ns, size, direction, address_bytes = _RECORD.unpack(head)
            if size > FRAME_BYTES_MAX:
                raise Corruption(
                    f"{path} has a record of {size} bytes, which no capture writes; what precedes was read"
                )
            body = file.read(address_bytes + size)
            if len(body) < address_bytes + size:
                return
            try:
                way, address = Direction(direction), body[:address_bytes].decode()
            except ValueError as error:
                raise Corruption(f"{path} has a record that no capture writes; what precedes was read") from error
            yield Captured(unix_ns, way, address, body[address_bytes:])
