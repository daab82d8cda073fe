"""The Client Manager: what clients want goes into the log in order, and what is for them reaches them."""

import msgspec
import pytest

from alphorn.client_manager.machine import Linked, Lost, Window
from alphorn.model import commands, link
from alphorn.model.conversation import (
    Acknowledge,
    Close,
    CloseConsumer,
    CloseSession,
    Confirmed,
    Consume,
    ConsumerClosed,
    Delivered,
    Done,
    Failed,
    Goodbye,
    Hello,
    OpenSession,
    Ping,
    Pong,
    Publish,
    Refused,
    Resolve,
    Resolved,
    Return,
    Welcome,
)
from alphorn.model.destinations import Policy
from tests.client_manager.managing import Client, Managing, encode


def published(managing: Managing) -> list[commands.Publish]:
    return [c for entry in managing.entries for c in entry.commands if isinstance(c, commands.Publish)]


def attached(managing: Managing) -> list[link.Attach]:
    found = [frame for _, frame in managing.asked if isinstance(frame, link.Attach)]
    managing.asked.clear()
    return found


def consuming(managing: Managing, client: Client, **options: object) -> bytes:
    """A consumer of queue:q that the primary has accepted; gives its key."""
    client.consume(client.resolve(), **options)
    [attach] = attached(managing)
    managing.tell(link.Answered(attach.request))
    assert client.take(Done)
    return attach.consumer


def batch(managing: Managing, *bodies: object, counter: int = 1) -> int:
    """Another client's batch in the log; gives its number."""
    blob = memoryview(encode([[body] for body in bodies]))
    return managing.commit_other(commands.Publish(5, b"p" * 20, counter, len(bodies), 0, 1000, blob))


def bodies(frame: Delivered) -> list[object]:
    return [message[0] for message in msgspec.msgpack.decode(frame.blob)]


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
        Hello(1, connection=b"short"),
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


@pytest.mark.requirement("CM-20")
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


# --- publishing ---


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
        (7, 1, encode([["x"]]), 1),  # a gap
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


# --- consuming ---


def test_a_consumer_attaches_at_the_primary() -> None:
    managing = Managing()
    client = managing.connect()
    client.consume(client.resolve(), selector="a = 1")
    [attach] = attached(managing)
    assert (attach.destination, attach.subscription, attach.selector, attach.prefetch) == (5, 0, "a = 1", 100)
    assert client.take(Done) == []
    managing.tell(link.Answered(attach.request))
    assert len(client.take(Done)) == 1


def test_a_consumer_that_the_primary_refuses_is_told_why() -> None:
    managing = Managing()
    client = managing.connect()
    client.consume(client.resolve(), selector="a = ")
    [attach] = attached(managing)
    managing.tell(link.Answered(attach.request, 0, "InvalidSelector", "no"))
    [failed] = client.take(Failed)
    assert failed.error == "InvalidSelector"
    client.consume(client.resolve())
    assert len(attached(managing)) == 1, "its number is free again"


@pytest.mark.requirement("CM-1", "MM-3")
def test_a_delivery_by_reference_reaches_the_client_with_the_body_that_was_heard_on_the_bus() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, "a", "b", "c")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 3, 10, 1)]))
    [frame] = client.take(Delivered)
    assert (bodies(frame), frame.position, frame.delivery_count) == (["a", "b", "c"], 10, 1)
    assert (frame.producer, frame.counter) == (b"p" * 20, 1)


def test_only_the_part_of_a_batch_that_is_for_a_consumer_reaches_it() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, "a", "b", "c", counter=7)
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 1, 1, 11, 2)]))
    [frame] = client.take(Delivered)
    assert (bodies(frame), frame.counter, frame.position, frame.delivery_count) == (["b"], 8, 11, 2)


