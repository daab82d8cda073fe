"""A name that moved, or was to move, and was deleted and used again: nothing of the one before gets into the other."""

import msgspec
import pytest

from alphorn.message_manager.queue import Queue
from alphorn.model.commands import Carried, CreateDestination, DeleteDestination, Expect, Publish, decode_entry
from alphorn.model.destinations import Policy
from tests.message_manager.test_moving import QUEUE, publish
from tests.message_manager.travel import Side, Travel


@pytest.fixture
def here() -> Side:
    return Side(0)


@pytest.fixture
def there() -> Side:
    return Side(1)


def bodies_at(side: Side, number: int) -> list[object]:
    """What is pending there, as its log has it."""
    queue, found = side.engine.destinations[number], []
    assert isinstance(queue, Queue)
    for run in queue.segments.runs(1, queue.next_position):
        batch = decode_entry(side.log[run.sequence]).commands[run.command]
        assert isinstance(batch, Publish | Carried)
        bodies = [packed[0] for packed in msgspec.msgpack.decode(batch.blob)][run.index : run.index + run.count]
        found += [body for place, body in enumerate(bodies) if run.position + place in queue.backlog.pending]
    return found


@pytest.mark.parametrize("is_late", [False, True])
def test_a_queue_that_is_made_anew_does_not_get_what_was_carried_of_one_that_was_deleted(
    here: Side, there: Side, *, is_late: bool
) -> None:
    here.order(CreateDestination(QUEUE, Policy()))
    here.order(publish(1, 1, 10))
    first = Travel(here, there, 1)
    for step in (first.plan, first.expect, first.copy):
        step()
    late = list(Travel(here, there, 1).carried()) if is_late else []
    here.order(DeleteDestination(1))  # it is only planned to move
    here.order(CreateDestination(QUEUE, Policy()))
    here.order(publish(2, 11, 5))
    second = Travel(here, there, 2)
    second.plan()
    second.expect()
    for command in late:  # of the first carrier, which had only hung
        carried = msgspec.structs.replace(command, destination=first.target)
        assert there.answer(carried).error == "InvalidDestination"
        assert there.answer(Expect(QUEUE, Policy(), 0, 1)).error == "Misuse"
    for step in second.steps()[2:]:
        step()
    assert bodies_at(there, second.target) == [11, 12, 13, 14, 15]


@pytest.mark.parametrize("is_moved_on", [False, True])
def test_a_destination_that_came_and_is_gone_does_not_come_again(here: Side, there: Side, *, is_moved_on: bool) -> None:
    """Its carrier, or the primary it left, died before that knew of its arrival."""
    here.order(CreateDestination(QUEUE, Policy()))
    here.order(publish(1, 1, 2))
    travel = Travel(here, there, 1)
    for step in (travel.plan, travel.expect, travel.copy, travel.begin, travel.copy, travel.arrive, travel.settle):
        step()
    if is_moved_on:
        Travel(there, Side(2), travel.target).run()
    else:
        there.order(DeleteDestination(travel.target))
    there.restart()
    again = Travel(here, there, 1)
    again.expect()
    assert again.start == 0, "it has come"
    assert QUEUE not in there.engine.numbers
