"""Temporary destinations live with their connection, and only it receives from them."""

import pytest

import alphorn
from tests.semantics.waiting import WAIT_S, bodies, drain, is_quiet, send, take, until

pytestmark = pytest.mark.processes


def until_refused(producer) -> alphorn.Error:
    """Sends until the end of a connection has gone round; each try waits for its outcome."""

    def send_more():
        try:
            producer.send("more").result(WAIT_S)
        except alphorn.InvalidDestination as error:
            return error

    return until(send_more)


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_others_send_to_a_temporary_destination_and_its_connection_receives(connection, other, kind):
    session = connection.session()
    place = session.temporary_queue() if kind == "queue" else session.temporary_topic()
    consumer = session.consumer(place)
    send(other.session(), str(place), ["hello"])
    assert bodies(take(consumer, 1)) == ["hello"]
    assert is_quiet(consumer)


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_consuming_a_temporary_destination_of_another_connection_is_refused(connection, other, kind):
    session = connection.session()
    place = session.temporary_queue() if kind == "queue" else session.temporary_topic()
    consumer = session.consumer(place)
    with pytest.raises(alphorn.InvalidDestination, match="belongs to another connection"):
        other.session().consumer(place)
    send(other.session(), place, ["mine"])
    assert bodies(take(consumer, 1)) == ["mine"]


def test_every_session_of_its_connection_may_consume(connection):
    place = connection.session().temporary_queue()
    consumer = connection.session().consumer(place)
    send(connection.session(), place, ["here"])
    assert bodies(take(consumer, 1)) == ["here"]


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_temporary_destination_ends_with_its_connection(connect, connection, queue, kind):
    owner = connect()
    place = owner.session().temporary_queue() if kind == "queue" else owner.session().temporary_topic()
    with connection.session() as session:
        producer = session.producer(place)
        producer.send("in time").result(WAIT_S)
        owner.close()
        refusal = until_refused(producer)
        assert "there is no destination" in str(refusal)
        with pytest.raises(alphorn.InvalidDestination, match="has ended with its connection"):
            connection.session().producer(place)
        send(session, queue, ["fine"])
        assert bodies(drain(session, queue)) == ["fine"]
    assert str(place) not in {known["name"] for known in connection.destinations.list()}


def test_closing_a_session_leaves_temporary_destinations_alone(connection):
    with connection.session() as session:
        place = session.temporary_queue()
    later = connection.session()
    send(later, place, ["still there"])
    assert bodies(drain(later, place)) == ["still there"]


def test_nobody_makes_up_a_temporary_name(connection):
    with pytest.raises(alphorn.InvalidDestination, match="ask for a new one there"):
        connection.session().producer("queue:temporary.made up")
