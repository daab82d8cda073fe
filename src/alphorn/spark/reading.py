"""What executors do: read one slice of a channel's log, from a Message Manager straight into Arrow."""

import dataclasses
import functools
import gc
from collections.abc import Iterator

import pyarrow
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from alphorn.client.log_reader import LogReader
from alphorn.model.log_link import Place
from alphorn.spark.arrow import record_batches
from alphorn.spark.options import SourceOptions
from alphorn.spark.schema import schema_of


@dataclasses.dataclass
class Slice(InputPartition):
    """A range of a channel's log. The same slice gives the same rows, whoever reads it and however often."""

    channel: str
    servers: list[tuple[str, str]]
    destinations: dict[int, str]
    first: Place
    end: Place
    missed_before: int = 0  # some of what arrived before this entry was gone when reading began

    def __repr__(self) -> str:
        return f"Slice({self.channel} {self.first} to {self.end})"


def read_slice(options: SourceOptions, slice_: InputPartition) -> Iterator[pyarrow.RecordBatch]:
    """The messages of a slice, in their order. Raises `LostMessages`, `Unavailable` or `Corruption`."""
    if not isinstance(slice_, Slice):  # Spark's own, where there is nothing to read
        return
    reader = LogReader(
        slice_.channel,
        slice_.servers,
        read_from=options.read_from,
        timeout_s=options.timeout_s,
        requires_all=options.fail_on_data_loss,
    )
    schema = to_arrow_schema(schema_of(options.columns), timezone="UTC")
    try:
        numbers = list(slice_.destinations)
        scanned = reader.scan(numbers, slice_.first, slice_.end, missed_before=slice_.missed_before)
        yield from record_batches(scanned, schema, slice_.channel, slice_.destinations)
    finally:
        reader.close()
        _set_modules_aside()


@functools.cache
def _set_modules_aside() -> None:
    """Once in a process, after its first slice, when all that is needed is loaded.

    Spark's workers collect garbage after each task and look at every object for it: mostly modules, which stay. With
    messages of 1 KB that was a quarter of a worker's time.
    """
    gc.freeze()
