"""What a node keeps on disk beside its stores: who has it open, its log, and whether it was founded.

    cluster's directory/
      mm1/                stores of the node
        running           locked by the process that runs the node, and names it
        log.jsonl         its log; older ones as log.jsonl.1 and so on
      mm1.founded         beside the node's own folder, so that it outlives a disk that is wiped

A node is founded once. From then on a blank folder means a lost disk, however the node is started: it must be told the
log by the others before it may vote again (docs/decisions/0008-explicit-founding.md).

The lock is one of an open file description, which can be looked at without being taken: who only asks who runs a node
must not be in the way of a process that starts it at that moment.
"""

import fcntl
import os
import struct
from pathlib import Path

from alphorn.io.disk import refusal_of
from alphorn.io.store_files import sync_directory
from alphorn.model.errors import Misuse, Unavailable

# struct flock of 64-bit Linux: type, whence, start, length (0 is the whole file), process (0 with such locks)
_LOCK = struct.Struct("hhqqi4x")
_WHOLE_FILE = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class NodeDirectory:
    """The folder of one node."""

    def __init__(self, cluster: Path, name: str) -> None:
        self.name = name
        self.folder = cluster / name
        self.log = self.folder / "log.jsonl"
        self.standard_error = cluster / f"{name}.stderr"
        self._running = self.folder / "running"
        self._marker = cluster / f"{name}.founded"
        self._lock = -1
        self.was_blank = False  # when it was taken: no store of the node was there

    @property
    def is_founded(self) -> bool:
        """Whether the node has taken part before, with this folder or one that was wiped since."""
        return self._marker.exists()

    def mark_founded(self) -> None:
        """Remembers, across a power cut, that the node has taken part."""
        if not self.is_founded:
            with self._marker.open("wb") as file:
                os.fsync(file.fileno())
            sync_directory(self._marker.parent)

    def take(self) -> None:
        """Makes the folder and locks it for this process until it ends; raises `Misuse`, or `Unavailable`."""
        self.was_blank = not self._has_stores()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._running, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fcntl.fcntl(lock, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except OSError:
            os.close(lock)
            raise Misuse(
                f"node {self.name} runs already in {self.folder}, as process {self.holder()}; stop that one first"
            ) from None
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(lock)
            raise self._unusable(error) from None
        self._lock = lock

    def _unusable(self, error: OSError) -> Misuse | Unavailable:
        return refusal_of("directory", self.folder, error) or Misuse(
            f"the directory {self.folder} of node {self.name} cannot be used: {error.strerror}; "
            "choose another, or give this user the right to it"
        )

    def _has_stores(self) -> bool:
        own = (self._running.name, self.log.name)
        return self.folder.is_dir() and any(not entry.name.startswith(own) for entry in self.folder.iterdir())

    def release(self) -> None:
        """Lets another process run the node."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def holder(self) -> int:
        """The process that runs the node; 0 when there is none."""
        try:
            lock = os.open(self._running, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            found = _LOCK.unpack(fcntl.fcntl(lock, fcntl.F_OFD_GETLK, _WHOLE_FILE))
            if found[0] == fcntl.F_UNLCK:
                return 0
            said = os.pread(lock, 32, 0).strip()
            return int(said) if said.isdigit() else -1
        finally:
            os.close(lock)
