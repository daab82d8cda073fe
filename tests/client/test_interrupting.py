"""The handler of a signal raises in the middle of a call, as Ctrl-C does: nothing is lost, and nothing hangs."""

import contextlib
import inspect
import io
import re
import sys
import threading
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

import pytest

import alphorn
from alphorn.client.blocking import line
from alphorn.model.conversation import Acknowledge, Close
from tests.client.broker import Broker

WAIT_S = 10
BROKEN_OFF = contextlib.suppress(alphorn.Unavailable, alphorn.UnknownOutcome)  # the connection ended, and said so


def interrupt(number: int, act: Callable[[], object], *, modules: str = f"/alphorn/|{threading.__file__}") -> bool:
    """Raises where the library enters its function of this number, a place where handlers run; False past the last.

    What it uses of the standard library to wait is part of it. What is raised in a generator may be one that is being
    freed, where nobody hears it.
    """
    entered = 0

    def trace(frame: FrameType, event: str, argument: object) -> None:
        nonlocal entered
        is_heard = not frame.f_code.co_flags & inspect.CO_GENERATOR
        entered += is_heard and re.search(modules, frame.f_code.co_filename) is not None
        if entered == number:
            sys.settrace(None)
            raise KeyboardInterrupt

    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.fixture(autouse=True)
def always_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However soon the program sends again, it writes to the stream itself where it can."""
    monkeypatch.setattr(line, "PUSH_S", 0.0)


SENDING: dict[str, Callable[[alphorn.Producer], Any]] = {
    "one": lambda producer: producer.send("x"),
    "with_properties": lambda producer: producer.send("x", properties={"region": "eu"}),
    "many": lambda producer: producer.send_many(["x"]),
}


def let_the_thread_be_faster(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a program is about to write to the stream, the connection's thread has found and sent before."""
    push, heard = line.Line.push, len(broker.heard)

    def push_late(self: line.Line) -> None:
        self.wake()
        while len(broker.heard) == heard:
            pass
        push(self)

    monkeypatch.setattr(line.Line, "push", push_late)


@pytest.mark.parametrize("is_faster", [False, True], ids=["itself", "thread"])
@pytest.mark.parametrize("way", SENDING)
def test_what_was_sent_before_and_after_an_interrupted_send_is_there_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, way: str, is_faster: bool
) -> None:
    """What was confirmed is there. Of the interrupted message nobody was told, so it may be there or not.

    A connection that goes on delivers everything that its producer counted. One that was broken off takes nothing more,
    but may have sent what it had: its thread sends what it finds, also what a program is about to send.
    """
    for number in count(1):
        connection = alphorn.connect(broker.url)
        queue = f"queue:{way}{number}"
        producer = connection.session().producer(queue)
        producer.send("before").result(WAIT_S)
        until_asleep(connection)
        with monkeypatch.context() as patched:
            if is_faster:
                let_the_thread_be_faster(broker, patched)
            is_interrupted = interrupt(number, lambda: SENDING[way](producer))  # noqa: B023
        is_confirmed = False
        with BROKEN_OFF:
            producer.send("after").result(WAIT_S)
            is_confirmed = True
            producer.flush(WAIT_S)
        is_whole, taken = connection._line.core.failure is None, producer._outbox.counter
        with BROKEN_OFF:
            connection.close()
        found = broker.bodies(queue)
        assert is_confirmed is is_whole
        if is_whole:
            assert found in (["before", "x", "after"], ["before", "after"])
            assert len(found) == taken
        else:
            assert found in (["before", "x"], ["before"])
        if not is_interrupted:
            assert found == ["before", "x", "after"]
            break
    assert number > 4


def until_asleep(connection: alphorn.Connection) -> None:
    """Returns once the connection's thread has nothing to do, so that a program may write to the stream."""
    while not connection._line.is_asleep:
        pass


RECEIVING: dict[str, Callable[[alphorn.Consumer], Any]] = {
    "one": lambda consumer: consumer.receive(WAIT_S),
    "many": lambda consumer: consumer.receive_many(2, WAIT_S),
}


@pytest.mark.parametrize("mode", ["auto", "client", "individual"])
@pytest.mark.parametrize("way", RECEIVING)
def test_a_message_that_an_interrupted_call_would_have_given_comes_again(broker: Broker, way: str, mode: str) -> None:
    for number in count(1):
        with alphorn.connect(broker.url) as sender:
            queue = f"queue:{way}{mode}{number}"
            sender.session().producer(queue).send_many(range(4)).result(WAIT_S)
        connection = alphorn.connect(broker.url)
        consumer = connection.session(ack=mode).consumer(queue)
        is_interrupted = interrupt(number, lambda: RECEIVING[way](consumer))  # noqa: B023
        if is_interrupted:
            with BROKEN_OFF:
                assert take_all(consumer, set(range(4))) == set(range(4))
        acknowledged = {id(frame) for frame in broker.frames(Acknowledge)}
        is_whole = connection._line.core.failure is None
        connection.close()
        assert is_whole or {id(frame) for frame in broker.frames(Acknowledge)} == acknowledged
        if not is_interrupted:
            break
    assert number > 5


def take_all(consumer: alphorn.Consumer, wanted: set[int]) -> set[int]:
    """Receives and acknowledges until these have come."""
    found: set[int] = set()
    while found != wanted:
        message = consumer.receive(WAIT_S)
        assert message is not None
        message.acknowledge()
        found.add(message.body)
    return found


