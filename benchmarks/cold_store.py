"""How fast large entries are read from a store of which nothing is in memory, with and without reading ahead.

    python benchmarks/cold_store.py [--megabytes 200] [--entry-kilobytes 1024] [--directory DIR]

Each of four runs opens the store anew after the kernel was told to forget its file.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from alphorn.bus.entries import digest_of
from alphorn.bus.machine import Persist, PutEntry
from alphorn.io import bodies
from alphorn.io.store import Store

TURN_ENTRIES = 16


def fill(path: Path, entries: int, size: int) -> None:
    """A store with so many entries."""
    store = Store(path, on_durable=lambda token: None, on_failure=sys.exit)
    for number in range(1, entries + 1):
        payload = os.urandom(size)
        store.submit(Persist(number, [PutEntry(number, payload, digest_of(payload))]))
        store.flush()
        store.end_turn()
    store.close()


def forget(path: Path) -> None:
    """Nothing of the store is in memory any more."""
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read(path: Path, entries: int, size: int) -> tuple[str, str]:
    """MB/s, and processor seconds."""
    forget(path)
    store = Store(path, on_durable=lambda token: None, on_failure=sys.exit)
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(1, entries + 1):
        entry = store.entry(number)
        assert isinstance(entry, bytes | memoryview)
        assert len(entry) == size
        if number % TURN_ENTRIES == 0:
            store.end_turn()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    store.end_turn()
    store.close()
    return f"{entries * size / wall / 1e6:.0f}", f"{cpu:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--entry-kilobytes", type=int, default=1024)
    parser.add_argument("--directory", default=None, help="on the disk to measure")
    arguments = parser.parse_args()
    size = arguments.entry_kilobytes << 10
    entries = max(1, (arguments.megabytes << 20) // size)
    root = Path(tempfile.mkdtemp(dir=arguments.directory))
    table = Table("how", "MB/s", "CPU s")
    usual = bodies.FOLLOWING_BYTES
    try:
        fill(root / "store", entries, size)
        for following, name in ((0, "each when it is asked for"), (usual, "with what follows it")) * 2:
            bodies.FOLLOWING_BYTES = following
            table.add_row(name, *read(root / "store", entries, size))
    finally:
        shutil.rmtree(root)
    Console().print(table)


if __name__ == "__main__":
    main()
