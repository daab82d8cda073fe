"""Closing, on both shells: nobody waits for ever, nothing is dropped without a word, and a second time finishes it."""

import asyncio
import concurrent.futures
import inspect
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

import alphorn
from alphorn.client import flushing
from alphorn.client.aio import producer as aio_producer
from alphorn.client.blocking import producer as blocking_producer
from alphorn.model.conversation import (
    Close,
    CloseConsumer,
    ClosePattern,
    CloseSession,
    Consume,
    ConsumePattern,
    Publish,
)
from tests.client.broker import Broker
from tests.client.shells import Call, Connect, await_waiting, number_waiting

INTERRUPTED = (KeyboardInterrupt, concurrent.futures.CancelledError)


def interrupt(connection: Any, name: str) -> None:
    """The next wait of this kind is interrupted: by the keyboard, or cancelled; what it asks for is under way then."""
    line = getattr(connection, "inner", connection)._line

    def interrupted(wish: Callable[[Any], object], *arguments: Any) -> None:
        delattr(line, name)
        with getattr(line, "lock", None) or nullcontext():
            wish(*[lambda answer: None] * (name == "await_answer"))
        (line.wake if hasattr(line, "wake") else line.schedule)()
        raise KeyboardInterrupt

    async def cancelled(wish: Callable[[Any], object], *arguments: Any) -> None:
        try:
            interrupted(wish, *arguments)
        except KeyboardInterrupt:
            raise asyncio.CancelledError from None

    setattr(line, name, cancelled if inspect.iscoroutinefunction(getattr(line, name)) else interrupted)


def blocked_send(broker: Broker, connection: Any, producer: Any) -> Call:
    """A send that waits for room."""
    broker.fill("queue:q")
    while not producer.is_blocked():
        connection.status()
    call = Call(lambda: producer.send("waits"))
    await_waiting(connection)
    return call


@pytest.mark.parametrize("what", ["producer", "session", "connection"])
def test_a_send_that_waits_for_room_ends_when_its_producer_is_closed(
    broker: Broker, connect: Connect, what: str
) -> None:
    connection = connect(broker.url)
    session = connection.session()
    producer = session.producer("queue:q")
    producer.send("a", wait=True)
    call = blocked_send(broker, connection, producer)
    {"producer": producer, "session": session, "connection": connection}[what].close()
    with pytest.raises(alphorn.Misuse, match="closed"):
        call.result()
    connection.close()
    assert broker.bodies("queue:q") == ["a"]


def test_a_producer_that_is_being_closed_takes_nothing_more_and_sends_what_it_has(
    broker: Broker, connect: Connect
) -> None:
    broker.is_confirming = False
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        receipt = producer.send("a")
        sending = blocked_send(broker, connection, producer)
        closing = Call(producer.close)
        with pytest.raises(alphorn.Misuse, match="producer is closed"):
            sending.result()
        assert not receipt.is_done
        broker.confirm()
        closing.result()
        assert receipt.result(10)
    assert broker.bodies("queue:q") == ["a"]


