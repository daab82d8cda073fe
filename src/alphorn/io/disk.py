"""What a file system does to a store: how much it has left, and what is said when it takes no more.

A disk that is full or fails says nothing about what is on it already: that is no damage, and whoever threw it away
would lose it for nothing. So these are told apart from damage, at the opening of a store and while it runs. A node
stops all the same, since nothing is retried.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from alphorn.model.errors import Unavailable

NO_SPACE: Final = "no space left on the disk of"  # by these words a sentence is known, whoever passed it on
SPENT_BYTES: Final = 1 << 20  # a file system with less than this is taken for full

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskSpace(NamedTuple):
    """What a store's files take, and what their file system has left, in bytes."""

    held: int
    left: int

    def within(self, limit: int, sharers: int = 1) -> int:
        """How large the store may become: up to its limit, and as far as its share of what is left reaches.

        `sharers` are the stores that grow on the same file system, this one included.
        """
        return min(limit, self.held + self.left // max(1, sharers))


def measure(path: Path, files: Iterable[str]) -> DiskSpace:
    """Looks at the files of this directory; what an unprivileged user may not take counts as taken."""
    held = sum(os.stat(f"{path}/{file}").st_blocks for file in files) * 512  # st_blocks are of this size everywhere
    return DiskSpace(held, _left(path))


def refusal_of(thing: str, path: Path, error: Exception) -> Unavailable | None:
    """What to say when the disk of this path refused a write or read; None for any other error."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", 0)
    if not isinstance(error, OSError | lmdb.Error) or code not in (*_FULL, errno.EIO):
        return None
    # LMDB calls it an input/output error too when the disk takes only a part of what it writes.
    if code in _FULL or (isinstance(error, lmdb.Error) and _left(path) < SPENT_BYTES):
        return Unavailable(f"{NO_SPACE} {thing} {path}; free some, then start this node again")
    return Unavailable(f"{thing} {path} could not write ({error}); see to its disk, then start this node again")


def tells_no_space(sentence: str) -> bool:
    """Whether this is, or passes on, what `refusal_of` says of a full disk."""
    return NO_SPACE in sentence


def _left(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
