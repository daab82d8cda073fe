"""Batches of writers that are repeated after a destination has moved: each is in each destination once."""

from collections.abc import Sequence

import msgspec
import pytest

from alphorn.message_manager import restoring, writers
from alphorn.message_manager.checkpoint import frame
from alphorn.message_manager.checkpoint_records import Part, Record
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.writers import DESTINATIONS_MAX, Writer
from alphorn.model.commands import (
    CreateDestination,
    DeleteDestination,
    DropStaged,
    PublishStaged,
    Stage,
    decode_entry,
    key_of,
)
from alphorn.model.destinations import Destination, DestinationKind, Policy
from alphorn.model.messages import Packed
from tests.message_manager.travel import Side, Travel

PRODUCER = key_of(b"sixteen bytes !!", 1)
QUEUE = Destination(DestinationKind.QUEUE, "orders")
TOPIC = Destination(DestinationKind.TOPIC, "prices")
OTHER = Destination(DestinationKind.QUEUE, "others")


def stage(number: int, *bodies: str, batch: int, attempt: int = 1, part: int = 0, writer: str = "query") -> Stage:
    blob = memoryview(msgspec.msgpack.encode([Packed(body) for body in bodies]))
    return Stage(number, PRODUCER, 1, len(bodies), 0, 5, blob, writer=writer, batch=batch, attempt=attempt, part=part)


def publish(
    batch: int, parts: int, messages: int, *, attempt: int = 1, writer: str = "query", into: Sequence[int] = ()
) -> PublishStaged:
    return PublishStaged(writer, batch, [(0, attempt, parts, messages)], list(into))


def stage_all(side: Side, batch: int, *numbers: int, attempt: int = 1) -> PublishStaged:
    """What a task does on one channel, as the sink has it: one message for each destination. Publishes them later."""
    for part, number in enumerate(numbers):
        assert not side.answer(stage(number, f"batch {batch}", batch=batch, attempt=attempt, part=part)).error
    return publish(batch, len(numbers), len(numbers), attempt=attempt, into=numbers)


def write(side: Side, batch: int, *numbers: int, attempt: int = 1) -> None:
    """A run of a batch on one channel."""
    assert not side.answer(stage_all(side, batch, *numbers, attempt=attempt)).error


def bodies(side: Side, number: int) -> list[str]:
    """What a queue holds, in order."""
    queue = side.engine.destinations[number]
    found: list[str] = []
    for _, backlog in queue.backlogs():
        for first, last in backlog.pending:
            for run in queue.segments.runs(first, last):
                blob = decode_entry(side.log[run.sequence]).commands[run.command].blob  # type: ignore[union-attr]
                packed = msgspec.msgpack.decode(blob)[run.index : run.index + run.count]
                found += [message[0] for message in packed]
    return found


def side(number: int, *destinations: Destination) -> Side:
    made = Side(number)
    for destination in destinations:
        made.order(CreateDestination(destination, Policy()))
    return made


@pytest.fixture
def here() -> Side:
    return side(0, QUEUE, OTHER)


@pytest.fixture
def there() -> Side:
    return side(1, Destination(DestinationKind.QUEUE, "another"))


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.requirement("CM-25")
def test_a_batch_that_was_published_before_a_move_is_not_published_after_it(
    here: Side, there: Side, *, is_restarted: bool
) -> None:
    write(here, 3, 1, 2)
    if is_restarted:
        here.restart()
    target = Travel(here, there, 1).run()
    if is_restarted:
        there.restart()
    write(here, 3, 2, attempt=2)
    write(there, 3, 1, target, attempt=2)
    assert bodies(here, 2) == ["batch 3"]
    assert bodies(there, target) == ["batch 3"], "it came with the queue"
    assert bodies(there, 1) == ["batch 3"], "which was not there before"
    write(there, 4, 1, target)
    assert bodies(there, target) == ["batch 3", "batch 4"]


def test_a_batch_that_only_the_other_channel_had_published_is_published_after_a_move(here: Side, there: Side) -> None:
    write(here, 2, 1)
    write(there, 2, 1)
    write(there, 3, 1)
    target = Travel(here, there, 1).run()
    there.restart()
    write(there, 3, 1, target, attempt=2)
    assert bodies(there, target) == ["batch 2", "batch 3"]
    assert bodies(there, 1) == ["batch 2", "batch 3"]
    write(there, 3, 1, target, attempt=3)
    assert bodies(there, target) == ["batch 2", "batch 3"], "once"
    assert not there.engine.retained().intersection(there.engine.sequence - 1, there.engine.sequence)


