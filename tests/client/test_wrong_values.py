"""Values that cannot be: whoever gives one hears so at once, and nothing else on the connection notices."""

import datetime
import math
import threading
from fractions import Fraction
from io import BytesIO
from typing import Any

import pytest

import alphorn
from alphorn.client.choices import check_timeout, choose_consume, choose_policy
from alphorn.client.inbox import AckMode
from alphorn.model import conversation as c
from alphorn.model.errors import Misuse
from tests.client.broker import Broker
from tests.client.shells import Connect
from tests.client.test_core import Script

TOO_LARGE = 1 << 70  # for any frame


def assert_alive(broker: Broker, connection: Any) -> None:
    """It works, and goes on working on another stream."""
    producer = connection.session().producer("queue:alive")
    assert producer.send(1).result(10)
    broker.cut_all()
    assert producer.send(2).result(10)


def test_a_queue_and_a_topic_are_named_barely_or_as_a_whole(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        for name in ("orders", "queue:orders"):
            assert str(session.queue(name)) == "queue:orders"
        for name in ("a:b", "topic:a:b"):
            assert str(session.topic(name)) == "topic:a:b"


@pytest.mark.parametrize("url", [7, 0, b"alphorn://127.0.0.1", ["alphorn://127.0.0.1"], True, object()])
def test_a_url_that_is_no_text_is_misuse(url: Any) -> None:
    for connect in (alphorn.connect, alphorn.aio.connect):
        with pytest.raises(alphorn.Misuse, match="the URL of a cluster is a str like"):
            connect(url)


@pytest.mark.parametrize(
    "policy",
    [
        {"ttl": "\ud800"},
        {"overflow": "\ud800"},
        {"dead_letter": "\ud800"},
        {"dead_letter": ""},
        {"max_length": TOO_LARGE},
        {"delivery_limit": TOO_LARGE},
        {"retain": "1e30 TB"},
    ],
)
def test_a_policy_that_no_frame_can_carry_is_misuse(policy: dict[str, Any]) -> None:
    with pytest.raises(alphorn.Misuse):
        choose_policy("queue:q", policy)


@pytest.mark.parametrize("name", ["topic:orders", "queue:", "", 7, None])
def test_what_names_no_queue_is_misuse(broker: Broker, connect: Connect, name: Any) -> None:
    with connect(broker.url) as connection, pytest.raises(alphorn.Misuse):
        connection.session().queue(name)


@pytest.mark.parametrize("timeout", ["5", b"5", True, math.nan, [5]])
def test_a_timeout_that_is_no_time_is_misuse_wherever_one_can_be_given(
    broker: Broker, connect: Connect, timeout: Any
) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        producer, consumer = session.producer("queue:q"), session.consumer("queue:other")
        receipt, receipts = producer.send(1), producer.send_many([2, 3])
        for wait in (
            lambda: consumer.receive(timeout=timeout),
            lambda: consumer.receive_many(timeout=timeout),
            lambda: producer.flush(timeout=timeout),
            lambda: receipt.result(timeout=timeout),
            lambda: receipts.result(timeout=timeout),
            lambda: session.request("queue:nobody", 1, timeout=timeout),
        ):
            with pytest.raises(alphorn.Misuse, match="a number of seconds, or None"):
                wait()
        assert_alive(broker, connection)


@pytest.mark.parametrize("timeout", [math.inf, 1e12, 10**400])
def test_who_waits_longer_than_any_clock_can_tell_waits_for_ever(
    broker: Broker, connect: Connect, timeout: float
) -> None:
    with connect(broker.url) as connection, alphorn.connect(broker.url) as other:
        session = connection.session()
        producer, consumer = session.producer("queue:q"), session.consumer("queue:other")
        away = other.session().producer("queue:other")
        sender = threading.Thread(target=away.send_many, args=([1, 2],), kwargs={"wait": True})
        sender.start()
        assert consumer.receive(timeout=timeout).body == 1
        assert [message.body for message in consumer.receive_many(timeout=timeout)] == [2]
        sender.join()
        assert producer.send(1).result(timeout=timeout)
        assert len(producer.send_many([2, 3]).result(timeout=timeout)) == 2
        producer.flush(timeout=timeout)


def test_any_real_number_is_a_timeout(broker: Broker, connect: Connect) -> None:
    assert [check_timeout(timeout) for timeout in (None, 0, 5, 0.5, Fraction(1, 4), -1)] == [None, 0, 5, 0.5, 0.25, 0]
    with connect(broker.url) as connection:
        assert connection.session().consumer("queue:q").receive(timeout=Fraction(1, 100)) is None


def test_who_takes_more_than_any_list_can_hold_is_given_what_there_is(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        session.producer("queue:q").send_many([1, 2]).result(10)
        assert [message.body for message in session.consumer("queue:q").receive_many(10**30, timeout=10)] == [1, 2]
        assert_alive(broker, connection)


@pytest.mark.parametrize("delay", [1e17, 1e12, math.inf, math.nan, "5", True, -1])
def test_a_delay_that_cannot_be_waited_for_is_misuse_and_the_message_can_still_be_rejected(
    broker: Broker, connect: Connect, delay: Any
) -> None:
    with connect(broker.url) as connection:
        session = connection.session(ack="individual")
        session.producer("queue:q").send("m", wait=True)
        consumer = session.consumer("queue:q")
        message = consumer.receive(timeout=10)
        with pytest.raises(alphorn.Misuse, match="delay is"):
            message.reject(delay=delay)
        message.reject(delay=0)
        assert consumer.receive(timeout=10).delivery_count == 2
        assert_alive(broker, connection)


@pytest.mark.parametrize("start", [TOO_LARGE, 1 << 64, 1 << 63, -1, True, 1.5])
@pytest.mark.parametrize("source", ["topic:t", alphorn.glob("topic:t.*")])
def test_a_start_that_no_log_has_is_misuse(broker: Broker, connect: Connect, source: Any, start: Any) -> None:
    with connect(broker.url) as connection:
        with pytest.raises(alphorn.Misuse, match="start is"):
            connection.session().consumer(source, start=start)
        assert_alive(broker, connection)


EARLIEST, NEW = (0, 0), (-1, 0)  # a number, and a time in milliseconds


@pytest.mark.parametrize(
    ("moment", "begin"),
    [
        (datetime.datetime.min, EARLIEST),
        (datetime.datetime.min.replace(tzinfo=datetime.UTC), EARLIEST),
        (datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), EARLIEST),
        (datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=9))), EARLIEST),
        (datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC), (-1, 1000)),
        (datetime.datetime.max, NEW),
        (datetime.datetime.max.replace(tzinfo=datetime.UTC), NEW),
    ],
)
def test_any_moment_is_a_start_also_before_the_first_message_and_after_the_last(
    moment: datetime.datetime, begin: tuple[int, int]
) -> None:
    wish = choose_consume(
        "topic:t",
        selector=None,
        no_local=False,
        prefetch=1,
        subscription=None,
        shared=False,
        durable=True,
        start=moment,
    )
    assert (wish.start, wish.start_ms) == begin


