"""Messages that come back: their order, their counts, and what becomes of those that nobody can use."""

import re

import pytest

import alphorn
from tests.semantics.waiting import WAIT_S, bodies, drain, is_quiet, send, take

pytestmark = pytest.mark.processes

IN_TIME_S = 3.0  # much more than a message takes to a consumer that waits for it


@pytest.mark.requirement("API-9")
def test_a_rejected_message_comes_before_what_follows_it(connection, queue):
    with connection.session(ack="individual") as session:
        send(session, queue, ["one", "two", "three"])
        consumer = session.consumer(queue, prefetch=1)
        [one] = take(consumer, 1)
        one.reject()
        found = []
        for _ in range(3):
            [message] = take(consumer, 1)
            message.acknowledge()
            found.append((message.body, message.delivery_count))
    assert found == [("one", 2), ("two", 1), ("three", 1)]


def test_counts_grow_with_every_delivery(connection, queue):
    with connection.session(ack="individual") as session:
        send(session, queue, ["again"])
        consumer = session.consumer(queue)
        counts = []
        for _ in range(5):
            [message] = take(consumer, 1)
            counts.append((message.delivery_count, message.redelivered))
            message.reject()
    assert counts == [(1, False), (2, True), (3, True), (4, True), (5, True)]


def test_a_rejected_message_waits_as_long_as_it_was_told(connection, queue):
    with connection.session(ack="individual") as session:
        send(session, queue, ["in an hour", "soon", "now"])
        consumer = session.consumer(queue, prefetch=1)
        for body, delay in (("in an hour", 3600.0), ("soon", 1.0)):
            [message] = take(consumer, 1)
            assert message.body == body
            message.reject(delay=delay)
        found = []
        for _ in range(2):
            [message] = take(consumer, 1)
            message.acknowledge()
            found.append((message.body, message.delivery_count))
        assert found == [("now", 1), ("soon", 2)]
        assert is_quiet(consumer)


def test_the_policy_says_how_long_a_returned_message_waits(connection, queue):
    soon = f"{queue} soon"
    for name, delay in ((queue, 3600.0), (soon, 1.0)):
        connection.destinations.create(name, redelivery_delay=delay)
    with connection.session(ack="individual") as session:
        for name in (queue, soon):
            send(session, name, ["returned", "next"])
            with session.consumer(name, prefetch=1) as consumer:
                take(consumer, 1)[0].reject()
                assert bodies(take(consumer, 1)) == ["next"]
                session.acknowledge()
        assert bodies(take(session.consumer(soon), 1)) == ["returned"]
        assert is_quiet(session.consumer(queue))


@pytest.mark.requirement("DMQ-1", "DMQ-3", "WKD-1")
def test_a_message_beyond_its_delivery_limit_is_dead_and_says_why(connection, queue):
    connection.destinations.create(queue, delivery_limit=3)
    with connection.session(ack="individual") as session:
        send(session, queue, ["poison", "fine"], correlation_id=queue)
        consumer = session.consumer(queue, prefetch=1)
        for count in (1, 2, 3):
            [poison] = take(consumer, 1)
            assert (poison.body, poison.delivery_count) == ("poison", count)
            poison.reject()
        assert bodies(take(consumer, 1)) == ["fine"]
        dead_letters = session.consumer("queue:_DMQ", selector=f"JMSCorrelationID = '{queue}'")
        [dead] = take(dead_letters, 1)
        assert dead.body == "poison"
        assert dead.history["destination"] == queue
        assert dead.history["reason"] == "delivery limit"
        assert dead.history["deliveries"] == 3
        assert dead.id == poison.id
        dead.acknowledge()
        assert is_quiet(dead_letters)


