"""A move that came to nothing can be asked for once more."""

import pytest

from alphorn.model import commands
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.moving_conversation import Move
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