@pytest.mark.parametrize("through", ["x", None, 1.0, True, -1, 1 << 63, TOO_LARGE])
def test_only_a_sequence_number_is_released(broker: Broker, connect: Connect, through: Any) -> None:
    with connect(broker.url) as connection:
        with pytest.raises(alphorn.Misuse, match="through is"):
            connection.destinations.release("topic:t", through)
        connection.destinations.release("topic:t", (1 << 63) - 1)
        assert_alive(broker, connection)


@pytest.mark.parametrize("channel", [5, None, "", b"channel-1", "a\ud800"])
def test_channels_have_names(broker: Broker, connect: Connect, channel: Any) -> None:
    with connect(broker.url) as connection:
        destinations = connection.destinations
        for wish in (
            lambda: destinations.move("queue:q", channel),
            lambda: destinations.drain(channel),
            lambda: destinations.open(channel),
        ):
            with pytest.raises(alphorn.Misuse, match="channel"):
                wish()
        assert_alive(broker, connection)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client_id", 5),
        ("client_id", "a\ud800"),
        ("user", b"secret"),
        ("user", "secret\ud800"),
        ("password", b"secret"),
        ("password", "secret\ud800"),
        ("connect_timeout", "5"),
        ("reconnect_timeout", True),
        ("reconnect_timeout", math.nan),
    ],
)
def test_nobody_connects_with_what_cannot_be_said(broker: Broker, connect: Connect, name: str, value: Any) -> None:
    with pytest.raises(alphorn.Misuse, match=name) as refused:
        connect(broker.url, **{name: value})
    assert "secret" not in str(refused.value)
    assert broker.frames(c.Hello) == []


def test_a_url_whose_user_cannot_be_said_is_misuse(broker: Broker, connect: Connect) -> None:
    with pytest.raises(alphorn.Misuse, match="user is no valid Unicode"):
        connect(broker.url.replace("://", "://a\ud800@"))


def test_a_connection_may_wait_for_its_cluster_for_ever(broker: Broker, connect: Connect) -> None:
    with connect(broker.url, connect_timeout=None, reconnect_timeout=math.inf) as connection:
        assert_alive(broker, connection)


def test_a_stream_has_its_receipt_at_once_and_still_no_time_that_is_none(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        receipt = connection.session().producer("queue:q").send_stream(BytesIO(b""))
        assert receipt.result(timeout=5)
        with pytest.raises(alphorn.Misuse, match="timeout is"):
            receipt.result(timeout="5")


@pytest.mark.parametrize("is_connected", [True, False])
def test_what_cannot_be_encoded_is_the_callers_misuse_and_nothing_of_it_stays(is_connected: bool) -> None:
    script = Script()
    session = script.core.open_session(AckMode.AUTO)
    if not is_connected:
        script.core.on_disconnected("cut")
    consume = c.Consume(0, 0, 0, 7, 100, start=TOO_LARGE)
    wish = c.ConsumePattern(0, 0, 0, "glob:*", 100, start=TOO_LARGE)
    for ask in (
        lambda: script.core.request(
            lambda request: c.Administer(request, "release", "topic:t", b"", TOO_LARGE), script.answers.append
        ),
        lambda: script.core.request(lambda request: c.Drain(request, "\ud800"), script.answers.append),
        lambda: script.core.open_inbox(session, consume, "topic:t", script.answers.append),
        lambda: script.core.patterns.open(session, wish, script.answers.append),
    ):
        with pytest.raises(Misuse, match="cannot be sent"):
            ask()
    assert (script.core.describe()["requests"], script.core.describe()["consumers"]) == (0, [])
    assert session.inboxes == {}
    script.cut()
    assert [type(frame) for frame in script.said()] == [c.OpenSession]
