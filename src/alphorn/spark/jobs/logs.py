"""`logs`: the log lines of all nodes in one table ordered by time, and how often each node complains."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

UNREADABLE = "unreadable"
_LINE = StructType([StructField(name, StringType()) for name in ("time", "level", "node", "event", UNREADABLE)])
_BAD = ("warning", "error", "critical")


def lines_of(messages: DataFrame) -> DataFrame:
    """The lines of `topic:_LOG`, each once: time, level, node, event, all other fields as a map.

    A line that is no JSON is kept in `unreadable`, at the time of its message: nothing is dropped silently.
    """
    text = F.col("body").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": UNREADABLE}
    read = messages.dropDuplicates(["id"]).select(
        F.from_json(text, _LINE, options).alias("line"),
        F.from_json(text, "map<string,string>").alias("all"),
        F.col("timestamp").alias("published"),
    )
    named = F.array(*(F.lit(name) for name in ("time", "level", "node", "event")))
    return read.select(
        F.coalesce(F.try_to_timestamp("line.time"), F.col("published")).alias("time"),
        F.coalesce("line.level", F.lit("unknown")).alias("level"),
        F.coalesce("line.node", F.lit("unknown")).alias("node"),
        F.coalesce("line.event", F.lit(UNREADABLE)).alias("event"),
        F.map_filter("all", lambda name, _: ~F.array_contains(named, name)).alias("fields"),
        F.col(f"line.{UNREADABLE}").alias(UNREADABLE),
    )


def in_order(lines: DataFrame) -> DataFrame:
    """The lines as they were written, by the nodes' clocks."""
    return lines.orderBy("time", "node", "event")


def complaints(lines: DataFrame, *, window: str = "1 minute") -> DataFrame:
    """For each node and span of time: how many lines, how many of them warnings and errors, and their share."""
    is_bad = F.col("level").isin(list(_BAD))
    counted = lines.groupBy(F.window("time", window).alias("span"), "node").agg(
        F.count("*").alias("lines"),
        F.count_if(F.col("level") == "warning").alias("warnings"),
        F.count_if(F.col("level").isin("error", "critical")).alias("errors"),
        F.mode(F.when(is_bad, F.col("event"))).alias("most_frequent"),
    )
    share = F.round((F.col("warnings") + F.col("errors")) / F.col("lines"), 4)
    return counted.select(
        F.col("span.start").alias("from"), "node", "lines", "warnings", "errors", share.alias("share"), "most_frequent"
    ).orderBy("from", "node")
