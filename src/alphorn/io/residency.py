"""Gives back the memory that reading a mapped file takes, and has what is read next brought in before.

Pages of a mapped file that were read count as this process's memory until the kernel wants them back; that may be as
much as the file. Whoever reads a large body from the log would look as large as the body to every tool that watches
processes. Letting go of the pages costs a soft fault each when they are read again: the kernel still has them.

What the kernel has not is read from the disk page by page, as each is touched, because LMDB forbids reading ahead. Who
reads one large entry mostly reads those behind it too, which mostly lie behind it in the file: so the kernel is told of
some megabytes to come, and reads them meanwhile in one go.
"""

import contextlib
import ctypes
import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LOOK_BYTES = 2 << 20  # so far ahead something is to be in memory
_MADV_DONTNEED = 4  # of a shared map of a file: the next access finds what is in the file


class _Buffer(ctypes.Structure):
    """Py_buffer, of which only the address is of interest."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("size", ctypes.c_ssize_t),
        ("item_size", ctypes.c_ssize_t),
        ("is_readonly", ctypes.c_int),
        ("dimensions", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


class MappedFile:
    """The map of one file in this process. Where the system does not show its maps, nothing is given back."""

    __slots__ = ("_file", "_madvise", "_mincore", "_range")

    def __init__(self, path: Path) -> None:
        self._range = _find(os.path.realpath(path))
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if self._range else -1
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise if self._range else None
        self._mincore = ctypes.CDLL(None, use_errno=True).mincore

    @property
    def is_known(self) -> bool:
        """Whether the map was found."""
        return self._madvise is not None

    def release(self) -> None:
        """Lets go of all its pages. Views stay valid: what they show is read from the file again."""
        if self._madvise is not None and self._range is not None:
            start, size = self._range
            self._madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_DONTNEED)

    def read_on(self, view: memoryview) -> None:
        """What follows a view into the map, which shows its file from the beginning, is probably read next."""
        if self._range is None or self._file < 0:
            return
        start, size = self._range
        end = _address_of(view) - start + len(view)
        if 0 <= end < size - _LOOK_BYTES and not self._is_in_memory(start + end + _LOOK_BYTES):
            with contextlib.suppress(OSError):  # it is only advice
                os.posix_fadvise(self._file, end, 2 * _LOOK_BYTES, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Nothing more is told to the kernel."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _is_in_memory(self, address: int) -> bool:
        page = (ctypes.c_ubyte * 1)()
        first = address - address % _PAGE_BYTES
        is_known = self._mincore(ctypes.c_void_p(first), ctypes.c_size_t(_PAGE_BYTES), page) == 0
        return is_known and bool(page[0] & 1)


def _address_of(view: memoryview) -> int:
    found = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(found), 0)
    try:
        return int(found.address or 0)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(found))


def _find(path: str) -> tuple[int, int] | None:
    """Where a file is mapped: address and size."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        addresses, _, rest = line.partition(" ")
        if rest.endswith(f" {path}") and rest[:4] == "r--s":
            start, _, end = addresses.partition("-")
            return int(start, 16), int(end, 16) - int(start, 16)
    return None
