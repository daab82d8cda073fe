"""How fast the store takes 64 KB entries while it forgets old ones, against LMDB's other options and a bare file.

    python benchmarks/store.py [--entries 6000] [--kept 4000] [--directory DIR]

Every row but the appended file is in steady state: as many entries are dropped as are put. CPU is the whole process's,
user and system, the kernel's copy of the bytes included. Run it on an idle machine, and twice: disks shared with others
stall for seconds now and then.
"""

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lmdb
from rich.console import Console
from rich.table import Table

from alphorn.bus.entries import Assignment, digest_of
from alphorn.bus.machine import DropThrough, Persist, PutAssignments, PutEntry, Write
from alphorn.io.bodies import BODIES_FILE
from alphorn.io.records import number_key
from alphorn.io.store import Store
from alphorn.io.store_files import DATA_FILE
from alphorn.model.ids import Kind, make_id, make_origin
from alphorn.node.bus import AHEAD_BYTES_MAX

ENTRY_BYTES = 65_536
GROUPS = (4, 16, 48)
LAST_MEASURE = 8
Measure = Callable[[Path], tuple[str, ...]]
ORIGIN = make_origin(bytes([127, 0, 0, 1]), 21_000, 1)


class Clock:
    """Wall and CPU time of a stretch of work."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def row(self, name: str, group: int, entries: int, *paths: Path) -> tuple[str, ...]:
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        return (
            name,
            str(group),
            f"{entries * ENTRY_BYTES / wall / 1e6:.0f}",
            f"{cpu / entries * 1e6:.0f}",
            f"{sum(path.stat().st_size for path in paths) / 1e6:.0f}",
        )


def measure_store(path: Path, group: int, entries: int, kept: int, *, drop_every: int = 1) -> tuple[str, ...]:
    """Group by group, as an event loop that waits for each report; `drop_every` gathers drops over that many groups."""
    done = threading.Semaphore(0)
    store = Store(path, on_durable=lambda _: done.release(), on_failure=sys.exit, ahead_bytes_max=AHEAD_BYTES_MAX)
    payload = os.urandom(ENTRY_BYTES)
    digest = digest_of(payload)
    clock, token, sequence = Clock(), 0, 0
    while sequence < entries + kept:
        if sequence >= kept > sequence - group:
            clock = Clock()
        token += 1
        writes: list[Write] = []
        for number in range(sequence + 1, sequence + group + 1):
            assignment = Assignment(65537, make_id(ORIGIN, Kind.BATCH, number), number - 1, digest, ENTRY_BYTES)
            writes += [PutEntry(number, payload, digest), PutAssignments(number, [assignment])]
        sequence += group
        if sequence > kept and token % drop_every == 0:
            writes.append(DropThrough(sequence - kept))
        store.submit(Persist(token, writes))
        done.acquire()
        store.end_turn()
    name = "store" if drop_every == 1 else f"store, drops every {drop_every * group} entries"
    row = clock.row(name, group, entries, path / DATA_FILE, path / BODIES_FILE)
    store.close()
    return row


def measure_lmdb(
    path: Path, *, name: str, group: int, entries: int, kept: int, joins_head: bool = False, **options: bool
) -> tuple[str, ...]:
    """Bare LMDB with other options, or with the head joined to the payload instead of in a table of its own."""
    environment = lmdb.open(str(path), map_size=4 << 30, max_dbs=2, **options)
    log, heads = environment.open_db(b"log"), environment.open_db(b"heads")
    payload, head = os.urandom(ENTRY_BYTES), b"h" * 20
    clock = Clock()
    for sequence in range(0, entries + kept, group):
        if sequence >= kept > sequence - group:
            clock = Clock()
        keys = [number_key(number) for number in range(sequence, sequence + group)]
        with environment.begin(write=True) as txn:
            if joins_head:
                txn.cursor(log).putmulti([(key, head + payload) for key in keys])
            else:
                txn.cursor(log).putmulti([(key, payload) for key in keys])
                txn.cursor(heads).putmulti([(key, head) for key in keys])
            for number in range(max(0, sequence - kept), max(0, sequence - kept + group)):
                txn.delete(number_key(number), db=log)
                txn.delete(number_key(number), db=heads)
    row = clock.row(name, group, entries, path / DATA_FILE)
    environment.close()
    return row


def measure_file(path: Path, group: int, entries: int, *, is_new: bool) -> tuple[str, ...]:
    """A bare file: appended to, or written over as a ring would be."""
    path.mkdir()
    file = os.open(path / "log", os.O_CREAT | os.O_WRONLY)
    payload = os.urandom(ENTRY_BYTES)
    if not is_new:
        for _ in range(0, entries, group):
            os.writev(file, [payload] * group)
        os.fsync(file)
        os.lseek(file, 0, os.SEEK_SET)
    clock = Clock()
    for _ in range(0, entries, group):
        os.writev(file, [payload] * group)
        os.fdatasync(file)
    row = clock.row("bare file, append" if is_new else "bare file, overwrite", group, entries, path / "log")
    os.close(file)
    return row


def measures_of(group: int, entries: int, kept: int) -> list[Measure]:
    """One for each row of a section of the table."""
    bare = partial(measure_lmdb, group=group, entries=entries, kept=kept)
    return [
        partial(measure_store, group=group, entries=entries, kept=kept),
        partial(measure_store, group=group, entries=entries, kept=kept, drop_every=1024 // group),
        partial(bare, name="lmdb, as the store"),
        partial(bare, name="lmdb, head joined", joins_head=True),
        partial(bare, name="lmdb, metasync off (not safe)", metasync=False),
        partial(bare, name="lmdb, meminit off", meminit=False),
        partial(bare, name="lmdb, writemap", writemap=True, entries=entries // 4),
        partial(measure_file, group=group, entries=entries, is_new=True),
        partial(measure_file, group=group, entries=entries, is_new=False),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=6000)
    parser.add_argument("--kept", type=int, default=4000)
    parser.add_argument("--directory", default=None, help="on the disk to measure")
    arguments = parser.parse_args()
    entries, kept = arguments.entries, arguments.kept
    root = Path(tempfile.mkdtemp(dir=arguments.directory))
    table = Table("what", "entries per commit", "MB/s", "CPU µs per entry", "file MB")
    try:
        for group in GROUPS:
            for index, measure in enumerate(measures_of(group, entries, kept)):
                path = root / f"{group}-{index}"
                table.add_row(*measure(path), end_section=index == LAST_MEASURE)
                shutil.rmtree(path)
    finally:
        shutil.rmtree(root)
    Console().print(table)


if __name__ == "__main__":
    main()
