"""Settings of the whole process that the data path wants."""

import ctypes
import resource

KEPT_BYTES = 64 << 20  # freed memory that stays with the process instead of going back to the kernel
MAPPED_BYTES_MIN = 32 << 20  # only larger blocks are mapped on their own; the C library allows no more
CLIENT_KEPT_BYTES = 32 << 20  # of a program that uses the client library: about what is under way for it
CLIENT_MAPPED_BYTES_MIN = 1 << 20

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory(kept_bytes: int = KEPT_BYTES, mapped_bytes_min: int = MAPPED_BYTES_MIN) -> bool:
    """Lets the C library keep freed memory; False where it cannot be told.

    By default glibc gives memory back as soon as 128 KiB are free at the end of the heap, which happens after every few
    datagrams of 60 KB; the kernel then clears and maps the same pages again for the next ones. That took four fifths of
    the kernel's time for receiving (docs/transport.md). Called more than once, it changes nothing.
    """
    try:
        tell = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = (
        (_M_TRIM_THRESHOLD, kept_bytes),
        (_M_TOP_PAD, kept_bytes // 4),
        (_M_MMAP_THRESHOLD, mapped_bytes_min),
    )
    answers = [tell(name, value) for name, value in settings]
    return 0 not in answers


def raise_file_limit() -> int:
    """Lets the process open as many files as it is allowed to ask for; gives that number.

    The limit that processes start with is often 1024, for programs that use select(2); a Client Manager with more
    clients than that would refuse them.
    """
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
