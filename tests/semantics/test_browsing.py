"""Looking at a queue changes nothing."""

import pytest

import alphorn
from tests.semantics.waiting import bodies, send, take

pytestmark = pytest.mark.processes


@pytest.mark.requirement("MM-4")
def test_browsing_shows_everything_in_order_and_consumes_nothing(connection, queue):
    with connection.session() as session:
        send(session, queue, range(2500))
        browser = session.browser(queue)
        for _ in range(2):
            assert bodies(browser) == list(range(2500))
        found = session.consumer(queue).receive_many(1)
        assert (found[0].body, found[0].delivery_count) == (0, 1)


def test_browsing_with_a_selector_shows_only_that(connection, queue):
    with connection.session() as session:
        for number in range(10):
            send(session, queue, [number], properties={"even": number % 2 == 0})
        assert bodies(session.browser(queue, "even")) == [0, 2, 4, 6, 8]
        assert bodies(session.browser(queue, "even = FALSE AND JMSPriority = 4")) == [1, 3, 5, 7, 9]


def test_browsing_finds_a_rare_message_behind_many_others(connection, queue):
    with connection.session() as session:
        send(session, queue, range(2500))
        send(session, queue, ["rare"], properties={"rare": True})
        assert bodies(session.browser(queue, "rare")) == ["rare"]
        assert bodies(session.browser(queue, "rare = FALSE")) == []


def test_browsing_shows_how_often_each_message_was_given_out(connection, queue):
    with connection.session(ack="individual") as session:
        with session.producer(queue) as producer:
            producer.send_many(range(3))
        with session.consumer(queue) as consumer:
            take(consumer, 3)[1].reject()
            take(consumer, 1)
            found = [(message.body, message.delivery_count) for message in session.browser(queue)]
    assert found == [(0, 1), (1, 2), (2, 1)]


def test_browsing_does_not_show_what_is_not_due_yet(connection, queue):
    with connection.session() as session:
        send(session, queue, ["later"], delay=3600.0)
        send(session, queue, ["now"])
        assert bodies(session.browser(queue)) == ["now"]


def test_an_empty_queue_has_nothing_to_show(connection, queue):
    assert bodies(connection.session().browser(queue)) == []


def test_browsing_shows_what_a_consumer_holds(connection, queue):
    with connection.session(ack="client") as session:
        send(session, queue, ["held", "free"])
        take(session.consumer(queue, prefetch=1), 1)
        assert bodies(connection.session().browser(queue)) == ["held", "free"]


def test_topics_cannot_be_browsed(connection, topic):
    with pytest.raises(alphorn.InvalidDestination, match="only queues can be browsed"):
        connection.session().browser(topic)


@pytest.mark.requirement("DMQ-3")
def test_dead_letters_can_be_browsed_with_their_history(connection, queue):
    own = f"{queue} dead"
    connection.destinations.create(queue, dead_letter=own.removeprefix("queue:"))
    with connection.session(ack="individual") as session:
        send(session, queue, ["useless"])
        with session.consumer(queue) as consumer:
            take(consumer, 1)[0].reject(requeue=False)
        [dead] = list(session.browser(own))
        assert (dead.body, dead.history["destination"], dead.history["reason"]) == ("useless", queue, "rejected")
