"""Consuming: deliveries by reference reach clients with their bodies; acknowledgements go into the log."""

import pytest

from alphorn.client_manager.machine import Linked, Lost
from alphorn.model import commands, link
from alphorn.model.conversation import (
    Acknowledge,
    CloseConsumer,
    CloseSession,
    Consume,
    Delivered,
    Done,
    Failed,
    Goodbye,
    OpenSession,
    Resolve,
    Resolved,
    Return,
    Welcome,
)
from alphorn.model.destinations import Destination, DestinationKind, Policy
from tests.client_manager.managing import Client, Managing, attached, batch, bodies_of, consuming, encode, entry_of


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
    assert (bodies_of(frame), frame.position, frame.delivery_count) == (["a", "b", "c"], 10, 1)
    assert (frame.producer, frame.counter) == (b"p" * 20, 1)


def test_only_the_part_of_a_batch_that_is_for_a_consumer_reaches_it() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, "a", "b", "c", counter=7)
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 1, 1, 11, 2)]))
    [frame] = client.take(Delivered)
    assert (bodies_of(frame), frame.counter, frame.position, frame.delivery_count) == (["b"], 8, 11, 2)


@pytest.mark.requirement("MM-4")
def test_a_body_that_is_not_here_is_fetched_from_a_backup_and_later_ones_wait_behind_it() -> None:
    managing = Managing(cache_bytes=100)
    managing.link_up("mm2", is_primary=False, epoch=1)
    client = managing.connect()
    key = consuming(managing, client)
    old = batch(managing, "old")
    payload = encode(entry_of("old"))
    batch(managing, "x" * 99)
    new = batch(managing, "new")
    runs = [link.DeliveredRun(old, 0, 0, 1, 1, 1), link.DeliveredRun(new, 0, 0, 1, 2, 1)]
    managing.tell(link.Deliver(key, 5, runs))
    assert client.take(Delivered) == []
    [(name, fetch)] = [(name, frame) for name, frame in managing.asked if isinstance(frame, link.Fetch)]
    assert (name, fetch.sequences) == ("mm2", [old])
    managing.tell(link.Entries(fetch.request, [(old, memoryview(payload))]), "mm2")
    assert [bodies_of(frame) for frame in client.take(Delivered)] == [["old"], ["new"]]


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
    managing.tell(link.Entries(last.request, [(77, memoryview(encode(entry_of("old"))))]))
    assert [bodies_of(frame) for frame in client.take(Delivered)] == [["old"]]


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


def test_what_is_acknowledged_and_not_yet_in_the_log_is_claimed_from_a_new_primary() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, "a", "b", "c")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 3, 1, 1)]))
    managing.commits = False
    client.say(Acknowledge(0, 1, [1, 2]))
    managing.asked.clear()
    managing.link_up("mm2", is_primary=True, epoch=2)
    assert [attach.held for attach in attached(managing)] == [[1, 3]]
    managing.commit()
    managing.link_up("mm1", is_primary=True, epoch=3)
    assert [attach.held for attach in attached(managing)] == [[3, 3]]


def test_a_consumer_goes_on_at_a_client_manager_that_has_not_heard_of_its_destination() -> None:
    managing = Managing()
    client = managing.connect(connection=b"c" * 16)
    client.consume(5, held=[1, 4])
    [(_, asked)] = [pair for pair in managing.asked if isinstance(pair[1], link.Identify)]
    assert isinstance(asked, link.Identify)
    assert asked.number == 5
    assert client.take(Failed) == []
    client.say(Acknowledge(9, 1, [1, 2]))
    assert managing.entries == [], "it is not known yet what it consumes"
    queue = Destination(DestinationKind.QUEUE, "q")
    managing.tell(link.Answered(asked.request, 5, policy=Policy(), destination=queue))
    [attach] = attached(managing)
    assert (attach.destination, attach.held) == (5, [1, 4])
    assert managing.entries[-1].commands == [commands.Acknowledge(5, 0, attach.consumer, [1, 2])]


def test_a_consumer_whose_destination_is_gone_when_it_comes_back_is_told_so() -> None:
    managing = Managing()
    client = managing.connect(connection=b"c" * 16)
    client.consume(5)
    [asked] = [frame for _, frame in managing.asked if isinstance(frame, link.Identify)]
    managing.tell(link.Answered(asked.request, 0, "InvalidDestination", "it is gone"))
    assert [failed.error for failed in client.take(Failed)] == ["InvalidDestination"]


def test_a_new_primary_is_asked_again_what_a_consumer_consumes() -> None:
    managing = Managing()
    client = managing.connect(connection=b"c" * 16)
    client.consume(5)
    managing.asked.clear()
    managing.link_up("mm2", is_primary=True, epoch=2)
    assert [name for name, frame in managing.asked if isinstance(frame, link.Identify)] == ["mm2"]


def test_acknowledgements_wait_until_the_subscription_that_they_belong_to_is_known() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve("topic:t")
    client.consume(place, subscription="s", is_durable=True, held=[3, 4])
    client.say(Acknowledge(9, 1, [3, 3]), Return(10, 1, [4, 4]))
    assert not client.take(Done)
    managing.answer(number=7)
    [attach] = attached(managing)
    assert attach.held == [3, 4]
    assert managing.entries[-1].commands == [
        commands.Acknowledge(5, 7, attach.consumer, [3, 3]),
        commands.Return(5, 7, attach.consumer, [4, 4]),
    ]
    assert [done.request for done in client.take(Done)] == [9, 10]