def test_a_producer_may_be_closed_twice_after_a_refusal_and_tells_it_once(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        broker.refusals["queue:q"] = ("AccessDenied", "queue:q is not yours")
        producer.send("a")
        with pytest.raises(alphorn.AccessDenied):
            producer.close()
        producer.close()


@pytest.mark.parametrize("what", ["producer", "session", "connection"])
def test_a_refused_message_does_not_drop_those_to_other_destinations(
    broker: Broker, connect: Connect, what: str
) -> None:
    connection = connect(broker.url)
    session = connection.session()
    producer = session.producer()
    producer.send("a", destination="queue:small", wait=True)
    broker.refusals["queue:small"] = ("Blocked", "queue:small is full")
    producer.send("b", destination="queue:small")
    receipts = producer.send_many(range(50_000), destination="queue:big")
    with pytest.raises(alphorn.Blocked, match="small is full"):
        {"producer": producer, "session": session, "connection": connection}[what].close()
    assert receipts[-1].result(0)
    connection.close()
    assert len(broker.bodies("queue:big")) == 50_000


def test_flushing_waits_for_all_destinations_within_one_time_and_tells_every_refusal_once(
    broker: Broker, connect: Connect
) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer()
        for name in ("queue:a", "queue:b"):
            producer.send(0, destination=name, wait=True)
            broker.refusals[name] = ("AccessDenied", f"{name} is not yours")
            producer.send(1, destination=name)
        connection.status()
        broker.is_confirming = False
        late = producer.send(2, destination="queue:c")
        with pytest.raises(TimeoutError, match="1 messages"):
            producer.flush(0.05)
        broker.confirm()
        with pytest.raises(alphorn.AccessDenied, match="queue:a"):
            producer.flush(10)
        assert late.result(0)
        producer.flush(10)


def test_a_consumer_whose_opening_is_interrupted_takes_no_messages(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        session.producer("queue:q").send("a", wait=True)
        interrupt(connection, "await_answer")
        with pytest.raises(INTERRUPTED):
            session.consumer("queue:q")
        assert session.consumer("queue:q").receive(timeout=10).body == "a"
        [consume, _], [close] = broker.frames(Consume), broker.frames(CloseConsumer)
        assert close.consumer == consume.consumer
        assert len(getattr(connection, "inner", connection)._line.core._inboxes) == 1


def test_a_consumer_of_a_pattern_whose_opening_is_interrupted_is_closed(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        interrupt(connection, "await_answer")
        with pytest.raises(INTERRUPTED):
            connection.session().consumer(alphorn.glob("queue:*"))
        connection.status()
        [consume], [close] = broker.frames(ConsumePattern), broker.frames(ClosePattern)
        assert close.watch == consume.watch


@pytest.mark.parametrize("what", ["producer", "session"])
@pytest.mark.parametrize("then", ["session", "connection"])
def test_what_an_interrupted_close_left_is_finished_by_the_next(
    broker: Broker, connect: Connect, what: str, then: str
) -> None:
    broker.is_confirming = False
    connection = connect(broker.url)
    session = connection.session()
    producer = session.producer("queue:q")
    parts = {"producer": producer, "session": session, "connection": connection}
    receipts = producer.send_many(range(20_000))
    interrupt(connection, "wait_for")
    with pytest.raises(INTERRUPTED):
        parts[what].close()
    with pytest.raises(alphorn.Misuse, match="closed"):
        producer.send("more")
    closing = Call(parts[then].close)
    await_waiting(connection)
    broker.confirm()
    closing.result()
    assert receipts[-1].result(0)
    connection.close()
    assert len(broker.bodies("queue:q")) == 20_000
    assert len(broker.frames(CloseSession)) == 1


def test_an_interrupted_wait_for_the_end_of_a_session_is_taken_up_again(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session(ack="client")
        session.producer("queue:q").send_many(range(3)).result(10)
        assert session.consumer("queue:q").receive(timeout=10).body == 0
        interrupt(connection, "await_answer")
        with pytest.raises(INTERRUPTED):
            session.close()
        session.close()
        session.close()
        [close] = broker.frames(CloseSession)
        assert list(close.unseen.values()) == [[2, 3]]
    assert broker.bodies("queue:q") == [0, 1, 2]


def test_a_program_hears_that_its_connection_is_closed(broker: Broker) -> None:
    events: list[str] = []
    alphorn.connect(broker.url, on_event=lambda name, detail: events.append(name)).close()
    assert events == ["connected", "disconnected", "closed"]


def test_the_descriptor_by_which_a_thread_is_woken_is_not_closed_meanwhile(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, are_guarded = os.eventfd_write, []
    with alphorn.connect(broker.url) as connection:

        def look(fd: int, value: int) -> None:
            are_guarded.append(connection._line._wake_lock.locked())
            write(fd, value)

        monkeypatch.setattr(os, "eventfd_write", look)
        connection.status()
    assert are_guarded
    assert all(are_guarded)


def test_closing_a_session_whose_connection_another_closes_meanwhile_is_no_failure(
    broker: Broker, connect: Connect
) -> None:
    connection = connect(broker.url)
    session = connection.session()
    session.producer("queue:q").send("a")
    line = getattr(connection, "inner", connection)._line
    await_answer = line.await_answer

    def after_another(wish: Any) -> Any:
        line.await_answer = await_answer
        Call(connection.close).result()
        return await_answer(wish)

    async def after_another_task(wish: Any) -> Any:
        line.await_answer = await_answer
        await connection.inner.close()
        return await await_answer(wish)

    line.await_answer = after_another_task if inspect.iscoroutinefunction(await_answer) else after_another
    session.close()
    assert broker.bodies("queue:q") == ["a"]


def test_all_who_close_a_session_at_once_wait_until_everything_is_committed(broker: Broker, connect: Connect) -> None:
    broker.is_confirming = False
    connection = connect(broker.url)
    session = connection.session()
    receipt = session.producer("queue:q").send("a")
    closing = [Call(close) for close in (session.close, session.close, connection.close, connection.close)]
    while number_waiting(connection) < len(closing):
        assert not receipt.is_done
    broker.confirm()
    for call in closing:
        call.result()
    assert receipt.result(0)
    assert [len(broker.frames(kind)) for kind in (CloseSession, Close)] == [1, 1]


@pytest.mark.parametrize("what", ["producer", "session", "connection"])
def test_an_exception_is_seen_although_messages_are_not_confirmed(
    broker: Broker, connect: Connect, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (flushing, blocking_producer, aio_producer):
        monkeypatch.setattr(module, "GIVE_UP_S", 0.05)
    broker.is_confirming = False
    connection = connect(broker.url)
    sessions = [connection.session(), connection.session()]
    producers = [session.producer("queue:q") for session in sessions]
    receipts = [producer.send("x") for producer in producers[: 2 if what == "connection" else 1]]
    connection.status()
    with (
        pytest.raises(ValueError, match="own fault"),
        {"producer": producers[0], "session": sessions[0], "connection": connection}[what],
    ):
        raise ValueError("the program's own fault")
    [warning] = [record for record in caplog.records if record.name == "alphorn.client"]
    assert f"event=messages_given_up count={len(receipts)} " in warning.getMessage()
    for receipt in receipts:
        with pytest.raises(alphorn.UnknownOutcome, match="closed before"):
            receipt.result(0)
    connection.close()


def test_an_exception_is_seen_although_a_message_was_refused(
    broker: Broker, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        producer = session.producer("queue:q")
        broker.refusals["queue:q"] = ("AccessDenied", "queue:q is not yours")
        producer.send("x")
        with pytest.raises(ValueError, match="own fault"), session:
            raise ValueError("the program's own fault")
        assert "not yours" in caplog.text


def test_a_listener_that_waits_for_room_does_not_hide_an_exception(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        connection.session().producer("queue:in").send("x", wait=True)
        session = connection.session()
        producer = session.producer("queue:q")
        broker.fill("queue:q")
        while not producer.is_blocked():
            connection.status()
        is_called = threading.Event()

        def forward(message: Any) -> Any:
            is_called.set()
            return getattr(producer, "inner", producer).send(message.body)

        session.consumer("queue:in").listen(forward)
        assert is_called.wait(10)
        with pytest.raises(ValueError, match="own fault"), session:
            raise ValueError("the program's own fault")
    assert broker.bodies("queue:in") == ["x"]


def test_a_task_that_is_cancelled_ends_although_messages_are_not_confirmed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flushing, "GIVE_UP_S", 0.05)
    broker.is_confirming = False
    receipts: list[alphorn.aio.Receipt] = []

    async def program() -> None:
        async with alphorn.aio.connect(broker.url) as connection:
            receipts.append(await (await connection.session().producer("queue:q")).send("x"))
            await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.create_task(program())
        while not broker.frames(Publish):  # noqa: ASYNC110 - what is waited for has no event to wait on
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(alphorn.UnknownOutcome, match="closed before"):
            await receipts[0].result(0)

    asyncio.run(run())
