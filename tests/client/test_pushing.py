"""A program that sends now and then writes to the stream itself; the connection's thread does all else."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import alphorn
from alphorn.client.blocking import line
from tests.client.broker import Broker

Frames = list[bytes | memoryview]


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that wrote something, in order."""
    written: list[str] = []
    send = line._send

    def note(stream: Any, frames: Frames) -> Frames:
        if frames:
            written.append(threading.current_thread().name)
        return send(stream, frames)

    monkeypatch.setattr(line, "_send", note)
    return written


def until_asleep(connection: Any) -> None:
    deadline = time.monotonic() + 10
    while not connection._line.is_idle:
        assert time.monotonic() < deadline
        time.sleep(0)


def test_a_single_message_is_written_by_the_program_itself(broker: Broker, writers: list[str]) -> None:
    with alphorn.connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        until_asleep(connection)
        writers.clear()
        producer.send("now").result(10)
        assert writers[0] == threading.current_thread().name


def test_a_stream_that_takes_only_a_part_leaves_the_rest_to_the_thread(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = line._send

    def half(stream: Any, frames: Frames) -> Frames:
        if threading.current_thread() is not threading.main_thread() or not frames:
            return send(stream, frames)
        stream.send(frames[0][:7])
        return [memoryview(frames[0])[7:], *frames[1:]]

    with alphorn.connect(broker.url) as connection:
        session = connection.session()
        producer = session.producer("queue:q")
        until_asleep(connection)
        monkeypatch.setattr(line, "_send", half)
        producer.send("in two pieces").result(10)
        assert session.consumer("queue:q").receive(timeout=10).body == "in two pieces"


def test_a_stream_that_breaks_while_the_program_writes_is_the_threads_business(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = line._send

    def fail(stream: Any, frames: Frames) -> Frames:
        if threading.current_thread() is threading.main_thread() and frames:
            raise OSError("broken")
        return send(stream, frames)

    with alphorn.connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        until_asleep(connection)
        monkeypatch.setattr(line, "_send", fail)
        producer.send("after all").result(10)


def test_who_sends_all_the_time_leaves_the_writing_to_the_thread(
    broker: Broker, writers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "PUSH_S", 1e6)
    with alphorn.connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        for number in range(200):
            producer.send(number)
        producer.flush(10)
        assert writers.count(threading.current_thread().name) <= 1


def test_threads_that_push_and_the_connections_own_keep_the_order_of_each_producer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "PUSH_S", 0.0)
    with alphorn.connect(broker.url) as connection:
        session = connection.session()
        producers = [session.producer(f"queue:q{name}") for name in range(4)]

        def send(producer: Any) -> Callable[[], None]:
            return lambda: [producer.send(number) for number in range(300)] and None

        threads = [threading.Thread(target=send(producer)) for producer in producers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in range(4):
            consumer = session.consumer(f"queue:q{name}")
            bodies = [consumer.receive(timeout=10).body for _ in range(300)]
            assert bodies == list(range(300))
