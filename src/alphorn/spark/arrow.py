"""Batches of the log as Arrow record batches, with as little Python for each message as there is.

All that the messages of a batch share becomes one value that Arrow repeats. A column that no batch has, by its flags,
is one array of nulls. Only bodies are unpacked always, and headers where they occur.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy
import pyarrow
from pyarrow import compute

from alphorn.model.errors import Corruption
from alphorn.model.log_hash import MIX_1, MIX_2, STEP, base_of
from alphorn.model.log_link import ScannedBatch
from alphorn.model.messages import PRIORITY_DEFAULT, Flag, Packed, Properties

ROWS_MAX = 10_000  # of a record batch, by Spark's own measure
BYTES_MAX = 4 << 20
_TIME_MS_MAX = ((1 << 63) - 1) // 1000
TEXT = "text/plain; charset=utf-8"  # the content type of a body that was a str
VALUE = "application/vnd.alphorn.value+json"  # and of one that was a JSON-like value

_HEADERS = {
    "properties": Flag.PROPERTIES,
    "priority": Flag.PRIORITY,
    "expiration": Flag.EXPIRATION,
    "key": Flag.KEY,
    "type": Flag.OTHER,
    "correlation_id": Flag.OTHER,
    "reply_to": Flag.OTHER,
    "content_type": Flag.OTHER,
    "stream_bytes": Flag.STREAM,
}


class _Body(msgspec.Struct, array_like=True, gc=False):
    """A message of which only the body is wanted."""

    body: Any = None


_decode_bodies = msgspec.msgpack.Decoder(list[_Body]).decode
_decode_messages = msgspec.msgpack.Decoder(list[Packed]).decode
_to_json = msgspec.json.Encoder().encode


def record_batches(
    groups: Iterable[list[ScannedBatch]], schema: pyarrow.Schema, channel: str, names: dict[int, str]
) -> Iterator[pyarrow.RecordBatch]:
    """The messages of these batches, in their order; `names` are those of destinations by number."""
    gathered: list[ScannedBatch] = []
    rows = size = 0
    for group in groups:
        for batch in group:
            gathered.append(batch)
            rows += batch.count
            size += len(batch.blob)
            if rows >= ROWS_MAX or size >= BYTES_MAX:
                yield _Columns(gathered, rows, schema, channel, names).batch()
                gathered, rows, size = [], 0, 0
    if gathered:
        yield _Columns(gathered, rows, schema, channel, names).batch()


class _Columns:
    """Builds the columns of one record batch."""

    def __init__(
        self, batches: list[ScannedBatch], rows: int, schema: pyarrow.Schema, channel: str, names: dict[int, str]
    ) -> None:
        self._batches = batches
        self._rows = rows
        self._schema = schema
        self._channel = channel
        self._names = names
        self._counts = numpy.array([batch.count for batch in batches])
        self._flags = 0
        for batch in batches:
            self._flags |= batch.flags
        self._which = pyarrow.array(numpy.repeat(numpy.arange(len(batches)), self._counts))
        self._messages = self._unpack()
        self._bodies = [message.body for message in self._messages]

    def batch(self) -> pyarrow.RecordBatch:
        """The record batch, exactly of the schema."""
        arrays = [self._column(field.name, field.type) for field in self._schema]
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _unpack(self) -> list[Any]:
        """The messages, with headers only where any is wanted and there."""
        wanted = [name for name in self._schema.names if self._flags & _HEADERS.get(name, 0)]
        if not wanted and "body" not in self._schema.names and "content_type" not in self._schema.names:
            return []
        decode: Any = _decode_messages if wanted else _decode_bodies
        messages: list[Any] = []
        for batch in self._batches:
            try:
                found = decode(batch.blob)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise Corruption(
                    f"messages of log entry {batch.arrival} of channel {self._channel} cannot be read: {error}"
                ) from None
            if batch.index or batch.count != len(found):
                found = found[batch.index : batch.index + batch.count]
            if len(found) != batch.count:
                raise Corruption(
                    f"log entry {batch.arrival} of channel {self._channel} holds fewer messages than it should"
                )
            messages += found
        return messages

    def _column(self, name: str, kind: pyarrow.DataType) -> pyarrow.Array:
        match name:
            case "destination":
                return self._repeated([self._names[batch.destination] for batch in self._batches], kind)
            case "channel":
                return pyarrow.repeat(pyarrow.scalar(self._channel, kind), self._rows)
            case "sequence":
                return self._repeated([batch.arrival for batch in self._batches], kind)
            case "index":
                return self._counted([batch.ordinal for batch in self._batches], kind)
            case "id":
                prefix = self._repeated([f"ID:{batch.producer.hex()}:" for batch in self._batches], pyarrow.string())
                return compute.binary_join_element_wise(prefix, self._counters().cast(pyarrow.string()), "")
            case "timestamp":
                return self._repeated([_micros(batch.timestamp) for batch in self._batches], pyarrow.int64()).cast(kind)
            case "producer":
                return self._repeated([batch.producer.hex() for batch in self._batches], kind)
            case "producer_counter":
                return self._counters()
            case "log_hash":
                return self._log_hashes()
            case "body":
                return _bodies(self._bodies, kind)
            case "content_type":
                return self._content_types(kind)
            case _:
                return self._header(name, kind)

    def _repeated(self, values: list[Any], kind: pyarrow.DataType) -> pyarrow.Array:
        """One value for all messages of a batch."""
        if len(values) == 1:
            return pyarrow.repeat(pyarrow.scalar(values[0], kind), self._rows)
        return pyarrow.array(values, kind).take(self._which)

    def _counted(self, firsts: list[int], kind: pyarrow.DataType) -> pyarrow.Array:
        """Numbers that grow by one within a batch."""
        ends = numpy.cumsum(self._counts)
        base = numpy.array(firsts, dtype=numpy.int64) - (ends - self._counts)
        return pyarrow.array(numpy.arange(self._rows) + numpy.repeat(base, self._counts)).cast(kind)

    def _counters(self) -> pyarrow.Array:
        return self._counted([batch.counter + batch.index for batch in self._batches], pyarrow.int64())

    def _log_hashes(self) -> pyarrow.Array:
        """From the bytes that are here, whatever was said of them on the way."""
        bases = [
            base_of(batch.arrival, batch.producer, batch.counter, batch.flags, batch.timestamp, batch.blob)
            for batch in self._batches
        ]
        places = numpy.repeat(numpy.array(bases, dtype=numpy.uint64), self._counts)
        places += numpy.asarray(self._counted([batch.index for batch in self._batches], pyarrow.int64())).view("u8")
        return pyarrow.array((_mixed(places + numpy.uint64(1)) - _mixed(places)).view(numpy.int64))

    def _content_types(self, kind: pyarrow.DataType) -> pyarrow.Array:
        """The sender's word; where there is none, what kind of value the body was."""
        kinds = set(map(type, self._bodies))
        has_own = bool(self._flags & Flag.OTHER)
        if not has_own and len(kinds) == 1:
            return pyarrow.repeat(pyarrow.scalar(_implied(kinds.pop()), kind), self._rows)
        implied = {found: _implied(found) for found in kinds}
        values = [
            (message.content_type if has_own else None) or implied[type(message.body)] for message in self._messages
        ]
        return pyarrow.array(values, kind)

    def _header(self, name: str, kind: pyarrow.DataType) -> pyarrow.Array:
        if not self._flags & _HEADERS[name]:
            default = pyarrow.scalar(PRIORITY_DEFAULT if name == "priority" else None, kind)
            return pyarrow.repeat(default, self._rows)
        if name == "stream_bytes":
            streams = (message.stream for message in self._messages)
            return pyarrow.array([None if stream is None else stream.size for stream in streams], kind)
        values = [getattr(message, name) for message in self._messages]
        if name == "properties":
            return pyarrow.array([_texts(found) for found in values], kind)
        if name == "expiration":
            return pyarrow.array([_micros(value) if value else None for value in values], pyarrow.int64()).cast(kind)
        return pyarrow.array(values, kind)


