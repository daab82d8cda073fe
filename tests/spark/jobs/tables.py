"""Tables with the columns of a message, made of the few values that a test is about."""

import datetime
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from alphorn.spark.schema import COLUMNS, SCHEMA

START = datetime.datetime(2026, 1, 31, 12, 0, tzinfo=datetime.UTC)


def at(seconds: float) -> datetime.datetime:
    """A moment so long after the start of all tests."""
    return START + datetime.timedelta(seconds=seconds)


def message(sequence: int, **fields: Any) -> dict[str, Any]:
    """One message; its time is its number in seconds."""
    made: dict[str, Any] = {
        "destination": "topic:orders",
        "channel": "main",
        "sequence": sequence,
        "index": 0,
        "id": f"ID:p:{sequence}",
        "key": None,
        "body": b"body",
        "content_type": "text/plain",
        "properties": {},
        "priority": 4,
        "timestamp": at(sequence),
        "producer": "p",
        "producer_counter": sequence,
    }
    made.update(fields)
    if isinstance(made["body"], str):
        made["body"] = made["body"].encode()
    return made


def table(spark: SparkSession, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """A table of messages, in one partition, so that one task has them all."""
    return spark.createDataFrame([tuple(row.get(name) for name in COLUMNS) for row in rows], SCHEMA).coalesce(1)


def audit_of(spark: SparkSession, *events: Mapping[str, Any]) -> DataFrame:
    """The messages of `topic:_AUDIT` that say this; each event's `node` is also its producer."""
    rows = []
    for place, event in enumerate(events, 1):
        told = {"destination": "queue:q", "node": "mm1", "time_ms": place, **event}
        body = json.dumps(told)
        rows.append(
            message(place, destination="topic:_AUDIT", body=body, producer=told["node"], producer_counter=place)
        )
    return table(spark, rows)
