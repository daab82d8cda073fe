"""Flow control at a Client Manager: who is told, what is let in, and what is postponed."""

import pytest

from alphorn.client_manager.machine import Window
from alphorn.model import commands, link
from alphorn.model.conversation import Confirmed, Flow, Goodbye, Hold, Postponed, Refused, Resolve, Resolved
from alphorn.model.destinations import Policy
from tests.client_manager.managing import Managing, published

QUEUE = 5
FULL = link.Full([(QUEUE, "queue:q is full")])
FREE = link.Full([(QUEUE, "")])
BOUNDED = Policy(max_length=10)


@pytest.mark.requirement("FC-6", "CM-18")
def test_whoever_may_send_to_a_full_destination_is_told_and_told_again_when_it_is_free() -> None:
    managing = Managing()
    sender, resolver, stranger = managing.connect(), managing.connect(), managing.connect()
    place = sender.resolve()
    resolver.resolve()
    managing.tell(FULL)
    told = Flow([place], "queue:q is full")
    assert (sender.take(Flow), resolver.take(Flow), stranger.take(Flow)) == ([told], [told], [])
    managing.tell(FULL)
    assert sender.take(Flow) == []
    managing.tell(FREE)
    assert (sender.take(Flow), stranger.take(Flow)) == ([Flow([place], "")], [])


def test_who_resolves_a_full_destination_hears_of_it_before_the_answer() -> None:
    managing = Managing()
    managing.connect().resolve()
    managing.tell(FULL)
    late = managing.connect()
    late.say(Resolve(1, "queue:q"))
    assert [type(frame) for frame in late.heard()] == [Flow, Resolved]


@pytest.mark.requirement("FC-4", "FC-6")
def test_what_comes_for_a_full_destination_is_postponed_and_not_kept() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    managing.tell(FULL)
    client.publish(place, 1, "a")
    client.publish(place, 2, "b")
    assert published(managing) == []
    assert client.take(Postponed) == [Postponed(1, 1)]
    managing.tell(FREE)
    client.publish(place, 1, "a")
    client.publish(place, 2, "b")
    assert client.take(Confirmed) == [Confirmed(1, 1), Confirmed(1, 2)]


def test_what_was_under_way_before_a_postponed_batch_is_confirmed_all_the_same() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve(policy=BOUNDED)
    client.publish(place, 1, "a")
    before = managing.entries[-1].requests
    managing.tell(FULL)
    client.publish(place, 2, "b")
    managing.tell(link.Answered(before[0]))
    assert client.take(Confirmed) == [Confirmed(1, 1)]


@pytest.mark.requirement("FC-4")
def test_what_the_destination_had_no_room_for_is_postponed_with_all_that_follows() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve(policy=BOUNDED)
    client.publish(place, 1, "a", "b", "c")
    client.publish(place, 4, "d")
    first, second = (entry.requests[0] for entry in managing.entries[-2:])
    managing.tell(link.Answered(first, 3, "Postponed", "full"))
    client.publish(place, 5, "e")
    managing.tell(link.Answered(second, 0, "Unavailable", "messages are missing"))
    assert client.take(Postponed) == [Postponed(1, 3, 2)]
    assert client.take(Refused) == []
    assert [command.counter for command in published(managing)] == [1, 4]
    client.publish(place, 3, "c")
    client.publish(place, 4, "d")
    for entry in managing.entries[-2:]:
        managing.tell(link.Answered(entry.requests[0]))
    assert client.take(Confirmed) == [Confirmed(1, 3), Confirmed(1, 4)]
    assert client.take(Goodbye) == []


def test_a_gap_behind_a_batch_whose_answer_was_lost_with_its_primary_is_sent_again_from_that_batch() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve(policy=BOUNDED)
    client.publish(place, 1, "a")
    client.publish(place, 2, "b")
    second = managing.entries[-1].requests[0]
    managing.link_up("mm2", is_primary=True, epoch=2)
    managing.tell(link.Answered(second, 0, "Unavailable", "message 1 is missing"), "mm2")
    assert client.take(Refused) == []
    assert client.take(Postponed) == [Postponed(1, 1)]
    client.publish(place, 1, "a")
    managing.tell(link.Answered(managing.entries[-1].requests[0]), "mm2")
    assert client.take(Confirmed) == [Confirmed(1, 1)]


