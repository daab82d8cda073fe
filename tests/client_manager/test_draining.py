"""Channels that are drained and removed, in any order: every name leads to the one destination that has it."""

import msgspec
import pytest

from alphorn.message_manager.engine import Engine
from alphorn.model import commands
from alphorn.model.commands import MoveStage
from alphorn.model.conversation import Administer, Consume, Done, Resolve, Resolved
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.moving_conversation import Drain, Move
from tests.client_manager.operating import Operator, drawing

pytestmark = pytest.mark.requirement("CM-19", "TOP-4")


@pytest.fixture
def operator() -> Operator:
    return Operator()


def check(operator: Operator, name: str, home: int) -> None:
    """A name is found where it is, there and nowhere else, and with what it holds."""
    assert operator.resolve(name) == home
    assert operator.places(name) == [home]
    engine = operator.engine(home)
    [found] = [each for each in engine.describe()["destinations"] if each["name"] == name]  # type: ignore[attr-defined]
    assert found["depth"] == 1


def subscribe(operator: Operator, topic: str, name: str) -> None:
    """A durable subscription, with nobody there."""
    answer = operator.ask(Resolve(0, topic))
    assert isinstance(answer, Resolved)
    operator.do(Consume(0, 1, operator.number(), answer.place, 1, subscription=name, is_durable=True))


def make(operator: Operator, name: str) -> None:
    operator.send(name, "confirmed")


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("lots", [(1, 2, 0), (2, 1, 0)])
@pytest.mark.parametrize("removed", [1, 2])
def test_of_two_drained_channels_one_is_removed_and_the_other_opened_and_every_name_is_found(
    operator: Operator, first: int, lots: tuple[int, ...], removed: int
) -> None:
    name = drawing(*lots)
    make(operator, name)
    operator.drain(first)
    operator.drain(3 - first)
    operator.open(3 - removed)
    operator.renew(removed)
    check(operator, name, 0)


def test_two_channels_drained_at_once_leave_no_name_between_them(operator: Operator) -> None:
    names = [drawing(*lots) for lots in ((1, 2, 0), (2, 1, 0), (1, 0, 2), (2, 0, 1), (0, 1, 2))]
    for name in names:
        make(operator, name)
    requests = operator.begin_together(Drain(0, "channel-1"), Drain(0, "channel-2"))
    assert all(isinstance(operator.wait(request), Done) for request in requests)
    for opened in (1, 2):
        operator.open(opened)
        operator.renew(3 - opened)
        for name in names:
            check(operator, name, 0)
        operator.renew()
        operator.drain(opened)


@pytest.mark.parametrize("removed", [1, 2])
def test_a_name_that_was_new_while_two_channels_were_drained_is_found_without_one_of_them(
    operator: Operator, removed: int
) -> None:
    name = drawing(1, 2, 0)
    operator.drain(1)
    operator.drain(2)
    make(operator, name)
    operator.open(3 - removed)
    operator.renew(removed)
    check(operator, name, 0)


def test_what_one_channel_says_of_another_that_is_removed_is_said_of_where_the_name_went(operator: Operator) -> None:
    name = drawing(2, 1, 0)
    make(operator, name)
    operator.move(name, 1)
    operator.drain(2)
    operator.drain(1)
    operator.open(2)
    operator.renew(1)
    check(operator, name, 0)


def test_a_destination_that_was_moved_stays_there_when_a_channel_is_drained_that_only_says_so(
    operator: Operator,
) -> None:
    name = drawing(1, 0, 2)
    make(operator, name)
    operator.move(name, 2)
    operator.drain(1)
    assert operator.places(name) == [2]
    operator.renew(1)
    check(operator, name, 2)


def test_a_channel_on_the_way_from_one_to_another_is_passed_over_when_it_is_removed(operator: Operator) -> None:
    name = drawing(0, 1, 2)
    make(operator, name)
    operator.move(name, 1)
    operator.move(name, 2)
    operator.drain(1)
    operator.renew(1)
    check(operator, name, 2)


