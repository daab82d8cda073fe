"""Sending, on both shells: receipts, refusals, blocking, and what cannot be sent."""

import asyncio
import io
from collections.abc import Iterator
from typing import Any

import pytest

import alphorn
from alphorn.client.packing import pack_body
from alphorn.model.conversation import Publish, SendFragment
from alphorn.model.messages import BATCH_BYTES_MAX
from tests.client.broker import Broker
from tests.client.shells import Call, Connect, await_waiting
from tests.client.test_core import Script

BODIES = ["text", b"\x00bytes", None, {"id": 1, "tags": ["a", 2.5, None, True]}, [], "", 2**63, -(2**63), 1.5, False]


@pytest.mark.requirement("API-4")
def test_bodies_come_back_as_what_they_were(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        session.producer("queue:q").send_many(BODIES).result(10)
        received = session.consumer("queue:q").receive_many(100, timeout=10)
        assert [message.body for message in received] == BODIES
        assert [type(message.body) for message in received] == [type(body) for body in BODIES]


def test_a_message_keeps_all_that_its_sender_said(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        producer = session.producer(session.queue("q"))
        properties = {"region": "eu", "n": 3, "x": 0.5, "raw": b"\xff", "none": None, "yes": True}
        receipt = producer.send(
            "body",
            properties=properties,
            priority=7,
            ttl=30.0,
            key="k",
            type="t",
            correlation_id="c",
            reply_to="queue:answers",
        )
        message = session.consumer("queue:q").receive(timeout=10)
        assert message.properties == properties
        assert (message.priority, message.key, message.type) == (7, "k", "t")
        assert (message.correlation_id, message.reply_to) == ("c", "queue:answers")
        assert message.expiration == pytest.approx(message.timestamp + 30, abs=5)
        assert message.id == receipt.result(10)
        assert (message.destination, message.sequence, message.delivery_count) == ("queue:q", 101, 1)
        assert not message.redelivered


def test_a_plain_message_has_defaults(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        session.producer("queue:q").send("plain")
        message = session.consumer("queue:q").receive(timeout=10)
        assert (message.properties, message.priority, message.expiration, message.key) == ({}, 4, None, None)


def test_ids_name_the_producer_and_count_from_one(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        ids = [producer.send("a").result(10), *producer.send_many(["b", "c"]).result(10)]
        assert [text.split(":")[0] for text in ids] == ["ID"] * 3
        assert [text.split(":")[2] for text in ids] == ["1", "2", "3"]


def test_receipts_of_many_are_for_these_bodies_although_others_send_meanwhile(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("alphorn.client.blocking.producer.BODIES_AT_ONCE", 2)
    with alphorn.connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")

        def bodies() -> Iterator[str]:
            yield from ("one", "two", "three", "four")
            producer.send("of another thread")  # so it comes between two parts, wherever that is
            yield from ("five", "six")

        receipts = producer.send_many(bodies())
        ids = receipts.result(10)
        assert len(receipts) == len(ids) == 6
        found = dict(zip(ids, ("one", "two", "three", "four", "five", "six"), strict=True))
        received = connection.session().consumer("queue:q").receive_many(100, timeout=10)
        assert [found.get(message.id) for message in received] == [
            None if message.body == "of another thread" else message.body for message in received
        ]
        assert [receipts[place].result(10) for place in range(-6, 6)] == ids + ids
        assert [receipt.result(10) for receipt in receipts[3:5]] == ids[3:5]
        for place in (6, -7):
            with pytest.raises(IndexError, match="6 of them"):
                receipts[place]


def test_tasks_that_share_a_producer_get_receipts_of_their_own(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alphorn.client.aio.producer.BODIES_AT_ONCE", 2)

    async def run() -> None:
        async with alphorn.aio.connect(broker.url) as connection:
            producer = await connection.session().producer("queue:q")
            sent = await asyncio.gather(*(producer.send_many([task] * 5) for task in range(3)))
            ids = [await receipts.result(10) for receipts in sent]
            assert [len(receipts) for receipts in sent] == [len(found) for found in ids] == [5, 5, 5]
            tasks = {id: task for task, found in enumerate(ids) for id in found}
            received = await (await connection.session().consumer("queue:q")).receive_many(100, timeout=10)
            assert [tasks[message.id] for message in received] == [message.body for message in received]

    asyncio.run(run())


def test_messages_keep_their_order_however_they_are_sent(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        for start in range(0, 3000, 30):
            for number in range(start, start + 10):
                producer.send(number)
            producer.send_many(range(start + 10, start + 20))
            for number in range(start + 20, start + 30):
                producer.send(number, properties={"n": number})
        producer.flush(10)
    assert broker.bodies("queue:q") == list(range(3000))


def test_a_body_that_changes_after_sending_does_not_change_the_message(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        body = {"n": 1}
        producer.send(body)
        body["n"] = 2
        producer.flush(10)
    assert broker.bodies("queue:q") == [{"n": 1}]


def test_a_producer_without_a_destination_sends_where_each_message_says(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer()
        for number in range(6):
            producer.send(number, destination=f"queue:{'ab'[number % 2]}")
        producer.flush(10)
        with pytest.raises(alphorn.Misuse, match="no destination"):
            producer.send("x")
    assert (broker.bodies("queue:a"), broker.bodies("queue:b")) == ([0, 2, 4], [1, 3, 5])


@pytest.mark.requirement("API-17")
def test_a_stream_comes_after_what_was_sent_to_its_destination_before(broker: Broker, connect: Connect) -> None:
    broker.is_confirming = False
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:own")
        producer.send("before", destination="queue:q")
        call = Call(lambda: producer.send_stream(io.BytesIO(b"stream"), destination="queue:q"))
        while not broker.frames(SendFragment):
            connection.status()
        await_waiting(connection)
        connection.status()
        assert broker.bodies("queue:q") == ["before"]
        broker.confirm()
        call.result()
        assert broker.bodies("queue:q") == ["before", None]


def test_batches_hold_at_most_a_thousand_messages_and_about_256_kilobytes(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        producer.send_many(["x" * 10] * 5000)
        producer.send_many(["x" * 1000] * 900)
        producer.send("x" * 1_000_000, wait=True)
    batches = broker.frames(Publish)
    assert sum(batch.count for batch in batches) == 5901
    assert max(batch.count for batch in batches) <= 1000
    assert 200_000 < max(len(batch.blob) for batch in batches if batch.count > 1) <= 2 * 262_144


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (object(), "body is object"),
        ({"a": [1, {2}]}, r"body\['a'\]\[1\] is set"),
        ({1: 2}, "key 1 of type int"),
        ((1, 2), "body is tuple"),
        (2**64, "more than 64 bits"),
        ([1, -(2**63) - 1], r"body\[1\] is an int of more than 64 bits"),
        ("\ud800", "no valid Unicode"),
        (bytearray(b"x"), "bytearray"),
        (CIRCLE, "contains itself"),
    ],
)
def test_a_body_that_cannot_come_back_is_refused_by_name(
    broker: Broker, connect: Connect, body: Any, words: str
) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        with pytest.raises(alphorn.Misuse, match=words):
            producer.send(body)
        with pytest.raises(alphorn.Misuse, match=words.replace("body", r"bodies\[2\]")):
            producer.send_many(["fine", "fine", body])
        assert producer.send("still works").result(10)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"priority": 10}, "0 .last. to 9"),
        ({"priority": "high"}, "priority"),
        ({"ttl": -1}, "ttl is -1"),
        ({"delay": float("nan")}, "delay"),
        ({"key": 5}, "key is int"),
        ({"type": b"t"}, "type is bytes"),
        ({"reply_to": "nowhere"}, "names no kind"),
        ({"properties": {"a": []}}, "property 'a' is list"),
        ({"properties": {1: "a"}}, "names of properties are str"),
        ({"properties": [1]}, "properties are a dict"),
        ({"properties": {"n": 2**70}}, "64 bits"),
        ({"destination": "nowhere"}, "names no kind"),
    ],
)
def test_a_field_that_makes_no_sense_is_refused(
    broker: Broker, connect: Connect, fields: dict[str, Any], words: str
) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        with pytest.raises(alphorn.Misuse, match=words):
            producer.send("body", **fields)
        with pytest.raises(alphorn.Misuse, match=words):
            producer.send_many(["body"], **fields)
    assert broker.bodies("queue:q") == []


def test_a_message_above_the_limit_is_too_large_and_nothing_is_sent(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        for send in (producer.send, lambda body: producer.send_many([body])):
            with pytest.raises(alphorn.MessageTooLarge, match="send_stream"):
                send(b"x" * BATCH_BYTES_MAX)
        producer.send(b"x" * (BATCH_BYTES_MAX - 100), wait=True)


def test_a_refusal_that_comes_while_a_program_asks_for_an_outcome_does_not_disturb_it() -> None:
    script = Script()
    outbox = script.producer()
    for _ in range(2):
        outbox.add_plain(pack_body("x"))
        script.said()

    class Slow(int):
        """While a program's thread compares it, the I/O thread is told of a refusal."""

        def __ge__(self, other: int) -> bool:
            outbox.on_refused(2, 1, alphorn.Blocked("full"))
            return super().__ge__(other)

    outbox.on_refused(1, 1, alphorn.Blocked("full"))
    assert outbox.outcome(Slow(2)) is False, "it was not known when it was asked"
    assert isinstance(outbox.outcome(2), alphorn.Blocked)


def test_a_refused_message_fails_its_receipt_and_is_not_told_twice(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        good = producer.send("good")
        producer.flush(10)
        broker.refusals["queue:q"] = ("AccessDenied", "queue:q is not yours")
        bad = producer.send("bad")
        with pytest.raises(alphorn.AccessDenied, match="not yours"):
            bad.result(10)
        producer.flush(10)
        assert good.result(0)
        broker.refusals.clear()
        assert producer.send("again").result(10)
    assert broker.bodies("queue:q") == ["good", "again"]


def test_a_receipt_times_out_and_the_message_is_still_on_its_way(broker: Broker, connect: Connect) -> None:
    broker.is_confirming = False
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        receipt = producer.send("a")
        with pytest.raises(TimeoutError, match="still on its way"):
            receipt.result(0.01)
        with pytest.raises(TimeoutError, match="1 messages"):
            producer.flush(0.01)
        broker.confirm()
        assert receipt.result(10)


@pytest.mark.requirement("API-14", "API-15", "API-16")
def test_a_producer_that_may_not_wait_raises_when_too_much_is_unconfirmed(broker: Broker, connect: Connect) -> None:
    broker.is_confirming = False
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q", on_block="raise")
        producer.send_many(range(100_000))
        assert producer.is_blocked()
        assert producer.try_send("x") is None
        with pytest.raises(alphorn.Blocked, match="100000 messages"):
            producer.send("x")
        broker.confirm()
        producer.flush(30)
        assert not producer.is_blocked()
        assert producer.try_send("x").result(10)


def test_a_producer_that_waits_goes_on_when_there_is_room(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        producer.send_many(["x" * 1000] * 150_000)
        producer.flush(30)
    assert len(broker.bodies("queue:q")) == 150_000


def test_closing_flushes_and_a_closed_producer_says_so(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        producer.send("a")
        producer.close()
        assert broker.bodies("queue:q") == ["a"]
        producer.close()
        with pytest.raises(alphorn.Misuse, match="producer is closed"):
            producer.send("b")


def test_producer_defaults_hold_unless_the_message_says_otherwise(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        producer = session.producer("queue:q", priority=2, ttl=60)
        producer.send("a")
        producer.send("b", priority=9)
        consumer = session.consumer("queue:q")
        one, two = consumer.receive(timeout=10), consumer.receive(timeout=10)
        assert (one.priority, two.priority) == (2, 9)
        assert two.expiration is not None
        with pytest.raises(alphorn.Misuse, match="on_block"):
            session.producer("queue:q", on_block="maybe")