class Desk:
    """A connection with something to do in every way."""

    def __init__(self, broker: Broker, number: int) -> None:
        self.broker = broker
        self.queue = f"queue:{number}"
        self.connection = alphorn.connect(broker.url)
        self.session = self.connection.session(ack="client")
        self.producer = self.session.producer(self.queue)
        self.producer.send_stream(io.BytesIO(b"film"))
        self.consumer = self.session.consumer(self.queue)
        self.message = self.consumer.receive(WAIT_S)
        self.transacted = self.connection.session(transacted=True)
        self.transacted.producer(f"{self.queue}.out").send("out")


CALLS: dict[str, Callable[[Desk], Any]] = {
    "send and wait": lambda desk: desk.producer.send("x", wait=True),
    "send elsewhere": lambda desk: desk.producer.send("x", destination="queue:other").result(WAIT_S),
    "send_many": lambda desk: desk.producer.send_many(["x"]).result(WAIT_S),
    "send_stream": lambda desk: desk.producer.send_stream(io.BytesIO(b"x")),
    "flush": lambda desk: (desk.producer.send("x"), desk.producer.flush(WAIT_S)),
    "receive in vain": lambda desk: desk.consumer.receive(0.001),
    "acknowledge": lambda desk: desk.session.acknowledge(),
    "recover": lambda desk: desk.session.recover(),
    "read": lambda desk: desk.message.open().read(),
    "browse": lambda desk: list(desk.session.browser(desk.queue)),
    "consumer": lambda desk: desk.session.consumer("queue:other"),
    "pattern": lambda desk: desk.session.consumer(alphorn.glob("queue:x*")),
    "producer": lambda desk: desk.session.producer("queue:other"),
    "session": lambda desk: desk.connection.session(),
    "temporary_queue": lambda desk: desk.session.temporary_queue(),
    "request": lambda desk: request(desk),
    "commit": lambda desk: desk.transacted.commit(),
    "rollback": lambda desk: desk.transacted.rollback(),
    "status": lambda desk: desk.connection.status(),
    "close consumer": lambda desk: desk.consumer.close(),
    "close producer": lambda desk: desk.producer.close(),
    "close session": lambda desk: desk.session.close(),
    "close connection": lambda desk: desk.connection.close(),
}


def request(desk: Desk) -> None:
    with contextlib.suppress(TimeoutError):
        desk.session.request("queue:nobody", "x", 0.001)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_interrupted_leaves_a_connection_that_works_or_is_over(broker: Broker, call: str) -> None:
    for number in count(1):
        desk = Desk(broker, number)
        is_interrupted = interrupt(number, lambda: CALLS[call](desk))  # noqa: B023
        with BROKEN_OFF, contextlib.suppress(alphorn.Misuse):
            session = desk.connection.session()
            session.producer(f"{desk.queue}.after").send("after").result(WAIT_S)
            assert session.consumer(f"{desk.queue}.after").receive(WAIT_S).body == "after"
        with contextlib.suppress(alphorn.Error):
            desk.connection.close()
        assert not desk.connection._line._thread.is_alive()
        with alphorn.connect(broker.url) as other:
            other.status()
        holders = broker.call(lambda: list(broker.holders.values()))
        assert desk.connection._line._is_cut or not any(holder.held for holder in holders)
        broker.holders.clear()
        if not is_interrupted:
            break
    assert number > 2


def test_connecting_that_is_interrupted_leaves_no_thread_and_no_stream(broker: Broker) -> None:
    made: list[alphorn.Connection] = []
    for number in count(1):
        is_interrupted = interrupt(number, lambda: made.append(alphorn.connect(broker.url)), modules="/alphorn/")
        if not is_interrupted:
            made[0].close()
        for thread in threading.enumerate():
            if thread.name == "alphorn-io":
                thread.join(WAIT_S)
                assert not thread.is_alive()
        if not is_interrupted:
            break
    while broker.call(lambda: len(broker.streams)):
        pass
    assert number > 10


def test_goodbye_is_said_although_a_connection_is_closed_while_it_writes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = alphorn.connect(broker.url)
    send = line._send

    def closing(stream: Any, frames: Any) -> Any:
        monkeypatch.setattr(line, "_send", send)
        connection._line._begin_to_end(alphorn.Misuse("closed meanwhile"))
        return send(stream, frames)

    monkeypatch.setattr(line, "_send", closing)
    with contextlib.suppress(alphorn.Misuse):  # unless the answer comes before
        connection.status()
    while broker.call(lambda: len(broker.streams)):
        pass
    assert len(broker.frames(Close)) == 1


def test_a_connection_whose_change_was_broken_off_says_so_and_can_be_closed(broker: Broker) -> None:
    def act() -> None:
        raise KeyboardInterrupt

    events: list[str] = []
    connection = alphorn.connect(broker.url, on_event=lambda name, detail: events.append(name))
    session = connection.session()
    producer, consumer = session.producer("queue:q"), session.consumer("queue:q")
    with pytest.raises(KeyboardInterrupt):
        connection._line.change(act)
    for call in (lambda: producer.send("x"), consumer.receive, session.temporary_queue, connection.session):
        with pytest.raises(alphorn.Unavailable, match="broken off in the middle by KeyboardInterrupt"):
            call()
    connection.close()
    assert events == ["connected", "closed"]


def test_a_refusal_breaks_nothing_off(broker: Broker) -> None:
    def act() -> None:
        raise alphorn.Misuse("no")

    with alphorn.connect(broker.url) as connection:
        with pytest.raises(alphorn.Misuse):
            connection._line.change(act)
        assert connection.session().producer("queue:q").send("x").result(WAIT_S)
