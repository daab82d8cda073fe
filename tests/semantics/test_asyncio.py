"""The same with `await`."""

import asyncio

import pytest

import alphorn
from tests.client.cancelling import cancel
from tests.semantics.waiting import QUIET_S, WAIT_S

pytestmark = pytest.mark.processes


def run(work):
    return asyncio.run(asyncio.wait_for(work, 3 * WAIT_S))


async def take(consumer, count):
    found = []
    while len(found) < count:
        message = await consumer.receive(timeout=WAIT_S)
        assert message is not None
        found.append(message)
    return found


async def send(session, destination, bodies, **fields):
    async with await session.producer(destination) as producer:
        for body in bodies:
            await producer.send(body, **fields)


def test_sending_and_receiving(cluster, queue):
    async def work():
        async with await alphorn.aio.connect(cluster.url) as connection, connection.session() as session:
            producer = await session.producer(queue)
            receipt = await producer.send({"id": 1}, properties={"region": "eu"}, priority=7)
            consumer = await session.consumer(queue, selector="region = 'eu'")
            [message] = await take(consumer, 1)
            assert (message.body, message.priority, message.id) == ({"id": 1}, 7, await receipt.result())
            assert await consumer.receive(timeout=QUIET_S) is None

    run(work())


@pytest.mark.parametrize(
    ("ack", "left"), [("auto", ["three"]), ("client", ["three"]), ("individual", ["one", "three"])]
)
def test_modes_of_acknowledgement(cluster, queue, ack, left):
    async def work():
        async with await alphorn.aio.connect(cluster.url) as connection:
            async with connection.session(ack=ack) as session:
                await send(session, queue, ["one", "two", "three"])
                _, two = await take(await session.consumer(queue), 2)
                two.acknowledge()
            async with connection.session() as session:
                consumer = await session.consumer(queue)
                assert [message.body for message in await take(consumer, len(left))] == left
                assert await consumer.receive(timeout=QUIET_S) is None

    run(work())


def test_recover_and_counts(cluster, queue):
    async def work():
        async with await alphorn.aio.connect(cluster.url) as connection, connection.session(ack="client") as session:
            await send(session, queue, ["one", "two", "three"])
            consumer = await session.consumer(queue)
            await take(consumer, 2)
            await session.recover()
            found = [(m.body, m.delivery_count) for m in await take(consumer, 3)]
            assert found == [("one", 2), ("two", 2), ("three", 1)]

    run(work())


def test_iteration_and_many_at_once(cluster, queue):
    async def work():
        async with await alphorn.aio.connect(cluster.url) as connection, connection.session() as session:
            producer = await session.producer(queue)
            await producer.send_many(range(3000))
            await producer.flush()
            consumer = await session.consumer(queue)
            found = []
            async for message in consumer:
                found.append(message.body)
                if len(found) == 1000:
                    break
            while len(found) < 3000:
                found += [message.body for message in await consumer.receive_many(700, WAIT_S)]
            assert found == list(range(3000))

    run(work())


def test_subscriptions_and_their_rules(cluster, topic):
    async def work():
        async with (
            await alphorn.aio.connect(cluster.url, client_id=topic) as connection,
            connection.session() as session,
        ):
            consumer = await session.consumer(topic, subscription="news")
            with pytest.raises(alphorn.Misuse, match="has an active consumer"):
                await session.consumer(topic, subscription="news")
            await consumer.close()
            await send(session, topic, ["missed"])
            consumer = await session.consumer(topic, subscription="news")
            assert [message.body for message in await take(consumer, 1)] == ["missed"]
            await consumer.close()
            await session.unsubscribe("news")

    run(work())


def test_requests_listeners_and_temporary_queues(cluster, queue):
    async def work():
        async with (
            await alphorn.aio.connect(cluster.url) as asking,
            await alphorn.aio.connect(cluster.url) as answering,
        ):
            session = answering.session()
            producer = await session.producer()

            async def answer(message):
                await producer.send(
                    message.body * 2, destination=message.reply_to, correlation_id=message.correlation_id
                )

            consumer = await session.consumer(queue)
            await consumer.listen(answer)
            mine = asking.session()
            answers = await asyncio.gather(*(mine.request(queue, number, timeout=WAIT_S) for number in range(10)))
            assert [answer.body for answer in answers] == [number * 2 for number in range(10)]
            place = await mine.temporary_queue()
            with pytest.raises(alphorn.InvalidDestination, match="belongs to another connection"):
                await session.consumer(place)

    run(work())


def test_browsing_and_bad_input(cluster, queue):
    async def work():
        async with await alphorn.aio.connect(cluster.url) as connection, connection.session() as session:
            await send(session, queue, ["one", "two"])
            browser = await session.browser(queue)
            assert [message.body async for message in browser] == ["one", "two"]
            with pytest.raises(alphorn.InvalidSelector):
                await session.consumer(queue, selector="a =")
            with pytest.raises(alphorn.AccessDenied):
                await session.producer("queue:_MINE")
            with pytest.raises(alphorn.InvalidDestination):
                await session.producer("stack:orders")
            assert len(await (await session.consumer(queue)).receive_many(10, WAIT_S)) >= 1

    run(work())


def test_a_temporary_queue_whose_making_is_cancelled_goes_as_soon_as_it_is_there(cluster):
    async def work():
        async with await alphorn.aio.connect(cluster.url) as connection, connection.session() as session:
            assert await cancel(session.temporary_queue(), 1)
            kept = await session.temporary_queue()
            mine = [str(kept)]
            while (names := await own_of(connection)) != mine:
                assert len(names) == 2, "the other one is deleted only when it is there"

    run(work())


async def own_of(connection):
    """The temporary destinations of a connection."""
    return [row["name"] for row in await connection.destinations.list() if connection.id in row["name"]]


@pytest.mark.parametrize("then", ["commit", "rollback"])
def test_what_a_cancelled_commit_does_is_done_before_the_next_transaction_ends(cluster, queue, then):
    async def work():
        async with await alphorn.aio.connect(cluster.url) as connection:
            session = connection.session(transacted=True)
            producer = await session.producer(queue)
            await producer.send("first")
            assert await cancel(session.commit(), 1)
            await producer.send("second")
            await getattr(session, then)()
            found = [message.body async for message in await connection.session().browser(queue)]
            assert found == ["first", "second"][: 2 if then == "commit" else 1]

    run(work())