def test_a_name_that_is_new_where_a_removed_channel_had_it_is_created(operator: Operator) -> None:
    name = drawing(0, 1, 2)
    operator.resolve(name)
    operator.move(name, 1)
    operator.do(Administer(0, "delete", name))
    operator.drain(1)
    operator.renew(1)
    assert "there is no" in operator.refusal(Administer(0, "delete", name))
    make(operator, name)
    check(operator, name, 0)
    operator.renew(1)
    check(operator, name, 0)


def test_an_old_word_about_a_name_does_not_count_when_its_register_is_removed(operator: Operator) -> None:
    """Channel 2 says that the name went to 3; since then it came back to 1, was deleted there and made anew."""
    name = drawing(1, 2, 0)
    operator.resolve(name)
    for channel in (2, 3, 1):
        operator.move(name, channel)
    operator.do(Administer(0, "delete", name))
    make(operator, name)
    assert operator.places(name) == [1]
    operator.drain(2)
    operator.drain(1)
    operator.open(2)
    operator.renew(1)
    check(operator, name, 0)


def test_a_destination_on_its_way_to_a_channel_that_is_drained_goes_on_from_there(operator: Operator) -> None:
    name = drawing(0, 1, 2)
    make(operator, name)
    move, drain = operator.begin_together(Move(0, name, "channel-1"), Drain(0, "channel-1"))
    operator.wait(move)
    assert isinstance(operator.wait(drain), Done)
    assert [str(each) for each in operator.engine(1).numbers] == []
    operator.renew(1)
    check(operator, name, 0)


def test_nothing_is_moved_to_a_channel_that_is_drained(operator: Operator) -> None:
    name = drawing(0)
    make(operator, name)
    operator.drain(1)
    assert "takes no" in operator.refusal(Move(0, name, "channel-1"))
    check(operator, name, 0)


def test_a_dead_letter_queue_made_while_its_register_is_drained_is_found_when_that_is_removed(
    operator: Operator,
) -> None:
    dead, orders = drawing(1, 2, 0), drawing(0)
    operator.drain(1)
    operator.resolve(orders, dead_letter=dead.removeprefix("queue:"))
    operator.reject(orders, "dies")
    assert operator.dead() == {(0, dead): 1}
    operator.renew(1)
    check(operator, dead, 0)


def test_a_new_dead_letter_queue_for_a_destination_of_a_closed_channel_is_refused(operator: Operator) -> None:
    dead, orders = drawing(1, 2, 3, 0), drawing(2)
    operator.resolve(orders)
    for channel in (1, 2, 3):
        operator.order(channel, commands.Move(0, MoveStage.CLOSED, channel))
    policy = msgspec.msgpack.encode(Policy(dead_letter=dead.removeprefix("queue:")))
    assert "is on another channel" in operator.refusal(Administer(0, "policy", orders, policy))
    assert (operator.resolve(dead), operator.places(dead)) == (0, [0])


def test_dead_messages_find_their_queue_after_a_drain(operator: Operator) -> None:
    orders = drawing(1, 0)
    operator.resolve(orders, dead_letter="broken")
    operator.reject(orders, "died before")
    operator.drain(1)
    operator.reject(orders, "dies after")
    [(channel, _)] = {(channel, 0) for channel, _ in operator.dead()}
    assert [channel] == operator.places(orders)
    assert all(name.startswith("queue:broken") for _, name in operator.dead())
    assert sum(operator.dead().values()) == 2


def test_a_channel_that_is_opened_again_has_what_is_called_after_it(operator: Operator) -> None:
    orders = drawing(1)
    operator.resolve(orders, dead_letter="broken")
    operator.move("queue:broken", 0)
    operator.reject(orders, "died before")
    operator.drain(1)
    assert operator.places("queue:broken@channel-1") != [1]
    operator.open(1)
    assert operator.places("queue:broken@channel-1") == [1]
    operator.move(orders, 1)
    operator.reject(orders, "dies after")
    assert operator.dead() == {(1, "queue:broken@channel-1"): 2}


