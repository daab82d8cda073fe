"""What an old log says of a destination that has left it changes nothing, there or here."""

import pytest

from alphorn.client_manager.machine import Closed, Said
from alphorn.model import commands, link, moving_link
from alphorn.model.commands import Move, MoveStage
from alphorn.model.conversation import (
    Acknowledge,
    Consume,
    ConsumePattern,
    ConsumerClosed,
    Done,
    Joined,
    Vanished,
    place_of,
)
from alphorn.model.destinations import Policy
from tests.client_manager.test_moving import QUEUE, Two


@pytest.fixture
def two() -> Two:
    return Two()


def plan(two: Two) -> None:
    two.hear(0, Move(5, MoveStage.PLANNED, 1))


def begin(two: Two) -> int:
    return two.hear(0, Move(5, MoveStage.BEGUN, 1, 7))


def join(two: Two) -> Joined:
    """A client receives by a pattern what nobody here has named before; it is given the message at position 8."""
    wish = ConsumePattern(request=2, session=1, watch=3, pattern="glob:queue:*", prefetch=10, joined=[])
    two.receive(Said(1, wish))
    two.tell(0, link.Advertised(1, [(5, QUEUE)]))
    for channel, frame in list(two.asked):
        if isinstance(frame, link.Watch | link.Attach):
            two.tell(channel, link.Answered(frame.request))
    [joined] = two.take(Joined)
    [key] = two.manager._desk.consumers
    sequence = two.hear(0, commands.Publish(5, key, 1, 1, 0, 5, memoryview(b"\x91\x91\x01")))
    two.tell(0, link.Deliver(key, 5, [link.DeliveredRun(sequence, 0, 0, 1, 8, 1)]))
    two.take(Done)
    assert isinstance(joined, Joined)
    return joined


@pytest.mark.requirement("HA-19", "HA-20")
@pytest.mark.parametrize(
    "late",
    [
        commands.Return(5, 0, b"", [1, 4]),
        commands.Acknowledge(5, 0, b"", [1, 4]),
        commands.Purge(5),
        commands.Unsubscribe(5, 0, b""),
        commands.DeleteDestination(5),
    ],
    ids=lambda late: type(late).__name__,
)
def test_what_a_program_had_is_told_where_its_destination_went_though_the_old_log_says_what_became_of_it(
    two: Two, late: commands.AnyCommand
) -> None:
    """Goal: nothing is given out there as if it were new. Method: a lost primary's word comes behind the move."""
    two.say(Consume(1, 1, 3, two.resolve(0), 10, held=[1, 4]))
    begun_at = begin(two)
    two.receive(Closed(1, "gone"))
    two.hear(0, late)
    two.land(begun_at)
    assert (1, moving_link.Followed(7, [], [(0, [1, 4])])) in two.asked


def test_what_came_back_before_the_move_began_is_not_told_where_its_destination_went(two: Two) -> None:
    two.say(Consume(1, 1, 3, two.resolve(0), 10, held=[1, 4]))
    two.receive(Closed(1, "gone"))
    two.hear(0, commands.Return(5, 0, b"", [1, 4]))
    two.land(begin(two))
    assert (1, moving_link.Followed(7)) in two.asked


def test_what_the_entry_says_that_the_move_begins_with_counts_though_the_primary_was_faster_than_the_log(
    two: Two,
) -> None:
    two.say(Consume(1, 1, 3, two.resolve(0), 10, held=[1, 4]))
    two.tell(0, moving_link.Departed(5, moving_link.Home(1, 7, two.sequences[0] + 1)))
    two.receive(Closed(1, "gone"))
    begun_at = two.hear(0, commands.Return(5, 0, b"", [1, 4]), Move(5, MoveStage.BEGUN, 1, 7))
    two.tell(1, moving_link.Landed(7, 0, 5, begun_at))
    assert (1, moving_link.Followed(7)) in two.asked


def test_a_consumer_of_what_was_to_be_deleted_behind_a_move_follows_it(two: Two) -> None:
    two.say(Consume(1, 1, 3, two.resolve(0), 10, held=[1, 4]))
    begun_at = begin(two)
    two.hear(0, commands.DeleteDestination(5))
    assert two.take(ConsumerClosed) == two.take(Vanished) == []
    two.land(begun_at)
    attach = [asked for _, asked in two.asked if isinstance(asked, link.Attach)][-1]
    assert (attach.destination, attach.held) == (7, [1, 4])


def test_a_policy_that_came_behind_a_move_holds_nowhere(two: Two) -> None:
    """One that is believed to refuse nothing would be confirmed without being asked."""
    two.resolve(0)
    two.manager._desk.directory.learn(place_of(0, 5), QUEUE, Policy(max_length=3))
    begun_at = begin(two)
    two.hear(0, commands.SetPolicy(5, Policy()))
    two.land(begun_at)
    listed = two.manager._desk.directory.at(place_of(1, 7))
    assert listed is not None
    assert listed.policy.max_length == 3


@pytest.mark.requirement("HA-19", "CM-19")
def test_what_a_consumer_of_a_pattern_acknowledges_behind_a_move_is_acknowledged_where_that_goes(two: Two) -> None:
    joined = join(two)
    plan(two)
    two.say(Acknowledge(9, joined.consumer, [8, 8]))
    begun_at = begin(two)
    two.commit(0)
    assert two.take(Done) == []
    two.land(begun_at)
    two.commit(1)
    assert two.take(Done) == [Done(9)]


def test_what_a_consumer_of_a_pattern_had_that_is_gone_is_told_where_its_destination_went(two: Two) -> None:
    join(two)
    plan(two)
    two.receive(Closed(1, "gone"))
    begun_at = begin(two)
    two.hear(0, commands.Return(5, 0, b"", [8, 8]))
    two.land(begun_at)
    assert (1, moving_link.Followed(7, [], [(0, [8, 8])])) in two.asked


@pytest.mark.parametrize("end", [Move(5, MoveStage.CANCELLED, 1), commands.DeleteDestination(5)], ids=["plan", "queue"])
def test_a_consumer_of_a_pattern_waits_for_no_move_that_cannot_begin(two: Two, end: commands.AnyCommand) -> None:
    join(two)
    plan(two)
    two.hear(0, end)
    begin(two)
    assert not two.manager._moving.has_left(place_of(0, 5))