def test_what_was_under_way_when_its_destination_got_a_limit_is_sent_again_for_the_primary_to_confirm() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    managing.commits = False
    client.publish(place, 1, "a")
    client.publish(place, 2, "b")
    managing.commit_other(commands.SetPolicy(QUEUE, BOUNDED))
    managing.commit()
    assert client.take(Postponed) == [Postponed(1, 1)]
    assert client.take(Confirmed) == []
    managing.commits = True
    client.publish(place, 1, "a")
    managing.answer()
    assert client.take(Confirmed) == [Confirmed(1, 1)]


@pytest.mark.requirement("FC-9")
def test_one_full_destination_delays_no_other_of_the_same_session() -> None:
    managing = Managing()
    client = managing.connect()
    full = client.resolve("queue:q", QUEUE)
    free = client.resolve("queue:other", 6)
    managing.tell(FULL)
    client.publish(full, 1, "x", producer=1)
    client.publish(free, 1, "y", producer=2)
    assert client.take(Confirmed) == [Confirmed(2, 1)]


@pytest.mark.requirement("FC-4")
def test_a_full_disk_of_any_message_manager_blocks_the_whole_channel_until_it_has_room_or_is_gone() -> None:
    managing = Managing()
    client = managing.connect()
    place, other = client.resolve("queue:q", QUEUE), client.resolve("queue:other", 6)
    managing.link_up("mm2", is_primary=False, epoch=1)
    managing.tell(link.Stored("the store of mm2 is full"), "mm2")
    managing.tell(link.Stored("the store of mm1 is full"), "mm1")
    assert client.take(Flow) == [Flow([place, other], "the store of mm2 is full")]
    client.publish(place, 1, "a")
    assert client.take(Postponed) == [Postponed(1, 1)]
    managing.tell(link.Stored(""), "mm1")
    assert client.take(Flow) == []
    managing.link_down("mm2")
    assert client.take(Flow) == [Flow([place, other], "")]


def test_a_new_primary_says_anew_which_destinations_are_full() -> None:
    managing = Managing()
    client = managing.connect()
    place, other = client.resolve("queue:q", QUEUE), client.resolve("queue:other", 6)
    managing.tell(FULL)
    client.take(Flow)
    managing.link_up("mm2", is_primary=True, epoch=2)
    managing.tell(link.Full([(6, "queue:other is full")], is_whole=True), "mm2")
    assert client.take(Flow) == [Flow([place], ""), Flow([other], "queue:other is full")]


def test_whoever_waits_for_a_destination_that_is_deleted_waits_no_more() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    managing.tell(FULL)
    client.take(Flow)
    managing.commit_other(commands.DeleteDestination(QUEUE))
    assert client.take(Flow) == [Flow([place], "")]


@pytest.mark.requirement("FC-2", "FC-7", "CM-24")
@pytest.mark.usefixtures("alone")
def test_a_session_with_much_under_way_is_told_to_wait_until_the_low_mark() -> None:
    managing = Managing(session_bytes_max=4000)
    client = managing.connect()
    place = client.resolve()
    managing.commits = False
    for counter in range(1, 4):
        client.publish(place, counter, "x" * 1000)
    [hold] = client.take(Hold)
    assert hold.session == 1
    assert hold.reason
    waiting, managing.waiting = managing.waiting, []
    managing.waiting = waiting[:1]
    managing.commit()
    assert client.take(Hold) == []
    managing.waiting = waiting[1:]
    managing.commit()
    assert client.take(Hold) == [Hold(1, "")]


@pytest.mark.requirement("FC-4")
@pytest.mark.usefixtures("alone")
def test_a_session_that_does_not_wait_is_postponed_at_its_limit() -> None:
    managing = Managing(session_bytes_max=4000)
    client = managing.connect()
    place = client.resolve()
    managing.commits = False
    for counter in range(1, 6):
        client.publish(place, counter, "x" * 1000)
    assert [command.counter for command in published(managing)] == [1, 2, 3]
    assert client.take(Postponed) == [Postponed(1, 4)]
    managing.commit()
    assert client.take(Confirmed)[-1] == Confirmed(1, 3)
    assert client.take(Hold)[-1] == Hold(1, "")