def test_a_dead_letter_queue_is_named_again_when_its_part_is_back(operator: Operator) -> None:
    orders = drawing(0)
    operator.resolve(orders, dead_letter="broken")
    operator.resolve("queue:broken@channel-1")
    operator.move("queue:broken@channel-1", 2)
    operator.move(orders, 3)
    assert operator.policy_of(orders).dead_letter == "broken@channel-3"
    operator.move(orders, 1)
    assert operator.policy_of(orders).dead_letter == "broken"
    operator.move("queue:broken@channel-1", 1)
    assert operator.policy_of(orders).dead_letter == "broken@channel-1"


@pytest.mark.parametrize("is_known", [True, False])
def test_a_destination_passes_over_every_channel_that_does_not_take_it(operator: Operator, *, is_known: bool) -> None:
    """One is closed, of which a new Client Manager may have heard nothing; another has a subscription of its name."""
    topic, other = drawing(1, 2, 3, 0, kind="topic"), drawing(3, kind="topic")
    subscribe(operator, topic, "news")
    subscribe(operator, other, "news")
    operator.drain(2)
    if not is_known:
        operator.renew()
    operator.drain(1)
    assert operator.places(topic) == [0]
    operator.renew(1)
    assert operator.resolve(topic) == 0


def test_a_channel_keeps_what_cannot_be_moved_and_who_drains_it_hears_why(operator: Operator) -> None:
    name, other = drawing(1, 0), drawing(1, 2)
    operator.resolve(name, audit=True)
    operator.resolve(other)
    reason = operator.refusal(Drain(0, "channel-1"))
    assert reason.startswith(f"1 destinations were moved, and 1 not: {name} is audited")
    assert (operator.places(name), operator.places(other)) == ([1], [2])
    operator.set_policy(name)
    operator.drain(1)
    assert operator.places(name) == [0]


def test_a_part_stays_beside_a_destination_that_cannot_be_moved(operator: Operator) -> None:
    orders = drawing(1)
    operator.resolve("queue:broken")
    operator.move("queue:broken", 0)
    operator.resolve(orders, dead_letter="broken", audit=True)
    assert operator.refusal(Drain(0, "channel-1")).startswith(
        f"0 destinations were moved, and 1 not: {orders} is audited"
    )
    assert operator.places("queue:broken@channel-1") == [1]


def test_a_move_that_was_planned_before_a_drain_is_waited_for(operator: Operator) -> None:
    name = drawing(1, 0)
    make(operator, name)
    move, drain = operator.begin_together(Move(0, name, "channel-3"), Drain(0, "channel-1"))
    assert isinstance(operator.wait(move), Done)
    assert isinstance(operator.wait(drain), Done)
    operator.renew(1)
    check(operator, name, 3)


@pytest.mark.parametrize("is_restored", [True, False])
def test_a_destination_that_was_deleted_before_it_left_is_expected_by_nobody(
    operator: Operator, *, is_restored: bool
) -> None:
    """Who carried it died before it could say so where it was to go; the channel that it was on finds another one."""
    name, meeting = drawing(1, 2, 0), operator.meeting
    operator.resolve(name)
    number = operator.engine(1).numbers[parse_destination(name)]
    operator.order(2, commands.Expect(parse_destination(name), Policy(), 1, number))
    operator.order(1, commands.Move(number, MoveStage.PLANNED, 2), commands.DeleteDestination(number))
    if is_restored:
        written = b"".join(operator.engine(1).checkpoint())
        assert b"".join(Engine.restore([written]).checkpoint()) == written
    operator.renew()
    meeting.pass_time(0.1)
    assert [(operator.engine(each).moves.incoming, operator.engine(each).moves.recalled) for each in (1, 2)] == [
        ({}, {})
    ] * 2
    make(operator, name)
    operator.drain(1)
    check(operator, name, 2)
    meeting.check_replicas()
