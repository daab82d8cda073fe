"""Questions and their answers, on both shells: time is limited in all of it, and nothing is left behind."""

from typing import Any

import pytest

import alphorn
from alphorn.model.conversation import Administer, Publish
from alphorn.model.destinations import parse_destination
from tests.client.broker import Broker
from tests.client.shells import Call, Connect, await_waiting


def reply(session: Any, body: object) -> None:
    """Answers one question."""
    question = session.consumer("queue:q").receive(timeout=10)
    fields = {"destination": question.reply_to, "correlation_id": question.correlation_id}
    session.producer().send(body, **fields, wait=True)


def is_asked(broker: Broker) -> bool:
    return bool(broker.frames(Publish))


def test_a_request_to_a_full_queue_ends_in_time_and_nothing_is_sent(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        broker.fill("queue:q")
        connection.status()
        with pytest.raises(TimeoutError, match="took nothing within"):
            session.request("queue:q", "?", timeout=0.05)
    assert broker.frames(Publish) == []


def test_a_request_waits_for_room_and_then_for_its_answer(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        broker.fill("queue:q")
        connection.status()
        call = Call(lambda: connection.session().request("queue:q", "?", timeout=10, wait=True))
        await_waiting(connection)
        assert not is_asked(broker)
        broker.fill("queue:q", "")
        reply(connection.session(), "!")
        assert call.result().body == "!"


@pytest.mark.parametrize("what", ["session", "connection"])
def test_a_request_says_that_its_session_was_closed(broker: Broker, connect: Connect, what: str) -> None:
    connection = connect(broker.url)
    session = connection.session()
    call = Call(lambda: session.request("queue:q", "?", timeout=30))
    while not is_asked(broker):
        connection.status()
    {"session": session, "connection": connection}[what].close()
    with pytest.raises(alphorn.Misuse, match="closed"):
        call.result()
    connection.close()


def test_a_request_says_why_its_connection_ended(broker: Broker, connect: Connect) -> None:
    connection = connect(broker.url, reconnect_timeout=0.1)
    call = Call(lambda: connection.session().request("queue:q", "?", timeout=30))
    while not is_asked(broker):
        connection.status()
    connection.status()
    broker.is_welcoming = False
    broker.cut_all()
    with pytest.raises(alphorn.Unavailable, match="no Client Manager"):
        call.result()
    connection.close()


def test_a_session_that_asked_takes_its_reply_queue_along(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        with connection.session() as session:
            call = Call(lambda: session.request("queue:q", "?", timeout=10))
            reply(connection.session(), "!")
            assert call.result().body == "!"
        connection.status()
        [frame] = broker.frames(Administer)
        assert frame.action == "delete"
        assert parse_destination(frame.destination).is_temporary
        assert list(broker.queues) == ["queue:q"]
