"""Publishing: what clients send goes into the log in their order, and is confirmed when that is sure."""

import pytest

from alphorn.client_manager.connection import Producer
from alphorn.client_manager.machine import Window
from alphorn.model import commands, link
from alphorn.model.conversation import (
    CloseSession,
    Confirmed,
    Done,
    Goodbye,
    OpenSession,
    Publish,
    Refused,
    Retire,
    Vanished,
)
from alphorn.model.destinations import Policy
from tests.client_manager.managing import Managing, encode, published


def test_a_publish_is_confirmed_when_it_is_committed_and_not_before() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    managing.commits = False
    client.publish(place, 1, "a", "b")
    assert client.take(Confirmed) == []
    managing.commit()
    assert client.take(Confirmed) == [Confirmed(1, 2)]
    [command] = published(managing)
    assert (command.destination, command.producer, command.counter, command.count) == (
        5,
        commands.key_of(client.id, 1),
        1,
        2,
    )


@pytest.mark.requirement("CM-12")
def test_what_a_client_wants_in_one_turn_is_one_entry_in_its_order() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    blob = memoryview(encode([["x"]]))
    client.say(*(Publish(1, producer, place, 1, 1, 0, 0, blob) for producer in (3, 1, 2)))
    assert [
        commands.number_of(c.producer) for c in managing.entries[-1].commands if isinstance(c, commands.Publish)
    ] == [
        3,
        1,
        2,
    ]


def test_while_the_bus_takes_nothing_what_clients_want_grows_into_one_entry() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    managing.receive(Window(0, False))
    before = len(managing.entries)
    client.publish(place, 1, "a")
    client.publish(place, 2, "b")
    assert len(managing.entries) == before
    managing.receive(Window(0, True))
    assert [command.counter for command in published(managing)] == [1, 2]
    assert len(managing.entries) == before + 1
    assert client.take(Confirmed) == [Confirmed(1, 1), Confirmed(1, 2)]


def test_a_publish_after_the_destination_was_deleted_is_refused_although_it_is_in_the_log() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    managing.commits = False
    client.publish(place, 1, "a")
    managing.commit_other(commands.DeleteDestination(5))
    managing.commit()
    [refused] = client.take(Refused)
    assert (refused.counter, refused.count, refused.error) == (1, 1, "InvalidDestination")


def test_where_a_destination_may_refuse_the_primary_confirms() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve(policy=Policy(max_length=10, overflow="reject"))
    client.publish(place, 1, "a")
    assert client.take(Confirmed) == []
    managing.answer()
    assert client.take(Confirmed) == [Confirmed(1, 1)]
    client.publish(place, 2, "b")
    managing.answer(error="Blocked", reason="queue:q is full")
    assert client.take(Refused) == [Refused(1, 2, 1, "Blocked", "queue:q is full")]


def test_confirmations_of_one_producer_come_in_order_although_one_waits_for_the_primary() -> None:
    managing = Managing()
    client = managing.connect()
    bounded = client.resolve("queue:bounded", 6, Policy(max_length=10, overflow="reject"))
    plain = client.resolve("queue:q", 5)
    client.publish(bounded, 1, "a")
    client.publish(plain, 2, "b")
    assert client.take(Confirmed) == []
    for entry in managing.entries[-2:]:
        for request in entry.requests:
            managing.tell(link.Answered(request))
    assert client.take(Confirmed) == [Confirmed(1, 1), Confirmed(1, 2)]


@pytest.mark.requirement("API-12")
def test_the_first_publish_after_a_reconnection_is_confirmed_by_the_primary_who_knows_the_counters() -> None:
    managing = Managing()
    client = managing.connect(b"c" * 16)
    place = client.resolve()
    client.publish(place, 41, "again")
    assert client.take(Confirmed) == []
    managing.answer()
    assert client.take(Confirmed) == [Confirmed(1, 41)]
    client.publish(place, 42, "new")
    assert client.take(Confirmed) == [Confirmed(1, 42)]


