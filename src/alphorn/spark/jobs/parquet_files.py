"""Writes messages into Parquet files on executors, one file for each destination, channel and day of a task.

Runs within `mapInArrow`: takes batches of rows, gives one row for each file written (`WRITTEN`). A task that is tried
again writes other files; those of the lost attempt are named by nobody and are swept later.
"""

import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import LongType, StringType, StructField, StructType

OPEN_MAX = 64  # files open at once; of more destinations the least recently written is closed
COMPRESSION_LEVEL = 3
ROW_GROUP = 64 << 10
HASH = "row_hash"
DATE = "date"
_FOLDERS = ("destination", DATE)  # columns that are in the path
_APART = ("destination", "channel", DATE)
_UNSAFE = frozenset("\"#%'*/:=?\\{}[]^\x7f")

WRITTEN = StructType(
    [StructField(name, StringType()) for name in ("path", "destination", "channel", "date", "hash", "sha256")]
    + [StructField(name, LongType()) for name in ("rows", "first", "last", "bytes")]
)


def escape(value: str) -> str:
    """A column's value as a part of a path, the way Spark reads it."""
    return "".join(f"%{ord(sign):02X}" if sign in _UNSAFE or ord(sign) < 0x20 else sign for sign in value)


def write_files(root: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = _Files(Path(root))
        for batch in batches:
            if batch.num_rows:
                files.add(batch)
        written = files.close()
        if written:
            yield pa.RecordBatch.from_pylist(written, schema=_written_schema())

    return write


def _written_schema() -> pa.Schema:
    kinds = {StringType: pa.string(), LongType: pa.int64()}
    return pa.schema([(field.name, kinds[type(field.dataType)]) for field in WRITTEN.fields])


class _Files:
    """The open files of one task."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[tuple[str, ...], _File] = {}
        self._written: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Puts rows where they belong, in their order."""
        columns = [batch.column(name) for name in _APART]
        if all(len(pc.unique(column)) == 1 for column in columns):
            self._file(tuple(str(column[0]) for column in columns)).write(batch)
            return
        table = pa.Table.from_batches([batch])
        for row in table.group_by(list(_APART)).aggregate([]).to_pylist():
            mask = pc.equal(columns[0], row[_APART[0]])
            for column, name in zip(columns[1:], _APART[1:], strict=True):
                mask = pc.and_(mask, pc.equal(column, row[name]))
            self._file(tuple(row[name] for name in _APART)).write(batch.filter(mask))

    def _file(self, key: tuple[str, ...]) -> "_File":
        found = self._open.pop(key, None)
        if found is None:
            if len(self._open) >= OPEN_MAX:
                self._close(next(iter(self._open)))
            found = _File(self._root, *key)
        self._open[key] = found  # last, as the most recently written
        return found

    def _close(self, key: tuple[str, ...]) -> None:
        self._written.append(self._open.pop(key).close())

    def close(self) -> list[dict[str, Any]]:
        """What was written."""
        for key in list(self._open):
            self._close(key)
        return self._written


class _File:
    """One file that is being written."""

    def __init__(self, root: Path, destination: str, channel: str, date: str) -> None:
        self._told = {"destination": destination, "channel": channel, "date": date}
        folder = f"destination={escape(destination)}/{DATE}={date}"
        self._path = f"{folder}/{uuid.uuid4().hex}.parquet"
        self._whole = root / self._path
        self._whole.parent.mkdir(parents=True, exist_ok=True)
        self._writer: pq.ParquetWriter | None = None
        self._rows = self._hash = self._last = 0
        self._first = 1 << 63

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows."""
        span = pc.min_max(batch.column("sequence")).as_py()
        self._first, self._last = min(self._first, span["min"]), max(self._last, span["max"])
        self._rows += batch.num_rows
        self._hash += int(batch.column(HASH).to_numpy(zero_copy_only=False).view("uint64").sum(dtype="uint64"))
        kept = batch.drop_columns([HASH, *_FOLDERS])
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._whole, kept.schema, compression="zstd", compression_level=COMPRESSION_LEVEL
            )
        self._writer.write_batch(kept, row_group_size=ROW_GROUP)

    def close(self) -> dict[str, Any]:
        """Completes the file, on stable storage."""
        assert self._writer is not None, "a file is opened for its first rows"
        self._writer.close()
        digest = hashlib.sha256()
        with self._whole.open("rb") as stream:
            os.fsync(stream.fileno())
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        return {
            **self._told,
            "path": self._path,
            "rows": self._rows,
            "first": self._first,
            "last": self._last,
            "hash": f"{self._hash % (1 << 64):016x}",
            "bytes": self._whole.stat().st_size,
            "sha256": digest.hexdigest(),
        }
