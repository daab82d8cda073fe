"""The book of a simulated cluster: what counts as acknowledged in the log."""

from types import SimpleNamespace
from typing import Any

from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    DeleteDestination,
    Entry,
    Move,
    MoveStage,
    encode_entry,
    key_of,
)
from alphorn.testing.book import Book
from alphorn.testing.watch import Watch

CONSUMER = key_of(bytes(16), 1)


def _acknowledged(*said: AnyCommand) -> list[tuple[int, int]]:
    """What the book has as acknowledged after these entries of one log."""
    watch = Watch()
    book = Book(watch)
    for sequence, command in enumerate(said, 1):
        assignment = SimpleNamespace(epoch=1)
        output: Any = SimpleNamespace(sequence=sequence, assignment=assignment, payload=encode_entry(Entry([command])))
        for callback in watch.delivered:
            callback(SimpleNamespace(), output)  # type: ignore[arg-type]
    return list(book.acknowledged.get(CONSUMER, ()))


def test_an_acknowledgement_that_a_log_refuses_behind_a_move_is_none() -> None:
    before, behind = Acknowledge(5, 0, CONSUMER, [1, 1]), Acknowledge(5, 0, CONSUMER, [2, 2])
    plan, begin = Move(5, MoveStage.PLANNED, 1), Move(5, MoveStage.BEGUN, 1, 7)
    assert _acknowledged(plan, before, begin, behind) == [(1, 1)]
    assert _acknowledged(plan, begin, Acknowledge(6, 0, CONSUMER, [2, 2])) == [(2, 2)]


def test_a_move_that_cannot_begin_makes_no_difference() -> None:
    plan, begin = Move(5, MoveStage.PLANNED, 1), Move(5, MoveStage.BEGUN, 1, 7)
    for end in (Move(5, MoveStage.CANCELLED, 1), DeleteDestination(5)):
        assert _acknowledged(plan, end, begin, Acknowledge(5, 0, CONSUMER, [2, 2])) == [(2, 2)]
