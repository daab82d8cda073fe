"""Reads of a store: all of one turn in one read transaction of LMDB.

No idle reader may keep LMDB from using free pages again, so the turn's end gives the transaction back; views are valid
until then.
"""

from typing import Final

import lmdb

from alphorn.bus.entries import digest_of
from alphorn.bus.storage import DAMAGED, Damaged
from alphorn.io import records
from alphorn.io.store_opening import Parts

READ_BYTES_HELD_MAX: Final = 32 << 20  # read from LMDB's map before its pages are given back
LARGE_BYTES: Final = 32 << 10  # from here on it matters that what follows is brought in before


class TurnReader:
    """Records by table and key, checked where they are batches."""

    __slots__ = ("_parts", "_read_bytes", "_txn")

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._read_bytes = 0  # since the map's pages were given back
        self._txn: lmdb.Transaction[memoryview] | None = None

    @property
    def is_open(self) -> bool:
        """Whether this turn has read something."""
        return self._txn is not None

    def begin(self) -> None:
        """Sees everything committed so far, and nothing later, until the turn ends."""
        self._txn = self._parts.environment.begin(buffers=True)

    def end(self) -> None:
        """Gives the transaction back."""
        if self._txn is None:
            return
        self._txn.abort()
        self._txn = None
        if self._read_bytes >= READ_BYTES_HELD_MAX:
            self._read_bytes = 0
            self._parts.mapped.release()

    def get(self, table: bytes, key: bytes) -> memoryview | Damaged | None:
        """A record as it is stored."""
        assert self._txn is not None
        try:
            return self._txn.get(key, db=self._parts.tables[table])
        except lmdb.Error:
            return DAMAGED  # LMDB met a page on the way that cannot be one of its own

    def get_checked(self, head_table: bytes, table: bytes, key: bytes) -> bytes | memoryview | Damaged | None:
        """A batch or chunk, if it is what its head says."""
        record = self.get(head_table, key)
        if record is None or record is DAMAGED:
            return record
        head = records.unpack_head(head_table, key, record)
        if head is DAMAGED:
            return DAMAGED
        payload = (
            self._parts.bodies.read(head.page, head.size) if head.page is not None else self._mapped_value(table, key)
        )
        if payload is None or payload is DAMAGED:
            return DAMAGED
        return payload if len(payload) == head.size and digest_of(payload) == head.digest else DAMAGED

    def _mapped_value(self, table: bytes, key: bytes) -> memoryview | Damaged | None:
        payload = self.get(table, key)
        if payload is not None and payload is not DAMAGED:
            self._read_bytes += len(payload)
            if len(payload) >= LARGE_BYTES:
                self._parts.mapped.read_on(payload)
        return payload
