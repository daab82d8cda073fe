"""Connecting, closing, administration and reconnection, on both shells."""

import logging
import os
import queue
import socket
import socketserver
import threading
from functools import partial
from random import Random
from typing import Any

import pytest

import alphorn
from alphorn.model.conversation import Acknowledge, Close, Consume, Hello, OpenSession, Publish, Status, Unsubscribe
from tests.client.broker import Broker
from tests.client.shells import Connect

CUTS = [
    "hear Publish",
    "heard Publish",
    "send Confirmed",
    "sent Confirmed",
    "send Delivered",
    "sent Delivered",
    "hear Acknowledge",
    "heard Acknowledge",
    "send Done",
    "hear Consume",
    "heard Consume",
    "hear Resolve",
    "heard OpenSession",
    "send Resolved",
    "hear CloseSession",
    "heard CloseSession",
]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("amqp://host", "begins with alphorn://"),
        ("alphorns://host", "TLS.*later version"),
        ("alphorn://", "names no host"),
        ("alphorn://secret:hunter2@:7700", "names no host"),
        ("alphorn://user:hunter2@host:port", "'port' of host"),
        ("alphorn://host:0", "1 to 65535"),
        ("alphorn://host/path", "something behind"),
        ("alphorn://::1:7700", "brackets"),
    ],
)
def test_a_bad_url_is_refused_without_repeating_the_password(connect: Connect, url: str, words: str) -> None:
    with pytest.raises(alphorn.Misuse, match=words) as caught:
        connect(url)
    assert "hunter2" not in str(caught.value)


def test_nobody_at_all_addresses_is_unavailable_and_names_them(connect: Connect) -> None:
    with pytest.raises(alphorn.Unavailable, match=r"127\.0\.0\.1:1 .*127\.0\.0\.1:2 ") as caught:
        connect("alphorn://u:hunter2@127.0.0.1:1,127.0.0.1:2", connect_timeout=0.05)
    assert "hunter2" not in str(caught.value)


def test_the_environment_names_the_cluster(broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPHORN_URL", broker.url)
    with connect() as connection:
        assert connection.status()["nodes"] == []


def test_a_wrong_password_is_access_denied(broker: Broker, connect: Connect) -> None:
    with pytest.raises(alphorn.AccessDenied, match="user eve"):
        connect(broker.url.replace("//", "//eve:wrong@"))
    with connect(broker.url.replace("//", "//eve:wrong@"), password="right") as connection:
        assert "right" not in repr(connection)
    assert [hello.password for hello in broker.frames(Hello)] == ["wrong", "right"]


def test_a_cluster_that_says_nothing_is_given_up(broker: Broker, connect: Connect) -> None:
    broker.is_welcoming = False
    with pytest.raises(alphorn.Unavailable, match="no Client Manager answered"):
        connect(broker.url, connect_timeout=0.2)


def test_client_managers_that_hang_leave_time_for_one_that_does_not(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Random, "randrange", lambda self, count: count - 1)  # the first address is the first to try
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        hanging = [f"127.0.0.1:{server.getsockname()[1]}" for server in (one, other)]
        url = f"alphorn://{','.join([*hanging, *broker.addresses])}"
        with connect(url, connect_timeout=3.0) as connection:
            assert connection.status()["nodes"] == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", r"HTTP; alphorn\+ws://"), (b"220 mail\r\n", "a frame of 842149920 bytes")],
)
def test_one_that_is_no_client_manager_is_given_up_with_what_is_wrong_and_no_warnings(
    connect: Connect, caplog: pytest.LogCaptureFixture, answer: bytes, words: str
) -> None:
    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(alphorn.Unavailable, match=words):
            connect(f"alphorn://127.0.0.1:{server.server_address[1]}", connect_timeout=1.0)  # time to hear the answer
        server.shutdown()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_everything_after_close_says_that_it_is_closed(broker: Broker, connect: Connect) -> None:
    connection = connect(broker.url)
    session = connection.session()
    producer, consumer = session.producer("queue:q"), session.consumer("queue:q")
    connection.close()
    connection.close()
    assert len(broker.frames(Close)) == 1
    for call in (
        connection.session,
        connection.status,
        lambda: session.producer("queue:q"),
        lambda: producer.send("x"),
        lambda: producer.send_many(["x"]),
        lambda: consumer.receive(timeout=1),
        lambda: consumer.receive_many(1, timeout=1),
    ):
        with pytest.raises(alphorn.Misuse, match="closed"):
            call()


@pytest.mark.requirement("API-10", "API-11", "API-12")
@pytest.mark.parametrize("when", CUTS)
@pytest.mark.parametrize("number", [1, 3])
def test_nothing_is_lost_or_doubled_when_the_stream_is_cut(connect: Connect, when: str, number: int) -> None:
    with Broker(ports=2) as broker:
        broker.cut(when, number)
        assert exchange(broker, connect, 2000) == list(range(2000))
        assert broker.bodies("queue:q") == []


