"""Consuming: deliveries by reference reach clients with their bodies; acknowledgements go into the log."""

import pytest

from alphorn.client_manager.machine import Linked, Lost
from alphorn.client_manager.runs import POSITIONS_MAX
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
    Lapsed,
    OpenSession,
    Resolve,
    Resolved,
    Return,
    Welcome,
)
from alphorn.model.destinations import Policy
from tests.client_manager.managing import Managing, attached, batch, bodies_of, consuming, encode, entry_of


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
    managing = Managing(cache_bytes=1_000)
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


def test_a_body_that_left_the_cache_while_it_waited_behind_another_is_fetched_in_its_turn() -> None:
    managing = Managing(cache_bytes=1_000)
    client = managing.connect()
    key = consuming(managing, client)
    old = batch(managing, "old")
    batch(managing, "x" * 99)
    new = batch(managing, "new")
    runs = [link.DeliveredRun(old, 0, 0, 1, 1, 1), link.DeliveredRun(new, 0, 0, 1, 2, 1)]
    managing.tell(link.Deliver(key, 5, runs))
    batch(managing, "y" * 99)
    for name, sequence in (("old", old), ("new", new)):
        [fetch] = [frame for _, frame in managing.asked if isinstance(frame, link.Fetch)]
        assert fetch.sequences == [sequence]
        managing.asked.clear()
        managing.tell(link.Entries(fetch.request, [(sequence, memoryview(encode(entry_of(name))))]))
        assert [bodies_of(frame) for frame in client.take(Delivered)] == [[name]]
    assert managing.manager.describe()["consuming"]["waiting"] == 0  # type: ignore[index]


def test_nobody_is_remembered_as_waiting_for_what_was_here_all_the_time() -> None:
    managing = Managing(cache_bytes=1_000)
    client = managing.connect()
    key = consuming(managing, client)
    old = batch(managing, "old")
    batch(managing, "x" * 99)
    new = batch(managing, "new")
    runs = [link.DeliveredRun(old, 0, 0, 1, 1, 1), link.DeliveredRun(new, 0, 0, 1, 2, 1)]
    managing.tell(link.Deliver(key, 5, runs))
    [fetch] = [frame for _, frame in managing.asked if isinstance(frame, link.Fetch)]
    managing.tell(link.Entries(fetch.request, [(old, memoryview(encode(entry_of("old"))))]))
    assert [bodies_of(frame) for frame in client.take(Delivered)] == [["old"], ["new"]]
    assert managing.manager.describe()["consuming"]["waiting"] == 0  # type: ignore[index]


def test_a_fetch_is_asked_of_another_when_the_backup_is_gone() -> None:
    managing = Managing(cache_bytes=1_000)
    managing.link_up("mm2", is_primary=False, epoch=1)
    client = managing.connect()
    key = consuming(managing, client)
    old = batch(managing, "old")
    batch(managing, "x" * 99)
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(old, 0, 0, 1, 1, 1)]))
    managing.receive(Linked(0, "mm2", False))
    asked = [(name, frame) for name, frame in managing.asked if isinstance(frame, link.Fetch)]
    assert [name for name, _ in asked] == ["mm2", "mm1"]
    last = asked[-1][1]
    assert isinstance(last, link.Fetch)
    managing.tell(link.Entries(last.request, [(old, memoryview(encode(entry_of("old"))))]))
    assert [bodies_of(frame) for frame in client.take(Delivered)] == [["old"]]


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
    assert (detach.consumer, detach.held) == (key, [])
    assert client.take(Done) == []
    managing.tell(link.Answered(detach.request))
    assert client.take(Done) == [Done(70)]


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_detachment_that_a_broken_link_may_have_swallowed_is_asked_for_again(epoch: int) -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    managing.link_down("mm1")
    client.say(CloseConsumer(70, 1))
    managing.asked.clear()
    managing.link_up("mm1", is_primary=True, epoch=epoch)
    assert client.take(Done) == []
    [detach] = [frame for _, frame in managing.asked if isinstance(frame, link.Detach)]
    assert detach.consumer == key
    managing.tell(link.Answered(detach.request))
    assert client.take(Done) == [Done(70)]


@pytest.mark.requirement("API-9")
def test_a_consumer_is_detached_once_its_acknowledgements_are_in_the_log() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, *range(6))
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 6, 1, 1)]))
    managing.commits = False
    client.say(Acknowledge(0, 1, [1, 2]), CloseConsumer(70, 1, [5, 6]))
    assert not any(isinstance(frame, link.Detach) for _, frame in managing.asked)
    managing.commit()
    [detach] = [frame for _, frame in managing.asked if isinstance(frame, link.Detach)]
    assert detach.held == [3, 4]


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


def test_what_came_again_and_was_acknowledged_is_claimed_although_its_return_is_heard_only_now() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    run = link.DeliveredRun(batch(managing, "one"), 0, 0, 1, 1, 1)
    managing.tell(link.Deliver(key, 5, [run]))
    managing.commits = False
    client.say(Return(8, 1, [1, 1]))
    managing.tell(link.Deliver(key, 5, [run]))  # the primary has applied it before this Client Manager heard of that
    returned, managing.waiting = managing.waiting, []
    client.say(Acknowledge(9, 1, [1, 1]))
    managing.waiting = returned
    managing.commit()
    managing.link_up("mm2", is_primary=True, epoch=2)
    [attach] = attached(managing)
    assert attach.held == [1, 1]


