"""Transacted sessions over real processes: nothing before commit, all of it by commit, nothing after rollback.

Destinations are spread over two channels, so most of these transactions take two phases.
"""

import asyncio
import contextlib

import pytest

import alphorn
from alphorn import aio
from alphorn.model.conversation import CommitTransaction, Done, Failed, Goodbye, OpenSession, Publish
from alphorn.testing.spreading import spread
from alphorn.testing.transfer_chaos import run_transfers
from tests.semantics.layouts import run
from tests.semantics.raw_client import SESSION, RawClient
from tests.semantics.waiting import WAIT_S, bodies, drain, is_quiet, send, take, until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster(request):
    """Two channels, but for `alphorn single`, which has one."""
    with run(request.param, channels=2) as made:
        yield made


@pytest.fixture
def queues(request):
    """Two queues on different channels."""
    return tuple(spread(f"queue:{request.node.name}", 2, 2))


@pytest.fixture
def session(connection):
    return connection.session(transacted=True)


def look(connection, *queues):
    """What each queue shows to somebody who consumes nothing."""
    session = connection.session()
    return [bodies(session.browser(queue)) for queue in queues]


@pytest.mark.requirement("TX-1", "TX-2", "TX-5", "TX-11", "API-13")
def test_what_is_sent_is_there_when_it_is_committed_and_not_before(session, other, queues):
    first, second = queues
    producer = session.producer()
    receipts = [producer.send("one", destination=first), producer.send("two", destination=second)]
    assert look(other, first, second) == [[], []]
    session.commit()
    assert look(other, first, second) == [["one"], ["two"]]
    assert [receipt.result() for receipt in receipts] == [
        message.id for queue in queues for message in other.session().browser(queue)
    ]


@pytest.mark.requirement("TX-3", "TX-4")
def test_what_is_received_comes_again_counted_when_it_is_rolled_back(session, other, queues):
    for queue in queues:
        send(other.session(), queue, ["one", "two"])
    consumers = [session.consumer(queue) for queue in queues]
    assert [bodies(take(consumer, 1)) for consumer in consumers] == [["one"], ["one"]]
    session.producer(queues[0]).send("never")
    session.rollback()
    again = [take(consumer, 2) for consumer in consumers]
    assert [[(m.body, m.delivery_count) for m in found] for found in again] == [[("one", 2), ("two", 1)]] * 2
    session.commit()
    assert look(other, *queues) == [[], []]


@pytest.mark.requirement("TX-4")
def test_only_what_the_program_was_handed_is_consumed(session, other, queues):
    first, second = queues
    send(other.session(), first, ["one", "two", "three"])
    consumer = session.consumer(first)
    take(consumer, 2)
    session.producer(second).send("moved")
    session.commit()
    assert look(other, first, second) == [["three"], ["moved"]]


def test_messages_of_topics_are_part_of_transactions_too(connect, session, other, queues, topic):
    subscriber = connect(client_id="transacted").session(transacted=True)
    consumer = subscriber.consumer(topic, subscription="news")
    producer = session.producer()
    producer.send("for all", destination=topic)
    producer.send("for one", destination=queues[1])
    session.commit()
    assert bodies(take(consumer, 1)) == ["for all"]
    subscriber.rollback()
    [again] = take(consumer, 1)
    assert again.delivery_count == 2
    subscriber.commit()
    assert is_quiet(consumer)
    assert look(other, queues[1]) == [["for one"]]


def fill(connection, queue):
    """Lets no transaction be done that sends there."""
    connection.destinations.create(queue, max_length=1, overflow="reject")
    send(connection.session(), queue, ["all there is room for"])


@pytest.mark.requirement("TX-13")
@pytest.mark.parametrize("is_refused", [False, True], ids=["by the program", "by a channel"])
def test_of_a_rolled_back_transaction_nothing_is_delivered_and_what_it_consumed_comes_again(
    connect, other, queues, topic, is_refused
):
    """Messages of a topic come again to their subscription, as JMS has it; those of a queue to whoever is there."""
    work, full = queues
    fill(other, full)
    session = connect(client_id=topic).session(transacted=True)
    subscribers = [session.consumer(topic, subscription="durable"), session.consumer(topic)]
    worker = session.consumer(work)
    waiting = [other.session().consumer(place) for place in (f"{topic}.out", f"{work}.out")]
    send(other.session(), topic, ["headline", "more"])
    send(other.session(), work, ["job"])
    assert [bodies(take(consumer, 1)) for consumer in (*subscribers, worker)] == [["headline"]] * 2 + [["job"]]
    for place in (f"{topic}.out", f"{work}.out", *([full] if is_refused else [])):
        session.producer(place).send("never")
    worker.close()
    if is_refused:
        with pytest.raises(alphorn.TransactionRolledBack, match="is full"):
            session.commit()
    else:
        session.rollback()
    for subscriber in subscribers:
        came = [(m.body, m.delivery_count) for m in take(subscriber, 2)]
        if is_refused:  # what comes back from the log may come behind what was here already
            came.sort()
        assert came == [("headline", 2), ("more", 1)]
    [job] = take(other.session().consumer(work), 1)
    assert (job.body, job.delivery_count) == ("job", 2)
    session.commit()
    assert [is_quiet(consumer) for consumer in (*subscribers, *waiting)] == [True] * 4
    assert look(other, full) == [["all there is room for"]]