@pytest.mark.parametrize(
    ("counter", "count", "blob", "session"),
    [
        (-1, 1, encode([["x"]]), 1),  # a counter that was before
        (1, 2, encode([["x"]]), 1),  # a wrong count
        (1, 1, b"\x91\x91", 1),  # cut off
        (1, 1, b"", 1),
        (1, 1, b"\xc0", 1),  # no list
        (1, 1, encode([["x"]]) + b"more", 1),
        (1, 0, encode([]), 1),
        (1, 1, encode([["x"]]), 99),  # no such session
    ],
)
def test_a_broken_batch_ends_that_connection_and_harms_nobody_else(
    counter: int, count: int, blob: bytes, session: int
) -> None:
    managing = Managing()
    client, other = managing.connect(), managing.connect()
    place = client.resolve()
    client.publish(place, 1, "good", producer=1)
    counter = counter + 1 if counter == 1 else counter
    client.say(Publish(session, 1, place, counter, count, 0, 0, memoryview(blob)))
    [goodbye] = client.take(Goodbye)
    assert goodbye.error == "PeerViolation"
    assert len(published(managing)) == 1
    other.publish(place, 1, "fine")
    assert other.take(Confirmed) == [Confirmed(1, 1)]


def test_a_batch_larger_than_allowed_is_refused() -> None:
    managing = Managing(batch_bytes_max=100)
    client = managing.connect()
    client.publish(client.resolve(), 1, "x" * 200)
    [goodbye] = client.take(Goodbye)
    assert "at most 100" in goodbye.reason


def test_after_a_gap_in_the_counters_the_primary_decides_because_what_was_refused_is_not_sent_again() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    client.publish(place, 1, "a")
    client.take(Confirmed)
    client.publish(place, 5, "b")
    assert client.take(Confirmed) == []
    managing.answer()
    assert client.take(Confirmed) == [Confirmed(1, 5)]


@pytest.mark.requirement("CM-21")
def test_it_is_known_which_sessions_have_producers_for_a_destination() -> None:
    managing = Managing()
    first, second = managing.connect(), managing.connect()
    second.say(OpenSession(7))
    orders, bills = first.resolve("queue:orders", 5), second.resolve("queue:bills", 6)
    first.publish(orders, 1, "one")
    first.publish(bills, 1, "one", producer=2)
    second.say(Publish(7, 1, orders, 1, 1, 0, 1000, memoryview(encode([["two"]]))))
    senders = managing.manager.describe()["publishing"]["senders"]  # type: ignore[index]
    assert senders == {
        "queue:orders": [(first.id.hex(), 1), (second.id.hex(), 7)],
        "queue:bills": [(first.id.hex(), 1)],
    }
    managing.commit_other(commands.DeleteDestination(5))
    assert list(managing.manager.describe()["publishing"]["senders"]) == ["queue:bills"]  # type: ignore[index]


def test_who_knows_a_destination_hears_that_it_is_deleted() -> None:
    managing = Managing()
    asked, sent, other = managing.connect(), managing.connect(), managing.connect()
    place = asked.resolve()
    sent.publish(place, 1, "one")
    managing.commit_other(commands.DeleteDestination(5))
    assert (asked.take(Vanished), sent.take(Vanished), other.take(Vanished)) == (
        [Vanished(place)],
        [Vanished(place)],
        [],
    )


def test_what_channels_tell_in_another_order_is_confirmed_in_the_order_of_the_counters() -> None:
    producer = Producer(1, is_proven=True, session=1)
    producer.open.extend([1, 3, 4, 6])
    assert producer.close(3, confirmed=3) == 0
    assert producer.close(1, confirmed=2) == 3
    assert producer.close(6, confirmed=6) == 0
    assert producer.close(4, confirmed=0) == 6, "what was refused keeps nothing back"
    producer.open.append(7)
    assert producer.close(7, confirmed=0) == 0, "and is not confirmed"


def test_the_log_hears_which_message_of_the_channel_came_before() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    client.publish(place, 1, "one")
    client.say(Publish(1, 1, place, 2, 1, 0, 1000, memoryview(encode([["two"]])), 0))
    assert [command.after for command in published(managing)] == [-1, 0]
    client.say(Publish(1, 1, place, 3, 1, 0, 1000, memoryview(encode([["three"]])), 3))
    assert [frame.error for frame in client.take(Goodbye)] == ["PeerViolation"]


