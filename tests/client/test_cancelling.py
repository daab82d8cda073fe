"""Whoever is cancelled while a connection ends leaves nothing behind: no task, no stream, no message that is held."""

import asyncio
from collections.abc import Coroutine, Generator
from itertools import count
from typing import Any

import alphorn
from tests.client.broker import Broker

WAIT_S = 10


class Cancelled:
    """Awaits something, and cancels the task that does so where it waits for the so-manieth time."""

    def __init__(self, work: Coroutine[Any, Any, Any], number: int) -> None:
        self._work, self._left = work, number

    def __await__(self) -> Generator[Any, Any, Any]:
        step, value = self._work.send, None
        while True:
            try:
                waited = step(value)  # type: ignore[arg-type]
            except StopIteration as end:
                return end.value
            self._left -= 1
            if self._left == 0:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                step, value = self._work.send, (yield waited)
            except BaseException as error:
                step, value = self._work.throw, error  # type: ignore[assignment]


async def cancel(work: Coroutine[Any, Any, Any], number: int) -> bool:
    """Whether it waited so often that it was cancelled."""

    async def run() -> None:
        await Cancelled(work, number)

    task = asyncio.create_task(run())
    await asyncio.wait([task], timeout=WAIT_S)
    assert task.done(), "it still waits"
    return task.cancelled()


async def others() -> list[str]:
    """Tasks that are not the test's own, once those that were cancelled have ended."""
    await asyncio.sleep(0)
    return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]


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
