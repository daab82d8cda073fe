"""Producers that the cluster has forgotten: their programs hear what cannot be known, and go on with others."""

import pytest

import alphorn
from alphorn.model.conversation import Publish
from tests.client.broker import Broker
from tests.client.shells import Connect
from tests.semantics.waiting import until

WAIT_S = 60.0  # only what hangs meets it
FORGOTTEN = ("UnknownOutcome", "the producer is forgotten; make another")


@pytest.mark.requirement("API-11")
def test_a_forgotten_producer_ends_and_another_one_sends_on(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        producer = session.producer("queue:q")
        known = producer.send("known")
        known.result(WAIT_S)
        broker.refusals["queue:q"] = FORGOTTEN
        unknown = producer.send("unknown")
        with pytest.raises(alphorn.UnknownOutcome, match="is forgotten"):
            unknown.result(WAIT_S)
        with pytest.raises(alphorn.Unavailable, match="is forgotten"):
            producer.send("more")
        assert known.result(WAIT_S)
        broker.refusals.clear()
        assert session.producer("queue:q").send("of another").result(WAIT_S)


def test_all_that_was_sent_is_unknown_and_told_once_by_flush(broker: Broker, connect: Connect) -> None:
    with connect(broker.url) as connection:
        producer = connection.session().producer("queue:q")
        broker.is_confirming = False
        receipts = [producer.send(number) for number in range(3)]
        until(lambda: sum(frame.count for frame in broker.frames(Publish)) == len(receipts))
        broker.refusals["queue:q"] = FORGOTTEN
        receipts.append(producer.send("last"))
        with pytest.raises(alphorn.UnknownOutcome):
            producer.flush(WAIT_S)
        for receipt in receipts:
            with pytest.raises(alphorn.UnknownOutcome):
                receipt.result(WAIT_S)
        producer.flush(WAIT_S)


def test_a_session_asks_with_another_producer_when_the_one_before_was_forgotten(
    broker: Broker, connect: Connect
) -> None:
    with connect(broker.url) as connection:
        session = connection.session()
        broker.refusals["queue:questions"] = FORGOTTEN
        with pytest.raises(alphorn.UnknownOutcome):
            session.request("queue:questions", "one", timeout=WAIT_S)
        broker.refusals.clear()
        with pytest.raises(TimeoutError):
            session.request("queue:questions", "two", timeout=0)
        asked = connection.session().consumer("queue:questions")
        assert asked.receive(WAIT_S).body == "two"
