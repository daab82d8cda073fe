"""The handler of a signal raises in the middle of a call, as Ctrl-C does: nothing is lost, and nothing hangs."""

import contextlib
import sys
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

import pytest

import alphorn
from alphorn.client.blocking import line
from alphorn.model.conversation import Acknowledge
from tests.client.broker import Broker

WAIT_S = 10
BROKEN_OFF = contextlib.suppress(alphorn.Unavailable, alphorn.UnknownOutcome)  # the connection ended, and said so


def interrupt(number: int, act: Callable[[], object]) -> bool:
    """Raises where the library enters its function of this number, a place where handlers run; False past the last."""
    entered = 0

    def trace(frame: FrameType, event: str, argument: object) -> None:
        nonlocal entered
        entered += "/alphorn/" in frame.f_code.co_filename
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


@pytest.mark.parametrize("way", SENDING)
def test_what_was_sent_before_and_after_an_interrupted_send_is_there_once(broker: Broker, way: str) -> None:
    for number in count(1):
        connection = alphorn.connect(broker.url)
        queue = f"queue:{way}{number}"
        producer = connection.session().producer(queue)
        confirmed = [producer.send("before").result(WAIT_S)]
        is_interrupted = interrupt(number, lambda: SENDING[way](producer))  # noqa: B023
        with BROKEN_OFF:
            confirmed.append(producer.send("after").result(WAIT_S))
            producer.flush(WAIT_S)
        with BROKEN_OFF:
            connection.close()
        found = broker.bodies(queue)
        assert found in (["before", "x", "after"][: 1 + len(found)], ["before", "after"], ["before"])
        assert len(found) >= len(confirmed)
        if not is_interrupted:
            break
    assert number > 5


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