def producers(managing: Managing) -> list[int]:
    return [number for each in managing.manager._desk.connections.values() for number in each.producers]


def test_producers_of_a_closed_session_are_forgotten_and_those_of_others_are_not() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    client.say(OpenSession(2))
    client.publish(place, 1, "a", producer=1)
    client.publish(place, 1, "a", producer=2)
    client.say(Publish(2, 3, place, 1, 1, 0, 0, memoryview(encode([["a"]]))))
    client.say(CloseSession(9, 1))
    assert client.take(Done) == [Done(9)]
    assert producers(managing) == [3]
    client.say(CloseSession(10, 2), CloseSession(11, 2))
    assert client.take(Done) == [Done(10), Done(11)]
    assert producers(managing) == []


def test_a_producer_of_a_closed_session_is_forgotten_when_its_last_batch_has_an_outcome() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    managing.commits = False
    client.publish(place, 1, "a")
    client.publish(place, 2, "b")
    client.say(CloseSession(9, 1))
    assert producers(managing) == [1]
    managing.commit()
    assert client.take(Confirmed) == [Confirmed(1, 1)]
    assert producers(managing) == [1]
    managing.commit()
    assert client.take(Confirmed) == [Confirmed(1, 2)]
    assert producers(managing) == []


def test_a_producer_that_was_forgotten_and_sends_again_is_ordered_with_its_counters_for_the_log_to_judge() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    client.publish(place, 1, "a")
    client.publish(place, 2, "b")
    client.say(CloseSession(9, 1), OpenSession(1))
    client.take(Confirmed)
    client.publish(place, 2, "b")
    assert [command.counter for command in published(managing)] == [1, 2, 2]
    assert managing.entries[-1].requests[-1]  # the primary's answer decides
    managing.answer()
    assert client.take(Confirmed) == [Confirmed(1, 2)]


def test_a_message_that_is_nested_too_deep_for_other_servers_ends_the_connection_of_its_sender() -> None:
    managing = Managing()
    client, other = managing.connect(), managing.connect()
    place = client.resolve()
    client.say(Publish(1, 1, place, 1, 2, 0, 1000, memoryview(b"\x92" + b"\x91" * 850 + b"\x01\x91\x01")))
    assert "nested" in managing.hung[client.stream]
    assert other.stream not in managing.hung
    assert published(managing) == []


def retired(managing: Managing) -> list[commands.Retire]:
    said = [command for entry in managing.entries for command in entry.commands]
    return [command for command in said if isinstance(command, commands.Retire)]


def test_producers_that_a_client_has_closed_are_forgotten_here_and_in_the_log() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    for number in (3, 4, 6, 8):
        client.publish(place, 1, "a", producer=number)
    client.say(Retire(7, [1, 4]))
    assert producers(managing) == [4, 8]
    [command] = retired(managing)
    assert (command.through, command.used) == (7, [1, 4])
    client.publish(place, 2, "b", producer=4)
    client.publish(place, 2, "b", producer=8)
    assert len(client.take(Confirmed)) == 6


def test_a_closed_producer_is_used_as_long_as_something_of_it_is_under_way() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    managing.commits = False
    client.publish(place, 1, "a", producer=3)
    client.say(Retire(7, []))
    assert producers(managing) == [3]
    managing.commit()
    managing.commit()
    client.say(Retire(8, []))
    managing.commit()
    assert [command.used for command in retired(managing)] == [[3], []]
    assert producers(managing) == []


@pytest.mark.parametrize("frame", [Retire(0, []), Retire(1 << 32, []), Retire(5, [6]), Retire(5, [0])])
def test_impossible_numbers_of_closed_producers_end_the_connection(frame: Retire) -> None:
    managing = Managing()
    client = managing.connect()
    client.say(frame)
    assert [goodbye.error for goodbye in client.take(Goodbye)] == ["PeerViolation"]
    assert retired(managing) == []
