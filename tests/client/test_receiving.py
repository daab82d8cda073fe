"""Receiving, on both shells: acknowledgement modes, recovery, rejection, listeners, browsing, requests."""

import logging
import queue
import threading
from typing import Any

import pytest

import alphorn
from tests.client.broker import Broker
from tests.client.shells import Connect


def fill(connection: Any, count: int) -> None:
    connection.session().producer("queue:q").send_many(range(count)).result(10)


def take(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(timeout=10) for _ in range(count)]


def test_receive_gives_none_when_the_time_is_over(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        consumer = connection.session().consumer("queue:q")
        assert consumer.receive(timeout=0.01) is None
        assert consumer.receive_many(10, timeout=0.01) == []
        assert consumer.receive(timeout=0) is None


@pytest.mark.requirement("API-9")
def test_auto_acknowledges_a_message_when_the_program_goes_on(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 3)
        session = connection.session(ack="auto")
        consumer = session.consumer("queue:q")
        assert [message.body for message in take(consumer, 3)] == [0, 1, 2]
        consumer.close()
        assert broker.bodies("queue:q") == []


def test_auto_does_not_acknowledge_what_the_program_still_works_on(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 10)
        consumer = connection.session(ack="auto").consumer("queue:q", prefetch=5)
        assert [message.body for message in consumer.receive_many(4, timeout=10)] == [0, 1, 2, 3]
        connection.status()
        assert broker.bodies("queue:q")[0] == 0
        assert [message.body for message in consumer.receive_many(1, timeout=10)] == [4]
        connection.status()
        connection.status()
        assert broker.bodies("queue:q")[0] == 4


def test_an_exception_of_the_program_returns_the_message_in_hand(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 3)

    def divide() -> None:
        with connect(broker.url) as connection:
            for message in connection.session().consumer("queue:q"):
                1 / (1 - message.body)

    with pytest.raises(ZeroDivisionError):
        divide()
    assert broker.bodies("queue:q") == [1, 2]
    with connect(broker.url) as connection:
        message = connection.session().consumer("queue:q").receive(timeout=10)
        assert (message.body, message.delivery_count, message.redelivered) == (1, 2, True)


@pytest.mark.requirement("API-9")
def test_client_acknowledges_all_that_the_session_received_so_far(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 5)
        session = connection.session(ack="client")
        one, other = session.consumer("queue:q", prefetch=2), session.consumer("queue:q", prefetch=3)
        messages = take(one, 2) + take(other, 1)
        messages[0].acknowledge()
        session.close()
        assert sorted(broker.bodies("queue:q")) == [3, 4]


@pytest.mark.requirement("API-9")
def test_individual_acknowledges_that_message_only(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 4)
        session = connection.session(ack="individual")
        messages = take(session.consumer("queue:q"), 4)
        messages[2].acknowledge()
        messages[2].acknowledge()
        messages[0].acknowledge()
        session.close()
        assert broker.bodies("queue:q") == [1, 3]
        again = take(connection.session().consumer("queue:q"), 2)
        assert [(message.body, message.delivery_count) for message in again] == [(1, 2), (3, 2)]


def test_dups_ok_acknowledges_everything_in_the_end(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 100)
        session = connection.session(ack="dups_ok")
        assert len(take(session.consumer("queue:q"), 100)) == 100
        session.close()
        assert broker.bodies("queue:q") == []


def test_a_prefetch_of_one_goes_on_because_receiving_acknowledges(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 5)
        consumer = connection.session().consumer("queue:q", prefetch=1)
        assert [message.body for message in take(consumer, 5)] == [0, 1, 2, 3, 4]


def test_recover_brings_everything_again_in_order_with_counts_raised(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 6)
        session = connection.session(ack="client")
        consumer = session.consumer("queue:q")
        messages = take(consumer, 2)
        messages[1].acknowledge()
        take(consumer, 2)
        session.recover()
        again = take(consumer, 4)
        assert [message.body for message in again] == [2, 3, 4, 5]
        assert [message.delivery_count for message in again] == [2, 2, 1, 1]


def test_a_message_from_before_recover_acknowledges_nothing(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 1)
        session = connection.session(ack="individual")
        consumer = session.consumer("queue:q")
        (old,) = take(consumer, 1)
        session.recover()
        take(consumer, 1)
        old.acknowledge()
        session.close()
        assert broker.bodies("queue:q") == [0]


def test_a_rejected_message_comes_again_and_a_dead_one_does_not(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 2)
        session = connection.session(ack="individual")
        consumer = session.consumer("queue:q")
        first, second = take(consumer, 2)
        first.reject()
        second.reject(requeue=False)
        again = consumer.receive(timeout=10)
        assert (again.body, again.delivery_count) == (0, 2)
        assert consumer.receive(timeout=0.05) is None
        with pytest.raises(alphorn.Misuse, match="delay"):
            again.reject(delay=-1)
        assert len(broker.queues["queue:q"].dead) == 1


def test_closing_a_session_returns_what_was_not_acknowledged(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 3)
        session = connection.session(ack="client")
        consumer = session.consumer("queue:q")
        take(consumer, 2)
        session.close()
        session.close()
        assert broker.bodies("queue:q") == [0, 1, 2]
        with pytest.raises(alphorn.Misuse, match="consumer is closed"):
            consumer.receive(timeout=1)
        with pytest.raises(alphorn.Misuse, match="session is closed"):
            session.producer("queue:q")


@pytest.mark.requirement("API-6")
def test_a_session_that_does_not_acknowledge_does_not_hold_up_another(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 4)
        take(connection.session(ack="client").consumer("queue:q", prefetch=2), 2)
        assert [message.body for message in take(connection.session().consumer("queue:q"), 2)] == [2, 3]


def test_a_listener_gets_messages_one_at_a_time_and_again_after_its_exception(
    broker: Broker, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    heard: queue.Queue[tuple[int, int]] = queue.Queue()
    caplog.set_level(logging.CRITICAL, "alphorn.client")

    def listen(message: alphorn.Message) -> None:
        heard.put((message.body, message.delivery_count))
        if message.body == 1 and not message.redelivered:
            raise ValueError("not now")

    with connect(broker.url) as connection:
        consumer = connection.session().consumer("queue:q", prefetch=1)
        consumer.listen(listen)
        fill(connection, 3)
        assert [heard.get(timeout=10) for _ in range(4)] == [(0, 1), (1, 1), (1, 2), (2, 1)]
    assert broker.bodies("queue:q") == []


def test_a_browser_sees_all_messages_and_consumes_none(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        fill(connection, 2500)
        session = connection.session()
        browser = session.browser("queue:q")
        assert [message.body for message in browser] == list(range(2500))
        assert len(list(browser)) == 2500
        with pytest.raises(alphorn.InvalidDestination, match="no queue"):
            session.browser("topic:t")
    assert len(broker.bodies("queue:q")) == 2500


def test_a_browser_goes_on_after_a_page_that_shows_nothing(broker: Broker, connect: Connect) -> None:
    broker.hidden = range(1, 2400)
    with connect(broker.url) as connection:
        fill(connection, 2500)
        browser = connection.session().browser("queue:q")
        assert [message.body for message in browser] == list(range(2399, 2500))
        broker.hidden = range(1, 2501)
        assert list(browser) == []


def test_a_request_gets_its_own_answer(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        answering = connection.session()
        producer = answering.producer()
        answers: list[Any] = []

        def answer(message: alphorn.Message) -> Any:
            answers.append(message.body)
            assert message.reply_to is not None
            return producer.send(
                {"doubled": message.body * 2}, destination=message.reply_to, correlation_id=message.correlation_id
            )

        if hasattr(producer, "inner"):
            producer = producer.inner
        answering.consumer("queue:questions").listen(answer)
        session = connection.session()
        assert [session.request("queue:questions", number, timeout=10).body for number in range(3)] == [
            {"doubled": number * 2} for number in range(3)
        ]
        with pytest.raises(TimeoutError, match="no answer"):
            session.request("queue:nobody", 1, timeout=0.05)


def test_a_consumer_whose_destination_is_deleted_says_so(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        consumer = connection.session().consumer("queue:q")
        connection.destinations.delete("queue:q")
        with pytest.raises(alphorn.InvalidDestination, match="was deleted"):
            consumer.receive(timeout=10)


def test_wrong_wishes_of_consumers_are_refused(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        with pytest.raises(alphorn.InvalidSelector, match="nonsense"):
            session.consumer("queue:q", selector="nonsense")
        with pytest.raises(alphorn.Misuse, match="prefetch"):
            session.consumer("queue:q", prefetch=0)
        with pytest.raises(alphorn.Misuse, match="for topics"):
            session.consumer("queue:q", subscription="s")
        with pytest.raises(alphorn.Misuse, match="needs a name"):
            session.consumer("topic:t", shared=True)
        with pytest.raises(alphorn.Misuse, match="start"):
            session.consumer("topic:t", start="yesterday")
        with pytest.raises(alphorn.Misuse, match="maximum"):
            session.consumer("queue:q").receive_many(0)
        broker.refusals["queue:x"] = ("AccessDenied", "queue:x is not yours")
        with pytest.raises(alphorn.AccessDenied, match="not yours"):
            session.consumer("queue:x")
        with pytest.raises(alphorn.Misuse, match="ack is 'never'"):
            connection.session(ack="never")
        with pytest.raises(alphorn.Misuse, match="ack is 'transacted'"):
            connection.session(ack="transacted")


def test_threads_that_share_a_connection_get_every_message_once(broker: Broker) -> None:
    received: queue.Queue[Any] = queue.Queue()
    count, workers = 4000, 4
    with alphorn.connect(broker.url) as connection:
        session = connection.session()
        producer, consumer = session.producer("queue:q"), session.consumer("queue:q", prefetch=50)

        def send(start: int) -> None:
            for body in range(start, count, workers):
                producer.send(body)

        def receive() -> None:
            while (message := consumer.receive()) is not None and message.body is not None:
                received.put(message.body)

        senders = [threading.Thread(target=send, args=(start,)) for start in range(workers)]
        receivers = [threading.Thread(target=receive) for _ in range(workers)]
        for thread in [*senders, *receivers]:
            thread.start()
        for thread in senders:
            thread.join()
        producer.send_many([None] * workers)
        for thread in receivers:
            thread.join()
    assert sorted(received.queue) == list(range(count))
