"""Arrow rows into batches of messages (model/messages.py), by columns: nothing is done in Python for a single row.

A row is packed no longer than its last column that is there, so rows of bodies alone cost what bodies cost.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow
from pyarrow import compute

from alphorn.client.packing import MESSAGE_BYTES_MAX, SECONDS_LIMIT, too_large
from alphorn.model.errors import Misuse
from alphorn.model.messages import PRIORITY_DEFAULT, Flag
from alphorn.spark.arrow import TEXT, VALUE

BATCH_BYTES_TARGET = 128 << 10
BATCH_MESSAGES_TARGET = 4_000

# What rows may have, and as what. The order of a message's fields is that of `model.messages.Packed`.
TAKEN = {
    "body": ("binary", "string"),
    "destination": ("string",),
    "key": ("string",),
    "properties": ("map<string,string>",),
    "priority": ("int", "bigint", "smallint", "tinyint"),
    "expiration": ("timestamp",),
    "delay": ("double", "float", "int", "bigint"),  # seconds from now
    "type": ("string",),
    "correlation_id": ("string",),
    "reply_to": ("string",),
    "content_type": ("string",),
}
# What messages have that were read, and nobody can choose for new ones.
IGNORED = frozenset(
    {"channel", "sequence", "index", "id", "timestamp", "producer", "producer_counter", "log_hash", "stream_bytes"}
)

_encode = msgspec.msgpack.Encoder().encode
_FIELDS = (
    ("properties", Flag.PROPERTIES),
    ("priority", Flag.PRIORITY),
    ("expiration", Flag.EXPIRATION),
    ("delay", Flag.DELAY),
    ("key", Flag.KEY),
    ("type", Flag.OTHER),
    ("correlation_id", Flag.OTHER),
    ("reply_to", Flag.OTHER),
    ("content_type", Flag.OTHER),
)
_DEFAULTS: dict[str, Any] = {"priority": PRIORITY_DEFAULT, "expiration": 0, "delay": 0}

Batch = tuple[str, bytes, int, int]  # destination, blob, messages, flags


def pack(rows: pyarrow.RecordBatch, destination: str) -> Iterator[Batch]:
    """The batches of these rows, those of each destination in their order; `destination` is for rows without one."""
    if "destination" not in rows.schema.names:
        yield from _pack_for(rows, destination)
        return
    targets = rows.column("destination")
    if destination:
        targets = compute.fill_null(targets, destination)
    elif targets.null_count:
        raise Misuse("a row has no destination; fill the column, or give the option destination for such rows")
    for name in compute.unique(targets).to_pylist():
        yield from _pack_for(rows.filter(compute.equal(targets, name)), name)


def _pack_for(rows: pyarrow.RecordBatch, destination: str) -> Iterator[Batch]:
    if not rows.num_rows:
        return
    columns, flags = _columns(rows)
    messages = list(zip(*columns, strict=True))
    size = max(1, min(BATCH_MESSAGES_TARGET, rows.num_rows * BATCH_BYTES_TARGET // max(1, rows.nbytes)))
    start = 0
    while start < len(messages):
        part = messages[start : start + size]
        blob = _encode(part)
        if len(blob) > MESSAGE_BYTES_MAX and len(part) == 1:
            raise too_large(len(blob))
        if len(blob) > 2 * BATCH_BYTES_TARGET and len(part) > 1:
            size = max(1, len(part) * BATCH_BYTES_TARGET // len(blob))
            continue
        yield destination, blob, len(part), flags
        start += len(part)


def _columns(rows: pyarrow.RecordBatch) -> tuple[list[list[Any]], int]:
    """The fields of the messages, up to the last that is there, and what servers must know of them."""
    names = set(rows.schema.names)
    content_types = rows.column("content_type").to_pylist() if "content_type" in names else None
    bodies = rows.column("body").to_pylist()
    if content_types is not None:
        bodies, content_types = _restored(bodies, content_types)
    columns: list[list[Any]] = [bodies]
    flags, last = 0, 0
    for place, (name, flag) in enumerate(_FIELDS, 1):
        default = _DEFAULTS.get(name)
        values = None
        if name in names:
            values = content_types if name == "content_type" else _values(name, rows.column(name))
        if values is not None and any(value != default for value in values):
            columns.append(values)
            flags |= flag
            last = place
        else:
            columns.append([default] * rows.num_rows)
    return columns[: last + 1], int(flags)


def _values(name: str, column: pyarrow.Array) -> list[Any]:
    if name == "expiration":
        return _expirations(column)
    found: list[Any] = column.to_pylist()
    match name:
        case "properties":
            return [dict(value) if value else None for value in found]
        case "priority":
            return [PRIORITY_DEFAULT if value is None else _priority(value) for value in found]
        case "delay":
            now_ms = datetime.now(UTC).timestamp() * 1000
            return [int(now_ms + _delay(value) * 1000) if value and value > 0 else 0 for value in found]
        case _:
            return found


def _expirations(column: pyarrow.Array) -> list[int]:
    """As ms since 1970. What was over then is over still, and must not become 0, which is never.

    Spark's timestamps go further than Python's, so they are taken as the numbers that they are.
    """
    micros = column.cast(pyarrow.timestamp("us", column.type.tz)).cast(pyarrow.int64()).to_pylist()
    return [0 if value is None else max(1, value // 1000) for value in micros]


def _priority(value: int) -> int:
    if not 0 <= value <= 9:
        raise Misuse(f"a row has the priority {value}; priorities go from 0 to 9")
    return value


def _delay(value: float) -> float:
    if value >= SECONDS_LIMIT:
        raise Misuse(f"a row has the delay {value}; it is a number of seconds, less than {SECONDS_LIMIT:.0f}")
    return value


def _restored(bodies: list[Any], content_types: list[str | None]) -> tuple[list[Any], list[str | None]]:
    """Bodies that were read as bytes, and may be text since, become again what they were before (spark/arrow.py)."""
    if not {TEXT, VALUE} & set(content_types):
        return bodies, content_types
    made = [
        _restored_one(body, kind) if kind in (TEXT, VALUE) else body
        for body, kind in zip(bodies, content_types, strict=True)
    ]
    return made, [None if kind in (TEXT, VALUE) else kind for kind in content_types]


def _restored_one(body: bytes | str | None, kind: str | None) -> Any:
    try:
        if kind == VALUE:
            return None if body is None else msgspec.json.decode(body)
        return body.decode() if isinstance(body, bytes) else body
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"a row has the content type {kind}, and its body is none: {error}; choose another") from None
