"""What a store finds when it is opened: writes ahead of LMDB, the bounds of its log, its newest checkpoint."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from alphorn.bus.storage import DAMAGED
from alphorn.io import records, store_files
from alphorn.io.bodies import BODIES_FILE, Bodies
from alphorn.io.disk import DiskSpace, measure, refusal_of
from alphorn.io.residency import MappedFile
from alphorn.io.retention import Filled, Retention, last_outside
from alphorn.io.store_files import Tables
from alphorn.io.store_writes import Retained, WriteTransaction, bodies_of, sizes_between
from alphorn.io.write_ahead import WriteAhead, read_ahead
from alphorn.model.errors import Corruption, Misuse, Unavailable

EMPTY_BOUNDS: Final = (1, 0)


class Parts(NamedTuple):
    """What an open store consists of."""

    path: Path
    owner: int  # the descriptor that holds the lock
    environment: lmdb.Environment
    tables: Tables
    mapped: MappedFile
    bodies: Bodies
    ahead: WriteAhead | None
    run: int
    map_bytes: int

    def disk_space(self) -> DiskSpace:
        """What tables and bodies take on disk, and what there is left."""
        return measure(self.path, (store_files.DATA_FILE, BODIES_FILE))

    def close(self) -> None:
        """Closes them all, in an order in which nobody opens a store that is half closed."""
        if self.ahead is not None:
            self.ahead.close()
        self.mapped.close()
        self.bodies.close()
        self.environment.close()
        os.close(self.owner)


class Found(NamedTuple):
    """What is in a store that was opened."""

    bounds: tuple[int, int]
    newest_checkpoint: int
    retained: Retained
    filled: Filled


def open_store(path: Path, map_bytes: int, *, has_ahead: bool) -> tuple[Parts, Found]:
    """Opens a store, or creates it.

    Raises `Misuse` when it is in use or of another version, `Corruption`, or `Unavailable` when its disk is full or
    fails.
    """
    try:
        with ExitStack() as opened:
            parts, found = _open_parts(path, map_bytes, opened, has_ahead=has_ahead)
            opened.pop_all()
    except OSError as error:
        raise refusal_of("store", path, error) or Misuse(
            f"store {path} cannot be opened ({error}); check the directory's owner and the disk"
        ) from error
    return parts, found


def _open_parts(path: Path, map_bytes: int, opened: ExitStack, *, has_ahead: bool) -> tuple[Parts, Found]:
    """What is open when this fails, `opened` closes."""
    owner = store_files.take_ownership(path)
    opened.callback(os.close, owner)
    environment = store_files.open_environment(path, map_bytes)
    opened.callback(environment.close)
    store_files.extend_to_map(path, environment)
    tables = store_files.open_tables(path, environment)
    opening = Opening(path, environment, tables)
    run = opening.recover(map_bytes)
    bodies = opening.bodies()
    opened.callback(bodies.close)
    bounds = opening.bounds()
    found = Found(bounds, opening.newest_checkpoint(), opening.retained(bounds), opening.filled())
    ahead = WriteAhead(path, run) if has_ahead else None
    if ahead is not None:
        opened.callback(ahead.close)
    mapped = MappedFile(path / store_files.DATA_FILE)
    return Parts(path, owner, environment, tables, mapped, bodies, ahead, run, map_bytes), found


class Opening:
    """Reads one store before its owner does."""

    __slots__ = ("_environment", "_path", "_tables")

    def __init__(self, path: Path, environment: lmdb.Environment, tables: Tables) -> None:
        self._path = path
        self._environment = environment
        self._tables = tables

    def bodies(self) -> Bodies:
        """The file of bodies, with what the heads say is in it."""
        try:
            with self._environment.begin() as txn:
                return Bodies(self._path, bodies_of(txn, self._tables))
        except lmdb.Error as error:
            raise self._unreadable(records.HEADS, error) from error

    def filled(self) -> Filled:
        """How far there are entries."""
        first, last = self._edge_numbers(records.HEADS)
        return Filled(last if first <= last else -1)

    def recover(self, map_bytes: int) -> int:
        """Brings into LMDB what an earlier run wrote ahead; begins a run, so that none of it counts again.

        What is retained is not known yet: the entries that a drop would spare or not stay until it is.
        """
        run = int.from_bytes(os.urandom(8), "big")
        try:
            with self._environment.begin(write=True) as txn:
                transaction = WriteTransaction(txn, self._tables, self.filled())
                retention = Retention()
                for found in read_ahead(self._path, *self._applied(txn)):
                    for write in found.writes:
                        transaction.apply(write, retention.dropped_by(write, found.bounds))
                    transaction.put_bounds(*found.bounds)
                transaction.put_applied(run, 0)
                transaction.finish()
        except lmdb.MapFullError as error:
            raise Misuse(
                f"store {self._path} has reached its limit of {map_bytes} bytes, and more than that is durable; raise "
                "the limit, then start this node again"
            ) from error
        except lmdb.Error as error:
            raise refusal_of("store", self._path, error) or Corruption(
                f"store {self._path} is damaged beyond writing ({error}); move the directory away and start this node "
                "on a blank one, so that it rejoins as a member that lost its disk"
            ) from error
        return run

    def bounds(self) -> tuple[int, int]:
        """First and last number with an assignment."""
        with self._environment.begin(db=self._tables[records.META]) as txn:
            record = txn.get(records.BOUNDS_KEY)
        bounds = EMPTY_BOUNDS if record is None else records.unpack_bounds(record)
        if bounds is not DAMAGED:
            return bounds
        first, last = self._edge_numbers(records.ASSIGNMENTS)
        return (first, last) if first <= last else EMPTY_BOUNDS

    def newest_checkpoint(self) -> int:
        """Its number; 0 where there is none."""
        first, last = self._edge_numbers(records.CHECKPOINTS)
        return last if first <= last else 0

    def retained(self, bounds: tuple[int, int]) -> Retained:
        """How many entries outside the log there are, and their bytes."""
        through = last_outside(bounds)
        try:
            with self._environment.begin() as txn:
                return Retained(through, sizes_between(txn, self._tables, 0, through))
        except lmdb.Error:
            return Retained(through, [])  # only a figure; who reads the damaged page is told

    def _applied(self, txn: "lmdb.Transaction[bytes]") -> tuple[int, int]:
        record = txn.get(records.APPLIED_KEY, db=self._tables[records.META])
        applied = (0, 0) if record is None else records.unpack_applied(record)
        if applied is DAMAGED:
            raise Corruption(
                f"store {self._path} cannot tell which of its last writes it has, the record is damaged; move the "
                "directory away and start this node on a blank one, so that it rejoins as a member that lost its disk"
            )
        return applied

    def _edge_numbers(self, table: bytes) -> tuple[int, int]:
        """Lowest and highest key of a table; (1, 0) when it has none."""
        try:
            with self._environment.begin(db=self._tables[table]) as txn, txn.cursor() as cursor:
                if not cursor.first():
                    return EMPTY_BOUNDS
                first = records.number_of(cursor.key())
                cursor.last()
                return first, records.number_of(cursor.key())
        except lmdb.Error as error:
            raise self._unreadable(table, error) from error

    def _unreadable(self, table: bytes, error: lmdb.Error) -> Corruption | Unavailable:
        return refusal_of("store", self._path, error) or Corruption(
            f"store {self._path}, table {table.decode()}, is damaged beyond reading ({error}); move the directory "
            "away and start this node on a blank one, so that it rejoins as a member that lost its disk"
        )