@pytest.mark.requirement("API-12")
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_or_doubled_when_streams_are_cut_again_and_again(connect: Connect, seed: int) -> None:
    random = Random(seed)
    with Broker(ports=2) as broker:
        for when in random.sample(CUTS, 8):
            broker.cut(when, random.randint(1, 25))
        assert exchange(broker, connect, 5000) == list(range(5000)), f"seed {seed}"
        assert broker.bodies("queue:q") == []


def exchange(broker: Broker, connect: Connect, count: int) -> list[Any]:
    """Sends so many numbers to a queue, in several ways, while receiving them; gives what was received."""
    received: list[Any] = []
    with connect(broker.url) as connection:
        session = connection.session()
        producer = session.producer("queue:q")
        consumer = session.consumer("queue:q", prefetch=100)
        for start in range(0, count, 100):
            producer.send_many(range(start, start + 90))
            for body in range(start + 90, start + 100):
                producer.send(body)
            while len(received) < start:
                received += [message.body for message in consumer.receive_many(50, timeout=10)]
        producer.flush(10)
        while len(received) < count:
            received += [message.body for message in consumer.receive_many(1000, timeout=10)]
        session.close()
    return received


@pytest.mark.requirement("API-10", "API-11")
def test_coming_back_names_the_connection_its_sessions_and_what_is_held(broker: Broker, connect: Connect) -> None:
    events: queue.Queue[str] = queue.Queue()
    with connect(broker.url, on_event=lambda name, detail: events.put(name)) as connection:
        session = connection.session(ack="client")
        session.producer("queue:q").send_many(range(5)).result(10)
        consumer = session.consumer("queue:q")
        messages = [consumer.receive(timeout=10) for _ in range(3)]
        broker.cut_all()
        assert [events.get(timeout=10) for _ in range(3)] == ["connected", "disconnected", "resumed"]
        messages[0].acknowledge()
        assert [consumer.receive(timeout=10).body for _ in range(2)] == [3, 4]
        session.close()
    hellos, consumes = broker.frames(Hello), broker.frames(Consume)
    assert hellos[0].connection == b""
    assert hellos[1].connection.hex() == connection.id
    assert [frame.is_resumed for frame in broker.frames(OpenSession)] == [False, True]
    assert [frame.held for frame in consumes] == [[], [1, 5]]
    assert broker.bodies("queue:q") == [3, 4]


@pytest.mark.requirement("API-12")
def test_unconfirmed_messages_are_sent_again_with_the_same_counters(broker: Broker, connect: Connect) -> None:
    broker.is_confirming = False
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        receipt = producer.send("once")
        connection.status()
        broker.cut_all()
        connection.status()
        broker.confirm()
        assert receipt.result(10)
    assert [frame.counter for frame in broker.frames(Publish)] == [1, 1]
    assert broker.bodies("queue:q") == ["once"]


def test_another_address_is_used_when_the_first_is_gone(connect: Connect) -> None:
    with Broker(ports=2) as broker:
        both = f"alphorn://127.0.0.1:1,{broker.addresses[1]}"
        with connect(both) as connection:
            assert connection.session().producer("queue:q").send("x").result(10)


def test_giving_up_makes_the_outcome_of_unconfirmed_messages_unknown(broker: Broker, connect: Connect) -> None:
    broker.is_confirming = False
    connection = connect(broker.url, reconnect_timeout=0.1)
    session = connection.session()
    producer, consumer = session.producer("queue:q"), session.consumer("queue:other")
    receipt = producer.send("perhaps")
    connection.status()
    broker.is_welcoming = False
    broker.cut_all()
    with pytest.raises(alphorn.UnknownOutcome, match="no Client Manager"):
        receipt.result(10)
    with pytest.raises(alphorn.UnknownOutcome):
        producer.flush(10)
    with pytest.raises(alphorn.Unavailable):
        consumer.receive(timeout=10)
    with pytest.raises(alphorn.Unavailable):
        producer.send("more")
    with pytest.raises(alphorn.UnknownOutcome):
        connection.close()


def test_a_connection_that_the_cluster_forgot_is_over(broker: Broker, connect: Connect) -> None:
    connection = connect(broker.url)
    consumer = connection.session().consumer("queue:q")
    broker.forgets = True
    broker.cut_all()
    with pytest.raises(alphorn.Unavailable, match="forgotten"):
        consumer.receive(timeout=10)
    connection.close()


@pytest.mark.requirement("API-18")
def test_a_connection_that_is_not_taken_for_its_own_is_over_and_asks_nobody_again(
    broker: Broker, connect: Connect
) -> None:
    connection = connect(broker.url)
    consumer = connection.session().consumer("queue:q")
    broker.disowns = True
    broker.cut_all()
    with pytest.raises(alphorn.AccessDenied, match="says its secret"):
        consumer.receive(timeout=10)
    with pytest.raises(alphorn.AccessDenied):
        connection.session().producer("queue:q").send("more")
    connection.close()
    assert [bool(hello.connection) for hello in broker.frames(Hello)] == [False, True]


