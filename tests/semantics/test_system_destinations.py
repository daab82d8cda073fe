"""What belongs to the system: clients read it, and do not write what nodes of the cluster say there."""

import io
import json

import pytest

import alphorn
from alphorn.client.packing import pack_bodies
from alphorn.client.staging import Stager, Staging
from tests.semantics.waiting import QUIET_S, WAIT_S, bodies, send, take

pytestmark = pytest.mark.processes

DENIED = "takes what nodes of the cluster say only; send to another topic"
FORGED = "forged"


def alone(connection, name):
    connection.session().producer(name).send(FORGED).result(WAIT_S)


def elsewhere(connection, name):
    connection.session().producer().send(FORGED, destination=name).result(WAIT_S)


def many(connection, name):
    connection.session().producer(name).send_many([FORGED] * 10).result(WAIT_S)


def with_properties(connection, name):
    connection.session().producer(name).send(FORGED, properties={"n": 1}, priority=9, ttl=60.0).result(WAIT_S)


def in_fragments(connection, name):
    connection.session().producer(name).send_stream(io.BytesIO(FORGED.encode()))


def without_fragments(connection, name):
    connection.session().producer(name).send_stream(io.BytesIO(b""))


def as_an_answer(connection, name):
    """Who is asked sends where he is told to."""
    session = connection.session()
    question = f"queue:questions.{name.partition('_')[2]}"
    session.producer(question).send("?", reply_to=name).result(WAIT_S)
    [asked] = take(session.consumer(question), 1)
    session.producer().send(FORGED, destination=asked.reply_to).result(WAIT_S)


def staged(connection, name):
    stager = Stager(connection, Staging(writer=f"forger of {name}", batch=0, partition=0, attempt=1))
    [(count, blob)] = pack_bodies([FORGED])
    stager.add(name, blob, count, 0)
    stager.finish()


WAYS = [alone, elsewhere, many, with_properties, in_fragments, without_fragments, as_an_answer, staged]


def heard(connection, name):
    """All that was ever said there, within a day."""
    consumer, found = connection.session().consumer(name, start="earliest"), []
    while messages := consumer.receive_many(1000, QUIET_S):
        found += bodies(messages)
    return found


@pytest.mark.requirement("WKD-3")
@pytest.mark.parametrize("name", ["topic:_LOG", "topic:_AUDIT"])
def test_clients_do_not_send_where_nodes_speak_whichever_way_they_try(connection, other, name):
    for way in WAYS:
        with pytest.raises(alphorn.AccessDenied, match=DENIED):
            way(connection, name)
    assert connection.status()["nodes"], "the connection goes on"
    assert FORGED not in heard(other, name)


@pytest.mark.requirement("WKD-3")
@pytest.mark.parametrize("name", ["topic:_LOG", "topic:_AUDIT"])
def test_a_transaction_that_sends_where_nodes_speak_is_rolled_back_as_a_whole(connection, other, name, queue):
    send(other.session(), queue, ["stays"])
    session = connection.session(transacted=True)
    take(session.consumer(queue), 1)
    for place in (f"{queue}.out", name):
        session.producer(place).send(FORGED)
    with pytest.raises(alphorn.TransactionRolledBack, match=DENIED):
        session.commit()
    looking = other.session()
    assert [bodies(looking.browser(place)) for place in (queue, f"{queue}.out")] == [["stays"], []]
    assert FORGED not in heard(other, name)


@pytest.mark.requirement("WKD-3")
def test_everybody_may_send_where_administration_will_be_asked(connection, other):
    consumer = other.session().consumer("topic:_ADMIN")
    connection.session().producer("topic:_ADMIN").send("?").result(WAIT_S)
    assert bodies(take(consumer, 1)) == ["?"]


@pytest.mark.requirement("WKD-3")
def test_nodes_go_on_speaking_and_nobody_else_is_heard(connection, other, queue):
    connection.destinations.create(queue, audit=True)
    log = other.session().consumer("topic:_LOG", start="earliest")
    audit = other.session().consumer("topic:_AUDIT", start="earliest")
    for name in ("topic:_LOG", "topic:_AUDIT"):
        with pytest.raises(alphorn.AccessDenied):
            alone(connection, name)
    send(connection.session(), queue, ["looked at"])
    said, stages = {}, set()
    while "connected" not in said.values():
        line = json.loads(take(log, 1)[0].body)
        said[line["node"]] = line["event"]
    while not {"produced", "confirmed"} <= stages:
        event = json.loads(take(audit, 1)[0].body)
        stages |= {event["stage"]} if event["destination"] == queue else set()


@pytest.mark.requirement("WKD-2", "WKD-3")
@pytest.mark.parametrize("name", ["topic:_LOG", "topic:_AUDIT"])
def test_clients_neither_make_nor_delete_them(connection, name):
    destinations = connection.destinations
    destinations.create(name)  # which only asks for what is there
    with pytest.raises(alphorn.Misuse, match="exists with another policy"):
        destinations.create(name, max_length=1, overflow="reject")
    with pytest.raises(alphorn.AccessDenied, match="belongs to the system and cannot be deleted"):
        destinations.delete(name)
    with pytest.raises(alphorn.AccessDenied, match="belong to the system"):
        destinations.create(f"queue:dying in {name[6:]}", dead_letter=name[6:])
    [row] = [row for row in destinations.list() if row["name"] == name]
    assert row["policy"]["retain_s"] == 24 * 3600.0
