"""The columns of a message, as Spark sees them."""

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_COLUMNS: tuple[tuple[str, DataType], ...] = (
    ("destination", StringType()),  # "topic:orders"
    ("channel", StringType()),
    ("sequence", LongType()),  # of the log entry that put the message into its destination
    ("index", IntegerType()),  # its place within that entry; with `sequence` and `channel` it is unique
    ("id", StringType()),
    ("key", StringType()),
    ("body", BinaryType()),
    ("content_type", StringType()),  # the sender's, or what the body was: text/plain, application/json, …
    ("properties", MapType(StringType(), StringType())),
    ("priority", IntegerType()),
    ("timestamp", TimestampType()),  # the sender's clock
    ("expiration", TimestampType()),
    ("type", StringType()),
    ("correlation_id", StringType()),
    ("reply_to", StringType()),
    ("producer", StringType()),
    ("producer_counter", LongType()),
)

SCHEMA = StructType([StructField(name, kind) for name, kind in _COLUMNS])
COLUMNS = tuple(name for name, _ in _COLUMNS)
# Only there where they are asked for, and only of what the log gives.
LOG_HASH = "log_hash"  # model/log_hash.py, signed
STREAM_BYTES = "stream_bytes"  # of a body that came in fragments, which is not here; null for all other messages
EXTRA_COLUMNS = (LOG_HASH, STREAM_BYTES)


def schema_of(columns: tuple[str, ...]) -> StructType:
    """The schema of only these columns, in this order."""
    return StructType([StructField(name, LongType()) if name in EXTRA_COLUMNS else SCHEMA[name] for name in columns])