def test_a_destination_that_no_writer_knew_gets_its_part_of_the_newest_batch(here: Side, there: Side) -> None:
    write(there, 3, 1)
    target = Travel(here, there, 1).run()
    write(there, 3, 1, target, attempt=2)
    assert bodies(there, target) == ["batch 3"]
    assert bodies(there, 1) == ["batch 3"]


def test_earlier_batches_stay_published_through_a_move(here: Side, there: Side) -> None:
    write(here, 3, 1)
    write(here, 4, 2)
    target = Travel(here, there, 1).run()
    write(there, 3, target)
    assert bodies(there, target) == ["batch 3"]


def test_what_was_published_is_known_after_a_second_move(here: Side, there: Side) -> None:
    write(here, 3, 1)
    third = side(2, OTHER)
    target = Travel(there, third, Travel(here, there, 1).run()).run()
    write(third, 3, 1, target)
    assert bodies(third, target) == ["batch 3"]
    assert bodies(third, 1) == ["batch 3"]


def test_a_destination_that_comes_back_knows_what_was_published_elsewhere(here: Side, there: Side) -> None:
    write(here, 3, 1)
    target = Travel(here, there, 1).run()
    write(there, 4, target)
    back = Travel(there, here, target).run()
    write(here, 4, back, 2)
    assert bodies(here, back) == ["batch 3", "batch 4"]
    assert bodies(here, 2) == ["batch 4"]


def test_a_batch_that_is_asked_for_again_after_a_move_stays_once_and_is_answered(here: Side, there: Side) -> None:
    write(there, 3, 1)
    target = Travel(here, there, 1).run()
    there.restart()
    assert not there.answer(publish(3, 1, 1)).error
    assert (bodies(there, 1), bodies(there, target)) == (["batch 3"], [])


def test_other_attempts_at_a_batch_after_a_move_must_be_staged_anew(here: Side, there: Side) -> None:
    """Nobody can tell then whether something of it was to be published where the destination was."""
    write(there, 3, 1)
    target = Travel(here, there, 1).run()
    answer = there.answer(publish(3, 1, 1, attempt=5))
    assert answer.error == "Unavailable"
    assert "run the batch again" in answer.reason
    write(there, 3, 1, target, attempt=2)
    assert (bodies(there, 1), bodies(there, target)) == (["batch 3"], ["batch 3"])


def test_a_batch_with_other_messages_in_a_second_run_adds_none_where_it_was_published(here: Side, there: Side) -> None:
    target = Travel(here, there, 1).run()
    write(there, 2, 1)
    write(there, 3, 1)
    write(there, 3, target, attempt=2)
    assert bodies(there, target) == []


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_let_go_before_a_move_is_published_when_the_batch_is_run_again(
    here: Side, there: Side, *, is_restarted: bool
) -> None:
    """A late word of an earlier run lets go of what a task staged; then the destination moves, while the batch runs."""
    write(here, 2, 1)
    write(there, 2, 1)
    here.order(stage(1, "batch 3", batch=3, attempt=7))
    here.order(DropStaged("query", 3))
    target = Travel(here, there, 1).run()
    write(there, 3, 1, attempt=8)
    if is_restarted:
        there.restart()
    assert here.answer(publish(3, 1, 1, attempt=7)).error == "Unavailable"
    write(there, 3, 1, target, attempt=9)
    assert bodies(there, 1) == ["batch 2", "batch 3"]
    assert bodies(there, target) == ["batch 2", "batch 3"]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("steps", [4, 8], ids=["on its way", "there"])
@pytest.mark.requirement("CM-25")
def test_a_batch_is_not_taken_for_published_where_a_destination_that_had_come_has_left_without_it(
    here: Side, there: Side, *, steps: int, is_restarted: bool
) -> None:
    """A driver died before it published `here`, and the batch is run again where all its destinations are now.

    Once it is staged, a late word of the earlier run lets go of it, and one of them moves on.
    """
    write(there, 3, 1)
    came = Travel(here, there, 1).run()
    late = stage_all(there, 3, 1, came, attempt=2)
    there.order(DropStaged("query", 3))
    onward = Travel(there, side(2, OTHER), came)
    for step in onward.steps()[:steps]:
        step()
    if is_restarted:
        there.restart()
    answer = there.answer(late)
    assert answer.error == "Unavailable"
    assert "run the batch again" in answer.reason
    for step in onward.steps()[steps:]:
        step()
    write(there, 3, 1, attempt=3)
    write(onward.there, 3, onward.target, attempt=3)
    assert bodies(there, 1) == ["batch 3"]
    assert bodies(onward.there, onward.target) == ["batch 3"]


