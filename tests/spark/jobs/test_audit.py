"""The ten rules over testimony: an honest cluster breaks none, and each rule finds what it is there to find."""

import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from alphorn.model.messages import Flag
from alphorn.spark.jobs.audit import RULES, Evidence, confirmed_is_committed, coverage, violations
from alphorn.spark.jobs.audit_events import events_of
from tests.spark.jobs.tables import audit_of, message, table

NO_TIME = datetime.timedelta(0)
Event = dict[str, Any]

BEGUN: Event = {"stage": "begun", "first": 1}
PRODUCED: Event = {"stage": "produced", "node": "cm1", "producer": "p", "counter": 1, "count": 3, "digests": [7, 8, 9]}
COMMITTED: Event = {
    "stage": "committed",
    "sequence": 5,
    "first": 1,
    "last": 3,
    "producer": "p",
    "counter": 1,
    "count": 3,
    "digests": [7, 8, 9],
}
OFFERED: Event = {"stage": "offered", "sequence": 5, "first": 1, "last": 3}
CONFIRMED: Event = {"stage": "confirmed", "node": "cm1", "producer": "p", "counter": 1, "count": 3}
DELIVERED: Event = {
    "stage": "delivered",
    "node": "cm1",
    "sequence": 5,
    "first": 1,
    "last": 3,
    "producer": "p",
    "counter": 1,
    "count": 3,
    "consumer": "c",
    "attempt": 1,
    "digests": [7, 8, 9],
}
ACKNOWLEDGED: Event = {"stage": "acknowledged", "sequence": 6, "first": 1, "last": 3, "consumer": "c"}
HONEST = (BEGUN, PRODUCED, COMMITTED, {**COMMITTED, "node": "mm2"}, OFFERED, CONFIRMED, DELIVERED, ACKNOWLEDGED)


def without(*stages: str) -> list[Event]:
    return [event for event in HONEST if event["stage"] not in stages]


def one(event: Event, position: int, **fields: Any) -> Event:
    """A part of an event: one message."""
    shift = position - event["first"]
    made = {**event, "first": position, "last": position, "count": 1}
    if "counter" in event:
        made["counter"] = event["counter"] + shift
    if "digests" in event:
        made["digests"] = [event["digests"][shift]]
    return {**made, **fields}


def of_case(case: str, events: list[Event]) -> list[Event]:
    """Events of a destination and of producers that no other case has, so that all cases are judged in one go."""
    return [
        {
            **event,
            "destination": f"queue:{case}",
            **({"producer": f"{case} {event['producer']}"} if "producer" in event else {}),
        }
        for event in events
    ]


BROKEN: dict[str, tuple[list[Event], list[tuple[str, int | None]]]] = {
    "confirmed and not committed": (
        [*HONEST, {**CONFIRMED, "counter": 4, "count": 2}],
        [("R1", None), ("R1", None)],
    ),
    "replicas disagree": (
        [*HONEST, {**COMMITTED, "node": "mm3", "digests": [7, 8, 1]}],
        [("R2", 3), ("R9", 3)],
    ),
    "a hole between positions": (
        [*HONEST, one({**COMMITTED, "first": 5, "last": 5, "sequence": 9, "producer": "q"}, 5)],
        [("R3", 4)],
    ),
    "nothing became of a message": ([*without("delivered", "acknowledged")], [("R4", 1), ("R4", 2), ("R4", 3)]),
    "consumed by two entries": ([*HONEST, one(ACKNOWLEDGED, 2, sequence=8)], [("R5", 2)]),
    "delivered and never committed": (
        [*HONEST, one({**DELIVERED, "first": 9, "last": 9, "producer": "x"}, 9)],
        [("R6", 9)],
    ),
    "out of order": (
        [*without("delivered"), one(DELIVERED, 2), one(DELIVERED, 1), one(DELIVERED, 3)],
        [("R7", 1)],
    ),
    "a producer's order is broken": (
        [
            *without("produced", "confirmed", "committed", "delivered"),
            one(COMMITTED, 1, counter=2),
            one(COMMITTED, 2, counter=1),
        ],
        [("R8", 2)],
    ),
    "changed on the way": ([*without("delivered"), {**DELIVERED, "digests": [7, 0, 9]}], [("R9", 2)]),
    "delivered twice": ([*HONEST, one(DELIVERED, 3)], [("R10", 3)]),
}


