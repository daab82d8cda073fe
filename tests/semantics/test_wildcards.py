"""Consumers of patterns over real processes: what joins, what is never missed, and what survives."""

import asyncio

import pytest

import alphorn
import alphorn.testing
from tests.semantics.layouts import name_of
from tests.semantics.waiting import WAIT_S, Gathered, bodies, is_quiet, send, take, until

pytestmark = pytest.mark.processes


@pytest.fixture
def name(request):
    """How the names of a test's destinations begin."""
    return name_of(request.node)


def places(messages):
    return [message.destination for message in messages]


@pytest.mark.requirement("WLD-1", "WLD-3")
def test_a_glob_receives_from_queues_and_topics_that_match_and_from_no_others(connection, other, name):
    session = connection.session()
    send(session, f"queue:{name}.waiting", ["early"])
    send(session, f"queue:{name}-not", ["never"])
    consumer = session.consumer(alphorn.glob(f"{name}.*"))
    [first] = take(consumer, 1)
    assert (first.body, first.destination) == ("early", f"queue:{name}.waiting")
    send(other.session(), f"topic:{name}.news", ["late"])
    [second] = take(consumer, 1)
    assert (second.body, second.destination) == ("late", f"topic:{name}.news")
    assert is_quiet(consumer)


@pytest.mark.requirement("WLD-2")
def test_a_regular_expression_receives_from_what_matches(connection, name):
    session = connection.session()
    consumer = session.consumer(alphorn.regex(rf"topic:{name}\.(eu|us)\..+"))
    for region in ("eu", "us", "ch"):
        send(session, f"topic:{name}.{region}.x", [region])
        send(session, f"queue:{name}.{region}.x", ["not this kind"])
    assert bodies(take(consumer, 2)) == ["eu", "us"]
    assert is_quiet(consumer)


@pytest.mark.requirement("WLD-4")
def test_the_first_message_of_a_topic_that_is_created_later_is_received(connect, cluster, name):
    hosts = cluster.url.partition("://")[2].split(",")
    here, there = connect(f"alphorn://{hosts[0]}"), connect(f"alphorn://{hosts[-1]}")
    consumer = here.session().consumer(alphorn.glob(f"topic:{name}.*"))
    session = there.session()
    producer = session.producer()
    for number in range(30):
        producer.send(number, destination=f"topic:{name}.{number}")
    producer.flush()
    assert sorted(bodies(take(consumer, 30))) == list(range(30))


@pytest.mark.requirement("WLD-4")
def test_a_destination_that_is_deleted_and_created_again_joins_again(connection, other, name):
    consumer = connection.session().consumer(alphorn.glob(f"{name}*"))
    session = other.session()
    for turn in range(3):
        send(session, f"topic:{name}", [turn])
        assert bodies(take(consumer, 1)) == [turn]
        other.destinations.delete(f"topic:{name}")
    send(session, f"queue:{name}.last", ["still here"])
    assert bodies(take(consumer, 1)) == ["still here"]


@pytest.mark.parametrize("ack", ["client", "individual"])
def test_messages_of_many_destinations_are_acknowledged_and_recovered_as_those_of_one(connect, name, ack):
    session = connect().session(ack=ack)
    for place in "abc":
        send(session, f"queue:{name}.{place}", [f"{place}1", f"{place}2"])
    consumer = session.consumer(f"glob:queue:{name}.*")
    first = take(consumer, 6)
    assert sorted(bodies(first)) == ["a1", "a2", "b1", "b2", "c1", "c2"]
    session.recover()
    again = take(consumer, 6)
    assert {message.delivery_count for message in again} == {2}
    for message in again:
        message.acknowledge()
    session.close()
    consumer = connect().session().consumer(f"glob:queue:{name}.*")
    assert is_quiet(consumer)