def test_a_consumer_that_is_closed_before_its_subscription_is_known_acknowledges_first() -> None:
    managing = Managing()
    client = managing.connect()
    client.consume(client.resolve("topic:t"), subscription="s", is_durable=True, held=[3, 4])
    client.say(Acknowledge(9, 1, [3, 3]), CloseConsumer(10, 1))
    assert not client.take(Done)
    managing.answer(number=7)
    assert managing.entries[-1].commands[0] == commands.Acknowledge(5, 7, client.id + b"\0\0\0\1", [3, 3])
    assert isinstance(managing.asked[-1][1], link.Detach)


def _fetches(managing: Managing) -> list[tuple[str, link.Fetch]]:
    found = [(name, frame) for name, frame in managing.asked if isinstance(frame, link.Fetch)]
    managing.asked.clear()
    return found


def _run(sequence: int, position: int) -> link.DeliveredRun:
    return link.DeliveredRun(sequence, 0, 0, 1, position, 1)


def test_a_body_that_was_there_when_it_waited_and_is_not_any_more_is_fetched_for_the_next_who_needs_it() -> None:
    managing = Managing(cache_bytes=200)
    managing.link_up("mm2", is_primary=False, epoch=1)
    client = managing.connect()
    key = consuming(managing, client)
    old, payload = batch(managing, "old"), encode(entry_of("old"))
    batch(managing, "x" * 199)
    new = batch(managing, "new")
    managing.tell(link.Deliver(key, 5, [_run(old, 1), _run(new, 2)]))
    [(name, fetch)] = _fetches(managing)
    managing.tell(link.Entries(fetch.request, [(old, memoryview(payload))]), name)
    assert len(client.take(Delivered)) == 2
    batch(managing, "x" * 199)
    other = consuming(managing, client, consumer=2)
    managing.tell(link.Deliver(other, 5, [_run(new, 3)]))
    assert [fetch.sequences for _, fetch in _fetches(managing)] == [[new]]


def test_a_body_that_one_message_manager_does_not_have_is_asked_of_another() -> None:
    managing = Managing(cache_bytes=10)
    managing.link_up("mm2", is_primary=False, epoch=1)
    client = managing.connect()
    key = consuming(managing, client)
    old = batch(managing, "old")
    managing.tell(link.Deliver(key, 5, [_run(old, 1)]))
    [(name, fetch)] = _fetches(managing)
    managing.tell(link.Entries(fetch.request, []), name)
    [(other, _)] = _fetches(managing)
    assert (name, other) == ("mm2", "mm1")


def test_what_nobody_could_be_asked_for_is_asked_for_when_it_is_delivered_again() -> None:
    managing = Managing(cache_bytes=10)
    client = managing.connect()
    key = consuming(managing, client)
    old = batch(managing, "old")
    managing.tell(link.Deliver(key, 5, [_run(old, 1)]))
    assert len(_fetches(managing)) == 1
    managing.receive(Linked(0, "mm1", False))
    managing.link_up("mm1", is_primary=True, epoch=1)
    managing.asked.clear()
    other = consuming(managing, client, consumer=2)
    managing.tell(link.Deliver(other, 5, [_run(old, 1)]))
    assert len(_fetches(managing)) == 1


def _settled(managing: Managing) -> list[tuple[int, int, list[int]]]:
    managing.asked.clear()
    managing.link_up("mm2", is_primary=True, epoch=2)
    [settled] = [frame for name, frame in managing.asked if name == "mm2" and isinstance(frame, link.Settled)]
    return settled.loose


def _holding(managing: Managing) -> tuple[Client, bytes]:
    """A client that has the messages 1 to 4."""
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, *"abcd")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 4, 1, 1)]))
    return client, key


@pytest.mark.requirement("HA-20", "MM-11")
def test_a_new_primary_hears_what_clients_had_that_are_gone() -> None:
    managing = Managing()
    client, _ = _holding(managing)
    client.say(Acknowledge(9, 1, [1, 1]))
    client.close()
    assert _settled(managing) == [(5, 0, [2, 4])]


def test_a_new_primary_hears_what_a_closed_consumer_had_and_has_not_come_back() -> None:
    managing = Managing()
    client, key = _holding(managing)
    client.say(CloseConsumer(9, 1))
    assert _settled(managing) == [(5, 0, [1, 4])]
    managing.commit_other(commands.Return(5, 0, key, [1, 3]), commands.Acknowledge(5, 0, key, [4, 4]))
    managing.link_up("mm1", is_primary=True, epoch=3)
    assert managing.asked[-1] == ("mm1", link.Settled())


def test_what_a_client_still_has_when_it_comes_back_is_not_loose() -> None:
    managing = Managing()
    client, _ = _holding(managing)
    client.close()
    managing.connect(connection=client.id).consume(5, held=[1, 4])
    assert _settled(managing) == []


def test_of_a_destination_that_is_deleted_nothing_is_loose() -> None:
    managing = Managing()
    client, _ = _holding(managing)
    client.close()
    managing.commit_other(commands.DeleteDestination(5))
    assert _settled(managing) == []


def test_what_is_on_its_way_back_is_not_claimed_from_a_new_primary_but_may_have_been_used() -> None:
    managing = Managing()
    client, _ = _holding(managing)
    managing.commits = False
    client.say(Return(9, 1, [2, 3]))
    assert _settled(managing) == [(5, 0, [2, 3])]
    assert [attach.held for attach in attached(managing)] == [[1, 1, 4, 4]]
    managing.commit()
    assert client.take(Done) == [Done(9)]
    managing.link_up("mm1", is_primary=True, epoch=3)
    assert managing.asked[-1] == ("mm1", link.Settled())
