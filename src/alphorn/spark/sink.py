"""The sink: tasks stage their rows, the driver publishes them, once.

A task stages under the writer's name, the batch's number, its partition and an attempt that nobody else has. The driver
publishes the attempts that Spark took, in one command for each channel. The cluster remembers each writer's newest
batch, so one that comes again, from a retried task or a restarted driver, changes nothing (decision 25).
"""

import dataclasses
import secrets
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from alphorn.client.blocking.connection import Connection, connect
from alphorn.client.staging import Staged, Stager, Staging, ask_channels, drop_staged, publish_staged
from alphorn.model.errors import Misuse
from alphorn.spark.options import SinkOptions
from alphorn.spark.packing import IGNORED, TAKEN, pack

_ATTEMPT_BITS = 62
ABORT_S = 5.0  # a cluster that is away lets go by itself; the job has failed, and its error is waited for


@dataclasses.dataclass
class StagedMessage(WriterCommitMessage):
    """What one task has staged; the driver gets it."""

    writer: str
    batch: int
    staged: Staged


def check_columns(schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
    """Raises `Misuse` for rows that cannot be sent, before any is."""
    if overwrite:
        raise Misuse("a destination is only added to, never overwritten; write with mode append")
    names = set(schema.names)
    if "body" not in names:
        raise Misuse("the rows have no column body; name what to send so, as text or binary")
    if "destination" not in names and not options.destination:
        raise Misuse("nothing says where to send; give the option destination, or a column destination")
    unknown = sorted(names - set(TAKEN) - IGNORED)
    if unknown:
        raise Misuse(f"the sink has no use for the column {unknown[0]!r}; it takes {', '.join(TAKEN)}")
    for name, kinds in TAKEN.items():
        if name in names and schema[name].dataType.simpleString() not in kinds:
            found = schema[name].dataType.simpleString()
            raise Misuse(f"the column {name} is {found}; the sink takes it as {' or '.join(kinds)}")


class BatchSink(DataSourceArrowWriter):
    """Writes a DataFrame: all of it becomes visible when the job is done, or nothing.

    A job that names itself and its batch may be run again: what it wrote before is not written twice.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._writer = f"job-{options.writer}" if options.writer else f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """Stages one partition; on an executor."""
        return _stage(self._options, self._writer, self._options.batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publishes."""
        _publish(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Lets go of what was staged, by tasks that failed too: nobody else comes back for it."""
        timeout_s = min(self._options.timeout_s, ABORT_S)
        with _connect(msgspec.structs.replace(self._options, timeout_s=timeout_s)) as connection:
            known = ask_channels(connection, timeout_s=timeout_s)
            served = [number for number, channel in enumerate(known) if channel.servers]
            drop_staged(connection, self._writer, self._options.batch, served, timeout_s=timeout_s)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes a stream, each batch once, under the id that the query keeps in its checkpoint."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """Stages one partition of one batch; on an executor."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if query is None or batch is None:
            raise Misuse("the stream sink was called outside of a streaming query; start it with writeStream")
        message = _stage(self._options, query, int(batch), iterator)
        if message.staged.newest > message.batch:
            raise Misuse(
                f"this query has written batch {message.staged.newest} before, and now comes with batch {batch} again: "
                "its checkpoint is older than that, and what it reads now would be left out; begin with a new "
                "checkpoint, and choose with the option start what is written again"
            )
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        """Publishes the batch; a second time changes nothing."""
        _publish(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Lets go of what was staged; what failed tasks left, of a writer that is unknown here, makes way for newer."""
        _drop(self._options, messages)


def _connect(options: SinkOptions) -> Connection:
    return connect(options.url, connect_timeout=options.timeout_s, reconnect_timeout=options.timeout_s)


def _stage(options: SinkOptions, writer: str, batch: int, rows: Iterator[pyarrow.RecordBatch]) -> StagedMessage:
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    staging = Staging(writer=writer, batch=batch, partition=partition, attempt=secrets.randbits(_ATTEMPT_BITS))
    with _connect(options) as connection:
        stager = Stager(connection, staging, timeout_s=options.timeout_s)
        for found in rows:
            for destination, blob, count, flags in pack(found, options.destination):
                stager.add(destination, blob, count, flags)
        return StagedMessage(writer, batch, stager.finish())


def _publish(options: SinkOptions, messages: list[WriterCommitMessage | None]) -> None:
    staged = _staged(messages)
    if any(one.staged.channels for one in staged):
        with _connect(options) as connection:
            found = [one.staged for one in staged]
            publish_staged(connection, staged[0].writer, staged[0].batch, found, timeout_s=options.timeout_s)


def _drop(options: SinkOptions, messages: list[WriterCommitMessage | None]) -> None:
    staged = _staged(messages)
    channels = {channel for one in staged for channel in one.staged.channels}
    if channels:
        with _connect(options) as connection:
            drop_staged(connection, staged[0].writer, staged[0].batch, channels, timeout_s=options.timeout_s)


def _staged(messages: list[Any]) -> list[StagedMessage]:
    """Tasks that failed have left nothing."""
    return [message for message in messages if isinstance(message, StagedMessage)]
