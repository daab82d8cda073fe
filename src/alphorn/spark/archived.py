"""The archive's part of a batch read: which files tasks read, and their rows as the log would have given them.

The manifest is read once, when a batch is planned. It knows the last log entry that is archived of each destination,
and the log is read from the next one on (`ClusterView.resolve_behind`); so each message is read once, however far the
archive has come and whatever the cluster still keeps.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow
from pyarrow import compute, parquet
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from alphorn.model.errors import Corruption
from alphorn.spark.arrow import BYTES_MAX, ROWS_MAX
from alphorn.spark.jobs.manifest import ArchivedFile, Manifest
from alphorn.spark.options import Bound, SourceOptions
from alphorn.spark.schema import schema_of


@dataclasses.dataclass
class ArchivedPart:
    """What is read of one file: the messages that came with log entries from `first` to before `end`."""

    path: str
    destination: str
    rows: int  # of the whole file
    first: int
    end: int
    is_whole: bool


@dataclasses.dataclass
class ArchivedSlice(InputPartition):
    """Files that one task reads."""

    root: str
    parts: list[ArchivedPart]

    def __repr__(self) -> str:
        return f"ArchivedSlice({self.root} {len(self.parts)} files)"


def archived_slices(
    manifest: Manifest,
    options: SourceOptions,
    is_meant: Callable[[str], bool],
    *,
    first: int = 0,
    end: int | None = None,
) -> list[ArchivedSlice]:
    """What tasks read of an archive, in the order of the log; `first` and `end` are numbers of log entries."""
    ordered = sorted(manifest.files.values(), key=lambda file: (file.channel, file.destination, file.first))
    cut = [(file, _part(file, options, first, end)) for file in ordered if is_meant(file.destination)]
    found = [(file.bytes, part) for file, part in cut if part.first < part.end]
    total = sum(size for size, _ in found)
    target = min(options.max_bytes_per_partition, -(-total // options.min_partitions))
    made: list[ArchivedSlice] = []
    room = 0
    for size, part in found:
        if not made or size > room:
            made.append(ArchivedSlice(str(manifest.root), []))
            room = target
        made[-1].parts.append(part)
        room -= size
    return made


def _part(file: ArchivedFile, options: SourceOptions, first: int, end: int | None) -> ArchivedPart:
    first = max(first, _number(options.start, file.channel, 0), file.first)
    last_end = file.last + 1
    end = min(last_end if end is None else end, _number(options.end, file.channel, last_end), last_end)
    is_whole = (first, end) == (file.first, last_end)
    return ArchivedPart(file.path, file.destination, file.rows, first, end, is_whole)


def _number(bound: Bound | None, channel: str, default: int) -> int:
    return default if bound is None else bound.numbers.get(channel, default)


def read_archived(options: SourceOptions, slice_: ArchivedSlice) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a slice. Raises `Corruption` for a file that is not there, or not what the manifest says."""
    schema = to_arrow_schema(schema_of(options.columns), timezone="UTC")
    for part in slice_.parts:
        path = Path(slice_.root) / part.path
        try:
            yield from _read_part(path, part, schema)
        except (OSError, pyarrow.ArrowException) as error:
            told = str(error).splitlines()[0]
            raise Corruption(f"the archived file {path} cannot be read: {told}; restore it from a copy") from None


def _read_part(path: Path, part: ArchivedPart, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    with parquet.ParquetFile(path) as stored:
        about = stored.metadata
        if about.num_rows != part.rows:
            raise Corruption(
                f"the archived file {path} has {about.num_rows} rows, and not {part.rows} as the manifest says; "
                "restore it from a copy"
            )
        size = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
        rows = max(1, min(ROWS_MAX, BYTES_MAX * about.num_rows // max(1, size)))
        stored_names = {*schema.names, "sequence"} - {"destination"}
        for batch in stored.iter_batches(rows, columns=sorted(stored_names)):
            kept = batch if part.is_whole else batch.filter(_is_between(batch.column("sequence"), part))
            arrays = [_column(kept, field, part.destination) for field in schema]
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _is_between(numbers: pyarrow.Array, part: ArchivedPart) -> pyarrow.Array:
    return compute.and_(compute.greater_equal(numbers, part.first), compute.less(numbers, part.end))


def _column(batch: pyarrow.RecordBatch, field: pyarrow.Field, destination: str) -> pyarrow.Array:
    if field.name == "destination":  # the folder's name says it
        return pyarrow.repeat(pyarrow.scalar(destination, field.type), batch.num_rows)
    return batch.column(field.name).cast(field.type)
