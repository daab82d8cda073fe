"""Sessions are independent flows; closing is clean."""

import threading

import pytest

import alphorn
from alphorn.client.outboxes import CLOSED_MAX
from alphorn.client.packing import pack_bodies
from alphorn.model.conversation import CloseSession, Confirmed, Delivered, OpenSession
from tests.semantics.raw_client import SESSION, RawClient
from tests.semantics.waiting import WAIT_S, Gathered, bodies, drain, is_quiet, send, take

pytestmark = pytest.mark.processes


@pytest.mark.requirement("API-6")
def test_a_blocked_session_does_not_block_its_siblings(connection, queue):
    entered, leave = threading.Event(), threading.Event()

    def block(message):
        entered.set()
        assert leave.wait(WAIT_S)

    blocked, free = connection.session(), connection.session()
    blocked.consumer(queue).listen(block)
    send(free, queue, ["block"])
    assert entered.wait(WAIT_S)
    try:
        sibling = f"{queue} sibling"
        send(free, sibling, range(10))
        assert bodies(take(free.consumer(sibling), 10)) == list(range(10))
    finally:
        leave.set()


@pytest.mark.requirement("API-6")
def test_each_session_acknowledges_its_own(connection, other, queue):
    second = f"{queue} second"
    one, two = connection.session(ack="client"), connection.session(ack="client")
    send(one, queue, ["a"])
    send(one, second, ["b"])
    take(one.consumer(queue), 1)
    take(two.consumer(second), 1)
    one.acknowledge()
    one.close()
    two.close()
    assert drain(other.session(), queue) == []
    assert bodies(drain(other.session(), second)) == ["b"]


def test_a_listener_hears_all_messages_in_order_and_acknowledges_them(connection, other, queue):
    gathered = Gathered()
    with connection.session() as session:
        session.consumer(queue).listen(gathered)
        send(other.session(), queue, range(100))
        assert bodies(gathered.until(100)) == list(range(100))
    assert drain(other.session(), queue) == []


def test_a_listener_that_fails_gets_the_message_again(connection, queue, caplog):
    gathered = Gathered()

    def stumble(message):
        gathered(message)
        if message.delivery_count < 3:
            raise ZeroDivisionError

    connection.session().consumer(queue).listen(stumble)
    send(connection.session(), queue, ["stone"])
    assert [(m.body, m.delivery_count) for m in gathered.until(3)] == [("stone", 1), ("stone", 2), ("stone", 3)]
    assert "event=listener_failed" in caplog.text


def test_listeners_of_one_session_are_called_one_at_a_time(connection, queue):
    gathered, inside = Gathered(), []

    def listen(message):
        inside.append(1)
        gathered((message.body, len(inside)))
        inside.pop()

    session = connection.session()
    second = f"{queue} second"
    session.consumer(queue).listen(listen)
    session.consumer(second).listen(listen)
    send(connection.session(), queue, range(50))
    send(connection.session(), second, range(50))
    assert {count for _, count in gathered.until(100)} == {1}


@pytest.mark.requirement("API-9")
@pytest.mark.parametrize("closes", ["consumer", "session", "connection"])
def test_closing_returns_what_was_not_acknowledged(connect, other, queue, closes):
    connection = connect()
    session = connection.session(ack="individual")
    send(session, queue, ["one", "two", "three"])
    consumer = session.consumer(queue)
    one, two = take(consumer, 2)
    one.acknowledge()
    waiting = other.session().consumer(queue)
    {"consumer": consumer, "session": session, "connection": connection}[closes].close()
    assert [(m.body, m.delivery_count) for m in take(waiting, 2)] == [("two", 2), ("three", 1)]
    assert two.body == "two"  # a message stays readable


@pytest.mark.requirement("API-2")
@pytest.mark.parametrize("closes", ["producer", "session", "connection"])
def test_closing_sends_what_is_under_way(connect, other, queue, closes):
    connection = connect()
    session = connection.session()
    producer = session.producer(queue)
    receipts = producer.send_many(range(10_000))
    {"producer": producer, "session": session, "connection": connection}[closes].close()
    assert receipts[-1].is_done
    consumer = other.session().consumer(queue)
    found = []
    while len(found) < 10_000:
        more = bodies(consumer.receive_many(5000, WAIT_S))
        assert more
        found += more
    assert found == list(range(10_000))


def test_what_is_closed_says_so(connect, queue):
    connection = connect()
    session = connection.session()
    producer, consumer = session.producer(queue), session.consumer(queue)
    producer.close()
    consumer.close()
    with pytest.raises(alphorn.Misuse, match="this producer is closed"):
        producer.send("late")
    with pytest.raises(alphorn.Misuse, match="this consumer is closed"):
        consumer.receive(timeout=0)
    session.close()
    with pytest.raises(alphorn.Misuse, match="this session is closed"):
        session.producer(queue)
    connection.close()
    connection.close()
    with pytest.raises(alphorn.Misuse, match="this connection is closed"):
        connection.session()


