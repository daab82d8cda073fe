"""`traffic`: how much goes over each destination, how large it is, and how long it takes.

Rates and sizes come from the messages themselves. How long a message takes is known of audited destinations only: from
the moment a Client Manager took it until one gave it to a consumer.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from alphorn.model.audit import AuditStage
from alphorn.spark.jobs.audit_events import by_message, events_of

PERCENTILES = (0.5, 0.95, 0.99)
_ACCURACY = 10_000


def rates(messages: DataFrame, *, window: str = "1 minute") -> DataFrame:
    """For each destination and span of time: messages, bytes, messages in a second, and percentiles of sizes."""
    size = F.octet_length("body").cast("long")
    sized = messages.select("destination", "timestamp", F.coalesce(size, F.lit(0)).alias("size"))
    span = F.window("timestamp", window)
    counted = sized.groupBy(span.alias("span"), "destination").agg(
        F.count("*").alias("messages"), F.sum("size").alias("bytes"), *_percentiles(F.col("size"), "size")
    )
    seconds = F.col("span.end").cast("double") - F.col("span.start").cast("double")
    return counted.select(
        F.col("span.start").alias("from"),
        "destination",
        "messages",
        F.round(F.col("messages") / seconds, 3).alias("rate"),
        "bytes",
        *(f"size_p{_name(part)}" for part in PERCENTILES),
    ).orderBy("from", "destination")


def totals(messages: DataFrame) -> DataFrame:
    """For each destination: messages, bytes, producers, keys, when the first and the last was sent."""
    return (
        messages.groupBy("destination")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.coalesce(F.octet_length("body"), F.lit(0))).alias("bytes"),
            F.countDistinct("producer").alias("producers"),
            F.countDistinct("key").alias("keys"),
            F.min("timestamp").alias("first"),
            F.max("timestamp").alias("last"),
        )
        .orderBy(F.desc("messages"), "destination")
    )


def delays(testimony: DataFrame) -> DataFrame:
    """For each audited destination: milliseconds from a producer's batch at the door to its first delivery."""
    events = by_message(events_of(testimony))
    message = ["destination", "producer", "counter"]
    produced = events.where(F.col("stage") == str(AuditStage.PRODUCED)).groupBy(*message)
    delivered = events.where((F.col("stage") == str(AuditStage.DELIVERED)) & (F.col("attempt") == 1)).groupBy(*message)
    ways = produced.agg(F.min("time_ms").alias("taken")).join(
        delivered.agg(F.min("time_ms").alias("given")), message, "inner"
    )
    took = F.col("given") - F.col("taken")
    return (
        ways.groupBy("destination")
        .agg(F.count("*").alias("messages"), *_percentiles(took, "ms"))
        .orderBy("destination")
    )


def _percentiles(value: Column, name: str) -> list[Column]:
    return [F.percentile_approx(value, part, _ACCURACY).alias(f"{name}_p{_name(part)}") for part in PERCENTILES]


def _name(part: float) -> str:
    return f"{part * 100:.0f}"
