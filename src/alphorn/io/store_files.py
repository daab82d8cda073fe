"""The files of a store: who may open them, who may read them, and what is refused.

directory/          0700
  owner             0600  locked by the one process that has the store open
  data.mdb          0600  LMDB's pages: all tables
  lock.mdb          0600  LMDB's table of readers
  bodies            0600  large batches, which LMDB has only the heads of (bodies.py)
  ahead             0600  small writes that LMDB has not got yet (write_ahead.py)
  new/              0700  while a store is created: data.mdb, until all of it is there
"""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import lmdb

from alphorn.bus.storage import DAMAGED
from alphorn.io import records
from alphorn.io.disk import refusal_of
from alphorn.model.errors import Corruption, Misuse

OWNER_FILE = "owner"
DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
NEW_DIRECTORY = "new"
LOCK_BYTES = 4096  # a page, which holds more than these readers
READERS_MAX = 16

Tables = dict[bytes, "lmdb._Database"]


def take_ownership(path: Path) -> int:
    """Creates the directory if need be and locks it for this store; gives the descriptor that holds the lock.

    Raises `Misuse` when another process has it, or `OSError`.
    """
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=True)
        sync_directory(path.parent)
    path.chmod(0o700)
    owner = os.open(path / OWNER_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(owner, 0)
        os.pwrite(owner, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(owner, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(owner)
        raise Misuse(
            f"store {path} is open in process {holder}; stop that process, or give this node a directory of its own"
        ) from error
    except OSError:
        os.close(owner)
        raise
    return owner


def open_environment(path: Path, map_bytes: int) -> lmdb.Environment:
    """Opens LMDB for one writing process.

    Options, as measured by benchmarks/store.py:
    - sync and metasync stay on. Without metasync a power cut may undo the last commit, which was reported durable.
    - writemap stays off: it was two to four times slower than pwrite, and a stray write of this process could reach the
      file.
    - meminit stays on: it costs nothing beyond the noise, and unused bytes of a page never hold what the heap held.
    - readahead stays off: numbers are read in ranges soon after they were written, or once in order.
    - The map has its final size from the start. It takes address space, not memory or disk, and so it never has to be
      resized, which would pull the ground from under every view that a reader still holds.
    """
    if not (path / DATA_FILE).exists():
        _create_environment(path, map_bytes)
    shutil.rmtree(path / NEW_DIRECTORY, ignore_errors=True)  # a crash may have left it
    for name in (DATA_FILE, LOCK_FILE):
        with contextlib.suppress(FileNotFoundError):
            (path / name).chmod(0o600)
    return _open_environment(path, map_bytes)


def _create_environment(path: Path, map_bytes: int) -> None:
    """Makes the tables beside their place and then puts them there.

    LMDB writes its first pages without a sync. After a power cut meanwhile they would be taken for damaged ones, and
    nobody could tell a store that never was from one that lost everything.
    """
    new = path / NEW_DIRECTORY
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    with _open_environment(new, map_bytes) as environment:
        open_tables(new, environment)
    (new / DATA_FILE).replace(path / DATA_FILE)
    sync_directory(path)


def _open_environment(path: Path, map_bytes: int) -> lmdb.Environment:
    _allocate_lock_file(path)
    try:
        return lmdb.open(
            str(path),
            map_size=map_bytes,
            mode=0o700,
            readahead=False,
            max_dbs=len(records.TABLES),
            max_readers=READERS_MAX,
            max_spare_txns=1,
            lib_version=0,
        )
    except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
        raise Corruption(
            f"store {path} cannot be opened, its first pages are damaged ({error}); move the directory away and start "
            "this node on a blank one, so that it rejoins as a member that lost its disk"
        ) from error
    except lmdb.Error as error:
        raise refusal_of("store", path, error) or Misuse(
            f"store {path} cannot be opened: {error}; check the directory's owner and the disk"
        ) from error


def _allocate_lock_file(path: Path) -> None:
    """Gives the table of readers its pages: LMDB writes it as memory, and where the disk has none that kills."""
    descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, LOCK_BYTES)
    except OSError as error:
        if refusal_of("store", path, error):  # any other says that the file system cannot, which is no fault
            raise
    finally:
        os.close(descriptor)


def open_tables(path: Path, environment: lmdb.Environment) -> Tables:
    """Opens or creates the tables; refuses a store of another kind or version."""
    try:
        with environment.begin(write=True) as txn:
            is_blank = txn.stat()["entries"] == 0
            tables = {name: environment.open_db(name, txn=txn, create=is_blank) for name in records.TABLES}
            found = txn.get(records.VERSION_KEY, db=tables[records.META])
            if is_blank or _is_older(found):
                txn.put(records.VERSION_KEY, records.pack_version(records.VERSION), db=tables[records.META])
    except lmdb.Error as error:
        raise refusal_of("store", path, error) or Corruption(
            f"store {path} cannot be opened, its table of tables is damaged or not a store's ({error}); move the "
            "directory away and start this node on a blank one, so that it rejoins as a member that lost its disk"
        ) from error
    if is_blank:
        sync_directory(path)
    else:
        check_version(path, found)
    return tables


def _is_older(found: bytes | None) -> bool:
    version = DAMAGED if found is None else records.unpack_version(found)
    return version in records.VERSIONS_READ and version != records.VERSION


def check_version(path: Path, found: bytes | None) -> None:
    """Raises unless the version record is there and names the version this node reads."""
    version = DAMAGED if found is None else records.unpack_version(found)
    if not isinstance(version, int):
        raise Corruption(
            f"store {path} has no readable version record; move the directory away and start this node on a blank one, "
            "so that it rejoins as a member that lost its disk"
        )
    if version not in records.VERSIONS_READ:
        raise Misuse(
            f"store {path} is of version {version}, and this node reads version {records.VERSION}; start the release "
            "that wrote it"
        )


def bytes_claimed(environment: lmdb.Environment) -> int:
    """How long the data file must be for every page of the last commit to be inside it."""
    return (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]


def bytes_used(txn: "lmdb.Transaction[Any]", tables: Tables) -> int:
    """The pages that records are in. LMDB keeps the numbers, so this costs the same whatever the store holds."""
    stats = [txn.stat(table) for table in tables.values()]
    pages = sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)
    return pages * stats[0]["psize"]


def sync_directory(path: Path) -> None:
    """Makes names created in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def extend_to_map(path: Path, environment: lmdb.Environment) -> None:
    """Makes a cut-off file as long as its last commit says: reading past its end would kill the process, while zeros
    are found to be damaged. A file may be a little short without fault, when its last pages were freed before written.
    """
    claimed = bytes_claimed(environment)
    if (path / DATA_FILE).stat().st_size < claimed:
        os.truncate(path / DATA_FILE, claimed)