def test_a_batch_is_not_taken_for_published_where_a_destination_left_before_that(here: Side, there: Side) -> None:
    """Two runs of a batch: one staged for a queue where it was, the other published when it was elsewhere."""
    late = stage_all(here, 3, 1, 2)
    here.order(DropStaged("query", 3))
    target = Travel(here, there, 1).run()
    write(here, 3, 2, attempt=2)
    assert here.answer(late).error == "Unavailable"
    write(there, 3, target, attempt=2)
    assert bodies(there, target) == ["batch 3"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_batch_stays_published_where_a_destination_has_left_with_it(
    here: Side, there: Side, *, is_restarted: bool
) -> None:
    """Of a batch that is run again nothing is staged where all have it; that is no reason to run it once more."""
    write(here, 2, 2)
    write(here, 3, 2)
    again = stage_all(here, 3, 1, 2, attempt=2)
    target = Travel(here, there, 2).run()
    if is_restarted:
        here.restart()
    assert not here.answer(again).error
    write(there, 3, 1)
    again = stage_all(there, 3, 1, target, attempt=3)
    Travel(there, side(2), target).run()
    if is_restarted:
        there.restart()
    assert not there.answer(again).error
    assert bodies(there, 1) == ["batch 3"]


def test_the_same_publication_stays_done_when_its_record_of_a_destination_that_left_is_forgotten(
    here: Side, there: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "DESTINATIONS_MAX", 1)
    write(here, 3, 1, 2)
    Travel(here, there, 1).run()
    assert not here.answer(publish(3, 2, 2, into=[1, 2])).error


def test_a_late_copy_of_the_batch_before_does_not_count_for_what_came_since(here: Side, there: Side) -> None:
    write(there, 2, 1)
    target = Travel(here, there, 1).run()
    write(there, 2, 1, attempt=2)
    write(there, 3, 1)
    write(there, 3, 1, target, attempt=2)
    assert bodies(there, 1) == ["batch 2", "batch 3"]
    assert bodies(there, target) == ["batch 3"]


def test_what_is_staged_too_late_is_not_kept_when_a_deleted_destination_came(here: Side, there: Side) -> None:
    write(there, 3, 1)
    target = Travel(here, there, 1).run()
    there.order(DeleteDestination(target))
    there.order(stage(1, "late", batch=3, attempt=2))
    assert not there.engine.retained().intersection(there.engine.sequence, there.engine.sequence)


def test_what_a_writer_does_after_a_destination_has_left_does_not_count_for_it(here: Side, there: Side) -> None:
    write(here, 3, 1)
    travel = Travel(here, there, 1)
    for step in travel.steps()[:5]:
        step()
    write(here, 4, 2)
    for step in travel.steps()[5:]:
        step()
    write(there, 4, travel.target)
    assert bodies(there, travel.target) == ["batch 3", "batch 4"]


def test_replicas_agree_on_what_writers_have_published_after_a_move(here: Side, there: Side) -> None:
    write(here, 3, 1, 2)
    target = Travel(here, there, 1).run()
    write(there, 3, 1, target)
    twin = Side(1)
    for sequence in sorted(there.log):
        twin.engine.apply(sequence, decode_entry(there.log[sequence]))
        if sequence % 3 == 0:
            twin.restart()
    assert b"".join(twin.engine.checkpoint()) == b"".join(there.engine.checkpoint())


def test_a_writer_remembers_so_many_destinations_and_no_more() -> None:
    writer = Writer()
    writer.publish(1, range(1, DESTINATIONS_MAX + 1), 5, 0)
    writer.publish(2, [1, DESTINATIONS_MAX + 1], 6, 0)
    assert len(writer.into) == DESTINATIONS_MAX
    assert 2 not in writer.into, "the one that it has not published into for longest"
    assert writer.into[1] == 2


def test_a_checkpoint_that_does_not_say_when_a_destination_came_is_read(here: Side, there: Side) -> None:
    target = Travel(here, there, 1).run()
    gathered = bytearray()
    for body in restoring._bodies(there.engine.checkpoint()):
        record = msgspec.msgpack.decode(body, type=Record)
        if isinstance(record, Part) and record.what == "came":
            record = Part(0, 0, "came", record.columns[:3])
        frame(gathered, record)
    assert Engine.restore([bytes(gathered)]).moves.came == {target: (0, 1, 0)}
