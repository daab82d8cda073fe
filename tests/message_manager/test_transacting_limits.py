"""Limits hold with prepared transactions, however these are decided, and whoever waits hears of it."""

from collections.abc import Iterator

import pytest

from alphorn.message_manager.engine import Engine
from alphorn.message_manager.fullness import Fullness
from alphorn.message_manager.transaction_state import Staged
from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    TransactionCommit,
    TransactionDecide,
    TransactionPrepare,
    key_of,
)
from alphorn.model.messages import BATCH_MESSAGES_MAX
from tests.message_manager.bench import BOB, CAROL, Bench, batch, errors

SESSION, OTHER = key_of(CAROL, 7), key_of(BOB, 7)
CHANNELS = [0, 1]

either_overflow = pytest.mark.parametrize(("overflow", "error"), [("block", "Postponed"), ("reject", "Blocked")])
either_end = pytest.mark.parametrize("is_commit", [True, False])


def sent(destination: int, count: int) -> AnyCommand:
    return batch(destination, range(count), key=key_of(CAROL, 1))


def consumed(destination: int, *positions: int, subscription: int = 0) -> Acknowledge:
    return Acknowledge(destination, subscription, key_of(BOB, 1), list(positions))


def commit(*members: AnyCommand, counter: int = 1) -> list[AnyCommand]:
    return [TransactionCommit(OTHER, counter, len(members)), *members]


def prepare(*members: AnyCommand) -> list[AnyCommand]:
    return [TransactionPrepare(SESSION, 1, CHANNELS, len(members)), *members]


def decide(*, is_commit: bool) -> TransactionDecide:
    return TransactionDecide(SESSION, 1, CHANNELS, is_commit)


def news(bench: Bench, fullness: Fullness, *commands: AnyCommand) -> list[tuple[int, bool]]:
    """Destinations that became full by these commands, or free."""
    fullness.on_applied(commands, bench.apply(*commands))
    return [(number, bool(reason)) for number, reason in fullness.take_changes()]


def restart(bench: Bench) -> None:
    bench.engine = Engine.restore([b"".join(bench.engine.checkpoint())])


@pytest.mark.requirement("FC-4")
@either_overflow
@pytest.mark.parametrize("is_restarted", [True, False])
def test_what_a_prepared_transaction_will_bring_has_its_room(overflow: str, error: str, *, is_restarted: bool) -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=10, overflow=overflow)
    assert errors(bench.apply(*prepare(sent(queue, 10)))) == []
    if is_restarted:
        restart(bench)
    assert errors(bench.publish(queue, "no room")) == [error]
    bench.apply(decide(is_commit=True))
    assert bench.queue(queue).count == 10


@pytest.mark.requirement("FC-4")
@either_overflow
@pytest.mark.parametrize("is_restarted", [True, False])
def test_what_a_prepared_transaction_may_give_back_has_its_room(
    overflow: str, error: str, *, is_restarted: bool
) -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=10, overflow=overflow)
    bench.publish(queue, *range(10))
    bench.apply(*prepare(consumed(queue, 1, 3), consumed(queue, 5, 10)))
    if is_restarted:
        restart(bench)
    assert errors(bench.publish(queue, "no room")) == [error]
    bench.apply(decide(is_commit=False))
    assert bench.queue(queue).count == 10


@either_end
@pytest.mark.parametrize("is_restarted", [True, False])
def test_what_a_decision_makes_free_is_free_for_all(*, is_commit: bool, is_restarted: bool) -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=10)
    bench.publish(queue, *range(6))
    bench.apply(*prepare(consumed(queue, 1, 6), sent(queue, 4)))
    if is_restarted:
        restart(bench)
    bench.apply(decide(is_commit=is_commit))
    left = 4 if is_commit else 6
    assert bench.queue(queue).count == bench.engine.occupied(queue) == left
    assert errors(bench.publish(queue, *range(10 - left), connection=BOB)) == []
    assert errors(bench.publish(queue, "no room", connection=BOB)) == ["Postponed"]


@either_end
def test_a_full_queue_prepares_what_takes_out_as_much_as_it_brings(*, is_commit: bool) -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=10)
    bench.publish(queue, *range(10))
    assert errors(bench.apply(*prepare(consumed(queue, 1, 10), sent(queue, 10)))) == []
    bench.apply(decide(is_commit=is_commit))
    assert bench.queue(queue).count == 10