@pytest.mark.requirement("TX-16", "TX-17")
def test_an_open_transaction_delays_nobody_else(connection, session, other, queues):
    first, second = queues
    send(other.session(), first, ["one", "two"])
    held = session.consumer(first, prefetch=1)
    take(held, 1)
    session.producer(second).send("later")
    another = connection.session(transacted=True)
    assert bodies(take(another.consumer(first), 1)) == ["two"]
    another.producer(second).send("sooner")
    another.commit()
    session.commit()
    assert look(other, first, second) == [[], ["sooner", "later"]]


def test_of_two_that_have_the_same_message_one_is_rolled_back(cluster, session, other, queues):
    """Goal: money is not spent twice. Method: a queue is purged under the one who has its message."""
    first, second = queues
    send(other.session(), first, ["unit"])
    consumer = session.consumer(first)
    take(consumer, 1)
    receipt = session.producer(second).send("spent")
    other.destinations.purge(first)
    with pytest.raises(alphorn.TransactionRolledBack, match="not all are there any more"):
        session.commit()
    with pytest.raises(alphorn.TransactionRolledBack):
        receipt.result()
    assert look(other, second) == [[]]
    session.producer(second).send("after")
    session.commit()
    assert look(other, second) == [["after"]]


def test_a_full_queue_rolls_the_whole_transaction_back(session, other, queues):
    first, second = queues
    other.destinations.create(second, max_length=1, overflow="reject")
    send(other.session(), first, ["one"])
    send(other.session(), second, ["full"])
    consumer = session.consumer(first)
    take(consumer, 1)
    session.producer(second).send("too much")
    with pytest.raises(alphorn.TransactionRolledBack, match="is full"):
        session.commit()
    [again] = take(consumer, 1)
    assert (again.body, again.delivery_count) == ("one", 2)


def test_closing_a_session_rolls_its_transaction_back(connection, other, queues):
    first, second = queues
    send(other.session(), first, ["one"])
    with connection.session(transacted=True) as session:
        take(session.consumer(first), 1)
        with session.producer(second) as producer:
            producer.send("never")
    found = drain(other.session(), first)
    assert [(m.body, m.delivery_count) for m in found] == [("one", 2)]
    assert look(other, second) == [[]]


def test_closed_producers_and_consumers_leave_with_their_transaction(session, other, queues):
    first, second = queues
    send(other.session(), first, ["one", "two"])
    with session.consumer(first) as consumer, session.producer(second) as producer:
        take(consumer, 1)
        producer.send("moved")
    assert look(other, first, second) == [["one", "two"], []]
    session.commit()
    assert look(other, first, second) == [["two"], ["moved"]]
    assert bodies(drain(other.session(), first)) == ["two"]


def test_what_a_closed_consumer_was_never_handed_goes_to_others_while_its_transaction_is_open(session, other, queues):
    queue, _ = queues
    send(other.session(), queue, ["one", "two"])
    with session.consumer(queue) as consumer:
        take(consumer, 1)
    send(other.session(), queue, ["three"])
    there = other.session().consumer(queue)
    assert sorted((m.body, m.delivery_count) for m in take(there, 2)) == [("three", 1), ("two", 1)]
    session.rollback()
    [again] = take(there, 1)
    assert (again.body, again.delivery_count) == ("one", 2)


def test_a_consumer_that_the_server_closes_dooms_its_transaction(session, other, queues):
    first, second = queues
    send(other.session(), first, ["one"])
    consumer = session.consumer(first)
    take(consumer, 1)
    session.producer(second).send("never")
    other.destinations.delete(first)
    with contextlib.suppress(alphorn.InvalidDestination):
        consumer.receive(timeout=WAIT_S)
    with pytest.raises(alphorn.TransactionRolledBack):
        session.commit()
    assert look(other, second) == [[]]


def test_a_destination_that_was_deleted_is_created_anew_for_the_next_transaction(session, other, queues):
    producers = [session.producer(queue) for queue in queues]
    for body in ("before", "after"):
        for producer in producers:
            producer.send(body)
        session.commit()
        if body == "before":
            other.destinations.delete(queues[0])
            other.session().producer(queues[1]).send("between", wait=True)
            producers[0].send("refused, or too late")
            with contextlib.suppress(alphorn.TransactionRolledBack):
                session.commit()  # it may not have heard of it yet
            session.rollback()
    assert look(other, *queues)[0][-1] == "after"
    assert look(other, *queues)[1] == ["before", "between", "after"]


