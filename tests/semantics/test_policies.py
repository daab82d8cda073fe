"""What can be decided for a queue: groups, last values, one consumer at a time, a longest length."""

import time

import pytest

import alphorn
from tests.semantics.waiting import WAIT_S, bodies, drain, is_quiet, send, take

pytestmark = pytest.mark.processes


def test_messages_of_one_group_go_to_one_consumer_in_order(connection, other, queue):
    connection.destinations.create(queue, groups=True)
    sessions = [connection.session(ack="individual"), other.session(ack="individual")]
    consumers = [session.consumer(queue, prefetch=30) for session in sessions]
    with connection.session().producer(queue) as producer:
        for number in range(30):
            producer.send(number, key=f"group {number % 3}")
    seen = {}  # group → consumer → numbers
    left, deadline = 30, time.monotonic() + WAIT_S
    while left and time.monotonic() < deadline:
        for place, consumer in enumerate(consumers):
            for message in consumer.receive_many(30, timeout=0.1):
                seen.setdefault(message.key, {}).setdefault(place, []).append(message.body)
                message.acknowledge()
                left -= 1
    assert left == 0
    assert sorted(seen) == ["group 0", "group 1", "group 2"]
    for group, places in seen.items():
        [numbers] = places.values()
        assert numbers == list(range(int(group[-1]), 30, 3))
    assert {place for places in seen.values() for place in places} == {0, 1}


def test_a_group_moves_on_when_its_consumer_goes(connection, other, queue):
    connection.destinations.create(queue, groups=True)
    send(connection.session(), queue, ["one", "two", "three"], key="g")
    leaving = connection.session(ack="individual")
    first = leaving.consumer(queue)
    take(first, 2)[0].acknowledge()
    staying = other.session().consumer(queue)
    leaving.close()
    assert bodies(take(staying, 2)) == ["two", "three"]


def test_what_comes_back_to_wait_is_not_overtaken_in_its_group(connection, queue):
    connection.destinations.create(queue, groups=True, redelivery_delay=0.5)
    send(connection.session(), queue, ["first", "second"], key="g")
    send(connection.session(), queue, ["of another group"], key="h")
    consumer = connection.session(ack="individual").consumer(queue, prefetch=1)
    take(consumer, 1)[0].reject()
    found = []
    for _ in range(3):
        [message] = take(consumer, 1)
        found.append((message.body, message.delivery_count))
        message.acknowledge()
    assert found == [("of another group", 1), ("first", 2), ("second", 1)]


def test_a_value_that_was_replaced_since_it_was_received_is_committed_and_the_newer_one_stays(connection, queue):
    connection.destinations.create(queue, last_value=True)
    send(connection.session(), queue, ["old"], key="k")
    session = connection.session(transacted=True)
    consumer = session.consumer(queue)
    assert bodies(take(consumer, 1)) == ["old"]
    send(connection.session(), queue, ["new"], key="k")
    session.producer(queue).send("seen the old one")
    session.commit()
    consumer.close()
    assert bodies(drain(connection.session(), queue)) == ["new", "seen the old one"]


def test_a_last_value_queue_keeps_the_newest_of_each_key(connection, queue):
    connection.destinations.create(queue, last_value=True)
    with connection.session() as session:
        producer = session.producer(queue)
        for key, price in [("a", 1), ("b", 1), ("a", 2), (None, 0), ("b", 2), ("a", 3), (None, 1)]:
            producer.send(price, key=key)
        producer.flush()
        found = drain(session, queue)
        assert [(m.key, m.body) for m in found] == [(None, 0), ("b", 2), ("a", 3), (None, 1)]


def test_an_exclusive_queue_serves_one_consumer_and_then_the_next(connection, other, queue):
    connection.destinations.create(queue, exclusive=True)
    serving = connection.session(ack="individual")
    first = serving.consumer(queue, prefetch=1)
    second = other.session().consumer(queue)
    send(connection.session(), queue, range(5))
    for expected in range(2):
        [message] = take(first, 1)
        message.acknowledge()
        assert message.body == expected
    assert is_quiet(second)
    serving.close()
    assert bodies(take(second, 3)) == [2, 3, 4]


