"""Whoever is cancelled while a connection ends leaves nothing behind: no task, no stream, no message that is held."""

import asyncio
from itertools import count

import alphorn
from tests.client.broker import Broker
from tests.client.cancelling import WAIT_S, cancel, others


async def holding(broker: Broker, queue: str) -> alphorn.aio.Connection:
    """A connection whose consumer holds a message."""
    connection = await alphorn.aio.connect(broker.url)
    session = connection.session(ack="client")
    await (await session.producer(queue)).send("held", wait=True)
    assert await (await session.consumer(queue)).receive(WAIT_S)
    return connection


async def is_given_to_another(broker: Broker, queue: str) -> bool:
    async with alphorn.aio.connect(broker.url) as connection:
        return bool(await (await connection.session().consumer(queue)).receive(WAIT_S))


def test_a_block_that_is_left_by_a_cancellation_while_it_closes_ends_its_connection(broker: Broker) -> None:
    async def leave() -> None:
        for number in count(1):
            queue = f"queue:block{number}"
            connection = await holding(broker, queue)
            was_cancelled = await cancel(connection.__aexit__(None), number)
            assert await others() == []
            assert await is_given_to_another(broker, queue)
            if not was_cancelled:
                break
        assert number > 2

    asyncio.run(leave())


def test_closing_that_was_cancelled_can_be_repeated_and_leaves_nothing(broker: Broker) -> None:
    async def close() -> None:
        for number in count(1):
            queue = f"queue:close{number}"
            connection = await holding(broker, queue)
            was_cancelled = await cancel(connection.close(), number)
            await connection.close()
            assert await others() == []
            assert await is_given_to_another(broker, queue)
            if not was_cancelled:
                break
        assert number > 2

    asyncio.run(close())
