"""What forbids a move, or is rolled back by one: transactions, staged messages and audits are bound to one log."""

import msgspec
import pytest

from alphorn.message_manager.directory import COMING
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.fullness import Fullness
from alphorn.message_manager.questions import answer_question
from alphorn.message_manager.reading import Reading
from alphorn.message_manager.topic import Topic
from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    CreateDestination,
    DropStaged,
    Entry,
    Expect,
    Move,
    MoveStage,
    Publish,
    Return,
    SetPolicy,
    Stage,
    Subscribe,
    TransactionCommit,
    TransactionDecide,
    TransactionPrepare,
    decode_entry,
    key_of,
)
from alphorn.model.destinations import Destination, DestinationKind, Policy
from alphorn.model.link import Answered, Locate
from alphorn.model.log_link import Scan, Scanned, Survey, Surveyed
from alphorn.model.messages import Packed
from tests.message_manager.travel import Side, Travel

CONNECTION = b"sixteen bytes !!"
PRODUCER, CONSUMER, SESSION = (key_of(CONNECTION, number) for number in (1, 2, 3))
QUEUE = Destination(DestinationKind.QUEUE, "orders")
OTHER = Destination(DestinationKind.QUEUE, "others")
TOPIC = Destination(DestinationKind.TOPIC, "prices")
PLAN = Move(1, MoveStage.PLANNED, 1)


def batch(counter: int, count: int = 1) -> memoryview:
    return memoryview(msgspec.msgpack.encode([Packed(counter + place) for place in range(count)]))


def publish(number: int, counter: int, count: int = 1, *, after: int = -1) -> Publish:
    return Publish(number, PRODUCER, counter, count, 0, 5, batch(counter, count), after=after)


def error_of(side: Side, *commands: AnyCommand) -> tuple[str, str]:
    """Of the first command."""
    answers = [effect for effect in side.order(*commands) if getattr(effect, "command", None) == 0]
    return (getattr(answers[-1], "error", ""), getattr(answers[-1], "reason", "")) if answers else ("", "")


@pytest.fixture
def here() -> Side:
    side = Side(0)
    side.order(CreateDestination(QUEUE, Policy()), CreateDestination(OTHER, Policy()))
    side.order(publish(1, 1, 3))
    return side


@pytest.fixture
def there() -> Side:
    side = Side(1)
    side.order(CreateDestination(Destination(DestinationKind.QUEUE, "another"), Policy()))
    return side


@pytest.mark.requirement("CM-25")
@pytest.mark.parametrize(
    "member", [Acknowledge(1, 0, CONSUMER, [1, 1]), publish(1, 1)], ids=["what it consumes", "what it sends"]
)
def test_no_move_is_planned_while_a_prepared_transaction_takes_part_in_it(here: Side, member: AnyCommand) -> None:
    here.order(TransactionPrepare(SESSION, 1, [0, 1], 1), member)
    assert "not decided yet" in error_of(here, PLAN)[1]
    here.order(TransactionDecide(SESSION, 1, [0, 1], True))
    assert error_of(here, PLAN) == ("", "")


def test_a_transaction_elsewhere_does_not_forbid_a_move(here: Side) -> None:
    here.order(TransactionPrepare(SESSION, 1, [0, 1], 1), publish(2, 1))
    assert error_of(here, PLAN) == ("", "")


def test_from_the_plan_on_a_transaction_over_several_channels_is_rolled_back(here: Side) -> None:
    here.order(PLAN)
    error, reason = error_of(here, TransactionPrepare(SESSION, 1, [0, 1], 1), Acknowledge(1, 0, CONSUMER, [1, 1]))
    assert error == "TransactionRolledBack"
    assert "on its way to another channel" in reason
    assert error_of(here, TransactionCommit(SESSION, 2, 1), Acknowledge(1, 0, CONSUMER, [1, 1])) == ("", "")


def test_a_transaction_that_comes_after_the_destination_has_left_is_rolled_back(here: Side, there: Side) -> None:
    travel = Travel(here, there, 1)
    travel.run()
    error, reason = error_of(here, TransactionCommit(SESSION, 1, 1), publish(1, 1))
    assert error == "TransactionRolledBack"
    assert "on its way to another channel, or there" in reason


