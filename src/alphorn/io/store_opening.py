"""What a store finds when it is opened: writes ahead of LMDB, the bounds of its log, its newest checkpoint."""

import os
from pathlib import Path
from typing import Final

import lmdb

from alphorn.bus.storage import DAMAGED
from alphorn.io import records
from alphorn.io.retention import Emptied, last_outside
from alphorn.io.store_files import Tables
from alphorn.io.store_writes import WriteTransaction, count_retained
from alphorn.io.write_ahead import read_ahead
from alphorn.model.errors import Corruption, Misuse

EMPTY_BOUNDS: Final = (1, 0)


class Opening:
    """Reads one store before its owner does."""

    __slots__ = ("_environment", "_path", "_tables")

    def __init__(self, path: Path, environment: lmdb.Environment, tables: Tables) -> None:
        self._path = path
        self._environment = environment
        self._tables = tables

    def recover(self, map_bytes: int) -> int:
        """Brings into LMDB what an earlier run wrote ahead; begins a run, so that none of it counts again."""
        run = int.from_bytes(os.urandom(8), "big")
        try:
            with self._environment.begin(write=True) as txn:
                transaction = WriteTransaction(txn, self._tables, Emptied())
                for found in read_ahead(self._path, *self._applied(txn)):
                    for write in found.writes:
                        transaction.apply(write, None)
                    transaction.put_bounds(*found.bounds)
                transaction.put_applied(run, 0)
                transaction.finish()
        except lmdb.MapFullError as error:
            raise Misuse(
                f"store {self._path} has reached its limit of {map_bytes} bytes, and more than that is durable; raise "
                "the limit, then start this node again"
            ) from error
        except lmdb.Error as error:
            raise Corruption(
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

    def count_retained(self, bounds: tuple[int, int]) -> tuple[int, int]:
        """How many entries outside the log there are, and their bytes."""
        try:
            with self._environment.begin() as txn:
                return count_retained(txn, self._tables, last_outside(bounds))
        except lmdb.Error:
            return 0, 0  # only a figure; who reads the damaged page is told

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
            raise Corruption(
                f"store {self._path}, table {table.decode()}, is damaged beyond reading ({error}); move the directory "
                "away and start this node on a blank one, so that it rejoins as a member that lost its disk"
            ) from error
