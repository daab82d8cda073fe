"""What counts as consumed, in each mode, and what comes back."""

import pytest

import alphorn
from tests.semantics.waiting import WAIT_S, bodies, drain, is_quiet, send, take

pytestmark = pytest.mark.processes


@pytest.mark.requirement("API-9")
def test_automatic_mode_acknowledges_when_the_program_goes_on(connection, other, queue):
    with connection.session() as session:
        send(session, queue, ["one", "two", "three"])
        consumer = session.consumer(queue)
        assert bodies(take(consumer, 3)) == ["one", "two", "three"]
        assert is_quiet(consumer)
    assert drain(other.session(), queue) == []


@pytest.mark.requirement("API-9")
def test_what_a_failing_program_had_in_hand_comes_again(connection, other, queue):
    def fail():
        with connection.session() as session:
            consumer = session.consumer(queue)
            assert bodies(take(consumer, 2)) == ["one", "two"]
            raise ZeroDivisionError

    send(other.session(), queue, ["one", "two", "three"])
    with pytest.raises(ZeroDivisionError):
        fail()
    found = drain(other.session(), queue)
    assert [(m.body, m.delivery_count, m.redelivered) for m in found] == [("two", 2, True), ("three", 1, False)]


@pytest.mark.requirement("API-9")
def test_in_client_mode_one_acknowledgement_covers_all_that_the_session_received(connection, other, queue):
    second = f"{queue} second"
    with connection.session(ack="client") as session:
        send(session, queue, ["one", "two", "three"])
        send(session, second, ["four"])
        first_consumer, second_consumer = session.consumer(queue), session.consumer(second)
        take(first_consumer, 2)
        [four] = take(second_consumer, 1)
        four.acknowledge()
    assert bodies(drain(other.session(), queue)) == ["three"]
    assert drain(other.session(), second) == []


def test_in_client_mode_nothing_is_consumed_without_acknowledgement(connection, other, queue):
    with connection.session(ack="client") as session:
        send(session, queue, ["one", "two"])
        take(session.consumer(queue), 2)
    found = drain(other.session(), queue)
    assert [(m.body, m.delivery_count) for m in found] == [("one", 2), ("two", 2)]


def test_the_session_acknowledges_as_its_messages_do(connection, other, queue):
    with connection.session(ack="client") as session:
        send(session, queue, ["one", "two", "three"])
        take(session.consumer(queue), 2)
        session.acknowledge()
    assert bodies(drain(other.session(), queue)) == ["three"]


@pytest.mark.requirement("API-9")
def test_in_individual_mode_only_that_message_is_consumed(connection, other, queue):
    with connection.session(ack="individual") as session:
        send(session, queue, ["one", "two", "three"])
        _, two, _ = take(session.consumer(queue), 3)
        two.acknowledge()
    found = drain(other.session(), queue)
    assert [(m.body, m.delivery_count) for m in found] == [("one", 2), ("three", 2)]


def test_lazy_acknowledgement_consumes_all_in_the_end(connection, other, queue):
    with connection.session(ack="dups_ok") as session:
        send(session, queue, range(50))
        assert bodies(take(session.consumer(queue), 50)) == list(range(50))
    assert drain(other.session(), queue) == []


@pytest.mark.parametrize("ack", ["auto", "client", "individual", "dups_ok"])
def test_recover_brings_back_what_is_not_acknowledged_in_order(connection, queue, ack):
    with connection.session(ack=ack) as session:
        send(session, queue, ["one", "two", "three", "four"])
        consumer = session.consumer(queue)
        [one] = take(consumer, 1)
        one.acknowledge()
        assert bodies(take(consumer, 2)) == ["two", "three"]
        session.recover()
        found = take(consumer, 2 if ack in ("auto", "dups_ok") else 3)
        expected = [("two", 2), ("three", 2), ("four", 1)]
        if ack in ("auto", "dups_ok"):  # "two" counted as consumed when "three" was asked for
            expected = expected[1:]
        assert [(m.body, m.delivery_count) for m in found] == expected


@pytest.mark.requirement("MM-7")
def test_what_is_sent_while_a_session_recovers_does_not_overtake_what_comes_back(connection, other, queue):
    sending = other.session().producer(queue)
    with connection.session(ack="client") as session:
        consumer = session.consumer(queue, prefetch=20)
        sent, oldest = 0, 0
        while sent < 300:
            sending.send_many(range(sent, sent + 10))
            sent += 10
            first = bodies(take(consumer, 5))
            assert first == list(range(oldest, oldest + 5))
            session.recover()
            sending.send_many(range(sent, sent + 10))
            sent += 10
            again = take(consumer, 10)
            assert bodies(again) == list(range(oldest, oldest + 10))
            again[-1].acknowledge()
            oldest += 10


def test_recover_does_not_count_deliveries_that_the_program_never_saw(connection, queue):
    with connection.session(ack="client") as session:
        send(session, queue, ["one", "two", "three"])
        consumer = session.consumer(queue)
        for count in (1, 2, 3):
            [one] = take(consumer, 1)
            assert (one.body, one.delivery_count) == ("one", count)
            session.recover()
        assert [(m.body, m.delivery_count) for m in take(consumer, 3)] == [("one", 4), ("two", 1), ("three", 1)]


@pytest.mark.parametrize("closes", ["consumer", "session"])
def test_closing_does_not_count_deliveries_that_the_program_never_saw(connection, queue, closes):
    connection.destinations.create(queue, delivery_limit=2)
    send(connection.session(), queue, range(6))
    found = []
    for _ in range(6):
        session = connection.session(ack="individual")
        consumer = session.consumer(queue)
        [message] = take(consumer, 1)
        message.acknowledge()
        found.append((message.body, message.delivery_count))
        (consumer if closes == "consumer" else session).close()
    assert found == [(number, 1) for number in range(6)]


def test_what_was_acknowledged_just_before_closing_never_comes_again(connection, other, queue):
    send(connection.session(), queue, range(200))
    watching = other.session().consumer(queue, prefetch=1)
    seen = []
    for _ in range(20):
        with connection.session(ack="individual") as session, session.consumer(queue) as consumer:
            for message in consumer.receive_many(5, WAIT_S):
                message.acknowledge()
                seen.append(message.body)
    seen += bodies(take(watching, 200 - len(seen)))
    assert sorted(seen) == list(range(200))
    assert is_quiet(watching)


def test_acknowledging_twice_changes_nothing(connection, other, queue):
    with connection.session(ack="individual") as session:
        send(session, queue, ["one", "two"])
        consumer = session.consumer(queue)
        one, two = take(consumer, 2)
        one.acknowledge()
        one.acknowledge()
        two.acknowledge()
        one.acknowledge()
        send(session, queue, ["three"])
        assert bodies(take(consumer, 1)) == ["three"]
    assert bodies(drain(other.session(), queue)) == ["three"]


def test_a_message_that_came_back_is_not_acknowledged_by_its_older_copy(connection, other, queue):
    with connection.session(ack="individual") as session:
        send(session, queue, ["one"])
        consumer = session.consumer(queue)
        [older] = take(consumer, 1)
        session.recover()
        take(consumer, 1)
        older.acknowledge()
    assert [(m.body, m.delivery_count) for m in drain(other.session(), queue)] == [("one", 3)]


def test_an_unknown_mode_is_refused(connection):
    with pytest.raises(alphorn.Misuse, match="it is 'auto', 'client', 'individual' or 'dups_ok'"):
        connection.session(ack="sometimes")
