"""Listeners, on both shells: nothing that a callback does ends them, and when they end it is said."""

import asyncio
import logging
import queue
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import alphorn
from tests.client.broker import Broker
from tests.client.shells import Connect

Heard = queue.Queue[Any]


class Leaving(BaseException):
    """What some library of a program might raise."""


@pytest.fixture
def said() -> Iterator[Heard]:
    """What the library writes to its log, warnings and worse."""
    records: Heard = queue.Queue()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: records.put((record.levelname, record.getMessage()))  # type: ignore[method-assign]
    logger = logging.getLogger("alphorn.client")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def fill(connection: Any, count: int, destination: str = "queue:q") -> None:
    connection.session().producer(destination).send_many(range(count)).result(10)


def take(heard: Heard, count: int) -> list[Any]:
    return [heard.get(timeout=10) for _ in range(count)]


@pytest.mark.parametrize("error", [asyncio.CancelledError, Leaving, ValueError])
def test_whatever_a_callback_raises_the_message_comes_again_and_listening_goes_on(
    broker: Broker, connect: Connect, said: Heard, error: type[BaseException]
) -> None:
    heard: Heard = queue.Queue()

    def listen(message: alphorn.Message) -> None:
        heard.put((message.body, message.delivery_count))
        if message.body == 1 and not message.redelivered:
            raise error("not now")

    with connect(broker.url) as connection:
        session = connection.session()
        session.consumer("queue:q", prefetch=1).listen(listen)
        fill(connection, 3)
        assert take(heard, 4) == [(0, 1), (1, 1), (1, 2), (2, 1)]
        session.consumer("queue:later").listen(listen)
        fill(connection, 1, "queue:later")
        assert take(heard, 1) == [(0, 1)]
    level, text = said.get(timeout=10)
    assert (level, "event=listener_failed destination=queue:q" in text) == ("ERROR", True)
    assert broker.bodies("queue:q") == []


def test_a_callback_that_leaves_its_thread_is_called_again(broker: Broker, said: Heard) -> None:
    heard: Heard = queue.Queue()

    def listen(message: alphorn.Message) -> None:
        heard.put((message.body, message.delivery_count))
        if not message.redelivered:
            sys.exit(3)

    with alphorn.connect(broker.url) as connection:
        connection.session().consumer("queue:q", prefetch=1).listen(listen)
        fill(connection, 2)
        assert take(heard, 4) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [level for level, text in said.queue if "listener_failed" in text] == ["ERROR"] * 2


def test_something_else_that_was_cancelled_is_no_cancellation_of_the_task_that_listens(
    broker: Broker, said: Heard
) -> None:
    async def listen_and_send() -> list[Any]:
        heard: asyncio.Queue[Any] = asyncio.Queue()

        async def listen(message: alphorn.Message) -> None:
            heard.put_nowait((message.body, message.delivery_count))
            if not message.redelivered:
                awaited = asyncio.ensure_future(asyncio.Event().wait())
                asyncio.get_running_loop().call_soon(awaited.cancel)
                await awaited

        async with alphorn.aio.connect(broker.url) as connection, connection.session() as session:
            consumer = await session.consumer("queue:q", prefetch=1)
            await consumer.listen(listen)
            await (await session.producer("queue:q")).send_many([0, 1])
            async with asyncio.timeout(10):
                return [await heard.get() for _ in range(4)]

    assert asyncio.run(listen_and_send()) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert broker.bodies("queue:q") == []


def test_a_task_that_was_cancelled_returns_its_message_and_is_begun_again_by_the_next_listener(broker: Broker) -> None:
    async def listen_and_send() -> list[Any]:
        heard: asyncio.Queue[Any] = asyncio.Queue()
        tasks: list[asyncio.Task[Any] | None] = []

        async def listen(message: alphorn.Message) -> None:
            heard.put_nowait((message.destination, message.delivery_count))
            if not tasks:
                tasks.append(asyncio.current_task())
                await asyncio.Event().wait()

        async with alphorn.aio.connect(broker.url) as connection, connection.session() as session:
            await (await session.consumer("queue:q")).listen(listen)
            producer = await session.producer()
            await producer.send(0, destination="queue:q")
            async with asyncio.timeout(10):
                got = [await heard.get()]
                assert tasks[0] is not None
                tasks[0].cancel()
                await asyncio.wait([tasks[0]])
                await (await session.consumer("queue:later")).listen(listen)
                got.append(await heard.get())
                await producer.send(0, destination="queue:later")
                return [*got, await heard.get()]

    assert asyncio.run(listen_and_send()) == [("queue:q", 1), ("queue:q", 2), ("queue:later", 1)]


def test_a_listener_whose_consumer_the_server_closes_says_so_and_others_go_on(
    broker: Broker, connect: Connect, said: Heard
) -> None:
    heard: Heard = queue.Queue()
    with connect(broker.url) as connection:
        session = connection.session()
        for name in ("queue:q", "queue:other"):
            session.consumer(name).listen(lambda message: heard.put(message.destination))
        connection.destinations.delete("queue:q")
        assert said.get(timeout=10) == (
            "ERROR",
            "event=listener_ended destination=queue:q reason='queue:q was deleted'",
        )
        fill(connection, 1, "queue:other")
        assert take(heard, 1) == ["queue:other"]
    assert said.empty()


def test_a_listener_of_a_connection_that_is_over_says_so(broker: Broker, connect: Connect, said: Heard) -> None:
    connection = connect(broker.url)
    connection.session().consumer("queue:q").listen(lambda message: None)
    broker.forgets = True
    broker.cut_all()
    level, text = said.get(timeout=10)
    assert (level, "event=listener_ended destination=queue:q reason='the cluster has forgotten" in text) == (
        "ERROR",
        True,
    )
    connection.close()


@pytest.mark.parametrize("closes", ["consumer", "session", "connection"])
def test_a_listener_that_the_program_ends_says_nothing(
    broker: Broker, connect: Connect, said: Heard, closes: str
) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        consumer = session.consumer("queue:q")
        consumer.listen(lambda message: None)
        {"consumer": consumer, "session": session, "connection": connection}[closes].close()
    assert said.empty()