@pytest.mark.parametrize("overflow", ["block", "reject"])
def test_what_one_subscription_consumes_makes_no_room_in_another(overflow: str) -> None:
    bench = Bench()
    topic = bench.create("topic:t", max_length=10, overflow=overflow)
    first, second = (bench.subscribe(topic, BOB, name=name, is_durable=True) for name in "ab")
    bench.publish(topic, *range(10))
    mine, others = (consumed(topic, 1, 10, subscription=number) for number in (first, second))
    assert errors(bench.apply(*commit(mine, sent(topic, 10)))) == ["TransactionRolledBack"]
    assert errors(bench.apply(*commit(mine, others, sent(topic, 10), counter=2))) == []
    assert bench.topic(topic).count == 10


@pytest.mark.parametrize("overflow", ["block", "reject"])
def test_a_message_that_a_transaction_names_twice_makes_room_once(overflow: str) -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=10, overflow=overflow)
    bench.publish(queue, *range(10))
    twice = [consumed(queue, 1, 3), consumed(queue, 2, 4, 1, 5)]
    assert errors(bench.apply(*commit(*twice, sent(queue, 6)))) == ["TransactionRolledBack"]
    assert errors(bench.apply(*commit(*twice, sent(queue, 5), counter=2))) == []
    assert bench.queue(queue).count == 10


def test_a_transaction_that_is_larger_than_any_batch_keeps_to_the_limit() -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=BATCH_MESSAGES_MAX + 1)
    half = BATCH_MESSAGES_MAX // 2 + 1
    assert errors(bench.apply(*commit(sent(queue, half), sent(queue, half)))) == ["TransactionRolledBack"]
    assert bench.queue(queue).count == 0


@pytest.mark.requirement("FC-2", "FC-3")
def test_producers_wait_for_what_may_come_back_until_that_is_decided() -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=10)
    bench.publish(queue, *range(10))
    fullness = Fullness(bench.engine)
    fullness.take_changes()
    assert news(bench, fullness, *prepare(consumed(queue, 1, 10))) == []
    assert news(bench, fullness, decide(is_commit=True)) == [(queue, False)]


@pytest.mark.requirement("FC-2", "FC-3")
def test_producers_wait_for_what_may_be_brought_until_that_is_decided() -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=10)
    fullness = Fullness(bench.engine)
    assert news(bench, fullness, *prepare(sent(queue, 10))) == [(queue, True)]
    assert news(bench, fullness, decide(is_commit=False)) == [(queue, False)]


def test_a_queue_that_is_full_by_transactions_says_so() -> None:
    bench = Bench()
    queue = bench.create("queue:q", max_length=1)
    bench.apply(*prepare(sent(queue, 1)))
    [reason] = Fullness(bench.engine).reasons.values()
    assert reason == (
        "queue:q is full with 1 messages, some of them in transactions that are not decided yet; it waits for consumers"
    )


class Watched(list[Staged]):
    """Counts how often somebody goes through it."""

    def __init__(self, staged: list[Staged]) -> None:
        super().__init__(staged)
        self.walks = 0

    def __iter__(self) -> Iterator[Staged]:
        self.walks += 1
        return super().__iter__()


@pytest.mark.parametrize("is_restarted", [True, False])
def test_nobody_goes_through_what_another_transaction_has_set_aside(*, is_restarted: bool) -> None:
    bench = Bench()
    queue, other = (bench.create(name, max_length=100) for name in ("queue:q", "queue:other"))
    bench.apply(*prepare(sent(queue, 2), sent(other, 3), sent(queue, 4)))
    if is_restarted:
        restart(bench)
    record = bench.engine.unresolved[SESSION]
    record.staged = watched = Watched(record.staged)
    bench.apply(*commit(sent(queue, 1), sent(other, 1), sent(queue, 1)))
    bench.publish(queue, "plain")
    assert (bench.engine.occupied(queue), bench.engine.occupied(other)) == (6 + 3, 3 + 1)
    assert watched.walks == 0
    bench.apply(decide(is_commit=False))
    assert (bench.engine.occupied(queue), bench.engine.occupied(other)) == (3, 1)