ALLOWED: dict[str, list[Event]] = {
    "an honest cluster": list(HONEST),
    "a message that came back is delivered again and counted": [
        *HONEST,
        one({**OFFERED, "stage": "returned"}, 3, sequence=7),
        one(DELIVERED, 3, attempt=2),
    ],
    "a message that no program saw is delivered again under the same count": [
        *HONEST,
        one({**OFFERED, "stage": "returned"}, 3, sequence=7, is_unseen=True),
        one(DELIVERED, 3),
    ],
    "a message of high priority overtakes": [
        *without("delivered", "committed"),
        {**COMMITTED, "flags": int(Flag.PRIORITY)},
        one(DELIVERED, 2),
        one(DELIVERED, 1),
        one(DELIVERED, 3),
    ],
    "another replica says the same once more after its restart": [*HONEST, COMMITTED, ACKNOWLEDGED],
    "what a subscription had not consumed ends with it": [
        *without("delivered", "acknowledged", "offered"),
        {**OFFERED, "subscription": 4},
        {"stage": "dropped", "subscription": 4, "detail": "unsubscribed"},
    ],
    "expired messages are not delivered": [*without("delivered", "acknowledged"), {**OFFERED, "stage": "dead"}],
    "an audit that was switched on again begins anew": [
        *HONEST,
        {"stage": "ended"},
        {"stage": "begun", "first": 9},
        one({**COMMITTED, "first": 9, "last": 9, "sequence": 20, "counter": 9, "digests": [5]}, 9),
        one({**OFFERED, "stage": "dead"}, 9),
    ],
    "a message that was moved here has no publish of its own": [
        *HONEST,
        one({**OFFERED, "first": 4, "last": 4}, 4),
        one({**ACKNOWLEDGED, "first": 4, "last": 4}, 4),
    ],
}


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> dict[str, list[tuple[str, int | None]]]:
    """The violations of every case."""
    told = [event for case, (events, _) in BROKEN.items() for event in of_case(case, events)]
    told += [event for case, events in ALLOWED.items() for event in of_case(case, events)]
    found: dict[str, list[tuple[str, int | None]]] = {}
    for row in violations(audit_of(spark, *told), grace=NO_TIME, deadline=NO_TIME).collect():
        found.setdefault(row["destination"].removeprefix("queue:"), []).append((row["rule"], row["position"]))
    return found


@pytest.mark.parametrize("case", BROKEN)
def test_each_rule_finds_what_it_is_there_to_find(judged: dict[str, list[tuple[str, int | None]]], case: str) -> None:
    assert sorted(judged.get(case, [])) == BROKEN[case][1]


@pytest.mark.parametrize("case", ALLOWED)
def test_what_is_allowed_breaks_no_rule(judged: dict[str, list[tuple[str, int | None]]], case: str) -> None:
    assert judged.get(case, []) == []


def test_every_rule_has_a_case_that_breaks_it() -> None:
    broken = {rule for _, expected in BROKEN.values() for rule, _ in expected}
    assert broken == {f"R{number}" for number in range(1, len(RULES) + 1)}


def test_what_was_said_only_just_now_is_not_judged_yet(spark: SparkSession) -> None:
    events = events_of(audit_of(spark, {**CONFIRMED, "time_ms": 1_000}, {**CONFIRMED, "counter": 9, "time_ms": 5_000}))
    evidence = Evidence(events, grace=datetime.timedelta(seconds=2), deadline=NO_TIME)
    assert sorted(row["counter"] for row in confirmed_is_committed(evidence).collect()) == [1, 2, 3]


def test_coverage_counts_each_message_once_however_many_replicas_tell_of_it(spark: SparkSession) -> None:
    told = {row["stage"]: (row["messages"], row["nodes"]) for row in coverage(audit_of(spark, *HONEST)).collect()}
    assert told["committed"] == (3, 2)
    assert told["delivered"] == (3, 1)


def test_what_is_no_testimony_is_left_out(spark: SparkSession) -> None:
    junk = table(spark, [message(1, destination="topic:_AUDIT", body="no json"), message(2, body='{"stage": "odd"}')])
    assert coverage(junk).collect() == []
