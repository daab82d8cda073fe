"""Whether messages that were given out are still to be had: what a Client Manager asks when nobody has their entry."""

from alphorn.message_manager.questions import answer_question
from alphorn.model.commands import DeleteDestination, Move, MoveStage
from alphorn.model.frame_kinds import Told
from alphorn.model.link import Answered, AskPending
from tests.message_manager.bench import CAROL, Bench


def ask(
    bench: Bench, destination: int, first: int, last: int, *, subscription: int = 0, sequence: int = 0
) -> list[Told]:
    question = AskPending(7, destination, subscription, sequence, first, last)
    return answer_question(bench.engine, question, lambda sequence: None)


def test_messages_are_there_until_the_last_of_them_is_acknowledged() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, "a", "b", "c")
    assert ask(bench, queue, 1, 2) == [Answered(7, 1)]
    bench.acknowledge(queue, 1, 1)
    assert ask(bench, queue, 1, 2) == [Answered(7, 1)]
    bench.acknowledge(queue, 2, 2)
    assert ask(bench, queue, 1, 2) == [Answered(7, 0)]
    assert ask(bench, queue, 3, 3) == [Answered(7, 1)]


def test_a_message_is_there_for_each_subscription_by_itself() -> None:
    bench = Bench()
    topic = bench.create("topic:t")
    first, second = bench.subscribe(topic), bench.subscribe(topic, CAROL)
    bench.publish(topic, "a")
    bench.acknowledge(topic, 1, 1, subscription=first)
    assert ask(bench, topic, 1, 1, subscription=first) == [Answered(7, 0)]
    assert ask(bench, topic, 1, 1, subscription=second) == [Answered(7, 1)]


def test_nothing_is_there_of_a_destination_or_a_subscription_that_is_gone() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.publish(queue, "a")
    assert ask(bench, queue, 1, 1, subscription=9) == [Answered(7, 0)]
    bench.apply(DeleteDestination(queue))
    assert ask(bench, queue, 1, 1) == [Answered(7, 0)]


def test_who_has_not_applied_the_entry_says_nothing() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    assert ask(bench, queue, 1, 1, sequence=bench.engine.sequence) == [Answered(7, 0)]
    assert ask(bench, queue, 1, 1, sequence=bench.engine.sequence + 1) == []


def test_of_a_destination_that_has_left_nothing_is_said() -> None:
    bench = Bench()
    queue = bench.create("queue:q")
    bench.apply(Move(queue, MoveStage.PLANNED, 3, 0))
    bench.apply(Move(queue, MoveStage.BEGUN, 3, 9))
    assert queue not in bench.engine.destinations
    assert ask(bench, queue, 1, 1) == []