def test_destinations_are_administered(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        destinations = connection.destinations
        destinations.create("queue:a", delivery_limit=3, max_length=10, overflow="reject")
        destinations.create("topic:t", retain="500 MB")
        destinations.policy("queue:a", ttl=5)
        connection.session().producer("queue:a").send("x", wait=True)
        assert destinations.purge("queue:a") == 1
        assert destinations.redrive("queue:a") == 0
        assert [row["name"] for row in destinations.list()] == ["queue:a", "topic:t"]
        destinations.delete("queue:a")
        for policy, words in [
            ({"retain": -5}, "retain_s must not be negative"),
            ({"speed": 5}, "no speed"),
            ({"priority": 11}, "0 to 9"),
            ({"overflow": "explode"}, "overflow"),
        ]:
            with pytest.raises(alphorn.Misuse, match=words):
                destinations.create("queue:a", **policy)
        with pytest.raises(alphorn.InvalidDestination, match="there is no queue:a"):
            destinations.delete("queue:a")


@pytest.mark.parametrize("cut", ["", "hear Status", "heard Status", "send StatusAnswer", "sent StatusAnswer"])
def test_many_destinations_come_in_pages_and_are_one_list(broker: Broker, connect: Connect, cut: str) -> None:
    names = [f"queue:{number}" for number in range(8)]
    with connect(broker.url) as connection:
        for name in names:
            connection.destinations.create(name)
        broker.page_rows = 3
        if cut:
            broker.cut(cut, 2)
        assert [row["name"] for row in connection.destinations.list()] == names
        cursors = [frame.cursor for frame in broker.heard if isinstance(frame, Status)]
        assert sorted(set(cursors)) == [0, 3, 6]
        assert [row["name"] for row in connection.status()["destinations"]] == names
        before = len(broker.heard)
        found = connection.status(destinations_max=4)
        assert [row["name"] for row in found["destinations"]] == names[:4]
        assert found["nodes"] == []
        assert len([frame for frame in broker.heard[before:] if isinstance(frame, Status)]) == 2


def test_a_list_without_the_destinations_of_a_lost_channel_is_not_given_for_the_whole(
    broker: Broker, connect: Connect
) -> None:
    with connect(broker.url) as connection:
        connection.destinations.create("queue:a")
        broker.nodes = [{"name": "mm3", "channel": "channel-2", "role": "unreachable"}]
        with pytest.raises(alphorn.Unavailable, match="this is not all: channel-2 has no primary now"):
            connection.destinations.list()
        found = connection.status()
        assert (found["lost"], [row["name"] for row in found["destinations"]]) == (["channel-2"], ["queue:a"])


def test_an_ending_that_was_cut_off_after_it_worked_is_no_failure(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        broker.cut("send Done")
        connection.session().unsubscribe("news")
        with pytest.raises(alphorn.InvalidDestination, match="no subscription"):
            connection.session().unsubscribe("news")
    assert len(broker.frames(Unsubscribe)) == 3


def test_temporary_destinations_have_names_of_their_own(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        one, two, topic = session.temporary_queue(), session.temporary_queue(), session.temporary_topic()
        assert len({str(one), str(two), str(topic)}) == 3
        session.producer(one).send("x", wait=True)
        assert session.consumer(one).receive(timeout=10).body == "x"


def test_a_fork_may_not_use_its_parents_connection(broker: Broker) -> None:
    with alphorn.connect(broker.url) as connection:
        session = connection.session()
        producer, consumer = session.producer("queue:q"), session.consumer("queue:q")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            faults = []
            receive = partial(consumer.receive, timeout=1)
            for call in (lambda: producer.send("x"), receive, connection.status, producer.close, session.close):
                try:
                    call()
                except alphorn.Misuse as error:
                    faults.append("forked process" in str(error))
            os.write(writing, bytes(faults))
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 10) == bytes([True] * 5)
        os.close(reading)
        os.close(writing)
        assert producer.send("x").result(10)


@pytest.mark.parametrize("ack", ["client", "individual"])
def test_a_fork_may_not_settle_the_messages_of_its_parent(broker: Broker, connect: Connect, ack: str) -> None:
    with connect(broker.url) as connection:
        session = connection.session(ack=ack)
        session.producer("queue:q").send("x").result(10)
        message = session.consumer("queue:q").receive(timeout=10)
        inner = getattr(message, "inner", message)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            faults = []
            for call in (inner.acknowledge, inner.reject):
                try:
                    call()
                except alphorn.Misuse as error:
                    faults.append("forked process" in str(error))
            os.write(writing, bytes(faults))
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        assert os.read(reading, 10) == bytes([True] * 2)
        os.close(reading)
        message.acknowledge()
    assert broker.bodies("queue:q") == []


def test_an_event_callback_may_not_wait_for_its_own_thread(broker: Broker) -> None:
    heard: queue.Queue[Any] = queue.Queue()
    connections: list[alphorn.Connection] = []

    def on_event(name: str, detail: str) -> None:
        if name == "disconnected":
            try:
                connections[0].status()
            except alphorn.Misuse as error:
                heard.put(str(error))

    with alphorn.connect(broker.url, on_event=on_event) as connection:
        connections.append(connection)
        broker.cut_all()
        assert "own thread" in heard.get(timeout=10)
        assert connection.status()["nodes"] == []
    assert broker.frames(Acknowledge) == []
