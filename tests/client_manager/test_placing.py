"""Who asked for a move hears how it ended, whatever else happens to the destination meanwhile."""

import pytest

from alphorn.model import commands, link, moving_link
from alphorn.model.commands import MoveStage
from alphorn.model.conversation import Done, Failed
from alphorn.model.moving_conversation import Move
from tests.client_manager.test_moving import Two


def wish(two: Two, channel: str, request: int = 4) -> list[int]:
    """A client wants the queue on a channel; gives the requests that primaries are to answer now."""
    two.say(Move(request, "queue:q", channel))
    return planned(two)


def planned(two: Two) -> list[int]:
    found = []
    for channel in (0, 1):
        for _, entry in two.ordered[channel]:
            pairs = zip(entry.commands, entry.requests or [0] * len(entry.commands), strict=True)
            found += [number for command, number in pairs if isinstance(command, commands.Move)]
    return found


@pytest.fixture
def two() -> Two:
    made = Two()
    made.resolve(0)
    return made


@pytest.mark.parametrize("is_answered", [True, False])
def test_who_asked_for_a_move_is_answered_when_it_has_ended(two: Two, *, is_answered: bool) -> None:
    [request] = wish(two, "two")
    two.commit(0)
    if is_answered:
        two.tell(0, link.Answered(request))
    assert two.take(Done) == []
    two.hear(0, commands.Move(5, MoveStage.ENDED, 1, 7))
    assert [done.request for done in two.take(Done)] == [4]
    two.tell(0, link.Answered(request))
    assert two.take(Done) == []


def test_a_move_that_is_refused_says_why(two: Two) -> None:
    [request] = wish(two, "two")
    two.commit(0)
    two.tell(0, link.Answered(request, 0, "Misuse", "it cannot be moved"))
    assert [failed.reason for failed in two.take(Failed)] == ["it cannot be moved"]


@pytest.mark.parametrize("is_answered", [True, False])
def test_who_waits_for_a_destination_that_is_deleted_before_it_left_is_told_so(two: Two, *, is_answered: bool) -> None:
    [request] = wish(two, "two")
    two.commit(0)
    if is_answered:
        two.tell(0, link.Answered(request))
    two.hear(0, commands.DeleteDestination(5))
    [failed] = two.take(Failed)
    assert "deleted" in failed.reason


def test_a_destination_on_its_way_is_moved_on_from_where_it_comes_to(two: Two) -> None:
    begun_at = two.hear(0, commands.Move(5, MoveStage.BEGUN, 1, 7))
    assert wish(two, "one") == []
    two.land(begun_at)
    [request] = planned(two)
    assert commands.Move(7, MoveStage.PLANNED, 0) in two.wanted(1)
    two.commit(1)
    two.tell(1, link.Answered(request))
    two.hear(1, commands.Move(7, MoveStage.ENDED, 0, 8))
    assert [done.request for done in two.take(Done)] == [4]


def test_a_destination_that_had_left_before_the_plan_came_is_moved_on_from_where_it_comes_to(two: Two) -> None:
    [request] = wish(two, "two")
    begun_at = two.hear(0, commands.Move(5, MoveStage.BEGUN, 1, 7))
    two.commit(0)
    two.tell(0, link.Answered(request, 0, "Moved", "gone", home=moving_link.Home(1, 7, begun_at)))
    two.land(begun_at)
    assert [done.request for done in two.take(Done)] == [4], "it is where it was to go"


def test_a_destination_that_has_just_come_is_moved_on_when_its_consumers_have_followed(two: Two) -> None:
    [request] = wish(two, "two")
    two.commit(0)
    two.tell(0, link.Answered(request, 0, "Moved", "it has just come"))
    assert two.take(Failed) == []
    two.pass_time()
    [again] = planned(two)
    two.commit(0)
    two.tell(0, link.Answered(again))
    two.hear(0, commands.Move(5, MoveStage.ENDED, 1, 7))
    assert [done.request for done in two.take(Done)] == [4]
