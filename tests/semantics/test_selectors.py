"""Who wants what: selectors of consumers of queues and of subscriptions to topics."""

import pytest

from tests.semantics.waiting import bodies, drain, is_quiet, take

pytestmark = pytest.mark.processes

# Name → properties; selectors below choose among these. "none" has no properties at all.
MESSAGES = {
    "red": {"colour": "red", "size": 3},
    "blue": {"colour": "blue", "size": 10, "rush": True},
    "sizeless": {"colour": "red"},
    "empty": {"colour": None, "size": 7.5},
    "none": None,
}

# NULL makes a comparison unknown, and NOT of unknown is unknown: neither takes the message.
CASES = {
    "colour = 'red'": ["red", "sizeless"],
    "colour <> 'red'": ["blue"],
    "NOT (colour = 'red')": ["blue"],
    "colour IS NULL": ["empty", "none"],
    "colour IS NOT NULL": ["red", "blue", "sizeless"],
    "size > 5": ["blue", "empty"],
    "NOT (size > 5)": ["red"],
    "size > 5 OR colour = 'red'": ["red", "blue", "sizeless", "empty"],
    "size > 5 AND colour = 'blue'": ["blue"],
    "size BETWEEN 3 AND 8": ["red", "empty"],
    "size NOT BETWEEN 3 AND 8": ["blue"],
    "colour IN ('red', 'green')": ["red", "sizeless"],
    "colour NOT IN ('red', 'green')": ["blue"],
    "colour LIKE 'b_u%'": ["blue"],
    "rush = TRUE": ["blue"],
    "rush": ["blue"],
    "size * 2 + 1 = 7": ["red"],
    "size = 'red'": [],
}


def send_all(session, destination):
    with session.producer(destination) as producer:
        for body, properties in MESSAGES.items():
            producer.send(body, properties=properties)
        producer.send("end", properties={"is_end": True})


@pytest.mark.requirement("API-8")
@pytest.mark.parametrize("selector", CASES)
def test_a_consumer_of_a_queue_gets_what_its_selector_takes(connection, queue, selector):
    with connection.session() as session:
        send_all(session, queue)
        consumer = session.consumer(queue, selector=f"is_end OR {selector}")
        assert bodies(take(consumer, len(CASES[selector]) + 1)) == [*CASES[selector], "end"]


@pytest.mark.requirement("API-8", "MM-3")
@pytest.mark.parametrize("selector", CASES)
def test_a_subscription_gets_what_its_selector_takes(connection, topic, selector):
    with connection.session() as session:
        consumer = session.consumer(topic, selector=f"is_end OR {selector}")
        send_all(session, topic)
        assert bodies(take(consumer, len(CASES[selector]) + 1)) == [*CASES[selector], "end"]


def test_what_nobody_wants_waits_for_somebody_who_does(connection, queue):
    with connection.session() as session:
        send_all(session, queue)
        assert is_quiet(session.consumer(queue, selector="colour = 'green'"))
        assert len(drain(session, queue)) == len(MESSAGES) + 1


def test_consumers_of_one_queue_share_it_by_their_selectors(connection, other, queue):
    reds = connection.session().consumer(queue, selector="colour = 'red'")
    blues = other.session().consumer(queue, selector="colour = 'blue'")
    send_all(connection.session(), queue)
    assert bodies(take(reds, 2)) == ["red", "sizeless"]
    assert bodies(take(blues, 1)) == ["blue"]


def test_selectors_see_the_headers(connection, queue):
    with connection.session() as session:
        producer = session.producer(queue)
        producer.send("plain")
        producer.send("urgent", priority=8)
        producer.send("typed", type="order", correlation_id="c 1")
        producer.flush()
        assert bodies(drain_selected(session, queue, "JMSPriority > 5")) == ["urgent"]
        assert bodies(drain_selected(session, queue, "JMSType = 'order' AND JMSCorrelationID LIKE 'c %'")) == ["typed"]
        assert bodies(drain_selected(session, queue, "JMSType IS NULL AND JMSTimestamp > 0")) == ["plain"]


def drain_selected(session, queue, selector):
    with session.consumer(queue, selector=selector) as consumer:
        found = take(consumer, 1)
        assert is_quiet(consumer)
    return found


def test_a_rejected_message_goes_only_to_those_who_want_it(connection, queue):
    with connection.session(ack="individual") as session:
        send_all(session, queue)
        blues = session.consumer(queue, selector="colour = 'blue'")
        reds = session.consumer(queue, selector="colour = 'red'")
        take(blues, 1)[0].reject()
        assert [(m.body, m.delivery_count) for m in take(blues, 1)] == [("blue", 2)]
        assert bodies(take(reds, 2)) == ["red", "sizeless"]
        assert is_quiet(reds)