def test_what_a_transaction_did_before_the_move_moves_along(here: Side, there: Side) -> None:
    here.order(TransactionCommit(SESSION, 1, 2), Acknowledge(1, 0, CONSUMER, [1, 1]), publish(1, 9, 2))
    target = Travel(here, there, 1).run()
    queue = there.engine.destinations[target]
    assert [list(backlog.pending) for _, backlog in queue.backlogs()] == [[(2, 5)]]


def test_no_move_is_planned_while_a_writer_has_staged_messages_for_it(here: Side) -> None:
    staged = Stage(1, PRODUCER, 1, 1, 0, 5, batch(1), writer="job")
    here.order(staged)
    assert "has staged messages" in error_of(here, PLAN)[1]
    here.order(DropStaged("job", 0))
    assert error_of(here, PLAN) == ("", "")
    assert error_of(here, staged)[0] == "Unavailable"


def test_an_audited_destination_is_not_moved(here: Side) -> None:
    side = Side(0)
    side.order(CreateDestination(QUEUE, Policy(audit=True)))
    error, reason = error_of(side, PLAN)
    assert error == "Misuse"
    assert "is audited" in reason


def test_messages_arrive_for_readers_with_the_entry_that_brings_the_destination(there: Side) -> None:
    here = Side(0)
    here.order(CreateDestination(TOPIC, Policy(retain_s=1000.0)))
    here.order(Subscribe(1, "name", "client", CONSUMER, "", True, False, b"", -1, 0))
    for counter in range(1, 6):
        here.order(publish(1, counter))
    travel = Travel(here, there, 1)
    for step in travel.steps()[:-2]:
        step()
    landed = there.engine.sequence
    topic = there.engine.destinations[travel.target]
    assert isinstance(topic, Topic)
    assert topic.kept_from == landed
    assert {run.arrival for run in topic.segments.runs(1, 5)} == {landed}
    there.restart()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_nothing_is_taken_after_what_was_postponed_before_that_has_come_again(*, is_restarted: bool) -> None:
    side = Side(0)
    side.order(CreateDestination(QUEUE, Policy(max_length=2, overflow="block")), CreateDestination(OTHER, Policy()))
    assert error_of(side, publish(1, 1, 3))[0] == "Postponed"
    if is_restarted:
        side.restart()
    assert error_of(side, publish(2, 4, after=0))[0] == "Unavailable"
    side.order(Acknowledge(1, 0, CONSUMER, [1, 2]))
    assert error_of(side, publish(1, 3)) == ("", "")
    assert error_of(side, publish(2, 4, after=0)) == ("", "")
    assert [side.engine.destinations[number].next_position for number in (1, 2)] == [4, 2]


def test_what_was_postponed_comes_again_where_its_destination_went(there: Side) -> None:
    here = Side(0)
    here.order(CreateDestination(QUEUE, Policy(max_length=2, overflow="block")), CreateDestination(OTHER, Policy()))
    here.order(publish(1, 1, 2))
    assert error_of(here, publish(1, 3))[0] == "Postponed"
    target = Travel(here, there, 1).run()
    assert error_of(here, publish(2, 4, after=0)) == ("", "")
    assert error_of(there, publish(target, 3))[0] == "Postponed"
    there.order(Acknowledge(target, 0, CONSUMER, [1, 1]))
    assert error_of(there, publish(target, 3)) == ("", "")


def test_a_full_destination_is_full_where_it_comes_and_free_where_it_left(there: Side) -> None:
    here = Side(0)
    here.order(CreateDestination(QUEUE, Policy(max_length=2, overflow="block")))
    here.order(publish(1, 1, 2))
    travel, views = Travel(here, there, 1), (Fullness(here.engine), Fullness(there.engine))
    for side, view in zip((here, there), views, strict=True):
        _watch(side, view)
    assert 1 in views[0].reasons
    travel.run()
    assert views[0].reasons == {}
    assert list(views[1].reasons) == [travel.target]


