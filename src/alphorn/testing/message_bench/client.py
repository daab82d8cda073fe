"""A client process of the benchmark: does one task (tasks.py) that it reads from its standard input.

python -m alphorn.testing.message_bench.client
"""

import sys
import threading
import time

import msgspec

from alphorn.client.blocking.connection import Connection, connect
from alphorn.client.blocking.consumer import Consumer
from alphorn.client.blocking.producer import Producer
from alphorn.model.errors import Error, Unavailable
from alphorn.testing.message_bench.idle import hold_connections
from alphorn.testing.message_bench.tasks import (
    GO,
    AnyTask,
    AnyWord,
    Consume,
    Done,
    Failed,
    Idle,
    Open,
    Pace,
    Produce,
    Ready,
    decode_task,
)


def main() -> None:
    """The process."""
    task: AnyTask = decode_task(sys.stdin.buffer.readline())
    try:
        match task:
            case Produce():
                _say(produce(task))
            case Consume():
                _say(consume(task))
            case Pace():
                _say(pace(task))
            case Idle():
                with hold_connections(task.url, task.connections):
                    _say(Ready())
                    sys.stdin.buffer.read()
    except (Error, OSError) as error:
        _say(Failed(str(error)))


def produce(task: Produce) -> Done:
    """Sends; see `Produce`."""
    with connect(task.url) as connection:
        session = connection.session()
        names = task.destinations
        if task.has_one_producer:
            one = session.producer()
            producers = [one] * len(names)
        else:
            producers = [session.producer(name) for name in names]
        body = b"x" * task.size
        _send(task, producers, body, task.warm_up)
        with Stopwatch() as watch:
            _send(task, producers, body, task.messages)
        return watch.done(task.messages * len(names))


def _send(task: Produce, producers: list[Producer], body: bytes, messages: int) -> None:
    destinations = task.destinations if task.has_one_producer else [None] * len(producers)
    pairs = list(zip(producers, destinations, strict=True))
    if task.is_single:
        for producer, destination in pairs:
            _send_single(producer, destination, body, messages)
    else:
        for first in range(0, messages, task.at_once):
            bodies = [body] * min(task.at_once, messages - first)
            for producer, destination in pairs:
                producer.send_many(bodies, destination=destination)
    for producer in dict.fromkeys(producers):
        producer.flush()


def _send_single(producer: Producer, destination: str | None, body: bytes, messages: int) -> None:
    if destination is None:
        for _ in range(messages):
            producer.send(body)
    else:
        for _ in range(messages):
            producer.send(body, destination=destination)


def consume(task: Consume) -> Done:
    """Receives; see `Consume`."""
    with connect(task.url, client_id=task.client_id) as connection:
        consumers = _open_consumers(connection, task)
        _say(Open())
        _receive(task, consumers, task.warm_up)
        with Stopwatch() as watch:
            _receive(task, consumers, task.messages)
            for consumer in consumers:
                consumer.close()  # the last of them are acknowledged now
        return watch.done(task.messages * len(consumers))


def _open_consumers(connection: Connection, task: Consume) -> list[Consumer]:
    session = connection.session()
    if not task.subscribers:
        return [session.consumer(name, prefetch=task.prefetch) for name in task.destinations]
    return [
        session.consumer(name, prefetch=task.prefetch, subscription=f"{name}-{number}")
        for name in task.destinations
        for number in range(task.subscribers)
    ]


def _receive(task: Consume, consumers: list[Consumer], messages: int) -> None:
    if task.is_single:
        for consumer in consumers:
            _iterate(consumer, messages)
        return
    missing = dict.fromkeys(consumers, messages) if messages else {}
    while missing:
        for consumer in list(missing):
            missing[consumer] -= len(consumer.receive_many(min(task.at_once, missing[consumer])))
            if not missing[consumer]:
                del missing[consumer]


def _iterate(consumer: Consumer, messages: int) -> None:
    if messages:
        for number, _ in enumerate(consumer, start=1):
            if number == messages:
                return


def pace(task: Pace) -> Done:
    """Measures latency; see `Pace`."""
    with connect(task.url) as sending, connect(task.url) as receiving:
        consumer = receiving.session().consumer(task.destination)
        producer = sending.session().producer(task.destination)
        for number in range(task.warm_up):
            producer.send(number.to_bytes(8, "big"), wait=True)
            consumer.receive()
        taken = list[float]()
        thread = threading.Thread(target=_take, args=(consumer, task.messages, taken), daemon=True)
        with Stopwatch() as watch:
            thread.start()
            filling = bytes(max(0, task.size - 8))
            for number in range(task.messages):
                due = watch.begun + number / task.per_second
                while (wait_s := due - time.perf_counter()) > 0:
                    time.sleep(wait_s)
                producer.send(time.perf_counter_ns().to_bytes(8, "big") + filling)
            thread.join()
    taken.sort()
    found = {name: taken[int(len(taken) * part)] for name, part in (("p50", 0.5), ("p99", 0.99))}
    return watch.done(task.messages, latencies_ms=found | {"longest": taken[-1]})


def _take(consumer: Consumer, messages: int, taken: list[float]) -> None:
    while len(taken) < messages:
        message = consumer.receive()
        if message is None:
            raise Unavailable("the consumer was closed before all came")
        taken.append((time.perf_counter_ns() - int.from_bytes(message.body[:8], "big")) / 1e6)


class Stopwatch:
    """Says that the process is ready, waits for the word, and measures what is done within."""

    def __enter__(self) -> "Stopwatch":
        _say(Ready())
        if sys.stdin.buffer.readline() != GO:
            sys.exit(1)  # the benchmark has ended
        self._cpu_s = time.process_time()
        self.begun = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended = time.perf_counter()
        self._cpu_s = time.process_time() - self._cpu_s

    def done(self, messages: int, *, latencies_ms: dict[str, float] | None = None) -> Done:
        """What to say."""
        return Done(
            messages=messages,
            begun=self.begun,
            ended=self._ended,
            cpu_s=self._cpu_s,
            latencies_ms=latencies_ms or {},
        )


def _say(word: AnyWord) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(word) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