def test_a_batch_larger_than_a_sessions_limit_is_let_in_alone() -> None:
    managing = Managing(session_bytes_max=100)
    client = managing.connect()
    client.publish(client.resolve(), 1, "x" * 1000)
    assert client.take(Confirmed) == [Confirmed(1, 1)]


@pytest.mark.requirement("FC-4", "FC-7")
def test_sessions_wait_while_the_bus_takes_nothing_and_go_on_when_it_has() -> None:
    managing = Managing(channel_bytes_max=4000)
    client, other = managing.connect(), managing.connect()
    place = client.resolve()
    other.resolve()
    managing.receive(Window(0, False))
    for counter in range(1, 6):
        client.publish(place, counter, "x" * 1000)
        other.publish(place, counter, "y" * 1000)
    assert [hold.session for hold in client.take(Hold)] == [1]
    assert [hold.session for hold in other.take(Hold)] == [1]
    assert (client.take(Postponed), other.take(Postponed)) == ([Postponed(1, 2)], [Postponed(1, 2)])
    assert managing.manager._desk.channels[0].unordered_bytes < 5000
    managing.receive(Window(0, True))
    assert (client.take(Hold), other.take(Hold)) == ([Hold(1, "")], [Hold(1, "")])


def test_who_has_little_waiting_is_let_in_whatever_another_has() -> None:
    managing = Managing(channel_bytes_max=4000)
    greedy, other = managing.connect(), managing.connect()
    place = greedy.resolve()
    other.resolve()
    managing.receive(Window(0, False))
    for counter in range(1, 6):
        greedy.publish(place, counter, "x" * 1000)
    assert greedy.take(Postponed) == [Postponed(1, 3)]
    other.publish(place, 1, "y")
    assert (other.take(Postponed), other.take(Hold)) == ([], [])
    managing.receive(Window(0, True))
    assert other.take(Confirmed) == [Confirmed(1, 1)]


def test_a_session_that_waits_for_its_channel_goes_on_when_its_own_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alphorn.client_manager.channel.ENTRY_BYTES", 1000)
    managing = Managing(channel_bytes_max=10_000, under_way_max=1)
    greedy, other = managing.connect(), managing.connect()
    place = other.resolve()
    managing.commits = False
    greedy.say(*(Resolve(number, f"queue:{number}") for number in range(100, 170)))
    other.publish(place, 1, "y" * 2500)
    assert [hold.reason != "" for hold in other.take(Hold)] == [True]
    for _ in range(3):
        managing.commit()
    assert managing.manager._desk.channels[0].unordered_bytes > 10_000 // 4, "of the other there is much left"
    assert other.take(Hold) == [Hold(1, "")]


def test_a_connection_is_told_of_no_more_destinations_than_it_may_and_never_waits_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("alphorn.client_manager.flow.PLACES_MAX", 1)
    managing = Managing()
    client = managing.connect()
    first = client.resolve("queue:q", QUEUE)
    managing.tell(FULL)
    assert client.take(Flow) == [Flow([first], "queue:q is full")]
    client.resolve("queue:other", 6)
    assert client.take(Flow) == [Flow([first], "")]
    client.publish(first, 1, "a")
    assert client.take(Flow) == [Flow([first], "queue:q is full")]


def test_the_primary_hears_how_many_producers_wait_and_a_new_one_hears_it_again() -> None:
    managing = Managing()
    client, other = managing.connect(), managing.connect()
    place = client.resolve()
    client.publish(place, 1, "a", producer=1)
    client.publish(place, 1, "a", producer=2)
    managing.tell(FULL)
    assert waiting(managing) == [[(QUEUE, 2)]]
    other.publish(place, 1, "b")
    other.publish(place, 1, "b")
    assert waiting(managing) == [[(QUEUE, 3)]]
    managing.link_up("mm2", is_primary=True, epoch=2)
    assert waiting(managing) == [[(QUEUE, 3)]]
    other.close()
    assert waiting(managing) == [[(QUEUE, 2)]]
    managing.tell(FREE, "mm2")
    assert waiting(managing) == [[(QUEUE, 0)]]


def waiting(managing: Managing) -> list[list[tuple[int, int]]]:
    found = [frame.producers for _, frame in managing.asked if isinstance(frame, link.Waiting)]
    managing.asked.clear()
    return found
