"""A policy moves along with its destination, and names a dead letter queue that is there, whichever of both moved."""

import pytest

from alphorn.model.conversation import Administer
from tests.client_manager.operating import Operator, drawing

pytestmark = pytest.mark.requirement("DMQ-2")


@pytest.fixture
def operator() -> Operator:
    return Operator()


def test_a_destination_that_moves_has_a_part_of_its_dead_letter_queue_where_it_comes_to(operator: Operator) -> None:
    orders, policy = drawing(0), {"dead_letter": "broken", "delivery_limit": 7, "max_length": 9}
    operator.resolve(orders, **policy)
    for channel in (1, 2):
        operator.move(orders, channel)
        found = operator.policy_of(orders)
        assert (found.dead_letter, found.delivery_limit, found.max_length) == (f"broken@channel-{channel}", 7, 9)
        operator.reject(orders, "dies there")
        assert operator.dead().pop((channel, f"queue:broken@channel-{channel}")) == 1
        assert operator.resolve(orders, **policy) == channel, "who asks for the same policy is content"
    operator.move(orders, 0)
    operator.reject(orders, "dies at home")
    assert operator.policy_of(orders).dead_letter == "broken"
    assert operator.dead()[0, "queue:broken"] == 1
    operator.meeting.check_replicas()


def test_a_dead_letter_queue_that_moves_leaves_a_part_for_those_who_stay_and_takes_its_place_when_it_is_back(
    operator: Operator,
) -> None:
    orders = drawing(0)
    operator.resolve(orders, dead_letter="broken")
    operator.reject(orders, "died before")
    operator.move("queue:broken", 1)
    operator.reject(orders, "dies beside the part")
    assert operator.dead() == {(1, "queue:broken"): 1, (0, "queue:broken@channel-0"): 1}
    assert operator.policy_of(orders).dead_letter == "broken@channel-0"
    operator.move("queue:broken", 0)
    operator.reject(orders, "dies beside the queue")
    assert operator.dead() == {(0, "queue:broken"): 2, (0, "queue:broken@channel-0"): 1}
    operator.meeting.check_replicas()


def test_a_destination_that_follows_its_dead_letter_queue_names_it_as_before(operator: Operator) -> None:
    orders = drawing(0)
    operator.resolve(orders, dead_letter="broken")
    operator.move("queue:broken", 2)
    operator.move(orders, 2)
    operator.reject(orders, "dies there")
    assert operator.dead() == {(2, "queue:broken"): 1}
    assert operator.policy_of(orders).dead_letter == "broken"


def test_a_dead_letter_queue_that_nobody_here_names_leaves_nothing_behind(operator: Operator) -> None:
    orders = drawing(0)
    operator.resolve(orders, dead_letter="broken")
    operator.set_policy(orders)
    operator.move("queue:broken", 1)
    assert operator.places("queue:broken@channel-0") == []
    operator.resolve(drawing(0, 1, 2), dead_letter="others")
    operator.do(Administer(0, "delete", drawing(0, 1, 2)))
    operator.move("queue:others", 1)
    assert operator.places("queue:others@channel-0") == []


def test_where_the_part_itself_was_moved_away_dead_messages_go_to_the_system_s_queue_until_it_is_back(
    operator: Operator,
) -> None:
    orders = drawing(1)
    operator.resolve("queue:broken")
    operator.move("queue:broken", 0)
    operator.resolve(orders, dead_letter="broken")
    operator.move("queue:broken@channel-1", 2)
    operator.reject(orders, "dies alone")
    assert operator.dead() == {(1, "queue:_DMQ"): 1}
    operator.move("queue:broken@channel-1", 1)
    operator.reject(orders, "dies as it should")
    assert operator.dead() == {(1, "queue:_DMQ"): 1, (1, "queue:broken@channel-1"): 1}
