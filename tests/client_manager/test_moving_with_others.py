"""A Client Manager of two channels: flow control and transactions where a destination has moved."""

import pytest

from alphorn.client_manager.connection import Producer
from alphorn.model import commands, link
from alphorn.model.commands import Move, MoveStage
from alphorn.model.conversation import (
    CommitTransaction,
    Consume,
    Done,
    Failed,
    Flow,
    Postponed,
    Publish,
    Vanished,
    place_of,
)
from alphorn.model.destinations import Policy
from tests.client_manager.test_moving import QUEUE, Two

ROLLED_BACK, DONE = 2, 1
BODY = memoryview(b"\x91\x91\x01")


@pytest.fixture
def two() -> Two:
    return Two()


def moved(two: Two) -> int:
    """Gives the place as the client knows it."""
    place = two.resolve(0)
    two.publish(place, 1)
    two.commit(0)
    two.land(two.hear(0, Move(5, MoveStage.BEGUN, 1, 7)))
    return place


def published(two: Two, channel: int) -> list[tuple[int, int, int]]:
    found = [command for command in two.wanted(channel) if isinstance(command, commands.Publish)]
    return [(command.destination, command.counter, command.after) for command in found]


def answer(two: Two, channel: int, **fields: object) -> None:
    """The log takes what was ordered, and the primary answers all of it."""
    requests = [request for _, entry in two.ordered[channel] for request in entry.requests if request]
    two.commit(channel)
    for request in requests:
        two.tell(channel, link.Answered(request, **fields))  # type: ignore[arg-type]


def test_fullness_of_the_new_place_is_told_under_the_one_that_clients_know(two: Two) -> None:
    place = moved(two)
    two.tell(1, link.Full([(7, "it is full")]))
    assert two.take(Flow) == [Flow([place], "it is full")]
    two.publish(place, 2)
    assert two.take(Postponed) == [Postponed(1, 2, -1)]
    assert (1, link.Waiting([(7, 1)])) in two.asked
    two.tell(1, link.Full([(7, "")]))
    assert two.take(Flow) == [Flow([place], "")]
    two.publish(place, 2)
    assert published(two, 1) == [(7, 2, 0)]


def test_who_waited_for_a_full_destination_hears_that_it_has_room_where_it_went(two: Two) -> None:
    place = two.resolve(0)
    two.publish(place, 1)
    two.commit(0)
    two.tell(0, link.Full([(5, "it is full")]))
    assert two.take(Flow) == [Flow([place], "it is full")]
    two.land(two.hear(0, Move(5, MoveStage.BEGUN, 1, 7)))
    assert two.take(Flow) == [Flow([place], "")]


def test_who_knew_a_destination_by_its_old_place_hears_that_it_is_deleted(two: Two) -> None:
    place = moved(two)
    two.hear(1, commands.DeleteDestination(7))
    assert two.take(Vanished) == [Vanished(place)]


@pytest.mark.usefixtures("alone")
def test_what_is_postponed_on_its_way_is_not_ordered_at_the_new_place(two: Two) -> None:
    place = place_of(0, 5)
    two.manager._desk.directory.learn(place, QUEUE, Policy(max_length=3, overflow="block"))
    two.publish(place, 1)
    two.publish(place, 2)
    requests = [request for _, entry in two.ordered[0] for request in entry.requests if request]
    two.commit(0)
    begun_at = two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))
    two.publish(place, 3)
    two.tell(0, link.Answered(requests[0], 0, "Postponed", "it is full"))
    two.tell(0, link.Answered(requests[1], 0, "Unavailable", "messages are missing"))
    assert two.take(Postponed) == [Postponed(1, 1, 0)]
    two.land(begun_at)
    assert published(two, 1) == []
    for counter in (1, 2, 3):
        two.publish(place, counter)
    assert published(two, 1) == [(7, 1, -1), (7, 2, -1), (7, 3, -1)]


def test_what_comes_again_says_nothing_of_what_was_not_taken() -> None:
    producer = Producer(1, is_proven=True, session=1)
    here, there = place_of(0, 5), place_of(1, 6)
    for place, counter in ((here, 1), (there, 2), (here, 3), (here, 4), (there, 5)):
        producer.open.append(counter)
        producer.after(place, counter, 1)
    producer.postpone(3, 3)
    assert producer.after(here, 3, 1) == 1
    assert producer.after(here, 4, 1) == -1
    assert producer.after(there, 5, 1) == 2


def transact(two: Two, place: int, consumed: list[tuple[int, int, list[int]]] | None = None) -> None:
    publishes = [] if consumed else [Publish(1, 2, place, 1, 1, 0, 5, BODY)]
    two.say(CommitTransaction(4, 1, 1, publishes, consumed or []))


@pytest.mark.requirement("CM-25")
def test_a_transaction_that_sends_to_where_a_destination_was_is_rolled_back_and_looks_for_it(two: Two) -> None:
    place = moved(two)
    transact(two, place)
    assert two.take(Vanished) == [Vanished(place)]
    [decide] = two.wanted(0)
    assert isinstance(decide, commands.TransactionDecide)
    assert (decide.channels, decide.is_commit) == ([0], False)
    assert two.wanted(1) == []
    answer(two, 0, number=ROLLED_BACK)
    [failed] = two.take(Failed)
    assert failed.error == "TransactionRolledBack"
    assert "has moved" in failed.reason


def test_a_transaction_that_was_done_before_the_move_is_not_done_again(two: Two) -> None:
    transact(two, moved(two))
    answer(two, 0, number=DONE)
    assert two.take(Done) == [Done(4)]
    assert published(two, 1) == []


def test_a_transaction_whose_consumer_has_followed_is_rolled_back_and_keeps_its_messages(two: Two) -> None:
    place = two.resolve(0)
    two.say(Consume(1, 1, 3, place, 10, held=[1, 2]))
    two.land(two.hear(0, Move(5, MoveStage.BEGUN, 1, 7)))
    transact(two, place, [(3, place, [1, 1])])
    assert [type(command) for command in two.wanted(0)] == [commands.TransactionDecide]
    answer(two, 0, number=ROLLED_BACK)
    assert "open the consumer anew" in two.take(Failed)[0].reason
    [consumer] = two.manager._desk.consumers.values()
    assert (consumer.place, list(consumer.held)) == (place_of(1, 7), [(1, 2)])


def test_what_a_transaction_consumed_comes_back_where_its_destination_went(two: Two) -> None:
    place = two.resolve(0)
    two.say(Consume(1, 1, 3, place, 10, held=[1, 2]))
    transact(two, place, [(3, place, [1, 1])])
    begun_at = two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))
    answer(two, 0, error="TransactionRolledBack", reason="it is on its way")
    two.land(begun_at)
    [back] = [command for command in two.wanted(1) if isinstance(command, commands.Return)]
    assert (back.destination, back.positions) == (7, [1, 1])
    assert two.take(Failed)[0].error == "TransactionRolledBack"
