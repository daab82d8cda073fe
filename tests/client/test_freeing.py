"""What was closed is freed: the garbage collector does not know messages, so their inboxes must not hold them."""

import gc
from typing import Any

import pytest

from alphorn.client.core import Core
from alphorn.client.inbox import Inbox
from tests.client.broker import Broker
from tests.client.shells import Connect


def count(kind: type) -> int:
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


def consume(connection: Any) -> None:
    with connection.session(ack="client") as session, session.consumer("queue:q") as consumer:
        assert consumer.receive(timeout=10) is not None


def consume_in_part(connection: Any) -> None:
    with connection.session() as session:
        assert len(session.consumer("queue:q").receive_many(1, timeout=10)) == 1
        session.recover()


def browse(connection: Any) -> None:
    with connection.session() as session:
        assert len(list(session.browser("queue:q"))) == 20


@pytest.mark.parametrize("use", [consume, consume_in_part, browse])
def test_consumers_and_pages_that_are_over_are_freed(broker: Broker, connect: Connect, use: Any) -> None:
    with connect(broker.url) as connection:
        connection.session().producer("queue:q").send_many(range(20)).result(10)
        use(connection)
        before = count(Inbox)
        for _ in range(3):
            use(connection)
        assert count(Inbox) <= before


def test_a_connection_that_received_something_is_freed(broker: Broker, connect: Connect) -> None:
    def use() -> None:
        with connect(broker.url) as connection:
            consume(connection)

    with connect(broker.url) as connection:
        connection.session().producer("queue:q").send_many(range(20)).result(10)
    use()
    before = count(Core)
    for _ in range(3):
        use()
    assert count(Core) <= before
