"""Disks that are full soon: a file system in memory of a given size, where the machine permits mounting one."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

FILLER = "filler"


@contextlib.contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """Mounts a disk of so many bytes at a directory; skips the test where that is not permitted."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"mounting a small disk is not permitted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> None:
    """Takes all that is left."""
    with (disk / FILLER).open("ab", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(1 << 20)):
            os.fsync(filler.fileno())


def free(disk: Path) -> None:
    """Gives back what `fill` took."""
    (disk / FILLER).unlink()