def test_what_is_not_acknowledged_comes_back_when_the_consumer_closes(connection, name):
    session = connection.session(ack="individual")
    send(session, f"queue:{name}.a", ["kept"])
    with session.consumer(alphorn.glob(f"{name}.*")) as consumer:
        take(consumer, 1)
    [message] = take(session.consumer(f"queue:{name}.a"), 1)
    assert (message.body, message.delivery_count) == ("kept", 2)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_consumer_that_is_closed_before_its_transaction_is_over_leaves_with_it(connection, other, name, end):
    for place in "ab":
        send(other.session(), f"queue:{name}.{place}", ["handed", "not"])
    session = connection.session(transacted=True)
    consumer = session.consumer(alphorn.glob(f"queue:{name}.*"))
    [first] = take(consumer, 1)
    consumer.close()
    getattr(session, end)()
    other_queue = next(f"queue:{name}.{place}" for place in "ab" if not first.destination.endswith(f".{place}"))
    left = take(other.session().consumer(first.destination), 1 if end == "commit" else 2)
    assert bodies(left) == (["not"] if end == "commit" else ["handed", "not"])
    assert bodies(take(other.session().consumer(other_queue), 2)) == ["handed", "not"]


def test_a_closed_consumer_joins_nothing_more(connection, name):
    session = connection.session()
    session.consumer(alphorn.glob(f"queue:{name}.*")).close()
    send(session, f"queue:{name}.a", ["for another"])
    assert bodies(take(session.consumer(f"queue:{name}.a"), 1)) == ["for another"]


def test_a_listener_hears_all_destinations(connection, name):
    heard = Gathered()
    session = connection.session()
    session.consumer(alphorn.glob(f"{name}.*")).listen(heard)
    for place in "ab":
        send(connection.session(), f"topic:{name}.{place}", [place])
    assert sorted(bodies(heard.until(2))) == ["a", "b"]


def test_many_are_taken_at_once_from_all_destinations(connection, name):
    session = connection.session()
    for place in range(5):
        send(session, f"queue:{name}.{place}", range(100))
    consumer = session.consumer(alphorn.glob(f"{name}.*"))
    found = {}
    while sum(map(len, found.values())) < 500:
        messages = consumer.receive_many(70, WAIT_S)
        assert messages
        for message in messages:
            found.setdefault(message.destination, []).append(message.body)
    assert found == {f"queue:{name}.{place}": list(range(100)) for place in range(5)}, "order holds in each"


@pytest.mark.requirement("API-8", "WLD-3")
def test_a_selector_counts_for_every_destination(connection, name):
    session = connection.session()
    consumer = session.consumer(alphorn.glob(f"{name}.*"), selector="n > 1")
    for place in (f"topic:{name}.t", f"queue:{name}.q"):
        for number in range(3):
            send(session, place, [number], properties={"n": number})
    assert bodies(take(consumer, 2)) == [2, 2]


def test_a_durable_subscription_to_a_pattern_keeps_what_comes_for_its_topics_and_ends_with_all_of_them(connect, name):
    publisher = connect().session()
    for place in "ab":
        send(publisher, f"topic:{name}.{place}", ["before"])
    with connect(client_id=name) as reader:
        reader.session().consumer(alphorn.glob(f"topic:{name}.*"), subscription="s").close()
    for place in "ab":
        send(publisher, f"topic:{name}.{place}", [place])
    with connect(client_id=name) as reader:
        session = reader.session()
        consumer = session.consumer(alphorn.glob(f"topic:{name}.*"), subscription="s")
        assert sorted(bodies(take(consumer, 2))) == ["a", "b"]
        with pytest.raises(alphorn.Misuse, match="active consumer"):
            session.unsubscribe("s")
        consumer.close()
        session.unsubscribe("s")
        with pytest.raises(alphorn.InvalidDestination):
            reader.session().unsubscribe("s")
    send(publisher, f"topic:{name}.a", ["after"])
    with connect(client_id=name) as reader:
        assert is_quiet(reader.session().consumer(alphorn.glob(f"topic:{name}.*"), subscription="s"))


def test_several_consumers_share_a_subscription_to_a_pattern(connect, name):
    choices = {"subscription": f"{name}-s", "shared": True, "durable": False}
    consumers = [connect().session().consumer(alphorn.glob(f"topic:{name}.*"), **choices) for _ in range(2)]
    send(connect().session(), f"topic:{name}.a", range(10))
    found = []
    while len(found) < 10:
        found += [m.body for consumer in consumers if (m := consumer.receive(timeout=0.05)) is not None]
    assert sorted(found) == list(range(10))
    assert all(map(is_quiet, consumers))


