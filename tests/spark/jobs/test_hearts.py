"""The hearts of the smaller jobs, on made-up tables."""

import json

from pyspark.sql import SparkSession

from alphorn.spark.jobs.dead_letters import ADVICE, ADVICE_OTHERS, DEAD, triage
from alphorn.spark.jobs.logs import complaints, in_order, lines_of
from alphorn.spark.jobs.replay import SENT, to_replay
from alphorn.spark.jobs.traffic import delays, rates, totals
from tests.spark.jobs.tables import at, audit_of, message, table


def line(
    place: int, seconds: float, node: str, level: str = "info", event: str = "said", **fields: object
) -> dict[str, object]:
    told = {
        "time": at(seconds).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "level": level,
        "node": node,
        "event": event,
        **fields,
    }
    return message(place, destination="topic:_LOG", body=json.dumps(told))


def test_lines_of_all_nodes_stand_in_order_of_time_each_once_and_none_is_lost(spark: SparkSession) -> None:
    rows = [
        line(1, 7.25, "mm2", logger="x", lag=3),
        line(2, 3.0, "mm1"),
        line(2, 3.0, "mm1"),
        message(5, destination="topic:_LOG", body="no json"),
    ]
    found = in_order(lines_of(table(spark, rows))).collect()
    assert [(row["time"].timestamp(), row["node"], row["event"]) for row in found] == [
        (at(3).timestamp(), "mm1", "said"),
        (at(5).timestamp(), "unknown", "unreadable"),
        (at(7.25).timestamp(), "mm2", "said"),
    ]
    assert found[2]["fields"] == {"logger": "x", "lag": "3"}
    assert found[1]["unreadable"] == "no json"


def test_complaints_are_counted_for_each_node_and_minute(spark: SparkSession) -> None:
    rows = [
        line(1, 1, "mm1"),
        line(2, 2, "mm1", "warning", "slow"),
        line(3, 3, "mm1", "error", "lost"),
        line(4, 4, "mm1", "error", "lost"),
        line(5, 61, "mm1"),
        line(6, 2, "cm1"),
    ]
    found = complaints(lines_of(table(spark, rows))).collect()
    assert [
        (row["node"], row["lines"], row["warnings"], row["errors"], row["share"], row["most_frequent"]) for row in found
    ] == [
        ("cm1", 1, 0, 0, 0.0, None),
        ("mm1", 4, 1, 2, 0.75, "lost"),
        ("mm1", 1, 0, 0, 0.0, None),
    ]


def test_dead_messages_of_one_kind_are_one_row_with_samples_and_advice(spark: SparkSession) -> None:
    def dead(number: int, reason: str, body: str, destination: str = "queue:orders") -> tuple[object, ...]:
        return "queue:_DMQ", f"ID:{number}", destination, reason, number, at(number), number, None, body

    rows = [
        dead(number, "delivery limit", f'{{"id": {number}, "ref": "deadbeef{number:04}"}}') for number in range(1, 6)
    ]
    rows += [
        dead(6, "delivery limit", "another kind"),
        dead(7, "expired", '{"id": 7}'),
        dead(8, "rejected", "x", "topic:t"),
    ]
    found = triage(spark.createDataFrame(rows, DEAD)).collect()
    assert [(row["destination"], row["reason"], row["messages"]) for row in found] == [
        ("queue:orders", "delivery limit", 5),
        ("queue:orders", "delivery limit", 1),
        ("queue:orders", "expired", 1),
        ("topic:t", "rejected", 1),
    ]
    assert len(found[0]["samples"]) == 3
    assert found[0]["deliveries"] == 5
    assert (found[0]["first"].timestamp(), found[0]["last"].timestamp()) == (at(1).timestamp(), at(5).timestamp())
    assert [row["advice"] for row in found] == [ADVICE_OTHERS, ADVICE_OTHERS, ADVICE["expired"], ADVICE["rejected"]]


def test_rates_and_sizes_are_told_for_each_destination_and_minute(spark: SparkSession) -> None:
    rows = [message(second, body="x" * (second + 1)) for second in range(60)]
    rows += [message(61, body=None), message(5, destination="queue:other", body="1234")]
    found = {(row["destination"], row["from"].timestamp()): row for row in rates(table(spark, rows)).collect()}
    busy = found["topic:orders", at(0).timestamp()]
    assert (busy["messages"], busy["rate"], busy["bytes"], busy["size_p50"], busy["size_p99"]) == (
        60,
        1.0,
        1830,
        30,
        60,
    )
    assert found["topic:orders", at(60).timestamp()]["bytes"] == 0
    assert found["queue:other", at(0).timestamp()]["size_p95"] == 4
    summed = totals(table(spark, rows)).collect()
    assert [(row["destination"], row["messages"], row["bytes"]) for row in summed] == [
        ("topic:orders", 61, 1830),
        ("queue:other", 1, 4),
    ]


def test_delays_are_from_the_door_to_the_first_delivery(spark: SparkSession) -> None:
    produced = {"stage": "produced", "producer": "p", "counter": 1, "count": 2, "time_ms": 100}
    first = {"stage": "delivered", "producer": "p", "counter": 1, "count": 1, "attempt": 1, "first": 1, "last": 1}
    second = {**first, "counter": 2, "first": 2, "last": 2}
    again = {**second, "attempt": 2, "time_ms": 900}
    told = audit_of(spark, produced, {**first, "time_ms": 104}, {**second, "time_ms": 110}, again)
    [row] = delays(told).collect()
    assert (row["destination"], row["messages"], row["ms_p50"], row["ms_p99"]) == ("queue:q", 2, 4, 10)


def test_what_is_replayed_goes_out_in_order_and_names_the_message_it_was(spark: SparkSession) -> None:
    rows = [message(sequence, body=str(sequence), properties={"a": "b"}) for sequence in (3, 1, 2, 9)]
    rows += [message(4, body="4", properties={"replayed": "ID:first"}), message(5, body="5", properties=None)]
    found = to_replay(table(spark, rows), to="queue:again", start=at(2), end=at(9))
    assert tuple(found.columns) == SENT
    sent = found.collect()
    assert [bytes(row["body"]) for row in sent] == [b"2", b"3", b"4", b"5"]
    assert {row["destination"] for row in sent} == {"queue:again"}
    assert [row["properties"]["replayed"] for row in sent] == ["ID:p:2", "ID:p:3", "ID:first", "ID:p:5"]
    assert sent[0]["properties"]["a"] == "b"


def test_what_is_replayed_without_a_target_goes_where_it_was(spark: SparkSession) -> None:
    rows = [message(1), message(2, destination="queue:other")]
    assert {row["destination"] for row in to_replay(table(spark, rows)).collect()} == {"topic:orders", "queue:other"}
