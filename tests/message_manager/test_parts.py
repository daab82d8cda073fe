"""Parts of dead letter queues, made where a destination comes to or its dead letter queue leaves, on every replica."""

import pytest

from alphorn.model.commands import CreateDestination, DeleteDestination, Move, MoveStage, Return, SetPolicy
from alphorn.model.destinations import NAME_BYTES_MAX, Destination, DestinationKind, Policy
from tests.message_manager.bench import ALICE, batch, subscription
from tests.message_manager.travel import Side, Travel

BROKEN, ORDERS = (Destination(DestinationKind.QUEUE, name) for name in ("broken", "orders"))
PRICES = Destination(DestinationKind.TOPIC, "prices")
QUEUE, TOPIC = 2, 3  # numbers here
LIMIT = {"delivery_limit": 1}


@pytest.fixture
def here() -> Side:
    side = Side(0)
    side.order(CreateDestination(BROKEN, Policy()))
    for made in (ORDERS, PRICES):
        side.order(CreateDestination(made, Policy(dead_letter="broken", **LIMIT)))
    return side


@pytest.fixture
def there() -> Side:
    return Side(1)


def dead_letter(side: Side, number: int) -> str | None:
    return side.engine.destinations[number].policy.dead_letter


def names(side: Side) -> list[str]:
    return [destination.name for destination in side.engine.numbers]


@pytest.mark.parametrize("number", [QUEUE, TOPIC])
def test_a_part_is_there_from_the_moment_a_destination_comes_whatever_is_restarted(
    here: Side, there: Side, number: int
) -> None:
    here.order(subscription(TOPIC, ALICE, name="kept", is_durable=True))
    here.order(batch(number, ["dies"]))
    travel = Travel(here, there, number)
    for step in travel.steps():
        here.restart()
        there.restart()
        step()
    assert dead_letter(there, travel.target) == "broken@channel-1"
    there.restart()
    there.order(Return(travel.target, 1 if number == TOPIC else 0, b"", [1, 1], delay_ms=0))
    [found] = [each for each in there.engine.describe()["destinations"] if each["name"] == "queue:broken@channel-1"]  # type: ignore[attr-defined]
    assert found["depth"] == 1


def test_the_policy_that_holds_when_a_destination_leaves_is_the_one_that_moves(here: Side, there: Side) -> None:
    here.order(CreateDestination(Destination(DestinationKind.QUEUE, "others"), Policy()))
    travel = Travel(here, there, QUEUE)
    travel.plan()
    travel.expect()
    here.order(SetPolicy(QUEUE, Policy(dead_letter="others", **LIMIT)))
    for step in travel.steps()[2:]:
        step()
    assert there.engine.destinations[travel.target].policy == Policy(dead_letter="others@channel-1", **LIMIT)
    assert names(there) == ["orders", "others@channel-1"]


@pytest.mark.parametrize("is_restarted", [True, False])
def test_all_who_name_a_dead_letter_queue_that_leaves_have_its_part(
    here: Side, there: Side, *, is_restarted: bool
) -> None:
    here.order(CreateDestination(Destination(DestinationKind.QUEUE, "gone"), Policy(dead_letter="broken")))
    here.order(DeleteDestination(4))
    if is_restarted:
        here.restart()
    back = Travel(here, there, 1)
    back.run()
    here.restart()
    assert (dead_letter(here, QUEUE), dead_letter(here, TOPIC)) == ("broken@channel-0",) * 2
    Travel(there, here, back.target).run()
    here.restart()
    assert (dead_letter(here, QUEUE), dead_letter(here, TOPIC)) == ("broken",) * 2
    assert sorted(names(here)) == ["broken", "broken@channel-0", "orders", "prices"]


def test_a_destination_that_is_its_own_dead_letter_queue_or_uses_the_system_s_moves_as_it_is(there: Side) -> None:
    here = Side(0)
    here.order(
        CreateDestination(ORDERS, Policy(dead_letter="orders")), CreateDestination(BROKEN, Policy(dead_letter="_DMQ"))
    )
    for number, expected in ((1, "orders"), (2, "_DMQ")):
        travel = Travel(here, there, number)
        travel.run()
        assert dead_letter(there, travel.target) == expected
    assert names(there) == ["orders", "broken"]


@pytest.mark.parametrize("name", ["b" * NAME_BYTES_MAX, "temporary.x"], ids=["too long", "temporary"])
def test_a_part_that_could_have_no_such_name_is_not_made(there: Side, name: str) -> None:
    here = Side(0)
    here.order(CreateDestination(Destination(DestinationKind.QUEUE, name), Policy(), bytes(16)))
    here.order(CreateDestination(ORDERS, Policy(dead_letter=name)))
    travel = Travel(here, there, 2)
    travel.run()
    assert (dead_letter(there, travel.target), names(there)) == (name, ["orders"])


def test_a_move_that_an_older_client_manager_carries_changes_no_policy(here: Side) -> None:
    here.order(Move(1, MoveStage.PLANNED, 1))
    here.order(Move(1, MoveStage.BEGUN, 1, 9))
    assert (dead_letter(here, QUEUE), names(here)) == ("broken", ["orders", "prices"])
