import pytest

from alphorn.message_manager.effects import Answer, Arrived, Deferred, Gone
from alphorn.model.commands import Acknowledge, AnyCommand, Purge, Return, SetPolicy, key_of
from alphorn.model.destinations import Policy
from alphorn.model.messages import Packed
from tests.message_manager.bench import BOB, Bench, arrived, errors, gone

CONSUMER = key_of(BOB, 1)


@pytest.fixture(name="bench")
def make_bench() -> Bench:
    """A queue, number 1, with ten messages."""
    bench = Bench()
    bench.publish(bench.create("queue:q"), *range(10))
    return bench


@pytest.mark.requirement("API-9")
def test_acknowledged_messages_are_gone_and_their_entries_not_needed(bench: Bench) -> None:
    assert bench.engine.retained().flat() == [2, 2]
    assert bench.acknowledge(1, 1, 4, 6, 6) == [Gone(1, 0, [1, 4, 6, 6])]
    assert bench.pending(1) == [(5, 5), (7, 10)]
    bench.acknowledge(1, 5, 10)
    assert not bench.engine.retained()


def test_to_acknowledge_twice_changes_nothing(bench: Bench) -> None:
    bench.acknowledge(1, 2, 3)
    assert bench.acknowledge(1, 2, 3) == []
    assert bench.acknowledge(1, 1, 4) == [Gone(1, 0, [1, 1, 4, 4])]


@pytest.mark.parametrize("positions", [[1], [3, 2], [-5, 2], [1, 2, 3]])
@pytest.mark.parametrize("kind", [Acknowledge, Return])
def test_positions_that_are_no_ranges_change_nothing(bench: Bench, kind: type, positions: list[int]) -> None:
    assert errors(bench.apply(kind(1, 0, CONSUMER, positions))) == ["PeerViolation"]
    assert bench.pending(1) == [(1, 10)]
    assert bench.queue(1).backlog.counts == {}


@pytest.mark.parametrize(
    "command",
    [
        Acknowledge(9, 0, CONSUMER, [1, 1]),
        Acknowledge(1, 5, CONSUMER, [1, 1]),
        Return(9, 0, CONSUMER, [1, 1]),
        Purge(9),
    ],
)
def test_what_names_nothing_that_exists_is_answered(bench: Bench, command: AnyCommand) -> None:
    answer = bench.answer(command)
    assert answer.error == "InvalidDestination"


def test_what_nobody_saw_comes_back_as_if_it_had_never_been_given_out(bench: Bench) -> None:
    bench.apply(SetPolicy(1, Policy(delivery_limit=1, redelivery_delay=5.0)))
    assert bench.apply(Return(1, 0, CONSUMER, [2, 3], is_unseen=True)) == [Arrived(1, 0, 2, 3, CONSUMER)]
    assert bench.queue(1).backlog.counts == {}


def test_huge_ranges_cost_by_what_is_there(bench: Bench) -> None:
    assert bench.acknowledge(1, 0, 2**60) == [Gone(1, 0, [1, 10])]
    bench.publish(1, "x")
    bench.give_back(1, 0, 2**60)
    assert bench.queue(1).backlog.counts == {11: 1}


@pytest.mark.requirement("API-9")
def test_returned_messages_are_offered_again_at_their_place_with_a_higher_count(bench: Bench) -> None:
    assert bench.give_back(1, 2, 3) == [Arrived(1, 0, 2, 3, CONSUMER)]
    bench.give_back(1, 3, 3)
    assert bench.candidates(1) == list(range(1, 11))
    pieces = [(piece.first, piece.last, piece.deliveries) for piece in bench.queue(1).backlog.pieces(1, 10)]
    assert pieces == [(1, 1, 0), (2, 2, 1), (3, 3, 2), (4, 10, 0)]


def test_messages_that_no_program_has_seen_come_back_uncounted_and_do_not_die_of_it(bench: Bench) -> None:
    bench.apply(SetPolicy(1, Policy(delivery_limit=1)))
    back = Return(1, 0, CONSUMER, [2, 3], is_unseen=True)
    assert bench.apply(back) == [Arrived(1, 0, 2, 3, CONSUMER)]
    assert bench.queue(1).backlog.counts == {}


