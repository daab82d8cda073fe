"""The Client Manager: connections, and which destinations it knows."""

import pytest

from alphorn.client_manager.machine import Joined
from alphorn.doors.native import VERSION
from alphorn.model import commands, link
from alphorn.model.commands import NOBODY, connection_of
from alphorn.model.conversation import (
    Close,
    ConsumerClosed,
    Failed,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Resolve,
    Resolved,
)
from alphorn.model.destinations import Policy
from alphorn.model.ids import origin_of
from tests.client_manager.managing import Client, Managing, consuming

# --- connections ---


@pytest.mark.requirement("API-18")
def test_a_client_gets_its_connection_id_from_the_server() -> None:
    managing = Managing()
    one, two = managing.connect(), managing.connect()
    assert len(one.id) == len(two.id) == commands.CONNECTION_BYTES
    assert one.id != two.id


def test_a_client_that_comes_back_keeps_its_id_and_its_old_stream_is_hung_up() -> None:
    managing = Managing()
    one = managing.connect()
    two = managing.connect(one.id)
    assert two.id == one.id
    assert one.stream in managing.hung


@pytest.mark.parametrize(
    "frame",
    [
        Ping(),
        Hello(99),
        Hello(VERSION, connection=b"short"),
        Hello(VERSION, connection=NOBODY),
    ],
)
def test_a_connection_that_does_not_begin_with_a_proper_hello_is_refused(frame: Ping | Hello) -> None:
    managing = Managing()
    client = managing.connect()
    managing.streams += 1
    from alphorn.client_manager.machine import Opened

    managing.receive(Opened(managing.streams))
    stranger = Client(managing, managing.streams)
    stranger.say(frame)
    [goodbye] = stranger.take(Goodbye)
    assert goodbye.error == "PeerViolation"
    client.say(Ping())
    assert client.take(Pong), "others are not harmed"


def test_the_primary_hears_who_is_here_and_who_is_gone() -> None:
    managing = Managing()
    client = managing.connect()
    client.close()
    assert managing.asked == [
        ("mm1", link.ConnectionOpened(client.id)),
        ("mm1", link.ConnectionLost(client.id)),
    ]


def test_a_client_that_says_goodbye_is_forgotten_in_the_log() -> None:
    managing = Managing()
    client = managing.connect()
    client.say(Close())
    assert managing.entries[-1].commands == [commands.Forget(client.id)]
    assert client.stream in managing.hung


# --- destinations ---


@pytest.mark.requirement("CM-19")
def test_an_unknown_destination_is_created_through_the_log_on_first_use() -> None:
    managing = Managing()
    client = managing.connect()
    client.say(Resolve(7, "queue:orders"))
    [create] = managing.entries[-1].commands
    assert isinstance(create, commands.CreateDestination)
    assert str(create.destination) == "queue:orders"
    assert client.take(Resolved) == []
    managing.answer(number=3, policy=Policy())
    assert client.take(Resolved) == [Resolved(7, 3, "queue:orders")]


def test_a_known_destination_is_found_without_asking_anybody() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve("queue:orders")
    entries = len(managing.entries)
    assert managing.connect().resolve("queue:orders") == place
    assert len(managing.entries) == entries


@pytest.mark.parametrize("name", ["orders", "queue:", "exchange:x", "topic:" + "x" * 300, "queue:a\nb"])
def test_a_name_that_no_destination_can_have_is_refused(name: str) -> None:
    managing = Managing()
    client = managing.connect()
    client.say(Resolve(1, name))
    [failed] = client.take(Failed)
    assert failed.error == "InvalidDestination"


@pytest.mark.requirement("CM-18", "CM-22")
def test_when_the_log_says_a_destination_is_gone_its_consumers_are_closed() -> None:
    managing = Managing()
    client = managing.connect()
    consuming(managing, client)
    managing.commit_other(commands.DeleteDestination(5))
    [closed] = client.take(ConsumerClosed)
    assert (closed.consumer, closed.error) == (1, "InvalidDestination")
    client.say(Resolve(9, "queue:q"))
    assert isinstance(managing.entries[-1].commands[0], commands.CreateDestination), "it is asked for anew"


def test_a_primary_hears_of_a_new_origin_and_is_asked_again_what_it_could_not_answer() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    client.say(Resolve(7, "queue:other"))
    managing.asked.clear()
    managing.receive(Joined(0, b"n" * 10))
    told = [frame for _, frame in managing.asked]
    assert [type(frame) for frame in told] == [link.Introduce, link.Attach, link.Settled]
    assert isinstance(told[0], link.Introduce)
    assert told[0].origin == b"n" * 10
    assert isinstance(told[1], link.Attach)
    assert told[1].consumer == key
    managing.answer(number=9, policy=Policy())
    assert [resolved.request for resolved in client.take(Resolved)] == [7]


@pytest.mark.requirement("API-20")
def test_ids_are_the_client_managers_own_and_assume_no_address_of_a_client() -> None:
    """A stream is a number here, be it a socket, a tunnel or a telephone; ids name the Client Manager."""
    managing = Managing()
    clients = [managing.connect() for _ in range(3)]
    assert {origin_of(client.id)[:6] for client in clients} == {b"\x7f\x00\x00\x01" + (7700).to_bytes(2, "big")}
    assert len({client.id for client in clients}) == 3
    for client in clients:
        client.publish(client.resolve(), 1, "body")
    sent = [command for entry in managing.entries for command in entry.commands]
    producers = [connection_of(command.producer) for command in sent if isinstance(command, commands.Publish)]
    assert producers == [client.id for client in clients]
