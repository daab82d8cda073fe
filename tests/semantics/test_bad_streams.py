"""Fragments that no correct client sends: a clear error, and nothing half is ever delivered."""

import msgspec
import pytest

import alphorn
from alphorn.model.conversation import Failed, Publish, ReadFragment, Refused, SendFragment
from alphorn.model.messages import Flag, Packed, Streamed
from tests.semantics.raw_client import SESSION, RawClient
from tests.semantics.waiting import is_quiet, take

pytestmark = pytest.mark.processes

pack = msgspec.msgpack.encode


@pytest.fixture
def raw(cluster):
    with RawClient(cluster.url) as client:
        client.hello()
        yield client


@pytest.mark.parametrize("index", [1, 7])
def test_a_body_that_does_not_begin_with_its_first_fragment_is_refused(connection, raw, queue, index):
    raw.say(SendFragment(SESSION, 9, raw.place_of(queue), 1, index, memoryview(b"piece")))
    refused = raw.until(Refused)
    assert (refused.error, refused.counter) == ("Unavailable", 1)
    assert "send it again from the beginning" in refused.reason


def test_a_body_with_a_missing_fragment_is_refused_and_never_delivered(connection, raw, queue):
    place = raw.place_of(queue)
    raw.say(SendFragment(SESSION, 9, place, 1, 0, memoryview(b"first")))
    raw.say(SendFragment(SESSION, 9, place, 2, 2, memoryview(b"third")))
    refused = raw.until(Refused)
    assert (refused.error, refused.counter) == ("PeerViolation", 2)
    assert "fragment 2 came where 1 comes next" in refused.reason
    message = Packed(None, stream=Streamed(3, 15, bytes(16)))
    raw.say(Publish(SESSION, 9, place, 3, 1, int(Flag.STREAM), 1, memoryview(pack([message]))))
    assert raw.until(Refused).counter == 3
    assert is_quiet(connection.session().consumer(queue))


def test_a_message_that_claims_more_than_was_sent_is_refused(connection, raw, queue):
    place = raw.place_of(queue)
    raw.say(SendFragment(SESSION, 9, place, 1, 0, memoryview(b"first")))
    message = Packed(None, stream=Streamed(1, 6, bytes(16)))
    raw.say(Publish(SESSION, 9, place, 2, 1, int(Flag.STREAM), 1, memoryview(pack([message]))))
    refused = raw.until(Refused)
    assert (refused.error, refused.counter) == ("PeerViolation", 2)
    assert is_quiet(connection.session().consumer(queue))


def test_a_stream_whose_bytes_are_not_those_that_were_counted_is_not_taken_for_whole(connection, raw, queue):
    place = raw.place_of(queue)
    raw.say(SendFragment(SESSION, 9, place, 1, 0, memoryview(b"first")))
    message = Packed(None, stream=Streamed(1, 5, bytes(16)))
    raw.say(Publish(SESSION, 9, place, 2, 1, int(Flag.STREAM), 1, memoryview(pack([message]))))
    [found] = take(connection.session().consumer(queue), 1)
    with pytest.raises(alphorn.Corruption):
        found.open().read()


def test_a_fragment_of_nothing_cannot_be_read(raw, queue):
    place = raw.place_of(queue)
    failed = raw.ask(lambda request: ReadFragment(request, place, bytes(20), 1, 0, 0))
    assert (type(failed), failed.error) == (Failed, "Unavailable")
