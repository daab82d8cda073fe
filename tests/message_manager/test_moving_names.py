"""Names of subscriptions while a topic moves: each has one owner, where the topic was and where it comes to."""

import pytest

from alphorn.message_manager.claiming import find_unused
from alphorn.message_manager.dispatch import Dispatcher
from alphorn.model.commands import CreateDestination, Expect, Move, MoveStage, Subscribe, Unsubscribe
from alphorn.model.destinations import Destination, DestinationKind, Policy
from alphorn.model.errors import Error, InvalidDestination, Moved
from tests.message_manager.bench import ALICE, BOB, batch, subscription
from tests.message_manager.travel import Side, Travel

TOPIC, OTHER = (Destination(DestinationKind.TOPIC, name) for name in ("a", "b"))
ARRIVE = 5  # the step of a travel that brings the topic into the directory

durable_or_shared = pytest.mark.parametrize(
    "kind",
    [{"is_durable": True}, {"is_shared": True}, {"is_durable": True, "is_shared": True}],
    ids=["durable", "shared", "shared and durable"],
)


def named(topic: int, connection: bytes = BOB, name: str = "workers", **kind: object) -> Subscribe:
    return subscription(topic, connection, name=name, **kind)


@pytest.fixture
def here() -> Side:
    side = Side(0)
    side.order(CreateDestination(TOPIC, Policy()), CreateDestination(OTHER, Policy()))
    return side


@pytest.fixture
def there() -> Side:
    side = Side(1)
    side.order(CreateDestination(OTHER, Policy()))
    return side


@durable_or_shared
@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_name_on_its_way_here_is_given_to_nobody_before_it_has_come(
    here: Side, there: Side, kind: dict[str, object], *, is_restarted: bool
) -> None:
    here.order(named(1, ALICE, **kind))
    here.order(batch(1, ["kept"]))
    travel = Travel(here, there, 1)
    travel.plan()
    travel.expect()
    if is_restarted:
        there.restart()
    for step in travel.steps()[2 : ARRIVE + 1]:
        refused = there.answer(named(1, **kind))
        assert (refused.error, refused.reason) == (
            "Unavailable",
            "the subscription 'workers' is on its way here with topic:a; try again when that is there, "
            "or choose another name",
        )
        step()
    assert there.state_of(travel.target)["depth"] == 1
    there.restart()
    assert there.answer(named(travel.target, ALICE, **kind)).number == 1


def test_a_replica_restored_after_a_move_knows_the_same_names(here: Side, there: Side) -> None:
    here.order(named(1, ALICE, is_durable=True))
    travel = Travel(here, there, 1)
    travel.plan()
    travel.expect()
    for step in travel.steps()[2:]:
        there.order(named(1, is_durable=True))
        step()
    twin = Side(1)
    twin.engine = there.engine
    twin.restart()
    for side in (there, twin):
        side.order(named(1, is_durable=True))
    assert b"".join(there.engine.checkpoint()) == b"".join(twin.engine.checkpoint())


def test_other_names_are_free_where_a_topic_comes(here: Side, there: Side) -> None:
    here.order(named(1, ALICE, is_durable=True))
    travel = Travel(here, there, 1)
    travel.plan()
    travel.expect()
    assert not there.answer(named(1, name="others", is_durable=True)).error
    assert not there.answer(named(1, is_durable=True, client="another")).error
    assert not there.answer(named(1, is_shared=True)).error
    assert not there.answer(subscription(1, name="workers")).error


def test_a_name_is_free_again_when_its_move_is_cancelled(here: Side, there: Side) -> None:
    here.order(named(1, ALICE, is_durable=True))
    travel = Travel(here, there, 1)
    travel.plan()
    travel.expect()
    there.order(Move(travel.target, MoveStage.CANCELLED, 0))
    assert not there.answer(named(1, is_durable=True)).error


