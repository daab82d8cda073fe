"""Messages come back as what they were."""

import time

import pytest

import alphorn
from tests.semantics.waiting import WAIT_S, bodies, drain, send, take

pytestmark = pytest.mark.processes

BODIES = [
    "text",
    "",
    "ünïcödé 😀",
    b"bytes",
    b"",
    bytes(range(256)),
    None,
    True,
    False,
    0,
    -(1 << 63),
    (1 << 64) - 1,
    1.5,
    [],
    [1, "two", b"three", None, [4.0]],
    {},
    {"id": 1, "lines": [{"sku": "a", "count": 2}], "paid": False, "note": None},
]


@pytest.mark.requirement("API-4")
def test_bodies_of_all_types_come_back_as_what_they_were(connection, queue):
    with connection.session() as session:
        send(session, queue, BODIES)
        found = bodies(take(session.consumer(queue), len(BODIES)))
        assert found == BODIES
        assert [type(body) for body in found] == [type(body) for body in BODIES]


@pytest.mark.requirement("API-4")
@pytest.mark.parametrize("size", [100_000, 1_000_000, 3_000_000])
def test_large_bodies_pass(connection, queue, size):
    body = bytes(range(256)) * (size // 256)
    with connection.session() as session:
        send(session, queue, [body])
        assert bodies(take(session.consumer(queue), 1)) == [body]


def test_properties_of_all_types_come_back_as_what_they_were(connection, queue):
    properties = {"s": "text", "b": True, "i": -5, "f": 2.5, "x": b"\x00", "n": None, "größe": 1}
    with connection.session() as session:
        send(session, queue, ["body"], properties=properties)
        [message] = take(session.consumer(queue), 1)
        assert message.properties == properties
        assert [type(value) for value in message.properties.values()] == [type(value) for value in properties.values()]


@pytest.mark.requirement("API-18")
def test_a_message_tells_all_about_itself(connection, queue):
    before = time.time()
    with connection.session() as session:
        receipt = session.producer(queue).send(
            {"id": 1},
            properties={"region": "eu"},
            priority=7,
            ttl=60.0,
            key="k",
            type="order",
            correlation_id="c",
            reply_to="queue:answers",
        )
        [message] = take(session.consumer(queue), 1)
        assert message.id == receipt.result(WAIT_S)
        assert message.id.startswith(f"ID:{connection.id}")
        assert (message.body, message.properties, message.destination) == ({"id": 1}, {"region": "eu"}, queue)
        assert (message.priority, message.key, message.type) == (7, "k", "order")
        assert (message.correlation_id, message.reply_to) == ("c", "queue:answers")
        assert (message.delivery_count, message.redelivered) == (1, False)
        assert before - 1 <= message.timestamp <= time.time() + 1
        assert message.expiration == pytest.approx(message.timestamp + 60.0, abs=1.0)
        assert message.sequence > 0


def test_a_plain_message_has_the_defaults(connection, queue):
    with connection.session() as session:
        send(session, queue, ["plain"])
        [message] = take(session.consumer(queue), 1)
        assert (message.properties, message.priority, message.expiration) == ({}, 4, None)
        assert (message.key, message.type, message.correlation_id, message.reply_to) == (None, None, None, None)
        assert message.history == {}


@pytest.mark.requirement("ID-1")
def test_every_message_has_an_id_and_a_place_of_its_own(connection, other, queue):
    for session in (connection.session(), other.session(), other.session()):
        with session.producer(queue) as producer:
            producer.send_many(range(100))
    found = drain(connection.session(), queue)
    assert len(found) == len({message.id for message in found}) == 300
    places = [(message.sequence, message.index) for message in found]
    assert places == sorted(set(places))


@pytest.mark.requirement("MM-7")
def test_the_order_of_one_producer_is_kept(connection, queue):
    with connection.session() as session:
        producer = session.producer(queue)
        producer.send_many(range(5000))
        for number in range(5000, 5100):
            producer.send(number, properties={"n": number} if number % 3 else None)
        producer.flush(WAIT_S)
        consumer = session.consumer(queue)
        found = []
        while len(found) < 5100:
            found += bodies(consumer.receive_many(1000, WAIT_S))
        assert found == list(range(5100))


def test_a_message_can_be_volatile(connection, queue):
    with connection.session() as session:
        session.producer(queue, persistent=False).send("light").result(WAIT_S)
        assert bodies(drain(session, queue)) == ["light"]


@pytest.mark.parametrize("body", [{1: "key"}, object(), (1, 2), 1 << 70, "\ud800"])
def test_what_would_not_come_back_as_it_was_is_refused(connection, queue, body):
    producer = connection.session().producer(queue)
    with pytest.raises(alphorn.Misuse):
        producer.send(body)
    producer.send("fine").result(WAIT_S)


def test_a_message_that_is_too_large_is_refused(connection, queue):
    producer = connection.session().producer(queue)
    with pytest.raises(alphorn.MessageTooLarge, match="at most"):
        producer.send(bytes(3 << 20))
    producer.send("fine").result(WAIT_S)