@pytest.mark.requirement("MM-4")
def test_a_body_that_is_not_here_is_fetched_from_a_backup_and_later_ones_wait_behind_it() -> None:
    managing = Managing(cache_bytes=100)
    managing.link_up("mm2", is_primary=False, epoch=1)
    client = managing.connect()
    key = consuming(managing, client)
    old = batch(managing, "old")
    payload = encode(managing_entry("old"))
    batch(managing, "x" * 99)
    new = batch(managing, "new")
    runs = [link.DeliveredRun(old, 0, 0, 1, 1, 1), link.DeliveredRun(new, 0, 0, 1, 2, 1)]
    managing.tell(link.Deliver(key, 5, runs))
    assert client.take(Delivered) == []
    [(name, fetch)] = [(name, frame) for name, frame in managing.asked if isinstance(frame, link.Fetch)]
    assert (name, fetch.sequences) == ("mm2", [old])
    managing.tell(link.Entries(fetch.request, [(old, memoryview(payload))]), "mm2")
    assert [bodies(frame) for frame in client.take(Delivered)] == [["old"], ["new"]]


def managing_entry(body: object) -> commands.Entry:
    blob = memoryview(encode([[body]]))
    return commands.Entry([commands.Publish(5, b"p" * 20, 1, 1, 0, 1000, blob)])


def test_a_fetch_is_asked_of_another_when_the_backup_is_gone() -> None:
    managing = Managing(cache_bytes=100)
    managing.link_up("mm2", is_primary=False, epoch=1)
    client = managing.connect()
    key = consuming(managing, client)
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(77, 0, 0, 1, 1, 1)]))
    managing.receive(Linked(0, "mm2", False))
    asked = [(name, frame) for name, frame in managing.asked if isinstance(frame, link.Fetch)]
    assert [name for name, _ in asked] == ["mm2", "mm1"]
    last = asked[-1][1]
    assert isinstance(last, link.Fetch)
    managing.tell(link.Entries(last.request, [(77, memoryview(encode(managing_entry("old"))))]))
    assert [bodies(frame) for frame in client.take(Delivered)] == [["old"]]


def test_acknowledgements_of_one_turn_become_one_command() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, *"abcdef")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 6, 1, 1)]))
    client.say(Acknowledge(0, 1, [1, 2]), Acknowledge(0, 1, [3, 4]))
    assert managing.entries[-1].commands == [commands.Acknowledge(5, 0, key, [1, 2, 3, 4])]


def test_an_acknowledgement_with_a_request_is_answered_once_it_is_committed() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, "a")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 1, 1, 1)]))
    managing.commits = False
    client.say(Acknowledge(88, 1, [1, 1]))
    assert client.take(Done) == []
    managing.commit()
    assert client.take(Done) == [Done(88)]


@pytest.mark.parametrize("frame", [Acknowledge(5, 1, [1, 9]), Acknowledge(5, 2, [1, 1]), Return(5, 1, [4, 4])])
def test_messages_that_are_not_held_cannot_be_acknowledged_or_returned(frame: Acknowledge | Return) -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, "a", "b")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 2, 1, 1)]))
    entries = len(managing.entries)
    client.say(frame)
    [failed] = client.take(Failed)
    assert (failed.request, failed.error) == (5, "Misuse")
    assert len(managing.entries) == entries
    client.say(Acknowledge(0, 1, [1, 2]))
    assert managing.entries[-1].commands == [commands.Acknowledge(5, 0, key, [1, 2])]


def test_returned_messages_go_into_the_log_with_the_wish_of_the_client() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, "a", "b")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 2, 1, 1)]))
    client.say(Return(0, 1, [2, 2], 500, True))
    assert managing.entries[-1].commands == [commands.Return(5, 0, key, [2, 2], 500, True)]


def test_closing_a_consumer_detaches_it_and_is_done_when_the_primary_says_so() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    client.say(CloseConsumer(70, 1))
    [detach] = [frame for _, frame in managing.asked if isinstance(frame, link.Detach)]
    assert detach.consumer == key
    assert client.take(Done) == []
    managing.tell(link.Answered(detach.request))
    assert client.take(Done) == [Done(70)]


