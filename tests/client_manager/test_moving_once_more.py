"""A move that came to nothing can be asked for once more."""

import pytest

from alphorn.model import commands
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.moving_conversation import Move
from tests.client_manager.meeting import ORIGIN
from tests.client_manager.operating import Operator, drawing


@pytest.mark.requirement("CM-19")
def test_a_move_that_was_refused_is_carried_when_it_is_asked_for_again() -> None:
    operator, name = Operator(), drawing(0)
    operator.send(name, "confirmed")
    operator.order(1, commands.CreateDestination(parse_destination(name), Policy()))
    assert "there is another" in operator.refusal(Move(0, name, "channel-1"))
    operator.order(1, commands.DeleteDestination(1))
    operator.move(name, 1)
    assert operator.places(name) == [1]


def test_a_move_to_a_channel_that_is_removed_before_it_began_does_not_stand_in_the_way_of_others() -> None:
    operator, name = Operator(), drawing(0)
    operator.send(name, "confirmed")
    operator.renew(1)
    number = operator.engine(0).numbers[parse_destination(name)]
    operator.order(0, commands.Move(number, commands.MoveStage.PLANNED, 1))
    operator.move(name, 2)
    assert operator.places(name) == [2]


@pytest.mark.parametrize("is_opened", [True, False])
@pytest.mark.requirement("CM-19")
def test_a_move_is_refused_only_when_the_log_cannot_take_it_any_more(
    monkeypatch: pytest.MonkeyPatch, *, is_opened: bool
) -> None:
    """What was refused was ordered again for a new primary, and the channel is opened between the two."""
    operator, name = Operator(), drawing(0)
    meeting, commit = operator.meeting, operator.meeting._commit
    operator.send(name, "confirmed")
    number = operator.engine(0).numbers[parse_destination(name)]
    meeting.commit_other(1, commands.Move(0, commands.MoveStage.CLOSED, 1))
    held: list[tuple[bytes, int]] = []

    def hold(channel: int, payload: bytes, origin: bytes, handle: int) -> None:
        if channel == 1 and handle:
            held.append((payload, handle))
        else:
            commit(channel, payload, origin, handle)

    def release() -> None:
        payload, handle = held.pop(0)
        commit(1, payload, ORIGIN, handle)
        meeting.settle()

    monkeypatch.setattr(meeting, "_commit", hold)
    meeting.commit_other(0, commands.Move(number, commands.MoveStage.PLANNED, 1))
    meeting.take_over(1)
    release()
    if is_opened:
        meeting.commit_other(1, commands.Move(0, commands.MoveStage.OPENED, 1))
    while held:
        release()
    moves = [operator.engine(channel).moves for channel in (0, 1)]
    assert [(each.leaving, each.incoming, each.landing) for each in moves] == [({}, {}, {})] * 2
    assert operator.places(name) == [1 if is_opened else 0]
    meeting.check_replicas()