def test_a_destination_that_is_to_leave_is_not_audited_before_it_is_there(here: Side, there: Side) -> None:
    travel = Travel(here, there, 1)
    travel.plan()
    here.restart()
    refused = here.answer(SetPolicy(1, Policy(audit=True)))
    assert (refused.error, refused.reason) == (
        "Unavailable",
        f"{QUEUE} is on its way to another channel; audit it when it is there",
    )
    assert not here.answer(SetPolicy(1, Policy(ttl=5.0))).error
    for step in travel.steps()[1:]:
        step()
    assert not there.answer(SetPolicy(travel.target, Policy(audit=True))).error


def test_who_looks_for_a_destination_where_it_is_coming_waits(here: Side, there: Side) -> None:
    travel = Travel(here, there, 1)
    for step in travel.steps()[:4]:
        step()
    [answer] = answer_question(there.engine, Locate(9, QUEUE), there.log.get)
    assert answer == Answered(9, COMING, "Moved", f"{QUEUE} is on its way here; wait")
    travel.copy()
    travel.arrive()
    [answer] = answer_question(there.engine, Locate(9, QUEUE), there.log.get)
    assert isinstance(answer, Answered)
    assert (answer.number, answer.error) == (travel.target, "")


def _watch(side: Side, view: Fullness) -> None:
    order = side.order

    def watched(*commands: AnyCommand) -> list[object]:
        effects = order(*commands)
        view.on_applied(commands, effects)
        return effects  # type: ignore[return-value]

    side.order = watched  # type: ignore[assignment, method-assign]


@pytest.mark.requirement("DMQ-1")
def test_dead_messages_go_to_the_systems_queue_while_their_own_is_on_another_channel(here: Side) -> None:
    here.order(CreateDestination(Destination(DestinationKind.QUEUE, "kept"), Policy(dead_letter="others")))
    here.order(publish(3, 4, 3))
    here.order(Move(2, MoveStage.PLANNED, 1))
    here.order(Move(2, MoveStage.BEGUN, 1, 77))
    here.order(Return(3, 0, CONSUMER, [1, 1], is_dead=True))
    twin = Engine.restore(list(here.engine.checkpoint()))
    death = Return(3, 0, CONSUMER, [2, 2], is_dead=True)
    for engine in (here.engine, twin):
        engine.apply(engine.sequence + 1, Entry([death]))
        assert OTHER not in engine.numbers
    assert b"".join(here.engine.checkpoint()) == b"".join(twin.checkpoint())
    here.order(Move(2, MoveStage.ENDED, 1, 77))
    here.order(Return(3, 0, CONSUMER, [3, 3], is_dead=True))
    assert error_of(here, Expect(OTHER, Policy(), 1, 77)) == ("", ""), "it can come back"
    dead = here.engine.destinations[here.engine.numbers[Destination(DestinationKind.QUEUE, "_DMQ")]]
    assert dead.next_position == 4


@pytest.mark.parametrize("kind", list(DestinationKind))
def test_readers_are_told_with_which_entry_a_destination_came(there: Side, kind: DestinationKind) -> None:
    here, name = Side(0), Destination(kind, "read")
    here.order(CreateDestination(name, Policy(retain_s=1000.0 if kind is DestinationKind.TOPIC else 0.0)))
    here.order(publish(1, 1, 2))
    travel = Travel(here, there, 1)
    for step in travel.steps()[:-2]:
        step()
    landed = there.engine.sequence
    there.order(publish(travel.target, 3, after=2))
    there.restart()
    reading = Reading(lambda sequence: decode_entry(there.log[sequence]))
    surveyed = reading.answer(there.engine, Survey(1, [str(name), "queue:another"], []))
    assert isinstance(surveyed, Surveyed)
    found = {each.name: (each.kept_from, each.first, each.came_at) for each in surveyed.destinations}
    assert found[str(name)] == (landed, landed, landed)
    assert found["queue:another"] == (0, there.engine.sequence + 1, 0)
    scanned = reading.answer(there.engine, Scan(2, [travel.target], (1, 0, 0), (there.engine.sequence + 1, 0, 0), 999))
    assert isinstance(scanned, Scanned)
    assert scanned.kept_from == landed, "and so is whoever reads from before it"
    assert sum(batch.count for batch in scanned.batches) == 3