def test_iteration_ends_when_the_consumer_is_closed(connection, queue):
    with connection.session() as session:
        send(session, queue, range(5))
        consumer = session.consumer(queue)
        found = []
        for message in consumer:
            found.append(message.body)
            if len(found) == 5:
                consumer.close()
        assert found == list(range(5))


def test_a_waiting_receive_ends_when_the_session_is_closed(connection, queue):
    session = connection.session()
    consumer = session.consumer(queue)
    failed = Gathered()

    def wait():
        try:
            consumer.receive()
        except alphorn.Misuse as error:
            failed(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    session.close()
    thread.join(WAIT_S)
    assert failed.messages == ["this consumer is closed; make another with session.consumer"]


def test_a_slow_consumer_leaves_messages_to_others(connection, other, queue):
    slow = connection.session(ack="individual").consumer(queue, prefetch=1)
    send(connection.session(), queue, [0])
    take(slow, 1)
    quick = other.session().consumer(queue)
    send(connection.session(), queue, range(1, 10))
    assert bodies(take(quick, 9)) == list(range(1, 10))
    assert is_quiet(quick)


@pytest.mark.requirement("API-9", "MM-11")
def test_a_client_that_vanishes_leaves_its_messages_to_others(door, other, queue):
    """Goal: what a killed program held comes back. Method: a bare client that hangs up without a word."""
    other.session().producer(queue).send_many(["one", "two"], wait=True)  # one batch, which is given out as a whole
    with RawClient(door) as vanishing:
        vanishing.hello()
        vanishing.consume(queue)
        vanishing.until(Delivered)
    found = take(other.session().consumer(queue), 2)
    assert [(m.body, m.redelivered) for m in found] == [("one", True), ("two", True)]


@pytest.mark.parametrize("creates", [True, False], ids=["created again", "deleted"])
def test_a_producer_goes_on_after_its_destination_was_deleted(connection, other, queue, creates):
    session = connection.session()
    producer, consumer = session.producer(queue), session.consumer(queue)
    producer.send("before", wait=True)
    assert bodies(take(consumer, 1)) == ["before"]
    other.destinations.delete(queue)
    if creates:
        other.destinations.create(queue, max_length=3)
    with pytest.raises(alphorn.InvalidDestination, match="was deleted"):
        consumer.receive(timeout=WAIT_S)
    producer.send("one", wait=True)
    producer.send("two", properties={"n": 2}, wait=True)
    session.producer(queue).send("three", wait=True)
    assert bodies(drain(other.session(), queue)) == ["one", "two", "three"]


def producers_known(cluster, connection):
    """How many producers of this connection its Client Manager knows."""
    states = [cluster.describe(name)[name]["client_manager"] for name in ("cm1", "cm2")]
    known = [each for state in states for each in state["connections"] if each["connection"] == connection.id]
    return sum(each["producers"] for each in known)


@pytest.mark.requirement("API-12")
def test_what_a_producer_of_a_closed_session_sends_again_is_recognised(door, other, queue):
    with RawClient(door) as again:
        again.hello()
        place = again.place_of(queue)
        for counter in (1, 2):
            again.publish(place, pack_bodies([counter])[0][1], counter=counter)
            assert again.until(Confirmed).counter == counter
        for counter in (1, 2, 3):
            again.ask(lambda request: CloseSession(request, SESSION))
            again.say(OpenSession(SESSION))
            again.publish(place, pack_bodies([counter])[0][1], counter=counter)
            assert again.until(Confirmed).counter == counter
    assert bodies(drain(other.session(), queue)) == [1, 2, 3]


@pytest.mark.cluster_only
def test_closed_sessions_leave_no_producers_behind(cluster, connection, queue):
    with connection.session() as session:
        for _ in range(3):
            session.producer(queue).send("x")
        session.producer().send("x", destination=queue, wait=True)
        assert producers_known(cluster, connection) == 4
    assert producers_known(cluster, connection) == 0


def test_a_program_may_open_a_producer_for_each_message_beside_one_that_stays(connection, queue):
    session, count = connection.session(), 3 * CLOSED_MAX
    staying = session.producer(queue)
    late = session.producer(queue)
    staying.send("first", wait=True)
    for number in range(count):
        with session.producer(queue) as producer:
            producer.send(number)
    staying.send("last", wait=True)
    late.send("late", wait=True)
    assert bodies(take(session.consumer(queue), count + 3)) == ["first", *range(count), "last", "late"]
