import pytest

from alphorn.model.destinations import Destination, DestinationKind, Policy, parse_destination
from alphorn.model.errors import InvalidDestination

QUEUE = Destination(DestinationKind.QUEUE, "orders")
TOPIC = Destination(DestinationKind.TOPIC, "prices")


@pytest.mark.parametrize("text", ["queue:orders", "topic:prices/eu", "queue:a:b", "queue:Grüße", "queue:_DMQ"])
def test_the_text_form_comes_back(text: str) -> None:
    assert str(parse_destination(text)) == text


@pytest.mark.parametrize(
    "text", ["orders", "", "queue:", "table:orders", "Queue:orders", "queue:" + "x" * 256, "queue:a\nb", "topic:\x00"]
)
def test_what_names_no_destination_is_refused(text: str) -> None:
    with pytest.raises(InvalidDestination):
        parse_destination(text)


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("queu:orders", "write queue:orders"),
        ("Topic:prices", "write topic:prices"),
        ("orders", "write queue:orders or topic:orders"),
        ("eu:orders", "write queue:eu:orders or topic:eu:orders"),
    ],
)
def test_who_mistypes_the_kind_is_told_what_was_meant(text: str, way: str) -> None:
    with pytest.raises(InvalidDestination, match=f"names no kind of destination; {way}$"):
        parse_destination(text)


def test_a_name_of_bytes_that_are_no_text_is_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidDestination, match=r"the destination name 'caf\\udcff' holds a character"):
        parse_destination("queue:caf\udcff")


def test_a_queue_and_a_topic_may_share_a_name() -> None:
    assert parse_destination("queue:x") != parse_destination("topic:x")


@pytest.mark.requirement("WKD-2")
def test_names_that_begin_with_an_underscore_are_reserved() -> None:
    assert parse_destination("topic:_LOG").is_reserved
    assert not parse_destination("topic:LOG_").is_reserved


@pytest.mark.parametrize(
    ("destination", "policy", "fault"),
    [
        (QUEUE, Policy(ttl=-1.0), "ttl"),
        (QUEUE, Policy(ttl=float("nan")), "ttl"),
        (QUEUE, Policy(redelivery_delay=float("inf")), "redelivery_delay"),
        (TOPIC, Policy(retain_s=1e300), "retain_s"),
        (QUEUE, Policy(max_length=-1), "max_length"),
        (QUEUE, Policy(priority=10), "priority"),
        (QUEUE, Policy(retain_s=-1.0), "retain_s"),
        (QUEUE, Policy(retain_bytes=-1), "retain_bytes"),
        (QUEUE, Policy(dead_letter="d" * 256), "dead_letter"),
        (TOPIC, Policy(groups=True), "groups"),
        (TOPIC, Policy(last_value=True), "last_value"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_by_the_name_of_the_fault(
    destination: Destination, policy: Policy, fault: str
) -> None:
    with pytest.raises(InvalidDestination, match=fault):
        policy.check(destination)


def test_every_fault_of_a_policy_is_named() -> None:
    with pytest.raises(InvalidDestination, match=r"ttl.*priority.*groups is for queues"):
        Policy(ttl=-1.0, priority=99, groups=True).check(TOPIC)


def test_policies_that_fit_pass() -> None:
    Policy(delivery_limit=5, groups=True, last_value=True, exclusive=True, ttl=3.5).check(QUEUE)
    for destination in (QUEUE, TOPIC):
        Policy(retain_s=60.0, retain_bytes=1 << 30).check(destination)
