"""`dead-letters`: triage of dead messages by where they died, why, and what they look like.

Why a message died is not in the log but in the cluster's state, so the runner browses the dead letter queue with the
client library; the heart works on that table (`DEAD`).
"""

import datetime
from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

import alphorn
from alphorn.client.staging import ask_channels
from alphorn.model.destinations import DEAD_MESSAGES, Destination, DestinationKind, parse_destination

DEAD = StructType(
    [
        StructField("queue", StringType()),  # where it waits now
        StructField("id", StringType()),
        StructField("destination", StringType()),  # where it died
        StructField("reason", StringType()),
        StructField("deliveries", IntegerType()),
        StructField("died", TimestampType()),
        StructField("sequence", LongType()),
        StructField("type", StringType()),
        StructField("body", StringType()),
    ]
)
SAMPLES = 3
SAMPLE_CHARACTERS = 120
BODY_CHARACTERS_MAX = 10_000
_VARYING = r"[0-9a-fA-F]{8,}|[0-9]+"  # ids and numbers

EXPIRED = "expired"
REJECTED = "rejected"
ADVICE = {
    EXPIRED: "let go: its time was over; raise ttl or add consumers if this is too often",
    REJECTED: "look first: a consumer refused it; mend the message or the consumer, then redrive",
}
ADVICE_OTHERS = "redrive once the consumer is mended: it came back as often as is allowed"


def triage(dead: DataFrame) -> DataFrame:
    """One row for each kind of dead message: destination, reason and fingerprint; the most frequent first."""
    told = dead.withColumn("template", template_of(F.col("body"))).withColumn(
        "fingerprint", F.substring(F.sha2(F.concat_ws("\n", "destination", "reason", "type", "template"), 256), 1, 12)
    )
    kinds = told.groupBy("destination", "reason", "fingerprint").agg(
        F.count("*").alias("messages"),
        F.min("died").alias("first"),
        F.max("died").alias("last"),
        F.max("deliveries").alias("deliveries"),
        F.first("type", ignorenulls=True).alias("type"),
        F.slice(F.sort_array(F.collect_set(F.substring("body", 1, SAMPLE_CHARACTERS))), 1, SAMPLES).alias("samples"),
    )
    advice: Column = F.lit(ADVICE_OTHERS)
    for reason, sentence in ADVICE.items():
        advice = F.when(F.col("reason") == reason, F.lit(sentence)).otherwise(advice)
    return kinds.withColumn("advice", advice).orderBy(F.desc("messages"), "destination", "reason", "fingerprint")


def template_of(body: Column) -> Column:
    """What bodies of one kind have in common: numbers and ids are taken out."""
    return F.regexp_replace(F.substring(F.coalesce(body, F.lit("")), 1, BODY_CHARACTERS_MAX), _VARYING, "#")


def browse(url: str, queue: str) -> Iterator[tuple[object, ...]]:
    """The rows of `DEAD`, looked at and left where they are. Raises what `alphorn.connect` raises.

    Every channel has a `_DMQ` of its own, so that name means all of them; and one of your own means all its parts.
    """
    place = parse_destination(queue)
    with alphorn.connect(url) as connection:
        parts = [f"{queue}@{known.name}" for known in ask_channels(connection) if known.servers]
        if place != Destination(DestinationKind.QUEUE, DEAD_MESSAGES):
            there = {found["name"] for found in connection.destinations.list()}
            parts = [queue, *(part for part in parts if part in there)]
        for name in parts:
            for message in connection.session().browser(name):
                yield _row(name, message)


def _row(queue: str, message: alphorn.Message) -> tuple[object, ...]:
    history, body = message.history, message.body
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    return (
        queue,
        message.id,
        history.get("destination", ""),
        history.get("reason", ""),
        history.get("deliveries", 0),
        datetime.datetime.fromtimestamp(history.get("time", 0) / 1000, datetime.UTC),
        message.sequence,
        message.type,
        text[:BODY_CHARACTERS_MAX],
    )
