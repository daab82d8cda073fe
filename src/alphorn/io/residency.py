"""Gives back the memory that reading a mapped file takes.

Pages of a mapped file that were read count as this process's memory until the kernel wants them back; that may be as
much as the file. Whoever reads a large body from the log would look as large as the body to every tool that watches
processes. Letting go of the pages costs a soft fault each when they are read again: the kernel still has them.
"""

import ctypes
import os
from pathlib import Path

_MADV_DONTNEED = 4  # of a shared map of a file: the next access finds what is in the file


class MappedFile:
    """The map of one file in this process. Where the system does not show its maps, nothing is given back."""

    __slots__ = ("_madvise", "_range")

    def __init__(self, path: Path) -> None:
        self._range = _find(os.path.realpath(path))
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise if self._range else None

    @property
    def is_known(self) -> bool:
        """Whether the map was found."""
        return self._madvise is not None

    def release(self) -> None:
        """Lets go of all its pages. Views stay valid: what they show is read from the file again."""
        if self._madvise is not None and self._range is not None:
            start, size = self._range
            self._madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_DONTNEED)


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
