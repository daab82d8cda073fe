"""The data source "alphorn": what Spark asks for when a program says `.format("alphorn")`.

Spark makes these objects in several processes and sends them around, so they hold options only; connections are made
where they are used. All offsets are committed numbers (offsets.py), so a range once planned always gives the same rows.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from alphorn.client.log_reader import entry
from alphorn.model.errors import Misuse
from alphorn.spark.archived import ArchivedSlice, archived_slices, read_archived
from alphorn.spark.cluster import ClusterView, matcher
from alphorn.spark.jobs.manifest import Outlet, open_manifest
from alphorn.spark.offsets import Offset, advanced, canonical, channels_of, turns_after
from alphorn.spark.options import EARLIEST, LATEST, SourceOptions, sink_options, source_options
from alphorn.spark.planning import end_of, reach, slices, start_of
from alphorn.spark.reading import Slice, read_slice
from alphorn.spark.schema import schema_of
from alphorn.spark.sink import BatchSink, StreamSink, check_columns


class AlphornDataSource(DataSource):
    """Reads and writes destinations of an alphorn cluster. docs/spark.md lists the options."""

    @classmethod
    def name(cls) -> str:
        """The word for `.format(…)`."""
        return "alphorn"

    def schema(self) -> StructType:
        """The columns that were chosen, in their order."""
        return schema_of(source_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch of what is there now."""
        options = self._reading(schema)
        return FilteringReader(options) if options.pushes_filters else AlphornReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 Spark's name
        """All that comes."""
        options = self._reading(schema)
        if options.end is not None:
            raise Misuse(
                "the option end is for batches; a stream ends when it is stopped, or with trigger availableNow"
            )
        if options.archive or options.tier == "archive":
            raise Misuse("the options tier and archive are for batches; a stream reads the log")
        return AlphornStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Publishes a batch, all of it or nothing."""
        options = sink_options(self.options)
        check_columns(schema, options, overwrite=overwrite)
        return BatchSink(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Publishes a stream, each of its batches once."""
        options = sink_options(self.options)
        if options.writer:
            raise Misuse("the options writer and batch are for batches; a stream is known by its checkpoint")
        check_columns(schema, options, overwrite=overwrite)
        return StreamSink(options)

    def _reading(self, schema: StructType) -> SourceOptions:
        options = source_options(self.options)
        if schema != schema_of(options.columns):
            raise Misuse("the columns of alphorn are fixed; leave .schema(…) out, and choose with the option columns")
        return options


class AlphornReader(DataSourceReader):
    """One batch read: what lies between `start` (earliest) and `end` (latest)."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._first = 0  # filters that were pushed down: arrivals from here
        self._end: int | None = None  # to before here,
        self._names: frozenset[str] | None = None  # of these destinations

    def partitions(self) -> list[InputPartition]:
        """One slice for each task."""
        options = self._options
        if not options.reads_archive:
            return self._live({})
        manifest = open_manifest(Path(options.archive))
        is_meant = matcher(options.destinations)
        archived = archived_slices(
            manifest,
            options,
            lambda name: is_meant(name) and (self._names is None or name in self._names),
            first=self._first,
            end=self._end,
        )
        return [*archived, *(self._live(manifest.marks) if options.tier == "auto" else ())]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The rows of one slice; on an executor."""
        if isinstance(partition, ArchivedSlice):
            return read_archived(self._options, partition)
        return read_slice(self._options, partition)

    def _live(self, marks: dict[Outlet, int]) -> list[InputPartition]:
        """Slices of the log, behind what is archived."""
        options = self._options
        view = ClusterView(options)
        try:
            bound = options.start or EARLIEST
            start = view.resolve_behind(bound, marks) if marks else start_of(view, bound)
            end = end_of(view, options.end or LATEST)
            found = slices(view, options, start, self._clipped(advanced(start, end), end))
        finally:
            view.close()
        return [part for slice_ in found for part in self._filtered(slice_)]

    @staticmethod
    def _clipped(reached: Offset, end: Offset) -> Offset:
        """An end before the start is no way back: there is nothing to read."""
        return {channel: number for channel, number in channels_of(reached).items() if channel in end}

    def _filtered(self, slice_: Slice) -> list[InputPartition]:
        first, end = max(slice_.first, entry(self._first)), slice_.end
        if self._end is not None:
            end = min(end, entry(self._end))
        names = {
            number: name for number, name in slice_.destinations.items() if self._names is None or name in self._names
        }
        is_any = bool(names) and first < end
        return [dataclasses.replace(slice_, destinations=names, first=first, end=end)] if is_any else []


