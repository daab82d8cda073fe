"""Clients of a cluster that send and receive all the time, and an account of what they were promised.

Every producer and every consumer has a connection and a thread of its own, and uses nothing but the public API. A
message's body names its producer and counts: that is all the account needs.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from alphorn.client.blocking.connection import connect
from alphorn.client.blocking.producer import Producer, Receipt
from alphorn.client.blocking.session import Session
from alphorn.model.errors import Error, Unavailable
from alphorn.testing.traffic_account import TrafficAccount, TrafficResult

GIVE_UP_S = 60.0  # generous: only a cluster that hangs meets it
LOOK_S = 0.05  # how long a consumer waits before it looks whether it is to end
BETWEEN_S = 0.005  # two looks at the account
RECEIVE_MAX = 100
FILL = "x" * 80


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What goes on: for every queue and topic one producer, at this rate each."""

    queues: int = 1
    shared_queues: int = 1  # with two consumers each
    topics: int = 1  # with one durable subscription each
    per_s: float = 100.0
    prefetch: int = 1000
    acknowledges: str = "auto"


class Traffic:
    """Producers and consumers of one cluster. `start`, any number of faults, then `finish`."""

    def __init__(self, url: str, shape: Shape, account: TrafficAccount | None = None) -> None:
        self.account = account or TrafficAccount()
        self.shape = shape
        self._url = url
        self._producers: list[_Producing] = []
        self._consumers: list[_Consuming] = []
        for kind, count in (("queue", shape.queues), ("shared", shape.shared_queues), ("topic", shape.topics)):
            for number in range(1, count + 1):
                self._plan(kind, f"traffic.{kind}.{number}")

    def start(self) -> None:
        """Consumers first, so that subscriptions exist before anything is sent."""
        for consumer in self._consumers:
            consumer.start()
        for consumer in self._consumers:
            consumer.until_ready()
        for producer in self._producers:
            producer.start()
        self.until_all_receive()

    def until_all_receive(self, deadline_s: float = GIVE_UP_S) -> None:
        """Waits until every flow has received something that was sent from now on; raises `Unavailable`."""
        marks = {producer.name: self.account.newest_sent(producer.name) for producer in self._producers}
        self._until(lambda: self.account.has_passed(marks), "every flow to receive something new", deadline_s)

    def pause_consumers(self) -> None:
        """Consumers receive nothing for now: a backlog grows."""
        for consumer in self._consumers:
            consumer.may_receive.clear()

    def resume_consumers(self) -> None:
        """Consumers go on."""
        for consumer in self._consumers:
            consumer.may_receive.set()

    def finish(self, deadline_s: float = GIVE_UP_S) -> TrafficResult:
        """Producers end and hear the last outcomes, consumers receive the rest; gives what was found.

        Nothing is a fault only because it takes long, but after the deadline it is lost.
        """
        self.resume_consumers()
        for producer in self._producers:
            producer.end()
        try:
            self._until(lambda: not self.account.missing(), "everything confirmed to arrive", deadline_s)
        except Unavailable as error:
            self.account.blame(str(error))
        for consumer in self._consumers:
            consumer.end()
        return self.account.close()

    def check(self) -> None:
        """Raises `Unavailable` when one of the clients has ended by itself."""
        for client in (*self._producers, *self._consumers):
            if client.failure is not None:
                raise Unavailable(f"{client.name} ended: {client.failure}")

    def abandon(self) -> TrafficResult:
        """The cluster does not serve: the threads are left to end by themselves, and what was found is given."""
        for client in (*self._producers, *self._consumers):
            client.let_go()
        self.resume_consumers()
        return self.account.close()

    def _plan(self, kind: str, name: str) -> None:
        is_topic = kind == "topic"
        destination = f"topic:{name}" if is_topic else f"queue:{name}"
        producer = f"producer of {name}"
        self._producers.append(_Producing(self._url, self.account, producer, destination, self.shape.per_s))
        self.account.open_flow(name, [producer], is_shared=kind == "shared")
        for number in range(1, 3 if kind == "shared" else 2):
            consumer = f"consumer {number} of {name}"
            subscription = name if is_topic else None
            self._consumers.append(
                _Consuming(self._url, self.account, consumer, name, destination, subscription, self.shape)
            )

    def _until(self, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise Unavailable(f"waited {deadline_s:.0f} s for {what}; missing: {self.account.missing()}")
            time.sleep(BETWEEN_S)


class _Client:
    """A thread with a connection."""

    def __init__(self, url: str, account: TrafficAccount, name: str) -> None:
        self.name = name
        self.failure: Exception | None = None
        self._url = url
        self._account = account
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run_safely, name=name, daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def end(self) -> None:
        """Ends in good order, and waits for that."""
        self._is_ending.set()
        self._thread.join()

    def let_go(self) -> None:
        """Ends when it can."""
        self._is_ending.set()

    def _run_safely(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.failure = error
            self._account.blame(f"{self.name} ended: {type(error).__name__}: {error}")

    def _run(self) -> None:
        raise NotImplementedError


class _Producing(_Client):
    def __init__(self, url: str, account: TrafficAccount, name: str, destination: str, per_s: float) -> None:
        super().__init__(url, account, name)
        self._destination = destination
        self._every_s = 1 / per_s
        self._open: deque[tuple[int, Receipt]] = deque()

    def _run(self) -> None:
        with connect(self._url, connect_timeout=GIVE_UP_S) as connection, connection.session() as session:
            producer = session.producer(self._destination)
            try:
                self._send(producer)
            finally:
                self._collect(is_last=True)

    def _send(self, producer: Producer) -> None:
        number, next_at = 0, time.monotonic()
        while not self._is_ending.is_set():
            number += 1
            self._account.sent(self.name, number)
            self._open.append((number, producer.send([self.name, number, FILL])))
            self._collect()
            next_at += self._every_s
            time.sleep(max(0.0, next_at - time.monotonic()))

    def _collect(self, *, is_last: bool = False) -> None:
        """Hears the outcomes that are known; at last of all."""
        while self._open and (is_last or self._open[0][1].is_done):
            number, receipt = self._open.popleft()
            try:
                receipt.result(GIVE_UP_S)
            except (Error, TimeoutError) as error:
                self._account.refused(self.name, number, str(error))
            else:
                self._account.confirmed(self.name, number, number)


class _Consuming(_Client):
    def __init__(
        self,
        url: str,
        account: TrafficAccount,
        name: str,
        flow: str,
        destination: str,
        subscription: str | None,
        shape: Shape,
    ) -> None:
        super().__init__(url, account, name)
        self.may_receive = threading.Event()
        self.may_receive.set()
        self._flow = flow
        self._destination = destination
        self._subscription = subscription
        self._shape = shape
        self._is_ready = threading.Event()

    def until_ready(self) -> None:
        """Waits until it is attached; raises `Unavailable`."""
        self._is_ready.wait(GIVE_UP_S)
        if self.failure is not None or not self._is_ready.is_set():
            raise Unavailable(f"{self.name} cannot receive: {self.failure}")

    def _run(self) -> None:
        try:
            name = self.name if self._subscription else ""
            with connect(self._url, client_id=name, connect_timeout=GIVE_UP_S) as connection:
                self._receive(connection.session(ack=self._shape.acknowledges))
        finally:
            self._is_ready.set()

    def _receive(self, session: Session) -> None:
        shape = self._shape
        consumer = session.consumer(self._destination, prefetch=shape.prefetch, subscription=self._subscription)
        self._is_ready.set()
        while not self._is_ending.is_set():
            self.may_receive.wait()
            for message in consumer.receive_many(RECEIVE_MAX, LOOK_S):
                producer, number, _ = message.body
                at = time.monotonic()
                self._account.received(self._flow, self.name, producer, number, message.delivery_count, at)
                if shape.acknowledges in ("client", "individual"):
                    message.acknowledge()