def test_a_full_queue_refuses_and_takes_again_when_there_is_room(connection, other, queue):
    connection.destinations.create(queue, max_length=3, overflow="reject")
    session = connection.session()
    producer = session.producer(queue)
    for number in range(3):
        producer.send(number).result(WAIT_S)
    with pytest.raises(alphorn.Blocked, match="is full with 3 messages"):
        producer.send("too many").result(WAIT_S)
    producer.flush(WAIT_S)  # the refusal was told already
    producer.send("again too many")
    with pytest.raises(alphorn.Blocked):
        producer.flush(WAIT_S)
    with other.session(ack="individual") as receiving:
        consumer = receiving.consumer(queue)
        [first, *_] = take(consumer, 3)
        first.acknowledge()
        receiving.recover()  # answered after the acknowledgement
        take(consumer, 2)
        producer.send("fits").result(WAIT_S)
        assert bodies(take(consumer, 1)) == ["fits"]


def test_purging_lets_go_of_everything(connection, queue):
    with connection.session() as session:
        send(session, queue, range(10))
        connection.destinations.purge(queue)
        send(session, queue, ["after"])
        assert bodies(drain(session, queue)) == ["after"]


def test_a_policy_can_be_replaced(connection, queue):
    session = connection.session()
    send(session, queue, ["one"])
    connection.destinations.policy(queue, max_length=1, overflow="reject")
    with pytest.raises(alphorn.Blocked):
        session.producer(queue).send("two").result(WAIT_S)
    connection.destinations.policy(queue)
    session.producer(queue).send("three").result(WAIT_S)
    assert bodies(drain(session, queue)) == ["one", "three"]


def test_to_consumers_a_queue_that_retains_is_like_any_other(connection, queue):
    session = connection.session()
    connection.destinations.create(queue, retain=3600, max_length=2, overflow="reject")
    for number in range(3):
        send(session, queue, [f"first {number}", f"second {number}"])
        with pytest.raises(alphorn.Blocked):
            session.producer(queue).send("too much").result(WAIT_S)
        assert bodies(session.browser(queue)) == [f"first {number}", f"second {number}"]
        with session.consumer(queue) as consumer:
            messages = take(consumer, 2)
            assert [(message.body, message.delivery_count) for message in messages] == [
                (f"first {number}", 1),
                (f"second {number}", 1),
            ]
            assert is_quiet(consumer)
        assert list(session.browser(queue)) == []
    connection.destinations.policy(queue, retain="1 GB")
    assert connection.destinations.purge(queue) == 0
    send(session, queue, ["last"])
    connection.destinations.policy(queue)
    assert bodies(drain(session, queue)) == ["last"]


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"delivery_limit": -1}, "delivery_limit must not be negative"),
        ({"priority": 10}, "priority goes from 0 to 9"),
        ({"retain": -60}, "retain_s must not be negative"),
        ({"colour": "red"}, "a policy has no colour"),
        ({"overflow": "explode"}, "overflow is 'explode', not 'block' or 'reject'"),
        ({"dead_letter": "_OTHER"}, "belong to the system"),
        ({"dead_letter": "queue:_OTHER"}, "belong to the system"),
        ({"dead_letter": "topic:dead"}, "dead messages wait in a queue"),
        ({"dead_letter": "queue:"}, "a destination needs a name"),
        ({"dead_letter": 7}, "dead_letter is 7, not a text"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_the_reason(connection, queue, policy, reason):
    with pytest.raises(alphorn.Error, match=reason):
        connection.destinations.create(queue, **policy)
    assert queue not in {known["name"] for known in connection.destinations.list()}


def test_creating_a_destination_again_with_the_same_policy_changes_nothing(connection, other, queue):
    connection.destinations.create(queue, max_length=3, ttl=60)
    send(connection.session(), queue, ["still here"])
    for again in ({"max_length": 3, "ttl": 60}, {}):
        other.destinations.create(queue, **again)
    assert bodies(drain(other.session(), queue)) == ["still here"]


def test_creating_a_destination_that_has_another_policy_is_refused_and_says_how_to_change_it(connection, other, queue):
    connection.destinations.create(queue, max_length=1, overflow="reject")
    with pytest.raises(alphorn.Misuse, match=r"max_length is 1, not 2, overflow is 'reject', not 'block'"):
        other.destinations.create(queue, max_length=2)
    with pytest.raises(alphorn.Misuse, match=r"change that with destinations\.policy"):
        other.destinations.create(queue, max_length=2)
    other.destinations.policy(queue, max_length=2)
    other.destinations.create(queue, max_length=2)