def test_closing_a_session_ends_its_consumers_and_no_others() -> None:
    managing = Managing()
    client = managing.connect()
    client.say(OpenSession(2))
    consuming(managing, client)
    client.say(Consume(50, 2, 2, client.resolve(), 10))
    attached(managing)
    client.say(CloseSession(60, 1))
    [detach] = [frame for _, frame in managing.asked if isinstance(frame, link.Detach)]
    managing.tell(link.Answered(detach.request))
    assert client.take(Done) == [Done(60)]
    client.say(CloseConsumer(71, 2))
    assert len([frame for _, frame in managing.asked if isinstance(frame, link.Detach)]) == 2


# --- topics ---


def test_a_topics_consumer_subscribes_through_the_log_before_it_attaches() -> None:
    managing = Managing()
    client = managing.connect(client_id="me")
    client.consume(client.resolve("topic:t"), subscription="s", is_durable=True, selector="x = 1", no_local=True)
    [subscribe] = managing.entries[-1].commands
    assert isinstance(subscribe, commands.Subscribe)
    assert (subscribe.name, subscribe.client, subscribe.is_durable, subscribe.selector) == ("s", "me", True, "x = 1")
    assert subscribe.no_local == client.id
    assert attached(managing) == []
    managing.answer(number=9)
    [attach] = attached(managing)
    assert (attach.subscription, attach.selector) == (9, "")


def test_a_volatile_subscription_ends_with_its_consumer() -> None:
    managing = Managing()
    client = managing.connect()
    client.consume(client.resolve("topic:t"))
    managing.answer(number=9)
    client.say(CloseConsumer(5, 1))
    assert managing.entries[-1].commands == [commands.Unsubscribe(5, 9)]


# --- failover ---


@pytest.mark.requirement("HA-20")
def test_a_new_primary_gets_every_consumer_with_what_it_holds_and_then_the_word_that_this_was_all() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, "a", "b")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 2, 1, 1)]))
    client.say(Acknowledge(0, 1, [1, 1]))
    managing.asked.clear()
    managing.receive(Linked(0, "mm1", False))
    managing.link_up("mm2", is_primary=True, epoch=2)
    kinds = [type(frame) for _, frame in managing.asked]
    assert kinds == [link.Introduce, link.Introduce, link.Attach, link.Settled]
    [attach] = attached(managing)
    assert (attach.consumer, attach.held) == (key, [2, 2])
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 1, 3, 1)]), "mm1")
    assert client.take(Delivered)[1:] == [], "the old primary is not heard any more"


def test_a_primary_of_an_older_epoch_is_not_followed() -> None:
    managing = Managing()
    managing.link_up("mm2", is_primary=True, epoch=5)
    managing.asked.clear()
    managing.tell(link.Role("mm1", 4, True), "mm1")
    assert managing.asked == []


def test_requests_without_an_answer_are_made_again_at_the_next_primary() -> None:
    managing = Managing()
    client = managing.connect()
    client.say(Resolve(1, "queue:orders"))
    first = managing.entries[-1]
    managing.receive(Linked(0, "mm1", False))
    managing.link_up("mm2", is_primary=True, epoch=2)
    assert managing.entries[-1].commands == first.commands
    managing.tell(link.Answered(first.requests[0], 3, policy=Policy()), "mm2")
    assert client.take(Resolved) == [Resolved(1, 3, "queue:orders")]


def test_a_consumer_asked_for_while_there_is_no_primary_gets_its_answer_from_the_next() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    managing.receive(Linked(0, "mm1", False))
    client.consume(place)
    assert attached(managing) == []
    managing.link_up("mm1", is_primary=True, epoch=1)
    [attach] = attached(managing)
    managing.tell(link.Answered(attach.request))
    assert len(client.take(Done)) == 1


def test_when_the_fate_of_an_entry_is_unknown_clients_start_over() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    managing.commits = False
    client.publish(place, 1, "a")
    managing.receive(Lost(0, managing.waiting[-1].handle, "unknown"))
    [goodbye] = client.take(Goodbye)
    assert goodbye.error == "Unavailable"
    assert client.stream in managing.hung


def test_welcome_names_all_client_managers() -> None:
    managing = Managing()
    client = managing.connect()
    assert client.take(Welcome) == []
    assert managing.manager.describe()["name"] == "cm1"