def test_calls_that_make_no_sense_in_a_transacted_session_are_refused(session, connection, queues):
    producer = session.producer(queues[0])
    receipt = producer.send("x")
    for call, hint in (
        (receipt.result, "commit the session first"),
        (lambda: producer.send("y", wait=True), "commit the session first"),
        (lambda: producer.send_many(["y"], wait=True), "commit the session first"),
        (session.recover, "rollback"),
        (session.acknowledge, "commit"),
        (lambda: session.request(queues[1], "x"), "another session"),
        (connection.session().commit, "not transacted"),
        (connection.session().rollback, "not transacted"),
    ):
        with pytest.raises(alphorn.Misuse, match=hint):
            call()
    producer.flush()
    session.rollback()
    with pytest.raises(alphorn.TransactionRolledBack):
        receipt.result()


def test_a_transaction_that_is_too_large_says_so(session, queues):
    producer = session.producer()
    for _ in range(3):
        producer.send(bytes(1 << 20), destination=queues[0])
    with pytest.raises(alphorn.MessageTooLarge, match="commit more often"):
        producer.send("more", destination=queues[0])
    session.rollback()
    for queue in queues:
        session.producer(queue).send(bytes(2 << 20))
    with pytest.raises(alphorn.TransactionRolledBack, match="commit more often"):
        session.commit()


def test_asyncio_has_the_same_transactions(cluster, other, queues):
    first, second = queues

    async def main():
        async with aio.connect(cluster.url) as connection, connection.session(transacted=True) as session:
            producer = await session.producer()
            await producer.send("one", destination=first)
            receipt = await producer.send("two", destination=second)
            await session.commit()
            name = await receipt.result()
            consumer = await session.consumer(first)
            message = await consumer.receive(timeout=WAIT_S)
            await producer.send("never", destination=second)
            await session.rollback()
            again = await consumer.receive(timeout=WAIT_S)
            await session.commit()
            return name, message.delivery_count, again.delivery_count

    name, *counts = asyncio.run(main())
    assert counts == [1, 2]
    assert [message.id for message in other.session().browser(second)] == [name]
    assert look(other, first, second) == [[], ["two"]]


# --- bad input ---


@pytest.fixture
def raw(cluster):
    with RawClient(cluster.url) as client:
        client.hello()
        yield client


def answer_of(raw, frame):
    raw.say(frame)
    while not isinstance(found := raw.next_frame(), Done | Failed | Goodbye | None):
        pass
    return found


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (CommitTransaction(9, 77, 1, [], []), "Misuse"),
        (CommitTransaction(9, SESSION, 0, [], []), "Misuse"),
        (CommitTransaction(9, SESSION, 1, [], [(5, 1, [1, 1])]), "TransactionRolledBack"),
        (CommitTransaction(9, SESSION, 1, [], [(5, 9 << 40, [1, 1])]), "PeerViolation"),
        (CommitTransaction(9, SESSION, 1, [], [(5, 1, [1])]), "PeerViolation"),
        (
            CommitTransaction(9, SESSION, 1, [Publish(77, 1, 1, 1, 1, 0, 0, memoryview(b"\x91\x91\x01"))], []),
            "PeerViolation",
        ),
    ],
    ids=["foreign session", "no transaction", "foreign consumer", "no channel", "no pairs", "of another session"],
)
def test_a_transaction_that_nobody_can_mean_is_refused_and_nothing_is_done(raw, frame, error):
    assert answer_of(raw, frame).error == error


def test_a_transaction_of_the_past_is_refused(raw, cluster, other, queues):
    place = raw.place_of(queues[0])
    batch = Publish(SESSION, 1, place, 1, 1, 0, 0, memoryview(b"\x91\x91\x01"))
    assert isinstance(answer_of(raw, CommitTransaction(7, SESSION, 5, [batch], [])), Done)
    assert isinstance(answer_of(raw, CommitTransaction(8, SESSION, 5, [batch], [])), Done)  # as before, and done once
    refused = answer_of(raw, CommitTransaction(9, SESSION, 4, [batch], []))
    assert (refused.error, "is over" in refused.reason) == ("Misuse", True)
    assert look(other, queues[0]) == [[1]]


def test_a_session_that_is_not_open_commits_nothing(raw):
    raw.say(OpenSession(3))
    assert isinstance(answer_of(raw, CommitTransaction(9, 3, 1, [], [])), Done)


# --- whoever dies ---


@pytest.mark.requirement("TX-9", "TX-10", "TX-12", "TX-14", "TX-15", "HA-20", "CM-25", "API-11")
def test_units_are_neither_lost_nor_made_when_nodes_die_at_steps_of_transactions(tmp_path):
    """`alphorn chaos --transfers` does this at every step, many times."""
    result = run_transfers(tmp_path, transfers=15, kills=1, points=("prepared", "decided", "decide-applied"))
    assert result.faults == []
    assert all(result.kills.values())


@pytest.mark.cluster_only
@pytest.mark.parametrize("step", ["asked", "prepared", "finished"])
def test_a_client_finds_out_what_its_transaction_came_to_when_its_client_manager_dies(
    cluster, connection, session, other, queues, step
):
    producer = session.producer()
    for queue in queues:
        producer.send(step, destination=queue)
    name = repr(connection).split()[3]
    cluster.die_at(name, step)
    session.commit()
    until(lambda: not cluster.nodes[name])
    cluster.restart(name)
    cluster.wait_in_sync()
    assert look(other, *queues) == [[step], [step]]