@pytest.mark.requirement("DMQ-1", "DMQ-3")
def test_a_destination_may_have_its_own_dead_letter_queue(connection, queue):
    own = f"{queue} dead"
    connection.destinations.create(queue, dead_letter=own.removeprefix("queue:"))
    with connection.session(ack="individual") as session:
        send(session, queue, ["useless"], properties={"size": 3}, key="k", type="order")
        take(session.consumer(queue), 1)[0].reject(requeue=False)
        [dead] = take(session.consumer(own), 1)
        assert (dead.body, dead.properties, dead.key, dead.type) == ("useless", {"size": 3}, "k", "order")
        assert dead.history["destination"] == queue
        assert dead.history["reason"] == "rejected"
        assert dead.history["deliveries"] == 1


@pytest.mark.parametrize("named", ["{own}", "{bare}", None])
def test_a_dead_letter_queue_is_named_like_any_queue_or_barely(connection, queue, named):
    own = f"{queue} dead"
    bare = own.removeprefix("queue:")
    with connection.session(ack="individual") as session:
        wanted = session.queue(bare) if named is None else named.format(own=own, bare=bare)
        connection.destinations.create(queue, dead_letter=wanted)
        send(session, queue, ["useless"])
        take(session.consumer(queue), 1)[0].reject(requeue=False)
        assert bodies(take(session.consumer(own), 1)) == ["useless"]


def test_the_redrive_sends_dead_messages_back_with_fresh_counts(connection, queue):
    own = f"{queue} dead"
    connection.destinations.create(queue, delivery_limit=1, dead_letter=own.removeprefix("queue:"))
    with connection.session(ack="individual") as session:
        send(session, queue, ["one", "two", "three"])
        consumer = session.consumer(queue)
        for message in take(consumer, 3):
            message.reject()
        assert bodies(take(session.consumer(own), 3)) == ["one", "two", "three"]
        session.recover()
        assert connection.destinations.redrive(own) == 3
        found = take(consumer, 3)
        assert [(m.body, m.delivery_count, m.history) for m in found] == [
            ("one", 1, {}),
            ("two", 1, {}),
            ("three", 1, {}),
        ]
        session.acknowledge()
    assert drain(connection.session(), own) == []
    assert connection.destinations.redrive(own) == 0


def test_a_redrive_says_what_cannot_go_back_and_keeps_it(connection, queue):
    own, other = f"{queue} dead", f"{queue} other"
    with connection.session(ack="individual") as session:
        for place, sent in ((queue, ["homeless", "lost"]), (other, ["at home"])):
            connection.destinations.create(place, dead_letter=own.removeprefix("queue:"))
            send(session, place, sent)
            with session.consumer(place) as consumer:
                for message in take(consumer, len(sent)):
                    message.reject(requeue=False)
        connection.destinations.delete(queue)
        words = f"1 of 3 dead messages went back; the others stay in {own}, because {queue} or"
        with pytest.raises(alphorn.InvalidDestination, match=re.escape(words)):
            connection.destinations.redrive(own)
        assert bodies(take(session.consumer(own), 2)) == ["homeless", "lost"]
        assert bodies(take(session.consumer(other), 1)) == ["at home"]


def test_a_purge_says_how_many_messages_are_gone(connection, queue):
    with connection.session(ack="individual") as session:
        send(session, queue, ["one", "two", "three"])
        assert bodies(take(session.consumer(queue), 1)) == ["one"]
        assert connection.destinations.purge(queue) == 3
        assert connection.destinations.purge(queue) == 0


def test_a_dead_message_dies_once(connection, queue):
    own = f"{queue} dead"
    connection.destinations.create(own, delivery_limit=1)
    connection.destinations.create(queue, dead_letter=own.removeprefix("queue:"))
    with connection.session(ack="individual") as session:
        send(session, queue, ["dead twice"])
        take(session.consumer(queue), 1)[0].reject(requeue=False)
        consumer = session.consumer(own)
        take(consumer, 1)[0].reject(requeue=False)
        assert is_quiet(consumer)