def test_a_subscription_to_a_pattern_that_another_uses_is_refused(connect, name):
    send(connect().session(), f"topic:{name}.a", ["there"])
    client = connect(client_id=name)
    client.session().consumer(alphorn.glob(f"topic:{name}.*"), subscription="s")
    with pytest.raises(alphorn.Misuse, match="active consumer"):
        client.session().consumer(alphorn.glob(f"topic:{name}.*"), subscription="s")


@pytest.mark.requirement("API-10", "API-12", "WLD-4")
def test_a_consumer_of_a_pattern_goes_on_through_another_client_manager(connect, other, name):
    events = Gathered()
    client = connect(on_event=lambda event, detail: events(event))
    session = client.session(ack="individual")
    send(session, f"queue:{name}.a", ["held", "later"])
    consumer = session.consumer(alphorn.glob(f"{name}.*"), prefetch=1)
    [held] = take(consumer, 1)
    client._line.core.wants_reconnection = True
    client._line.wake()
    events.until_heard("resumed")
    held.acknowledge()
    assert [(m.body, m.delivery_count) for m in take(consumer, 1)] == [("later", 1)]
    send(other.session(), f"topic:{name}.new", ["new"])
    assert places(take(consumer, 1)) == [f"topic:{name}.new"]


def test_asyncio_programs_receive_by_patterns_too(cluster, name):
    async def program() -> list[tuple[str, str]]:
        async with alphorn.aio.connect(cluster.url) as connection:
            session = await connection.session()
            consumer = await session.consumer(alphorn.glob(f"{name}.*"))
            producer = await session.producer()
            for place in (f"topic:{name}.a", f"queue:{name}.b"):
                receipt = await producer.send(place, destination=place)
                await receipt.result()
            found = []
            async for message in consumer:
                found.append((message.body, message.destination))
                if len(found) == 2:
                    break
            await consumer.close()
            with pytest.raises(alphorn.InvalidDestination):
                await session.consumer(alphorn.regex("a|b)"))
            return found

    found = asyncio.run(program())
    assert sorted(found) == sorted((place, place) for place in (f"topic:{name}.a", f"queue:{name}.b"))


@pytest.mark.parametrize(
    ("choices", "error"),
    [
        ({"selector": "n >"}, alphorn.InvalidSelector),
        ({"subscription": "x" * 201}, alphorn.Misuse),
        ({"prefetch": 0}, alphorn.Misuse),
    ],
)
def test_wrong_wishes_are_refused_also_where_nothing_matches_yet(connection, name, choices, error):
    with pytest.raises(error):
        connection.session().consumer(alphorn.glob(f"topic:{name}.*"), **choices)


def test_only_consumers_take_patterns(connection):
    session = connection.session()
    for wrong in (session.producer, session.browser):
        with pytest.raises(alphorn.Misuse, match="many destinations"):
            wrong(alphorn.glob("a*"))
    with pytest.raises(alphorn.Misuse):
        session.consumer(alphorn.glob("queue:a*"), subscription="s")


@pytest.mark.slow
@pytest.mark.requirement("WLD-3", "WLD-4", "HA-20")
def test_patterns_reach_over_all_channels_and_survive_the_loss_of_a_primary():
    with alphorn.testing.cluster(client_managers=1, channels=2) as cluster, alphorn.connect(cluster.url) as client:
        session = client.session()
        consumer = session.consumer(alphorn.glob("topic:p.*"))
        names = [f"topic:p.{letter}" for letter in "abcdef"]
        for place in names:
            send(session, place, [place])
        assert sorted(bodies(take(consumer, 6))) == names
        # Both channels have some of them, and so say their primaries.
        until(
            lambda: {each["channel"] for each in client.destinations.list() if each["name"] in names},
            lambda found: len(found) == 2,
        )
        primary = cluster.primary()
        cluster.wait_in_sync()
        cluster.kill(primary)
        more = [f"topic:p.{letter}" for letter in "ghijkl"]
        for place in [*names, *more]:
            send(session, place, [place])
        assert sorted(bodies(take(consumer, 12))) == sorted([*names, *more])
