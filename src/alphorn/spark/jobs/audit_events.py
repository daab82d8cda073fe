"""Testimony as a table: the messages of `topic:_AUDIT`, one row for each event or for each message it covers."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, IntegerType, LongType, StringType, StructField, StructType

EVENT = StructType(
    [
        StructField("stage", StringType()),
        StructField("node", StringType()),
        StructField("destination", StringType()),
        StructField("time_ms", LongType()),
        StructField("epoch", LongType()),
        StructField("sequence", LongType()),
        StructField("command", IntegerType()),
        StructField("index", IntegerType()),
        StructField("subscription", LongType()),
        StructField("first", LongType()),
        StructField("last", LongType()),
        StructField("producer", StringType()),
        StructField("counter", LongType()),
        StructField("count", LongType()),
        StructField("consumer", StringType()),
        StructField("attempt", IntegerType()),
        StructField("is_unseen", BooleanType()),
        StructField("flags", IntegerType()),
        StructField("detail", StringType()),
        StructField("digests", ArrayType(LongType())),
    ]
)
_ZERO = ("sequence", "subscription", "first", "last", "counter", "attempt", "flags")


def events_of(messages: DataFrame) -> DataFrame:
    """One row for each event. `run` and `place` tell who said it and in which order that one spoke.

    What is no event, because somebody else wrote to the topic, is left out.
    """
    read = messages.select(
        F.from_json(F.col("body").cast("string"), EVENT).alias("event"),
        F.col("producer").alias("run"),
        F.col("producer_counter").alias("place"),
    ).where(F.col("event.stage").isNotNull() & F.col("event.destination").isNotNull())
    events = read.select("event.*", "run", "place").withColumn("time", F.timestamp_millis("time_ms"))
    filled: dict[str, bool | int | float | str] = dict.fromkeys(_ZERO, 0)
    return events.fillna({**filled, "is_unseen": False, "detail": "", "producer": "", "consumer": ""})


def by_message(events: DataFrame) -> DataFrame:
    """One row for each message that an event covers, with `position`, `counter` and `digest` of its own."""
    covered = F.when(F.col("first") > 0, F.col("last") - F.col("first") + 1).otherwise(F.col("count"))
    ranged = events.where((F.col("last") > 0) | (F.col("count") > 0))
    spread = ranged.withColumn("offset", F.explode(F.sequence(F.lit(0).cast("long"), covered - 1)))
    return spread.select(
        *(name for name in spread.columns if name not in ("first", "last", "count", "counter", "digests", "offset")),
        _shifted("first").alias("position"),
        _shifted("counter").alias("counter"),
        F.get("digests", F.col("offset").cast("int")).alias("digest"),
    )


def _shifted(name: str) -> Column:
    return F.when(F.col(name) > 0, F.col(name) + F.col("offset"))
