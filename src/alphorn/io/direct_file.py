"""Files whose writes are durable when they return, past the page cache where the file system can.

Such writes begin and end with a page, in the file and in memory: `page_buffer` gives memory that does. Pages that are
needed no more go back to the file system, and leave a hole.
"""

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = 4096

_HUGE_PAGE_BYTES: Final = 2 << 20
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of linux/falloc.h
_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV)
_BUSY = (errno.ENOSPC, errno.EDQUOT, errno.EINTR)  # even a hole may need a block to be written down


def page_buffer(size: int) -> mmap.mmap:
    """Memory that begins with a page; of huge pages where the system has them, which a write pins in fewer steps."""
    # Private, since shared memory is never given huge pages unless the whole system is told to.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _HUGE_PAGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def open_direct(file: Path, offset: int) -> int:
    """Opens a file, or creates it. To see what the file system can, a page of zeros is written at `offset`.

    Raises `OSError`; but a full disk is told by the first write that counts.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_DSYNC | os.O_CLOEXEC
    with contextlib.suppress(OSError):  # some file systems cannot: EINVAL when it is opened, or when it is written
        return _open_tried(file, flags | os.O_DIRECT, offset)
    return _open_tried(file, flags, offset)


def punch_hole(descriptor: int, offset: int, size: int) -> bool | None:
    """Gives this part of a file back to the file system; says whether it could, None if it never can.

    What stood there reads as zeros. Raises `OSError` when the disk fails.
    """
    if _fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_longlong(offset), ctypes.c_longlong(size)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNABLE:
        return None
    if code in _BUSY:
        return False
    raise OSError(code, os.strerror(code))


def holes_in(descriptor: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Where a file has holes in this part of it, as far as its file system tells: begin and end of each."""
    with contextlib.suppress(OSError):  # nothing but a hole follows (ENXIO), or nobody can tell
        while begin < end:
            begin = os.lseek(descriptor, begin, os.SEEK_HOLE)
            if begin >= end:
                return
            found = end
            with contextlib.suppress(OSError):
                found = min(end, os.lseek(descriptor, begin, os.SEEK_DATA))
            yield begin, found
            begin = found


def _open_tried(file: Path, flags: int, offset: int) -> int:
    descriptor = os.open(file, flags, 0o600)
    try:
        with page_buffer(PAGE_BYTES) as page:
            os.pwrite(descriptor, page, offset)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            os.close(descriptor)
            raise
    return descriptor
