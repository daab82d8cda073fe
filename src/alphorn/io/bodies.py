"""The bodies of large entries: a file beside LMDB, written past the page cache.

LMDB copies a batch into pages of its own, the kernel copies those into its cache, and a file that grows meanwhile makes
the journal of the file system part of every sync. A large batch is written here instead, straight from one buffer to
the disk; LMDB has only its head, which tells the page where it begins (records.py).

- A body is durable before a head that names it is written: a crash in between leaves pages that nothing names, and
  those are free.
- Pages become free when the commit that drops their head is durable, not before. So what a durable head names is never
  written over.
- Which pages are free follows from the heads, and is found when the store is opened. Nothing else is recorded.
- Free pages are kept to be used again, which is cheaper than to have others allocated. Where there is little room on
  disk they go back to the file system: those at the end by a shorter file, others by holes.
- What lies here is checked by its head's digest as any entry is: a short or strange file reads as damage.
"""

import errno
import os
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from alphorn.bus.machine import PutEntry, Write
from alphorn.io.direct_file import PAGE_BYTES, holes_in, open_direct, page_buffer, punch_hole
from alphorn.io.free_pages import FreePages
from alphorn.io.store_files import sync_directory
from alphorn.model.ranges import Range

BODIES_FILE: Final = "bodies"
LARGE_BYTES: Final = 16 << 10  # a batch from this size on is a body here; smaller ones are cheaper in LMDB
BUFFER_BYTES: Final = 4 << 20  # written at once, at most
SPARE_BYTES: Final = 64 << 20  # free space at the end that is worth giving back to the file system
TABLES_BYTES: Final = 64 << 20  # with less than this left on disk nothing free is kept: one commit may need as much
PUNCHED_AT_ONCE: Final = 1024  # runs of pages that become holes after one commit, at most
FOLLOWING_BYTES: Final = 4 << 20  # so much behind what is read is brought in before it is asked for


class PutPlaced(Write, frozen=True, gc=False):
    """A `PutEntry` whose batch is among the bodies."""

    sequence: int
    size: int
    digest: int
    page: int