def test_what_came_back_while_the_consumer_attached_is_not_its_own_for_ever() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(batch(managing, "one"), 0, 0, 1, 1, 1)]))
    managing.link_up("mm2", is_primary=True, epoch=2)
    [claiming] = attached(managing)
    assert claiming.held == [1, 1]
    client.say(Return(8, 1, [1, 1]))  # the new primary may apply this before it hears that the consumer had it
    assert client.take(Done) == [Done(8)]
    assert attached(managing) == []
    managing.tell(link.Answered(claiming.request), "mm2")
    [again] = attached(managing)
    assert (again.consumer, again.held) == (key, [])
    managing.tell(link.Answered(again.request), "mm2")
    assert attached(managing) == []


# --- topics ---


def test_a_topics_consumer_subscribes_through_the_log_before_it_attaches() -> None:
    managing = Managing()
    client = managing.connect(client_id="me")
    client.consume(client.resolve("topic:t"), subscription="s", is_durable=True, selector="x = 1", no_local=True)
    managing.tell(link.Answered(claimed(managing).request))
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
    assert managing.entries[-1].commands == [commands.Unsubscribe(5, 9, commands.key_of(client.id, 1))]


def claimed(managing: Managing) -> link.Claim:
    """The one question whether a subscription may be used."""
    [claim] = [frame for _, frame in managing.asked if isinstance(frame, link.Claim)]
    return claim


def test_a_subscription_that_others_use_is_refused_before_the_log_hears_of_it() -> None:
    managing = Managing()
    client = managing.connect(client_id="me")
    client.consume(client.resolve("topic:t"), subscription="s", is_durable=True)
    before = len(managing.entries)
    claim = claimed(managing)
    assert (claim.subscribe.name, claim.subscribe.client) == ("s", "me")
    managing.tell(link.Answered(claim.request, 0, "Misuse", "in use"))
    [failed] = client.take(Failed)
    assert (failed.error, failed.reason) == ("Misuse", "in use")
    assert len(managing.entries) == before


def test_a_subscription_is_claimed_of_nobody_when_the_primary_is_lost() -> None:
    managing = Managing()
    client = managing.connect(client_id="me")
    client.consume(client.resolve("topic:t"), subscription="s", is_durable=True)
    managing.tell(link.Role("mm2", 9, True), "mm2")
    assert any(isinstance(command, commands.Subscribe) for command in managing.entries[-1].commands)


def test_a_consumer_of_a_topic_that_is_deleted_while_it_begins_is_told() -> None:
    managing = Managing()
    client = managing.connect()
    client.consume(client.resolve("topic:t"))
    managing.commit_other(commands.DeleteDestination(5))
    [failed] = client.take(Failed)
    assert (failed.error, failed.reason) == ("InvalidDestination", "topic:t was deleted")


def test_a_temporary_queue_serves_its_own_connection_alone() -> None:
    managing = Managing()
    owner, other = managing.connect(), managing.connect()
    name = f"queue:temporary.{owner.id.hex()}.1"
    other.say(Resolve(1, name, is_temporary=True))
    assert other.take(Failed)[0].error == "InvalidDestination"
    owner.say(Resolve(1, name, is_temporary=True))
    managing.answer(number=5)
    [resolved] = owner.take(Resolved)
    other.consume(resolved.place)
    assert "belongs to another connection" in other.take(Failed)[0].reason
    owner.consume(resolved.place)
    assert len(attached(managing)) == 1


def test_temporary_queues_are_forgotten_with_their_connection() -> None:
    managing = Managing()
    owner = managing.connect()
    owner.say(Resolve(1, f"queue:temporary.{owner.id.hex()}.1", is_temporary=True))
    managing.answer(number=5)
    owner.take(Resolved)
    kept = owner.resolve("queue:kept", number=6)
    managing.commit_other(commands.Forget(owner.id))
    assert managing.manager.describe()["directory"] == {"known": 1}
    assert managing.connect().resolve("queue:kept") == kept


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


def test_a_consumer_is_detached_only_after_its_acknowledgements_are_in_the_log() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    sequence = batch(managing, "a", "b")
    managing.tell(link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 2, 1, 1)]))
    managing.asked.clear()
    managing.commits = False
    client.say(Acknowledge(0, 1, [1, 1]), CloseConsumer(70, 1, [2, 2]))
    assert managing.asked == []
    managing.commit()
    [(_, detach)] = managing.asked
    assert isinstance(detach, link.Detach)
    assert (detach.consumer, detach.held) == (key, [])
    managing.tell(link.Answered(detach.request))
    assert client.take(Done) == [Done(70)]


def test_a_subscription_that_is_more_than_the_bus_takes_is_refused_and_nobody_else_notices() -> None:
    managing = Managing()
    client, other = managing.connect(), managing.connect()
    place = client.resolve("topic:t")
    ordered = len(managing.entries)
    client.consume(place, selector="a" * (5 << 20))
    [failed] = client.take(Failed)
    assert (failed.error, "at most" in failed.reason) == ("InvalidSelector", True)
    managing.link_up("mm2", is_primary=True, epoch=2)
    assert len(managing.entries) == ordered
    assert not {client.stream, other.stream} & set(managing.hung)


def test_more_positions_than_a_command_holds_end_the_connection() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    held = [number for first in range(0, 2 * POSITIONS_MAX, 2) for number in (first, first)]
    client.consume(place, held=held)
    assert "positions are too many" in managing.hung[client.stream]


def test_a_client_hears_that_the_time_of_messages_it_has_is_over() -> None:
    managing = Managing()
    client = managing.connect()
    key = consuming(managing, client)
    managing.tell(link.Lapsed(key, [10, 12]))
    [lapsed] = client.take(Lapsed)
    assert lapsed.positions == [10, 12]
    managing.tell(link.Lapsed(b"x" * 20, [10, 12]))
    assert client.take(Lapsed) == [], "nobody has it any more"