def test_two_topics_on_their_way_do_not_bring_the_same_name(there: Side) -> None:
    names = [(True, "", "workers")]
    third = Destination(DestinationKind.TOPIC, "c")
    assert not there.answer(Expect(TOPIC, Policy(), 0, 1, names)).error
    refused = there.answer(Expect(third, Policy(), 2, 1, names))
    assert (refused.error, "end one of the two first" in refused.reason) == ("Misuse", True)
    assert not there.answer(Expect(TOPIC, Policy(), 0, 1, names)).error


def test_a_topic_expected_from_elsewhere_brings_the_names_that_it_has_there(there: Side) -> None:
    there.order(named(1, name="taken", is_durable=True))
    number = there.answer(Expect(TOPIC, Policy(), 0, 1, [(True, "", "workers")])).number
    assert there.answer(Expect(TOPIC, Policy(), 2, 9, [(True, "", "taken")])).error == "Misuse"
    assert there.answer(Expect(TOPIC, Policy(), 2, 9, [(True, "", "others")])).number != number, (
        "it has a number of its own"
    )
    assert there.answer(named(1, name="others", is_durable=True)).error == "Unavailable"
    assert not there.answer(named(1, is_durable=True)).error


@durable_or_shared
def test_from_the_plan_on_a_topic_takes_no_new_name(here: Side, there: Side, kind: dict[str, object]) -> None:
    travel = Travel(here, there, 1)
    travel.plan()
    here.restart()
    refused = here.answer(named(1, **kind))
    assert (refused.error, refused.reason) == (
        "Unavailable",
        "topic:a is on its way to another channel, and takes no new name of a subscription before it is there; "
        "try again then",
    )
    assert not here.answer(subscription(1)).error
    here.order(Move(1, MoveStage.CANCELLED, 1))
    assert not here.answer(named(1, **kind)).error


@durable_or_shared
def test_a_topic_that_is_to_leave_goes_on_with_the_names_it_has(here: Side, kind: dict[str, object]) -> None:
    number = here.answer(named(1, ALICE, **kind)).number
    here.order(Move(1, MoveStage.PLANNED, 1))
    assert here.answer(named(1, ALICE, **kind)).number == number
    changed = here.answer(named(1, ALICE, selector="x = 1", **kind))
    assert (changed.error, changed.number) == ("", number + 1)


def test_a_name_does_not_change_to_a_topic_that_is_to_leave(here: Side) -> None:
    number = here.answer(named(2, is_durable=True)).number
    here.order(Move(1, MoveStage.PLANNED, 1))
    assert here.answer(named(1, is_durable=True)).error == "Unavailable"
    assert not here.answer(Unsubscribe(2, number, b"")).error


@durable_or_shared
def test_who_ends_a_subscription_hears_that_it_is_on_its_way_with_its_topic(
    here: Side, there: Side, kind: dict[str, object]
) -> None:
    here.order(named(1, ALICE, **kind), named(2, name="others", **kind))
    travel = Travel(here, there, 1)
    for step in travel.steps():
        assert find(here, "others") == (2, 1)
        found = [find(side, "workers") for side in (here, there)]
        assert found in ([(1, 1), None], [TOPIC, None], [TOPIC, (travel.target, 1)], [None, (travel.target, 1)])
        step()
        here.restart()
    assert [find(side, "workers") for side in (here, there)] == [None, (travel.target, 1)]


@pytest.mark.parametrize(("name", "error"), [("workers", Moved), ("strangers", InvalidDestination)])
def test_a_subscription_that_left_with_its_topic_is_not_called_unknown(
    here: Side, there: Side, name: str, error: type[Error]
) -> None:
    here.order(named(1, ALICE, is_durable=True))
    travel = Travel(here, there, 1)
    for step in travel.steps()[:4]:
        step()
    with pytest.raises(error):
        find_unused(here.engine, Dispatcher(here.engine, here.log.get), "", name, lambda connection: False)


def find(side: Side, name: str) -> object:
    """Where a subscription is: its topic and number, or the topic that takes it along."""
    return side.engine.find_subscription("", name) or side.engine.find_taken_along("", name)
