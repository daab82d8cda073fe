"""A full destination makes its producers wait, and nobody else; it never holds more than it may."""

import asyncio
import threading

import pytest

import alphorn
import alphorn.aio
from alphorn.client.outbox import WINDOW_BYTES
from tests.client.shells import Call, await_waiting, make_connect
from tests.semantics.waiting import WAIT_S, bodies, send, take, until

pytestmark = pytest.mark.processes

LARGE = 500_000


def state(connection, destination):
    """The line of a destination, which is there while its channel has a primary."""
    rows = until(lambda: [row for row in connection.status()["destinations"] if row["name"] == destination])
    return rows[0]


@pytest.mark.requirement("API-14", "API-15", "API-16", "FC-6")
def test_a_full_queue_blocks_its_producers_who_can_tell(connection, queue):
    connection.destinations.create(queue, max_length=5, overflow="block")
    session = connection.session()
    producer, impatient = session.producer(queue), session.producer(queue, on_block="raise")
    for number in range(5):
        producer.send(number, wait=True)
    assert producer.is_blocked()
    assert impatient.is_blocked()
    assert producer.try_send("x") is None
    with pytest.raises(alphorn.Blocked, match="is full with 5 messages"):
        impatient.send("x")
    assert state(connection, queue)["depth"] == 5
    assert "is full with 5 messages" in state(connection, queue)["blocked"]
    until(lambda: state(connection, queue)["blocked_producers"] == 1)


@pytest.mark.requirement("FC-4", "FC-6")
def test_a_producer_waits_for_consumers_and_goes_on_in_order_without_loss(connection, other, queue):
    connection.destinations.create(queue, max_length=7)
    producer = connection.session().producer(queue)
    sending = threading.Thread(target=lambda: [producer.send(number) for number in range(300)])
    sending.start()
    consumer = other.session().consumer(queue, prefetch=3)
    assert bodies(take(consumer, 300)) == list(range(300))
    sending.join()
    producer.flush(WAIT_S)
    until(lambda: connection.status() and not producer.is_blocked())


@pytest.mark.requirement("FC-4")
def test_a_batch_larger_than_its_queue_goes_through_piece_by_piece(connection, other, queue):
    connection.destinations.create(queue, max_length=10)
    producer = connection.session().producer(queue)
    receipts = producer.send_many(range(500))
    assert state(connection, queue)["depth"] <= 10
    assert bodies(take(other.session().consumer(queue), 500)) == list(range(500))
    assert len(receipts.result(WAIT_S)) == 500


@pytest.mark.requirement("FC-1", "FC-9")
def test_one_full_queue_delays_no_other_on_the_same_connection(connection, queue):
    full, free = f"{queue}.full", f"{queue}.free"
    connection.destinations.create(full, max_length=1)
    session = connection.session()
    blocked = session.producer(full)
    blocked.send_many(range(50))
    send(session, free, range(20))
    assert bodies(take(session.consumer(free), 20)) == list(range(20))
    assert not blocked._outbox.is_flushed
    with connection.session().consumer(full) as consumer:
        assert bodies(take(consumer, 50)) == list(range(50))
        blocked.flush(WAIT_S)


@pytest.mark.requirement("FC-9", "FC-10")
@pytest.mark.parametrize("shell", ["blocking", "asyncio"])
def test_a_session_that_waits_for_a_full_queue_sends_to_another_and_receives(cluster, queue, shell):
    """More waits for the full one than a producer may have under way, and the program waits to send even more."""
    full, free = f"{queue}.full", f"{queue}.free"
    with make_connect(shell) as connect, connect(cluster.url, connect_timeout=WAIT_S) as connection:
        connection.destinations.create(full, max_length=1)
        session = connection.session()
        stuck, consumer = session.producer(full), session.consumer(free)
        going_on = session.producer(free, on_block="raise")
        receipts = stuck.send_many([bytes(LARGE)] * (2 * WINDOW_BYTES // LARGE))
        until(lambda: connection.status() and stuck.is_blocked())
        until(lambda: connection.status() and not going_on.is_blocked())  # so much at once may wait for the log first
        waiting = Call(lambda: stuck.send("last"))
        await_waiting(connection)
        for number in range(20):
            going_on.send(number).result(WAIT_S)
            assert bodies(take(consumer, 1)) == [number]
        assert stuck.is_blocked()
        assert not receipts[-1].is_done
        *_, last = take(session.consumer(full), len(receipts) + 1)
        assert last.body == "last"
        assert waiting.result().result(WAIT_S) == last.id


@pytest.mark.requirement("FC-9")
def test_a_producer_of_many_destinations_waits_for_none_of_the_others(connection, queue):
    full, free = f"{queue}.full", f"{queue}.free"
    connection.destinations.create(full, max_length=1)
    session = connection.session()
    producer = session.producer()
    stuck = producer.send_many(range(5), destination=full)
    assert producer.send("through", destination=free).result(WAIT_S)
    until(lambda: connection.status() and producer.is_blocked(full))
    assert not producer.is_blocked(free)
    assert producer.try_send("x", destination=full) is None
    take(session.consumer(full), 5)
    stuck.result(WAIT_S)


def test_who_comes_later_knows_that_a_queue_is_full(connection, other, queue):
    connection.destinations.create(queue, max_length=1)
    send(connection.session(), queue, ["a"])
    assert other.session().producer(queue).is_blocked()


@pytest.mark.requirement("MM-14")
def test_a_topic_waits_for_its_slowest_subscription(connection, topic):
    connection.destinations.create(topic, max_length=3)
    session = connection.session()
    quick, slow = session.consumer(topic), session.consumer(topic, prefetch=1)
    producer = session.producer(topic)
    producer.send_many(range(6))
    assert bodies(take(quick, 3)) == [0, 1, 2]
    assert quick.receive(timeout=0.2) is None
    assert bodies(take(slow, 6)) == list(range(6))
    assert bodies(take(quick, 3)) == [3, 4, 5]
    producer.flush(WAIT_S)


@pytest.mark.requirement("API-14", "API-15", "API-16")
def test_the_same_holds_with_await(cluster, queue):
    asyncio.run(asyncio.wait_for(_work(cluster.url, queue), 3 * WAIT_S))


async def _work(url, queue):
    async with await alphorn.aio.connect(url) as connection, connection.session() as session:
        await connection.destinations.create(queue, max_length=2)
        producer = await session.producer(queue, on_block="raise")
        for number in range(2):
            await producer.send(number, wait=True)
        assert producer.is_blocked()
        assert await producer.try_send("x") is None
        with pytest.raises(alphorn.Blocked):
            await producer.send("x")
        waiting = await session.producer(queue)
        consumer = await session.consumer(queue)
        assert [(await consumer.receive(WAIT_S)).body for _ in range(2)] == [0, 1]
        receipt = await waiting.send(2)
        assert (await consumer.receive(WAIT_S)).body == 2
        await receipt.result(WAIT_S)
