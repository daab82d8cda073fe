"""What a replica testifies of audited destinations, and that it says nothing of others."""

import json
from typing import Any

import msgspec

from alphorn.message_manager.machine import Demoted
from alphorn.model.audit import BATCH_BYTES, DIGESTS_MAX, AuditEvent, AuditStage, AuditTrail, digests_of
from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    CreateDestination,
    DeleteDestination,
    Publish,
    Purge,
    Return,
    SetPolicy,
    Subscribe,
    Tick,
    Unsubscribe,
)
from alphorn.model.destinations import Policy, parse_destination
from tests.message_manager.test_core import CONSUMER, QUEUE, Serving

AUDITED = Policy(audit=True, delivery_limit=2)


def events_of(serving: Serving) -> list[dict[str, Any]]:
    """All events on the topic so far."""
    found = []
    for command in serving.ordered:
        if isinstance(command, Publish):
            found += [json.loads(message[0]) for message in msgspec.msgpack.decode(command.blob)]
    return found


def stages_of(serving: Serving) -> list[tuple[str, int, int]]:
    return [(event["stage"], event.get("first", 0), event.get("last", 0)) for event in events_of(serving)]


def audited() -> Serving:
    serving = Serving()
    serving.apply(SetPolicy(QUEUE, AUDITED))
    serving.apply(Tick(1))  # the topic was created; the first event follows it
    return serving


def batch(counter: int, *bodies: str) -> Publish:
    return Publish(
        QUEUE, b"p" * 20, counter, len(bodies), 0, 1000, memoryview(msgspec.msgpack.encode([[b] for b in bodies]))
    )


def test_nothing_is_said_of_a_destination_that_is_not_audited() -> None:
    serving = Serving()
    serving.publish(1)
    serving.apply(Acknowledge(QUEUE, 0, CONSUMER, [1, 1]), Purge(QUEUE))
    assert serving.ordered == []


def test_a_committed_batch_is_said_with_its_positions_its_producer_and_a_digest_of_each_message() -> None:
    serving = audited()
    serving.apply(Tick(2), batch(1, "a", "b", "c"))
    committed = events_of(serving)[1]
    assert committed == {
        "stage": "committed",
        "node": "mm1",
        "destination": "queue:q",
        "epoch": 1,
        "sequence": max(serving.entries) - 1,
        "command": 1,
        "first": 1,
        "last": 3,
        "producer": (b"p" * 20).hex(),
        "counter": 1,
        "count": 3,
        "digests": digests_of(batch(1, "a", "b", "c").blob),
    }
    assert len(set(committed["digests"])) == 3


def test_a_batch_that_is_sent_again_is_said_once_and_what_is_new_in_it_by_its_own_counter() -> None:
    serving = audited()
    serving.apply(batch(1, "a", "b"))
    serving.apply(batch(1, "a", "b"))
    serving.apply(batch(1, "a", "b", "c"))
    committed = [event for event in events_of(serving) if event["stage"] == "committed"]
    assert [(event["first"], event["last"], event["counter"], event.get("index", 0)) for event in committed] == [
        (1, 2, 1, 0),
        (3, 3, 3, 2),
    ]


def test_every_way_out_of_a_queue_is_said_once() -> None:
    serving = audited()
    serving.apply(batch(1, *"abcdef"))
    serving.apply(Acknowledge(QUEUE, 0, CONSUMER, [1, 2]))
    serving.apply(Acknowledge(QUEUE, 0, CONSUMER, [1, 2]))  # again, which changes nothing
    serving.apply(Return(QUEUE, 0, CONSUMER, [3, 3], is_unseen=True))
    serving.apply(Return(QUEUE, 0, CONSUMER, [3, 4], is_dead=True))
    serving.apply(Purge(QUEUE))
    assert stages_of(serving) == [
        ("begun", 1, 0),
        ("committed", 1, 6),
        ("offered", 1, 6),
        ("acknowledged", 1, 2),
        ("returned", 3, 3),
        ("offered", 3, 3),
        ("returned", 3, 4),
        ("dead", 3, 4),
        ("dropped", 5, 6),
    ]
    dead = next(event for event in events_of(serving) if event["stage"] == "dead")
    assert dead["detail"] == "rejected"
    returned = [event for event in events_of(serving) if event["stage"] == "returned"]
    assert [event.get("is_unseen", False) for event in returned] == [True, False]
    assert returned[0]["consumer"] == CONSUMER.hex()


def test_messages_are_offered_to_the_subscriptions_that_get_them() -> None:
    serving = Serving()
    serving.apply(CreateDestination(parse_destination("topic:t"), Policy(audit=True)))
    topic = serving.manager.engine.numbers[parse_destination("topic:t")]
    serving.apply(Subscribe(topic, "all", "client", CONSUMER, "", True, False, b"", -1))
    blob = memoryview(msgspec.msgpack.encode([["a"], ["b"]]))
    serving.apply(Publish(topic, b"p" * 20, 1, 2, 0, 1000, blob))
    serving.apply(Unsubscribe(topic, 1))
    told = [(e["stage"], e.get("subscription", 0), e.get("detail", "")) for e in events_of(serving)]
    assert told == [("begun", 0, ""), ("committed", 0, ""), ("offered", 1, ""), ("dropped", 1, "unsubscribed")]


def test_the_end_of_an_audit_is_said() -> None:
    serving = audited()
    serving.apply(SetPolicy(QUEUE, Policy()))
    serving.publish(1)
    assert [stage for stage, _, _ in stages_of(serving)] == ["begun", "ended"]


def test_a_destination_that_is_deleted_with_its_messages_ends_its_audit() -> None:
    serving = audited()
    serving.apply(batch(1, "a"), DeleteDestination(QUEUE))
    assert [stage for stage, _, _ in stages_of(serving)] == ["begun", "ended"]


def test_a_backup_testifies_too() -> None:
    serving = audited()
    serving.receive(Demoted(2))
    serving.ordered.clear()
    serving.apply(batch(1, "a"))
    assert [stage for stage, _, _ in stages_of(serving)] == ["committed", "offered"]


def test_an_audit_begins_where_a_restored_replica_goes_on() -> None:
    serving = audited()
    restored = type(serving.manager.engine).restore(list(serving.manager.engine.checkpoint()))
    assert restored.audited == {QUEUE}


def test_an_event_with_many_digests_becomes_several_that_follow_each_other() -> None:
    trail = AuditTrail("mm1", b"run")
    count = 2 * DIGESTS_MAX + 5
    trail.add(
        AuditEvent(
            stage=AuditStage.COMMITTED,
            destination="queue:q",
            first=11,
            last=10 + count,
            counter=7,
            count=count,
            digests=list(range(count)),
        )
    )
    events: list[dict[str, Any]] = []
    while trail.is_waiting:
        published: AnyCommand = trail.publish(9, 5)
        assert isinstance(published, Publish)
        assert len(published.blob) < 2 * BATCH_BYTES
        events += [json.loads(message[0]) for message in msgspec.msgpack.decode(published.blob)]
    assert [(event["first"], event["last"], event["counter"], event["count"]) for event in events] == [
        (11, 10 + DIGESTS_MAX, 7, DIGESTS_MAX),
        (11 + DIGESTS_MAX, 10 + 2 * DIGESTS_MAX, 7 + DIGESTS_MAX, DIGESTS_MAX),
        (11 + 2 * DIGESTS_MAX, 10 + count, 7 + 2 * DIGESTS_MAX, 5),
    ]
    assert [digest for event in events for digest in event["digests"]] == list(range(count))