def _mixed(numbers: "numpy.typing.NDArray[numpy.uint64]") -> "numpy.typing.NDArray[numpy.uint64]":
    """`model.log_hash.mixed` of each; numbers of 64 bits wrap around by themselves."""
    mix = numbers + numpy.uint64(STEP)
    mix = (mix ^ (mix >> numpy.uint64(30))) * numpy.uint64(MIX_1)
    mix = (mix ^ (mix >> numpy.uint64(27))) * numpy.uint64(MIX_2)
    return mix ^ (mix >> numpy.uint64(31))


def _micros(time_ms: int) -> int:
    """A time of a sender's clock, in Spark's unit; one that goes beyond is cut, and stops nobody from reading on."""
    return 1000 * max(-_TIME_MS_MAX, min(_TIME_MS_MAX, time_ms))


def _implied(kind: type) -> str | None:
    if kind is str:
        return TEXT
    return None if kind is bytes or kind is type(None) else VALUE


def _bodies(bodies: list[Any], kind: pyarrow.DataType) -> pyarrow.Array:
    """Bytes as they are, text as UTF-8, other values as JSON, and None as null."""
    kinds = set(map(type, bodies))
    if kinds <= {bytes, type(None)}:
        return pyarrow.array(bodies, kind)
    if kinds <= {str, type(None)}:
        return pyarrow.array(bodies, pyarrow.string()).cast(kind)
    return pyarrow.array([_body(body) for body in bodies], kind)


def _body(body: Any) -> bytes | None:
    if body is None or type(body) is bytes:
        return body
    return body.encode() if type(body) is str else _to_json(body)


def _texts(properties: Properties | None) -> list[tuple[str, str | None]] | None:
    return None if not properties else [(name, _text(value)) for name, value in properties.items()]


def _text(value: Any) -> str | None:
    """A property as text: numbers and truths as JSON has them, bytes as base64."""
    if value is None or type(value) is str:
        return value
    return _to_json(value).decode().strip('"')
