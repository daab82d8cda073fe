"""Priorities, delays and times to live."""

import pytest

from tests.semantics.waiting import WAIT_S, bodies, drain, is_quiet, send, take

pytestmark = pytest.mark.processes


def test_priorities_are_strict_and_keep_the_order_within_each(connection, queue):
    with connection.session() as session:
        producer = session.producer(queue)
        sent = [(priority, number) for number in range(3) for priority in (4, 0, 9, 5, 1, 8, 2, 7, 3, 6)]
        for priority, number in sent:
            producer.send([priority, number], priority=priority)
        producer.flush()
        found = [(m.priority, m.body) for m in take(session.consumer(queue), 30)]
        assert found == [(priority, [priority, number]) for priority in range(9, -1, -1) for number in range(3)]


def test_a_later_message_of_higher_priority_overtakes_what_is_not_given_out(connection, queue):
    with connection.session(ack="individual") as session:
        consumer = session.consumer(queue, prefetch=1)
        send(session, queue, ["first", "second"])
        [first] = take(consumer, 1)
        send(session, queue, ["urgent"], priority=9)
        first.acknowledge()
        [urgent] = take(consumer, 1)
        urgent.acknowledge()
        assert [urgent.body, *bodies(take(consumer, 1))] == ["urgent", "second"]


def test_subscriptions_keep_priorities_too(connect, topic):
    session = connect(client_id=topic).session()
    session.consumer(topic, subscription="s").close()
    for priority in (1, 9, 4):
        send(session, topic, [priority], priority=priority)
    assert bodies(take(session.consumer(topic, subscription="s"), 3)) == [9, 4, 1]


def test_a_producer_has_a_priority_for_all_its_messages(connection, queue):
    with connection.session() as session:
        with session.producer(queue, priority=7, ttl=60.0) as producer:
            producer.send_many(["one", "two"])
        found = take(session.consumer(queue), 2)
        assert [(m.priority, m.expiration is not None) for m in found] == [(7, True), (7, True)]


def test_the_policy_takes_the_place_of_the_senders_priority(connection, queue):
    connection.destinations.create(queue, priority=4)
    with connection.session() as session:
        producer = session.producer(queue)
        for priority in (1, 9, 5):
            producer.send(priority, priority=priority)
        producer.flush()
        assert bodies(take(session.consumer(queue), 3)) == [1, 9, 5]


def test_delayed_messages_come_when_they_are_due_and_not_before(connection, queue):
    with connection.session() as session:
        producer = session.producer(queue)
        producer.send("in an hour", delay=3600.0)
        producer.send("last", delay=1.2)
        producer.send("middle", delay=0.6)
        producer.send("first")
        producer.flush()
        consumer = session.consumer(queue)
        assert bodies(take(consumer, 3)) == ["first", "middle", "last"]
        assert is_quiet(consumer)


def test_a_delayed_message_counts_as_a_first_delivery(connection, topic):
    with connection.session() as session:
        consumer = session.consumer(topic)
        send(session, topic, ["later"], delay=0.1)
        [later] = take(consumer, 1)
        assert (later.body, later.delivery_count) == ("later", 1)


def test_a_message_that_expires_while_it_is_delayed_is_never_delivered(connection, queue):
    own = f"{queue} dead"
    connection.destinations.create(queue, dead_letter=own.removeprefix("queue:"))
    with connection.session() as session:
        consumer = session.consumer(queue)
        send(session, queue, ["gone"], delay=60.0, ttl=0.1)
        assert bodies(take(session.consumer(own), 1)) == ["gone"]
        assert is_quiet(consumer)


def test_a_message_in_time_says_when_it_expires(connection, queue):
    with connection.session() as session:
        receipt = session.producer(queue).send("soon", ttl=30.0)
        assert receipt.result(WAIT_S).startswith("ID:")
        [message] = drain(session, queue)
        assert message.expiration - message.timestamp == pytest.approx(30.0, abs=1.0)


def test_expired_messages_make_room_for_later_ones(connection, queue):
    own = f"{queue} dead"
    policy = {"ttl": 0.05, "max_length": 2, "overflow": "reject", "dead_letter": own.removeprefix("queue:")}
    connection.destinations.create(queue, **policy)
    with connection.session() as session:
        send(session, queue, ["one", "two"])
        take(session.consumer(own), 2)
        session.producer(queue).send("three").result(WAIT_S)
