"""Topics that keep their messages, and subscriptions that begin in the past."""

import datetime
import time

import pytest

from tests.semantics.waiting import WAIT_S, bodies, is_quiet, send, take

pytestmark = pytest.mark.processes


@pytest.mark.requirement("API-2")
def test_a_new_subscription_replays_what_the_topic_kept(connection, topic):
    connection.destinations.create(topic, retain=3600)
    with connection.session() as session:
        send(session, topic, range(5))
        earliest = session.consumer(topic, start="earliest")
        new = session.consumer(topic)
        send(session, topic, [5])
        assert bodies(take(earliest, 6)) == list(range(6))
        assert bodies(take(new, 1)) == [5]


def test_a_replay_begins_with_a_sequence_number(connection, topic):
    connection.destinations.create(topic, retain=3600)
    with connection.session() as session:
        for number in range(5):
            send(session, topic, [number])
        everything = take(session.consumer(topic, start="earliest"), 5)
        again = session.consumer(topic, start=everything[3].sequence)
        found = take(again, 2)
        assert [(m.body, m.sequence) for m in found] == [(m.body, m.sequence) for m in everything[3:]]
        assert is_quiet(again)


def test_a_replay_begins_with_a_time(connection, topic):
    connection.destinations.create(topic, retain=3600)
    with connection.session() as session:
        send(session, topic, range(3))
        past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
        future = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        assert bodies(take(session.consumer(topic, start=past), 3)) == [0, 1, 2]
        later = session.consumer(topic, start=future)
        send(session, topic, ["new"])
        assert bodies(take(later, 1)) == ["new"]


def test_a_replay_begins_exactly_with_the_first_message_of_its_time(connection, topic):
    connection.destinations.create(topic, retain=3600)
    with connection.session() as session:
        for number in range(30):
            send(session, topic, [number])
        everything = take(session.consumer(topic, start="earliest"), 30)
        times = [message.timestamp for message in everything]
        for start in times[5], times[17], times[29]:
            again = session.consumer(topic, start=datetime.datetime.fromtimestamp(start, datetime.UTC))
            expected = [message.body for message in everything if message.timestamp >= start]
            assert bodies(take(again, len(expected))) == expected


def test_a_replay_obeys_selector_and_no_local(connect, topic):
    mine, theirs = connect(), connect()
    mine.destinations.create(topic, retain=3600)
    for number in range(6):
        send((mine, theirs)[number % 2].session(), topic, [number], properties={"large": number > 2})
    session = mine.session()
    assert bodies(take(session.consumer(topic, start="earliest", selector="large"), 3)) == [3, 4, 5]
    consumer = session.consumer(topic, start="earliest", no_local=True)
    assert bodies(take(consumer, 3)) == [1, 3, 5]
    assert is_quiet(consumer)


def test_a_durable_subscription_begins_in_the_past_once(connect, topic):
    client = connect(client_id=topic)
    client.destinations.create(topic, retain=3600)
    session = client.session()
    send(session, topic, [1, 2])
    with session.consumer(topic, subscription="s", start="earliest") as consumer:
        assert bodies(take(consumer, 2)) == [1, 2]
    send(session, topic, [3])
    assert bodies(take(session.consumer(topic, subscription="s", start="earliest"), 1)) == [3]


def kept_bodies(session, topic, end):
    """All that a topic gives to somebody who begins with the earliest; `end` is sent behind it."""
    with session.consumer(topic, start="earliest") as consumer:
        send(session, topic, [end])
        found = []
        while not found or found[-1] != end:
            found += bodies(take(consumer, 1))
    return found


def test_a_topic_keeps_only_as_many_bytes_as_it_may(connection, topic):
    connection.destinations.create(topic, retain="20 KB")
    deadline = time.monotonic() + WAIT_S
    with connection.session() as session:
        for number in range(50):
            send(session, topic, [f"{number:03}" * 500])
        # It looks at what it keeps a few times a second.
        while sum(map(len, found := kept_bodies(session, topic, "end"))) > 25_000:
            assert time.monotonic() < deadline
        assert len([body for body in found if body != "end"]) > 5
        assert "049" * 500 in found


def test_a_topic_without_retention_keeps_nothing_for_later(connection, topic):
    with connection.session() as session:
        send(session, topic, ["gone"])
        consumer = session.consumer(topic, start="earliest")
        send(session, topic, ["new"])
        assert bodies(take(consumer, 1)) == ["new"]
