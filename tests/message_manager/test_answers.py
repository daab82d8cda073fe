"""What a Client Manager hears of an entry's commands, when later ones undo what earlier ones did."""

from alphorn.message_manager.answers import answers_to
from alphorn.model.commands import AnyCommand, CreateDestination, DeleteDestination, Entry, Move, MoveStage
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.link import Answered
from tests.message_manager.bench import Bench

CREATE = CreateDestination(parse_destination("queue:a"), Policy(), b"")


def answer_to_first(bench: Bench, *commands: AnyCommand) -> Answered:
    effects = bench.apply(*commands)
    [(_, answered)] = answers_to(bench.engine, Entry(list(commands), [7, *(0 for _ in commands[1:])]), effects)
    return answered


def test_what_is_created_is_told_with_its_policy() -> None:
    answered = answer_to_first(Bench(), CREATE)
    assert (answered.request, answered.number, answered.error, answered.policy) == (7, 1, "", Policy())


def test_what_is_deleted_in_the_same_entry_is_told_as_deleted() -> None:
    answered = answer_to_first(Bench(), CREATE, DeleteDestination(1))
    assert (answered.error, answered.reason) == ("InvalidDestination", "queue:a was just deleted; create it again")


def test_what_begins_to_leave_in_the_same_entry_is_looked_for_elsewhere() -> None:
    bench = Bench()
    bench.create("queue:a")
    bench.apply(Move(1, MoveStage.PLANNED, 3, 0))
    answered = answer_to_first(bench, CREATE, Move(1, MoveStage.BEGUN, 3, 9))
    assert (answered.number, answered.error) == (3, "Moved")
