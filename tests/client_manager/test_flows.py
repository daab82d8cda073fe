"""How a Client Manager keeps its clients apart: arrival order for all, and nobody waits for another.

It is one machine in one thread, which takes in whatever comes, in the order in which it comes, and leaves sockets,
disks and the log to others.
"""

import pytest

from alphorn.client_manager.machine import Opened, Said, Window, Writable
from alphorn.doors.native import VERSION
from alphorn.model import link
from alphorn.model.commands import key_of
from alphorn.model.conversation import (
    CloseSession,
    Confirmed,
    Consume,
    ConsumerClosed,
    Delivered,
    Done,
    Goodbye,
    Hello,
    OpenSession,
    Publish,
)
from tests.client_manager.managing import Managing, attached, batch, consuming, encode, published


@pytest.mark.requirement("CM-10")
def test_commands_of_all_clients_enter_the_log_in_the_order_of_their_arrival() -> None:
    managing = Managing()
    clients = [managing.connect() for _ in range(3)]
    places = [clients[0].resolve(f"queue:{number}", number) for number in (5, 6)]
    managing.receive(Window(0, False))
    arrivals = [(0, 0), (2, 1), (1, 0), (0, 1), (2, 0), (1, 1), (0, 0)]  # client, destination
    counters = [0, 0, 0]
    for client, place in arrivals:
        counters[client] += 1
        clients[client].publish(places[place], counters[client], "body")
    managing.receive(Window(0, True))
    order = [(command.producer, command.destination) for command in published(managing)]
    assert order == [(key_of(clients[client].id, 1), 5 + place) for client, place in arrivals]


@pytest.mark.requirement("CM-10", "CM-11")
def test_taking_a_command_in_waits_for_nothing() -> None:
    managing = Managing()
    client, other = managing.connect(), managing.connect()
    place = client.resolve()
    managing.commits = False
    managing.receive(Window(0, False))
    for counter in range(1, 101):
        managing.manager.receive(
            Said(client.stream, Publish(1, 1, place, counter, 1, 0, 1000, memoryview(encode([["body"]])))), 0.0
        )
    other.say(OpenSession(2))
    other.publish(place, 1, "a neighbour's")
    assert managing.manager._desk.channels[0].unordered_bytes > 0
    managing.receive(Window(0, True))
    managing.commit()
    assert [confirmed.counter for confirmed in client.take(Confirmed)][-1] == 100
    assert other.take(Confirmed) == [Confirmed(1, 1)]


@pytest.mark.requirement("CM-11")
def test_a_client_that_waits_for_a_body_or_does_not_read_keeps_no_other_waiting() -> None:
    managing = Managing(cache_bytes=1_000)
    waiting, other = managing.connect(), managing.connect()
    key = consuming(managing, waiting)
    old = batch(managing, "old")
    batch(managing, "x" * 99)
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(old, 0, 0, 1, 1, 1)]))
    managing.receive(Writable(waiting.stream, False))
    assert waiting.take(Delivered) == []
    other.publish(other.resolve(), 1, "body")
    assert other.take(Confirmed) == [Confirmed(1, 1)]


@pytest.mark.requirement("CM-13")
def test_what_is_to_be_done_names_streams_channels_and_nodes_and_no_address() -> None:
    managing = Managing()
    client = managing.connect()
    consuming(managing, client)
    again = managing.connect(client.id)
    assert again.stream != client.stream
    again.publish(again.resolve(), 1, "body")
    managing.answer()  # of a connection that was there before the primary knows more
    assert [frame.counter for frame in again.take(Confirmed)] == [1], "answers follow the connection to its new stream"
    named = [command.producer for command in published(managing)]
    assert named == [key_of(client.id, 1)], "and the log knows the connection alone"
    assert client.take(Confirmed) == []


@pytest.mark.requirement("CM-14")
def test_an_unexpected_end_of_a_stream_is_told_to_all_who_depend_on_its_sessions() -> None:
    managing = Managing(channels=1)
    client = managing.connect()
    key = consuming(managing, client)
    managing.asked.clear()
    client.close()
    assert managing.asked == [("mm1", link.ConnectionLost(client.id))]
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(batch(managing, "late"), 0, 0, 1, 1, 1)]))
    assert client.heard() == []


@pytest.mark.requirement("CM-14")
def test_the_unexpected_end_of_a_destination_is_told_to_the_sessions_that_depend_on_it() -> None:
    managing = Managing()
    receiving, other = managing.connect(), managing.connect()
    key = consuming(managing, receiving)
    managing.tell(link.Detached(key, "InvalidDestination", "queue:q was deleted"))
    assert receiving.take(ConsumerClosed) == [ConsumerClosed(1, "InvalidDestination", "queue:q was deleted")]
    assert other.heard() == []


@pytest.mark.requirement("CM-17")
def test_sessions_are_opened_before_they_are_used_and_end_with_what_they_have() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    client.say(OpenSession(2))
    client.say(Consume(50, 1, 1, place, 10), Consume(51, 2, 2, place, 10))
    for attach in attached(managing):
        managing.tell(link.Answered(attach.request))
    assert client.take(Done) == [Done(50), Done(51)]
    client.say(CloseSession(52, 2))
    [detach] = [frame for _, frame in managing.asked if isinstance(frame, link.Detach)]
    assert detach.consumer == key_of(client.id, 2), "the other session keeps its consumer"
    managing.tell(link.Answered(detach.request))
    assert client.take(Done) == [Done(52)]
    client.say(Publish(2, 1, place, 1, 1, 0, 1000, memoryview(encode([["body"]]))))
    [goodbye] = client.take(Goodbye)
    assert goodbye.reason == "session 2 is not open"


@pytest.mark.requirement("CM-17")
def test_sessions_of_different_connections_have_nothing_in_common() -> None:
    managing = Managing()
    client = managing.connect()
    managing.streams += 1
    managing.receive(Opened(managing.streams))
    stranger = type(client)(managing, managing.streams)
    stranger.say(Hello(VERSION))
    stranger.heard()
    stranger.publish(client.resolve(), 1, "through a session that another has opened")
    assert [frame.error for frame in stranger.take(Goodbye)] == ["PeerViolation"]
    assert published(managing) == []
