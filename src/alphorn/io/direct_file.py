"""Files whose writes are durable when they return, past the page cache where the file system can.

Such writes begin and end with a page, in the file and in memory: `page_buffer` gives memory that does.
"""

import contextlib
import errno
import mmap
import os
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = 4096


def page_buffer(size: int) -> mmap.mmap:
    """Memory that begins with a page."""
    return mmap.mmap(-1, size)


def open_direct(file: Path, offset: int) -> int:
    """Opens a file, or creates it. To see what the file system can, a page of zeros is written at `offset`.

    Raises `OSError`; but a full disk is told by the first write that counts.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_DSYNC | os.O_CLOEXEC
    with contextlib.suppress(OSError):  # some file systems cannot: EINVAL when it is opened, or when it is written
        return _open_tried(file, flags | os.O_DIRECT, offset)
    return _open_tried(file, flags, offset)


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