class Bodies:
    """The file, open for one run. `read` is the owner's, `place` the store's thread's, `give_back` the committer's.

    `place` raises `OSError` when the disk does not take a body.
    """

    __slots__ = (
        "_begin",
        "_buffer",
        "_can_punch",
        "_filled",
        "_lock",
        "_pages",
        "_readable",
        "_readers_at",
        "_writable",
    )

    def __init__(self, path: Path, heads: Iterable[tuple[int, int]]) -> None:
        """`heads` are page and size of every body that there is."""
        self._pages = FreePages(_run(page, size) for page, size in heads)
        self._lock = threading.Lock()  # for the pages, and how long the file is
        self._buffer = page_buffer(BUFFER_BYTES)
        self._readers_at = 0  # in bytes, as these are:
        self._begin = self._filled = 0  # where in the file what is in the buffer belongs, and how much it is
        self._can_punch = True
        with ExitStack() as opened:
            self._writable = open_direct(path / BODIES_FILE, self.file_bytes)
            opened.callback(os.close, self._writable)
            sync_directory(path)
            self._readable = os.open(path / BODIES_FILE, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, self._readable)
            self._cut()
            self._find_holes()
            opened.pop_all()

    @property
    def used_bytes(self) -> int:
        """What bodies take, whole pages."""
        return self._pages.used * PAGE_BYTES

    @property
    def file_bytes(self) -> int:
        """How long the file is, or is about to be."""
        return self._pages.end * PAGE_BYTES

    def place(self, writes: list[Write], bytes_max: int) -> list[Write]:
        """Gives the writes with those of large entries done, as far as the file need not take more than `bytes_max`.

        Returns when they are durable.
        """
        placed = [self._placed(write, bytes_max) if is_large(write) else write for write in writes]
        self._flush()
        return placed

    def give_back(self, bodies: list[tuple[int, int]], left_bytes: int) -> None:
        """The commit that drops the heads of these, page and size of each, is durable.

        `left_bytes` are what the store may still take: the less that is, the less is kept to be used again, because the
        tables may need it.
        """
        with self._lock:
            for page, size in bodies:
                self._pages.give(page, _count(size))
            spare = self._pages.free_at_end * PAGE_BYTES
            if spare and spare >= min(SPARE_BYTES, left_bytes):
                self._cut()
            if self._can_punch and left_bytes < max(TABLES_BYTES, self._pages.free * PAGE_BYTES):
                self._punch()

    def read(self, page: int, size: int) -> bytes:
        """What is there; shorter where the file ends, and nothing where the disk cannot read it."""
        begin = page * PAGE_BYTES
        if 0 <= begin - self._readers_at < FOLLOWING_BYTES:  # who goes on from there goes on further
            os.posix_fadvise(self._readable, begin + size, FOLLOWING_BYTES, os.POSIX_FADV_WILLNEED)
        self._readers_at = begin + size
        return _read(self._readable, page, size)

    def close(self) -> None:
        """Closes the file; what is in it stays."""
        os.close(self._writable)
        os.close(self._readable)

    def _placed(self, write: Write, bytes_max: int) -> Write:
        assert isinstance(write, PutEntry)
        size = len(write.payload)
        with self._lock:
            page = self._pages.take(_count(size), bytes_max // PAGE_BYTES)
        if page is None:
            return write
        if page * PAGE_BYTES != self._begin + self._filled:
            self._flush()
            self._begin = page * PAGE_BYTES
        self._add(memoryview(write.payload))
        self._add(memoryview(bytes(-size % PAGE_BYTES)))
        return PutPlaced(write.sequence, size, write.digest, page)

    def _add(self, data: memoryview) -> None:
        while data:
            if self._filled == BUFFER_BYTES:
                self._flush()
            part = data[: BUFFER_BYTES - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            data = data[len(part) :]

    def _flush(self) -> None:
        if not self._filled:
            return
        written = os.pwrite(self._writable, memoryview(self._buffer)[: self._filled], self._begin)
        if written != self._filled:
            raise OSError(errno.ENOSPC, f"only {written} of {self._filled} bytes of bodies were written")
        self._begin += written
        self._filled = 0

    def _cut(self) -> None:
        self._pages.cut()
        os.ftruncate(self._writable, self.file_bytes)

    def _punch(self) -> None:
        for first, last in self._pages.runs(PUNCHED_AT_ONCE):
            is_done = punch_hole(self._writable, first * PAGE_BYTES, (last - first + 1) * PAGE_BYTES)
            if not is_done:
                self._can_punch = is_done is not None
                return
            self._pages.punch(first, last)

    def _find_holes(self) -> None:
        found = os.fstat(self._writable)
        if found.st_blocks * 512 >= found.st_size:
            return
        for first, last in self._pages.runs(self._pages.free):
            for begin, end in holes_in(self._writable, first * PAGE_BYTES, (last + 1) * PAGE_BYTES):
                self._pages.punch(-(-begin // PAGE_BYTES), end // PAGE_BYTES - 1)


def is_large(write: Write) -> bool:
    """Whether this puts an entry whose batch belongs among the bodies."""
    return isinstance(write, PutEntry) and len(write.payload) >= LARGE_BYTES


def read_body(path: Path, page: int, size: int) -> bytes:
    """A body of a store that another process may have open."""
    try:
        with (path / BODIES_FILE).open("rb") as file:
            return _read(file.fileno(), page, size)
    except FileNotFoundError:
        return b""


def _read(descriptor: int, page: int, size: int) -> bytes:
    """A sector that cannot be read is damage like any other: another copy is written elsewhere."""
    try:
        return os.pread(descriptor, size, page * PAGE_BYTES)
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EBADMSG, errno.EUCLEAN):  # the last are of file systems with checksums
            raise
        return b""


def _count(size: int) -> int:
    return -(-size // PAGE_BYTES)


def _run(page: int, size: int) -> Range:
    return page, page + _count(size) - 1