def test_returned_messages_that_were_consumed_meanwhile_stay_gone(bench: Bench) -> None:
    bench.acknowledge(1, 1, 10)
    assert bench.give_back(1, 1, 10) == []
    assert bench.queue(1).backlog.counts == {}


def test_a_delay_begins_with_the_next_tick_because_the_last_may_be_long_ago(bench: Bench) -> None:
    bench.tick(1_000)
    assert bench.give_back(1, 4, 5, delay_ms=500) == [Deferred(1, 0, [4, 5], CONSUMER)]
    assert bench.candidates(1) == [1, 2, 3, 6, 7, 8, 9, 10]
    assert bench.engine.next_due() == 1_100
    assert bench.tick(60_000) == []
    assert bench.engine.next_due() == 60_500
    assert bench.tick(60_499) == []
    assert bench.tick(60_500) == [Arrived(1, 0, 4, 5)]
    assert bench.candidates(1) == list(range(1, 11))


def test_the_policys_delay_counts_unless_the_return_names_one() -> None:
    bench = Bench()
    queue = bench.create("queue:q", redelivery_delay=2.0)
    bench.publish(queue, "a", "b")
    assert arrived(bench.give_back(queue, 1, 1, delay_ms=0)) == [(queue, 0, 1, 1)]
    assert arrived(bench.give_back(queue, 2, 2)) == []
    bench.tick(1_000)
    assert arrived(bench.tick(3_000)) == [(queue, 0, 2, 2)]


def test_what_is_consumed_while_it_waits_does_not_come_back(bench: Bench) -> None:
    bench.give_back(1, 4, 5, delay_ms=500)
    bench.acknowledge(1, 4, 4)
    bench.tick(1_000)
    assert bench.tick(1_500) == [Arrived(1, 0, 5, 5)]
    bench.give_back(1, 5, 5, delay_ms=500)
    bench.acknowledge(1, 5, 5)
    assert bench.engine.next_due() is None


@pytest.mark.requirement("DMQ-1")
def test_a_message_that_came_back_too_often_is_dead() -> None:
    bench = Bench()
    queue = bench.create("queue:q", delivery_limit=2)
    bench.publish(queue, "a", "b")
    bench.give_back(queue, 1, 2)
    effects = bench.give_back(queue, 1, 1)
    assert gone(effects) == [(queue, 0, [1, 1])]
    dead = bench.named("queue:_DMQ")
    assert arrived(effects) == [(dead.number, 0, 1, 1)]
    assert bench.pending(queue) == [(2, 2)]


def test_purging_lets_everything_go_and_tells_how_much(bench: Bench) -> None:
    bench.acknowledge(1, 5, 5)
    assert bench.apply(Purge(1)) == [Gone(1, 0, [1, 4, 6, 10]), Answer(0, 9)]
    assert bench.apply(Purge(1)) == [Answer(0, 0)]
    assert not bench.engine.retained()


def test_a_topic_cannot_be_purged(bench: Bench) -> None:
    topic = bench.create("topic:t")
    [answer] = bench.apply(Purge(topic))
    assert isinstance(answer, Answer)
    assert answer.error == "InvalidDestination"


def test_what_died_does_not_wait_with_the_rest() -> None:
    bench = Bench()
    queue = bench.create("queue:q", delivery_limit=2, redelivery_delay=1.0)
    bench.publish(queue, "a", "b")
    bench.give_back(queue, 1, 1, delay_ms=0)
    assert bench.give_back(queue, 1, 2)[-1] == Deferred(queue, 0, [2, 2], CONSUMER)
    assert list(bench.queue(queue).backlog.deferred) == [2]


def test_a_new_delay_outlasts_an_old_one() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, Packed("a", deliver_at=2_000), Packed("b", deliver_at=2_000))
    bench.tick(1_000)
    bench.tick(1_999)
    bench.give_back(queue, 1, 1, delay_ms=5_000)
    assert bench.tick(2_000) == [Arrived(queue, 0, 2, 2)]
    assert bench.tick(7_000) == [Arrived(queue, 0, 1, 1)]
