"""A client gets the same service whichever Client Manager it picks."""

import pytest

import alphorn
from tests.semantics.waiting import WAIT_S, bodies, drain, is_quiet, send, take

pytestmark = pytest.mark.processes


@pytest.fixture
def here(connect, door):
    return connect(door)


@pytest.mark.requirement("API-1", "CM-1", "CM-6")
def test_messages_cross_from_any_client_manager_to_any(here, connect, cluster, queue):
    for url in cluster.url.partition("://")[2].split(","):
        there = connect(f"alphorn://{url}").session()
        send(here.session(), queue, ["to there"])
        assert bodies(drain(there, queue)) == ["to there"]
        send(there, queue, ["to here"])
        assert bodies(drain(here.session(), queue)) == ["to here"]


@pytest.mark.requirement("API-1", "API-9")
def test_acknowledgement_and_redelivery(here, other, queue):
    with here.session(ack="individual") as session:
        send(session, queue, ["one", "two", "three"])
        one, _ = take(session.consumer(queue), 2)
        one.acknowledge()
    found = drain(other.session(), queue)
    assert [(m.body, m.delivery_count) for m in found] == [("two", 2), ("three", 1)]


@pytest.mark.requirement("API-1", "API-8")
def test_selectors_and_topics(here, other, topic):
    consumer = here.session().consumer(topic, selector="n > 1")
    for number in range(4):
        send(other.session(), topic, [number], properties={"n": number})
    assert bodies(take(consumer, 2)) == [2, 3]


@pytest.mark.requirement("API-1")
def test_durable_subscriptions_move_between_client_managers(here, connect, cluster, topic):
    with connect(cluster.url, client_id=topic) as before:
        before.session().consumer(topic, subscription="s").close()
    send(here.session(), topic, ["missed"])
    moved = connect(here._line.core.addresses[-1].join(["alphorn://", ""]), client_id=topic)
    assert bodies(take(moved.session().consumer(topic, subscription="s"), 1)) == ["missed"]


@pytest.mark.requirement("API-1")
def test_browsing_requests_and_temporary_queues(here, other, queue):
    session = here.session()
    send(session, queue, ["question"])
    assert bodies(session.browser(queue)) == ["question"]
    drain(session, queue)
    producer = other.session().producer()
    answering = other.session()
    answering.consumer(queue).listen(
        lambda m: producer.send("answer", destination=m.reply_to, correlation_id=m.correlation_id)
    )
    assert session.request(queue, "question", timeout=WAIT_S).body == "answer"


@pytest.mark.requirement("API-1", "CM-19", "MM-16")
def test_destinations_are_the_same_everywhere(here, other, queue):
    here.destinations.create(queue, max_length=1, overflow="reject")
    producer = other.session().producer(queue)
    producer.send("fits").result(WAIT_S)
    with pytest.raises(alphorn.Blocked):
        producer.send("does not").result(WAIT_S)
    assert bodies(drain(here.session(), queue)) == ["fits"]
    for connection in (here, other):
        assert queue in {known["name"] for known in connection.destinations.list()}
    here.destinations.policy(queue)
    for number in range(3):
        producer.send(number).result(WAIT_S)
    here.destinations.delete(queue)
    fresh = other.session()
    with fresh.consumer(queue) as consumer:
        assert is_quiet(consumer)


@pytest.mark.requirement("CM-22")
def test_consumers_of_a_deleted_queue_are_closed_everywhere(here, connect, cluster, queue):
    consumers = [connect(f"alphorn://{url}").session().consumer(queue) for url in here._line.core.addresses]
    here.destinations.delete(queue)
    for consumer in consumers:
        with pytest.raises(alphorn.InvalidDestination, match="was deleted"):
            consumer.receive(timeout=WAIT_S)
