"""A call that is cancelled at any of its awaits loses nothing and leaves nothing, and its connection goes on."""

import asyncio
import io
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

import pytest

import alphorn
from alphorn.client.lane import FRAGMENT_BYTES
from alphorn.model.destinations import TEMPORARY
from tests.client.broker import Broker
from tests.client.cancelling import WAIT_S, cancel, others

Round = Callable[["Desk"], Coroutine[Any, Any, None]]
MODES = ["auto", "client", "individual", "dups_ok", "transacted"]


class Desk:
    """One round: a connection that was used in all rounds before, and a queue of its own."""

    def __init__(self, broker: Broker, connection: alphorn.aio.Connection, number: int, *, is_late: bool) -> None:
        self.broker, self.connection = broker, connection
        self.session = connection.session()
        self.queue = f"queue:round{number}"
        self.number, self._is_late = number, is_late
        self.was_cancelled = False

    async def cancel(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Does this, and is cancelled where this round says; False when it was done before."""
        self.was_cancelled = await cancel(work, self.number, is_late=self._is_late)
        return self.was_cancelled

    async def send(self, *bodies: Any) -> None:
        """Begins to send, without a turn of the loop: what comes of it is waited for by whoever receives."""
        producer = await self.session.producer(self.queue)
        for body in bodies:
            await producer.send(body)

    def bodies(self) -> list[Any]:
        """What is in the queue."""
        return self.broker.bodies(self.queue)  # type: ignore[no-any-return]

    def temporary(self) -> list[str]:
        """Temporary queues and topics that exist."""
        return [name for name in self.broker.call(lambda: list(self.broker.queues)) if TEMPORARY in name]


async def go_round(broker: Broker, act: Round, *, is_late: bool) -> int:
    """Cancels at one await after the other; gives at how many."""
    async with asyncio.timeout(6 * WAIT_S), alphorn.aio.connect(broker.url) as connection:
        line = connection._line
        for number in count(1):
            desk = Desk(broker, connection, number, is_late=is_late)
            await act(desk)
            await desk.session.close()
            await connection.status()
            assert sorted(await others()) == ["alphorn-connection", "alphorn-heartbeat"]
            assert not line._waiting
            assert not len(line.core._requests)
            assert not line.core._outboxes._of
            assert not line.core._inboxes
            assert not line.core.sessions
            if not desk.was_cancelled:
                return number - 1
        raise AssertionError


def everywhere(broker: Broker, act: Round, *, is_late: bool) -> int:
    return asyncio.run(go_round(broker, act, is_late=is_late))


late = pytest.mark.parametrize("is_late", [False, True], ids=["early", "late"])


async def take(consumer: alphorn.aio.Consumer, number: int) -> list[Any]:
    """So many messages, each of which comes for the first time."""
    found = []
    for _ in range(number):
        message = await consumer.receive(WAIT_S)
        assert message is not None
        assert message.delivery_count == 1
        message.acknowledge()
        found.append(message.body)
    return found


SENDING: dict[str, Callable[[alphorn.aio.Producer, str], Coroutine[Any, Any, Any]]] = {
    "send": lambda producer, queue: producer.send("x", wait=True),
    "send_elsewhere": lambda producer, queue: producer.send("x", destination=queue, wait=True),
    "send_with_fields": lambda producer, queue: producer.send("x", destination=queue, key="k", wait=True),
    "try_send": lambda producer, queue: producer.try_send("x", destination=queue, wait=True),
    "send_many": lambda producer, queue: producer.send_many(["x"], destination=queue, wait=True),
    "send_many_in_parts": lambda producer, queue: producer.send_many(["x"] * 12_000, destination=queue, wait=True),
}


@late
@pytest.mark.parametrize("way", SENDING)
def test_what_a_cancelled_send_sent_is_there_once_and_before_what_is_sent_later(
    broker: Broker, way: str, is_late: bool
) -> None:
    async def act(desk: Desk) -> None:
        is_elsewhere = way != "send"
        producer = await desk.session.producer("queue:own" if is_elsewhere else desk.queue)
        await desk.cancel(SENDING[way](producer, desk.queue))
        await producer.send("after", destination=desk.queue, wait=True)
        *found, after = desk.bodies()
        assert after == "after"
        assert set(found) <= {"x"}
        assert len(found) in ((0, 5_000, 10_000, 12_000) if "parts" in way else (0, 1))
        if not desk.was_cancelled:
            assert len(found) == (12_000 if "parts" in way else 1)

    assert everywhere(broker, act, is_late=is_late) >= (2 if way != "send" else 1)


@late
def test_a_send_that_waits_for_room_sends_nothing_once_it_is_cancelled(broker: Broker, is_late: bool) -> None:
    async def act(desk: Desk) -> None:
        producer = await desk.session.producer(desk.queue)
        await producer.send("before", wait=True)
        broker.fill(desk.queue)
        while not producer.is_blocked():
            await desk.connection.status()

        async def send() -> None:
            asyncio.get_running_loop().call_soon(broker.fill, desk.queue, "")
            await producer.send("x")
            await producer.flush()

        await desk.cancel(send())
        broker.fill(desk.queue, "")
        await producer.send("after", wait=True)
        assert desk.bodies() in (["before", "x", "after"], ["before", "after"])

    assert everywhere(broker, act, is_late=is_late) >= 2


@late
def test_a_cancelled_stream_comes_whole_or_not_and_the_next_one_has_its_own_answer(
    broker: Broker, is_late: bool
) -> None:
    async def act(desk: Desk) -> None:
        producer = await desk.session.producer(desk.queue)
        await desk.cancel(producer.send_stream(io.BytesIO(bytes(3 * FRAGMENT_BYTES))))
        receipt = await producer.send_stream(io.BytesIO(b"after"))
        found = len(desk.bodies())
        consumer = await desk.session.consumer(desk.queue)
        messages = [await consumer.receive(WAIT_S) for _ in range(found)]
        assert [message.size for message in messages] in ([3 * FRAGMENT_BYTES, 5], [5])
        assert messages[-1].id == await receipt.result()
        assert await messages[-1].open().read() == b"after"
        assert len(desk.connection._line.core._outboxes._of) <= 3

    assert everywhere(broker, act, is_late=is_late) >= 5


RECEIVING: dict[str, Callable[[alphorn.aio.Consumer], Coroutine[Any, Any, Any]]] = {
    "receive": lambda consumer: consumer.receive(),
    "receive_in_time": lambda consumer: consumer.receive(WAIT_S),
    "receive_many": lambda consumer: consumer.receive_many(2),
    "next": lambda consumer: consumer.__anext__(),
}


@late
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", RECEIVING)
def test_messages_that_a_cancelled_call_would_have_given_come_to_the_next_in_order(
    broker: Broker, way: str, mode: str, is_late: bool
) -> None:
    async def act(desk: Desk) -> None:
        session = desk.connection.session(mode if mode != "transacted" else "auto", transacted=mode == "transacted")
        consumer = await session.consumer(desk.queue)
        await desk.send(1, 2, 3)
        if await desk.cancel(RECEIVING[way](consumer)):
            assert await take(consumer, 3) == [1, 2, 3]
            await session.commit() if mode == "transacted" else await session.acknowledge()
            await session.close()
            assert desk.bodies() == []
        else:
            await session.close()

    assert everywhere(broker, act, is_late=is_late) >= 1


@late
@pytest.mark.parametrize("then", ["commit", "rollback"])
def test_a_transaction_whose_commit_is_cancelled_is_done_once_and_the_session_goes_on(
    broker: Broker, then: str, is_late: bool
) -> None:
    async def act(desk: Desk) -> None:
        await desk.send("in")
        async with desk.connection.session(transacted=True) as session:
            consumer, producer = await session.consumer(desk.queue), await session.producer(f"{desk.queue}.out")
            assert (await consumer.receive(WAIT_S)).body == "in"
            await producer.send("out")
            broker.is_confirming = is_late or desk.number > 1
            await desk.cancel(session.commit())
            again = asyncio.ensure_future(session.commit() if then == "commit" else session.rollback())
            await asyncio.sleep(0)
            broker.confirm()
            await again
            await producer.send("more")
            await session.commit()
        assert desk.bodies() == []
        assert broker.bodies(f"{desk.queue}.out") == ["out", "more"]

    assert everywhere(broker, act, is_late=is_late) >= 1


@late
def test_that_a_transaction_was_rolled_back_whose_commit_was_cancelled_is_told_by_the_next_commit(
    broker: Broker, is_late: bool
) -> None:
    async def act(desk: Desk) -> None:
        async with desk.connection.session(transacted=True) as session:
            producer = await session.producer(desk.queue)
            broker.refusals[desk.queue] = ("AccessDenied", "it is full")
            await producer.send("first")
            broker.is_confirming = is_late or desk.number > 1
            try:
                await desk.cancel(session.commit())
            except alphorn.TransactionRolledBack:
                pass
            else:
                await desk.connection.status()  # the broker has heard of the transaction before
                await producer.send("second")
                del broker.refusals[desk.queue]
                broker.confirm()
                with pytest.raises(alphorn.TransactionRolledBack, match="it is full"):
                    await session.commit()
            broker.refusals.clear()
            await producer.send("third")
            await session.commit()
        assert desk.bodies() == ["third"]

    assert everywhere(broker, act, is_late=is_late) >= 1


@pytest.mark.parametrize("what", ["acknowledge", "recover", "rollback"])
def test_what_a_session_only_notes_is_never_cancelled(broker: Broker, what: str) -> None:
    async def act(desk: Desk) -> None:
        session = desk.connection.session("client", transacted=what == "rollback")
        consumer = await session.consumer(desk.queue)
        await desk.send(1)
        assert await take(consumer, 1) == [1]
        assert not await desk.cancel(getattr(session, what)())
        await session.close()

    assert everywhere(broker, act, is_late=False) == 0


@late
def test_a_cancelled_request_leaves_no_queue_and_the_next_one_has_its_own_answer(broker: Broker, is_late: bool) -> None:
    async def act(desk: Desk) -> None:
        answering = desk.connection.session()
        answers = await answering.producer()

        async def answer(message: Any) -> None:
            fields = {"destination": message.reply_to, "correlation_id": message.correlation_id}
            await answers.send(message.body + 1, **fields)

        await (await answering.consumer(desk.queue)).listen(answer)
        await desk.cancel(desk.session.request(desk.queue, 1, WAIT_S))
        assert (await desk.session.request(desk.queue, 2, WAIT_S)).body == 3
        assert len(desk.temporary()) == 1
        await desk.session.close()
        await answering.close()
        assert desk.temporary() == []

    assert everywhere(broker, act, is_late=is_late) >= 4


@late
def test_a_cancelled_look_at_a_queue_does_not_stand_before_the_next(broker: Broker, is_late: bool) -> None:
    async def act(desk: Desk) -> None:
        await desk.send(1, 2, 3)

        async def browse() -> list[Any]:
            return [message.body async for message in await desk.session.browser(desk.queue)]

        await desk.cancel(browse())
        assert await browse() == [1, 2, 3]

    assert everywhere(broker, act, is_late=is_late) >= 1


BEGINNING: dict[str, Callable[[Desk], Coroutine[Any, Any, Any]]] = {
    "consumer": lambda desk: desk.session.consumer(desk.queue),
    "subscriber": lambda desk: desk.session.consumer(desk.queue.replace("queue", "topic"), subscription="s"),
    "pattern": lambda desk: desk.session.consumer(alphorn.glob("queue:*")),
    "producer": lambda desk: desk.session.producer(desk.queue),
    "browser": lambda desk: desk.session.browser(desk.queue),
    "unsubscribe": lambda desk: desk.session.unsubscribe(desk.queue),
}


@late
@pytest.mark.parametrize("what", BEGINNING)
def test_what_is_cancelled_while_it_begins_is_as_if_it_never_was(broker: Broker, what: str, is_late: bool) -> None:
    async def act(desk: Desk) -> None:
        core = desk.connection._line.core
        if await desk.cancel(BEGINNING[what](desk)):
            await desk.connection.status()
            assert not core._inboxes
            assert not core._outboxes._of
            assert not core.patterns._boxes
            broker.refusals.clear()
            await desk.send("after")
            assert await take(await desk.session.consumer(desk.queue), 1) == ["after"]

    assert everywhere(broker, act, is_late=is_late) >= 1


@late
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_temporary_destination_that_nobody_can_name_does_not_exist(broker: Broker, kind: str, is_late: bool) -> None:
    async def act(desk: Desk) -> None:
        session = desk.session
        await desk.cancel(session.temporary_queue() if kind == "queue" else session.temporary_topic())
        await desk.connection.status()
        assert len(desk.temporary()) == (0 if desk.was_cancelled else 1)

    assert everywhere(broker, act, is_late=is_late) >= 1


@late
@pytest.mark.parametrize("size", [-1, FRAGMENT_BYTES, 1000])
def test_what_a_cancelled_reader_has_not_given_comes_with_the_next_read(
    broker: Broker, size: int, is_late: bool
) -> None:
    data = bytes(range(256)) * (3 * FRAGMENT_BYTES // 256) + b"end"

    async def act(desk: Desk) -> None:
        await (await desk.session.producer(desk.queue)).send_stream(io.BytesIO(data))
        message = await (await desk.session.consumer(desk.queue)).receive(WAIT_S)
        found: list[bytes] = []
        async with message.open() as body:

            async def read() -> None:
                while piece := await body.read(size):
                    found.append(piece)

            await desk.cancel(read())
            found.append(await body.read())
        assert b"".join(found) == data

    assert everywhere(broker, act, is_late=is_late) >= 3


CLOSING: dict[str, Callable[[Any, Any, Any], Coroutine[Any, Any, Any]]] = {
    "producer": lambda session, producer, consumer: producer.close(),
    "consumer": lambda session, producer, consumer: consumer.close(),
    "session": lambda session, producer, consumer: session.close(),
    "producer_block": lambda session, producer, consumer: producer.__aexit__(None),
    "consumer_block": lambda session, producer, consumer: consumer.__aexit__(None),
    "session_block": lambda session, producer, consumer: session.__aexit__(None),
    "failed_producer_block": lambda session, producer, consumer: producer.__aexit__(ValueError),
    "failed_consumer_block": lambda session, producer, consumer: consumer.__aexit__(ValueError),
    "failed_session_block": lambda session, producer, consumer: session.__aexit__(ValueError),
}


@late
@pytest.mark.parametrize("what", CLOSING)
def test_what_is_cancelled_while_it_ends_holds_no_messages_and_can_be_ended_again(
    broker: Broker, what: str, is_late: bool
) -> None:
    async def act(desk: Desk) -> None:
        session = desk.connection.session("client")
        producer, consumer = await session.producer(desk.queue), await session.consumer(desk.queue)
        called, go_on = asyncio.Event(), asyncio.Event()
        await producer.send("held", wait=True)

        async def listener(message: Any) -> None:
            called.set()
            await go_on.wait()

        await consumer.listen(listener)
        await called.wait()
        await producer.send("sent")
        asyncio.get_running_loop().call_soon(go_on.set)
        await desk.cancel(CLOSING[what](session, producer, consumer))
        go_on.set()
        if "consumer" in what or what.endswith("session_block"):
            async with desk.connection.session("client") as other:
                assert await take_any(await other.consumer(desk.queue), 2) == {"held", "sent"}
        [simply] = {"producer", "consumer", "session"} & set(what.split("_"))
        await CLOSING[simply](session, producer, consumer)
        await session.close()
        assert sorted(desk.bodies()) == ["held", "sent"]

    assert everywhere(broker, act, is_late=is_late) >= 1


async def take_any(consumer: alphorn.aio.Consumer, number: int) -> set[Any]:
    messages = [await consumer.receive(WAIT_S) for _ in range(number)]
    return {message.body for message in messages if message is not None}


@late
def test_connecting_that_is_cancelled_leaves_no_stream_and_no_task(broker: Broker, is_late: bool) -> None:
    async def connect(made: list[alphorn.aio.Connection]) -> None:
        made.append(await alphorn.aio.connect(broker.url))

    async def run() -> None:
        made: list[alphorn.aio.Connection] = []
        for number in count(1):
            if not await cancel(connect(made), number, is_late=is_late):
                break
            assert await others() == []
        await made[0].close()
        assert await others() == []
        while broker.call(lambda: len(broker.streams)):  # noqa: ASYNC110 - what is waited for has no event to wait on
            await asyncio.sleep(0)
        assert number > 1

    asyncio.run(run())