@pytest.mark.requirement("DMQ-1", "DMQ-3")
def test_an_expired_message_is_dead_and_never_delivered(connection, queue):
    with connection.session() as session:
        send(session, queue, ["too late"], ttl=0.05, correlation_id=queue)
        send(session, queue, ["in time"], ttl=60.0, correlation_id=queue)
        dead_letters = session.consumer("queue:_DMQ", selector=f"JMSCorrelationID = '{queue}'")
        [dead] = take(dead_letters, 1)
        assert (dead.body, dead.history["reason"], dead.history["destination"]) == ("too late", "expired", queue)
        assert bodies(drain(session, queue)) == ["in time"]


def test_a_policy_lets_all_messages_expire(connection, queue):
    own = f"{queue} dead"
    connection.destinations.create(queue, ttl=0.05, dead_letter=own.removeprefix("queue:"))
    with connection.session() as session:
        send(session, queue, ["one", "two"])
        assert bodies(take(session.consumer(own), 2)) == ["one", "two"]
        assert drain(session, queue) == []


def test_an_expired_message_of_a_durable_subscription_is_dead_as_well(connect, topic):
    own = f"queue:{topic} dead"
    connection = connect(client_id=topic)
    connection.destinations.create(topic, dead_letter=own)
    with connection.session() as session:
        session.consumer(topic, subscription="s").close()
        send(session, topic, ["missed"], ttl=0.05)
        send(session, topic, ["kept"])
        [dead] = take(session.consumer(own), 1)
        assert (dead.body, dead.history["destination"]) == ("missed", topic)
        assert bodies(take(session.consumer(topic, subscription="s"), 1)) == ["kept"]


@pytest.mark.requirement("DMQ-2")
def test_nobody_sends_to_the_dead_letter_queue_itself(connection, other, queue):
    with pytest.raises(alphorn.AccessDenied, match="takes dead messages only; send to another queue"):
        connection.session().producer("queue:_DMQ").send("forged").result(WAIT_S)
    send(other.session(), queue, ["fine"])
    assert bodies(drain(other.session(), queue)) == ["fine"]


@pytest.mark.parametrize(
    ("policy", "fields"), [({"ttl": IN_TIME_S}, {}), ({}, {"ttl": IN_TIME_S})], ids=["queue", "message"]
)
def test_what_was_received_in_time_is_consumed_and_what_was_not_handed_out_in_time_is_dead(
    connection, queue, policy, fields
):
    own = f"{queue} dead"
    connection.destinations.create(queue, dead_letter=own.removeprefix("queue:"), **policy)
    with connection.session(ack="individual") as session, connection.session() as watching:
        consumer, dead_letters = session.consumer(queue), watching.consumer(own)
        send(session, queue, ["in hand", "returned", "prefetched", "prefetched too"], **fields)
        in_hand, returned = take(consumer, 2)
        dead = take(dead_letters, 2)
        assert bodies(dead) == ["prefetched", "prefetched too"]
        assert [(each.history["reason"], each.history["deliveries"]) for each in dead] == [("expired", 0)] * 2
        assert is_quiet(consumer)
        in_hand.acknowledge()
        returned.reject()
        [dead] = take(dead_letters, 1)
        assert (dead.body, dead.history["reason"], dead.history["deliveries"]) == ("returned", "expired", 1)
        assert (is_quiet(consumer), is_quiet(dead_letters)) == (True, True)
    with connection.session() as session:
        assert drain(session, queue) == []


def test_a_transaction_consumes_what_was_received_in_time(connection, queue):
    own = f"{queue} dead"
    connection.destinations.create(queue, dead_letter=own.removeprefix("queue:"))
    with connection.session(transacted=True) as session, connection.session() as watching:
        consumer, dead_letters = session.consumer(queue), watching.consumer(own)
        send(watching, queue, ["in hand", "prefetched"], ttl=IN_TIME_S)
        take(consumer, 1)
        assert bodies(take(dead_letters, 1)) == ["prefetched"]
        session.commit()
        assert is_quiet(dead_letters)
        assert drain(watching, queue) == []
