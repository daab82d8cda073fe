"""What a Client Manager testifies of audited destinations."""

import json
from typing import Any

import msgspec

from alphorn.model import link
from alphorn.model.audit import AUDIT_TOPIC
from alphorn.model.commands import CreateDestination, SetPolicy
from alphorn.model.destinations import Policy
from tests.client_manager.managing import Managing, attached, batch, published

AUDIT = 77  # the number of the topic
AUDITED = Policy(audit=True)


def events_of(managing: Managing) -> list[dict[str, Any]]:
    return [
        json.loads(message[0])
        for command in published(managing)
        if command.destination == AUDIT
        for message in msgspec.msgpack.decode(command.blob)
    ]


def grant_topic(managing: Managing) -> None:
    """The log creates the topic that the Client Manager asked for."""
    created = [command for command in managing.entries[-1].commands if isinstance(command, CreateDestination)]
    assert [command.destination for command in created] == [AUDIT_TOPIC]
    managing.answer(number=AUDIT, policy=Policy())


def test_what_a_client_sends_is_said_when_it_is_taken_and_when_it_is_confirmed() -> None:
    managing = Managing(wall_offset_ms=1_000)
    client = managing.connect()
    client.publish(client.resolve(policy=AUDITED), 1, "a", "b")
    grant_topic(managing)
    produced, confirmed = events_of(managing)
    assert (produced["stage"], confirmed["stage"]) == ("produced", "confirmed")
    for event in (produced, confirmed):
        assert (event["node"], event["destination"], event["counter"], event["count"]) == ("cm1", "queue:q", 1, 2)
        assert event["producer"].startswith(client.id.hex())
    assert len(produced["digests"]) == 2
    assert produced["time_ms"] == 1_000


def test_what_a_consumer_gets_is_said_with_the_same_digests() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve(policy=AUDITED)
    client.consume(place)
    [attach] = attached(managing)
    managing.tell(link.Answered(attach.request))
    sequence = batch(managing, "a", "b", "c")
    managing.tell(link.Deliver(attach.consumer, 5, [link.DeliveredRun(sequence, 0, 1, 2, 41, 2)]))
    grant_topic(managing)
    client.publish(place, 1, "a", "b", "c")
    delivered = next(event for event in events_of(managing) if event["stage"] == "delivered")
    produced = next(event for event in events_of(managing) if event["stage"] == "produced")
    assert (delivered["first"], delivered["last"], delivered["attempt"]) == (41, 42, 2)
    assert delivered["consumer"] == attach.consumer.hex()
    assert delivered["digests"] == produced["digests"][1:]


def test_nothing_is_said_of_what_is_not_audited_and_the_log_decides_that() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    client.publish(place, 1, "a")
    assert len(managing.entries) == 2, "the queue and its message"
    managing.commit_other(SetPolicy(5, AUDITED))
    client.publish(place, 2, "b")
    grant_topic(managing)
    managing.commit_other(SetPolicy(5, Policy()))
    client.publish(place, 3, "c")
    assert [(event["stage"], event["counter"]) for event in events_of(managing)] == [("produced", 2), ("confirmed", 2)]
