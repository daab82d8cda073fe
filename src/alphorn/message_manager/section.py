"""One table of the state as bytes: row by row in the order of its keys, as they are when the section is made.

Rows are written when their turn comes, or before they may change, whichever is first: those that are early wait for
their turn as bytes. So every row is written once, and the bytes are the same however long it takes.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Generic

from alphorn.message_manager.checkpoint import frame
from alphorn.message_manager.checkpoint_records import Record
from alphorn.message_manager.guarded import Key, Row

PIECE_BYTES = 4 << 10  # about half a millisecond's work


class Section(Generic[Key, Row]):
    """`begin` gives the records of a row, lazily; it is called once for each. A piece has at least `piece_bytes`."""

    __slots__ = ("_begin", "_early", "_gathered", "_key", "_keys", "_piece_bytes", "_rest", "_unwritten", "records")

    def __init__(self, table: dict[Key, Row], begin: Callable[[Row], Iterator[Record]], piece_bytes: int) -> None:
        self.records = 0  # written so far
        self._begin = begin
        self._piece_bytes = piece_bytes
        self._unwritten = table.copy()
        self._keys = sorted(table)  # type: ignore[type-var]  # numbers, or bytes
        self._early: dict[Key, bytearray] = {}
        self._key: Key | None = None  # the row whose turn it is,
        self._rest: Iterator[Record] = iter(())  # what is still to be written of it,
        self._gathered = bytearray()  # and the piece that it is written to

    def keep(self, key: Key) -> None:
        """This row may change: what is still to be written of it is written now."""
        row = self._unwritten.pop(key, None)
        if row is not None:
            self._early[key] = bytearray()
            self._write(self._begin(row), self._early[key])
        elif key == self._key:
            self._write(self._rest, self._gathered)

    def pieces(self) -> Generator[bytes, None, None]:
        """All rows; a small piece at a time."""
        for key in self._keys:
            early = self._early.pop(key, None)
            if early is not None:
                self._gathered += early
            else:
                self._key, self._rest = key, self._begin(self._unwritten.pop(key))
                for record in self._rest:
                    self._add(record, self._gathered)
                    if len(self._gathered) >= self._piece_bytes:
                        yield self._take()
            if len(self._gathered) >= self._piece_bytes:
                yield self._take()
        self._key = None
        yield self._take()

    def _write(self, records: Iterator[Record], gathered: bytearray) -> None:
        for record in records:
            self._add(record, gathered)

    def _add(self, record: Record, gathered: bytearray) -> None:
        frame(gathered, record)
        self.records += 1

    def _take(self) -> bytes:
        taken = bytes(self._gathered)
        self._gathered.clear()
        return taken