class FilteringReader(AlphornReader):
    """The same, for sessions that push filters down: on `sequence` and `destination` they cost nothing to read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 Spark's name
        """Takes what can be done exactly; gives the rest back."""
        for one in filters:
            if not self._take(one):
                yield one

    def _take(self, one: Any) -> bool:
        match one:
            case IsNotNull(("destination" | "sequence",)):
                pass  # they never are
            case EqualTo(("destination",), name):
                self._keep_names({name})
            case In(("destination",), names):
                self._keep_names(set(names))
            case GreaterThan(("sequence",), int(number)):
                self._narrow(number + 1, None)
            case GreaterThanOrEqual(("sequence",), int(number)):
                self._narrow(number, None)
            case LessThan(("sequence",), int(number)):
                self._narrow(0, number)
            case LessThanOrEqual(("sequence",), int(number)):
                self._narrow(0, number + 1)
            case EqualTo(("sequence",), int(number)):
                self._narrow(number, number + 1)
            case _:
                return False
        return True

    def _keep_names(self, names: set[Any]) -> None:
        self._names = frozenset(names) if self._names is None else self._names & names

    def _narrow(self, first: int, end: int | None) -> None:
        self._first = max(self._first, first)
        if end is not None:
            self._end = end if self._end is None else min(self._end, end)


class AlphornStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. The driver's instance lives as long as the query; executors get others, made from the options."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._view: ClusterView | None = None
        self._target: Offset | None = None  # of a run that reads what is there, and ends
        self._noted: Offset = {}
        self._turns: list[str] = []  # channels that were read, the latest at the end

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 Spark's names, here and below
        """Where a new query begins."""
        return start_of(self._open(), self._options.start or LATEST)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """That there is a limit; `latestOffset` keeps both of ours."""
        if self._options.max_messages:
            return ReadMaxRows(self._options.max_messages)
        return ReadMaxBytes(self._options.max_bytes) if self._options.max_bytes else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """How far the next batch goes."""
        view, begin = self._open(), canonical(start)
        self._note(view, begin)
        latest = view.resolve(LATEST) if self._target is None else self._target
        is_limited = not isinstance(limit, ReadAllAvailable)
        end = reach(view, self._options, begin, latest, is_limited=is_limited, turns=self._turns)
        self._turns = turns_after(self._turns, begin, end)
        return end

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """This run ends with what is there now."""
        self._target = self._open().resolve(LATEST)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """The newest entry, for the query's progress."""
        return self._open().resolve(LATEST)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One slice for each task; the same for the same offsets."""
        return list(slices(self._open(), self._options, canonical(start), canonical(end)))

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The rows of one slice; on an executor."""
        return read_slice(self._options, partition)

    def commit(self, end: dict[str, int]) -> None:
        """All up to here is done; only the named reader's progress depends on it."""
        self._note(self._open(), canonical(end))

    def stop(self) -> None:
        """Ends the connections."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def _open(self) -> ClusterView:
        if self._view is None:
            self._view = ClusterView(self._options)
        return self._view

    def _note(self, view: ClusterView, offset: Offset) -> None:
        if self._options.subscription and offset != self._noted:
            view.note(view.channels(), self._options.subscription, offset)
            self._noted = offset
