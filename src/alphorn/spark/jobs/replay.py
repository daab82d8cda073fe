"""`replay`: archived messages go onto a destination again, in their order."""

import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

REPLAYED = "replayed"  # the property that names the message's first id
SENT = ("destination", "body", "content_type", "key", "properties", "priority", "type", "correlation_id", "reply_to")


def to_replay(
    messages: DataFrame,
    *,
    to: str | None = None,
    start: datetime.datetime | None = None,
    end: datetime.datetime | None = None,
) -> DataFrame:
    """What the sink takes: the messages sent from `start` until before `end`, onto `to` or where they were.

    One partition has all messages of one destination in their order, so that they are sent in it. Each says in its
    property `replayed` which message it was; one that is replayed again keeps the first answer.
    """
    chosen = messages
    if start is not None:
        chosen = chosen.where(F.col("timestamp") >= F.lit(start))
    if end is not None:
        chosen = chosen.where(F.col("timestamp") < F.lit(end))
    told: Column = F.map_concat(
        F.create_map(F.lit(REPLAYED), F.coalesce(F.try_element_at("properties", F.lit(REPLAYED)), F.col("id"))),
        F.map_filter(
            F.coalesce("properties", F.create_map().cast("map<string,string>")), lambda name, _: name != REPLAYED
        ),
    )
    routed = chosen.withColumn("properties", told)
    if to is not None:
        routed = routed.withColumn("destination", F.lit(to))
    ordered = routed.repartition("destination").sortWithinPartitions("destination", "channel", "sequence", "index")
    return ordered.select(*SENT)
