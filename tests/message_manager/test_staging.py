"""Messages that are staged and published: unseen until then, all at once, and once."""

import msgspec
import pytest

from alphorn.message_manager.effects import Answer
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.writers import ATTEMPTS_MAX, STAGED_IDLE_MS, WRITER_IDLE_MS
from alphorn.model.commands import (
    WRITER_NAME_MAX,
    DeleteDestination,
    DropStaged,
    Entry,
    PublishStaged,
    Stage,
    decode_entry,
    encode_entry,
    key_of,
)
from alphorn.model.messages import Packed
from tests.message_manager.bench import ALICE, Bench, arrived, batch, errors


def staged(
    destination: int, *messages: object, batch_number: int = 0, partition: int = 0, attempt: int = 7, part: int = 0
):
    """A staged batch of the writer w."""
    plain = batch(destination, messages)
    fields = msgspec.structs.astuple(plain)
    return Stage(*fields, "w", batch_number, partition, attempt, part)


class Log(Bench):
    """A bench whose engine can read its own log again."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[int, Entry] = {}
        self.engine.read_with(self.entries.get)

    def apply(self, *commands):
        sequence = self.engine.sequence + 1
        self.entries[sequence] = decode_entry(encode_entry(Entry(list(commands))))
        return self.engine.apply(sequence, self.entries[sequence])


def checkpoint_of(engine: Engine) -> bytes:
    return b"".join(engine.checkpoint())


@pytest.fixture
def bench() -> Log:
    return Log()


def test_staged_messages_are_in_no_destination(bench: Log) -> None:
    queue = bench.create("queue:q")
    assert bench.apply(staged(queue, "a", "b")) == []
    assert bench.pending(queue) == []
    assert list(bench.engine.retained()) == [(2, 2)], "the log must keep them"


def test_publishing_makes_all_parts_visible_in_their_order(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "c", partition=1))
    bench.apply(staged(queue, "a", "b"), staged(queue, "x", part=1))
    effects = bench.apply(PublishStaged("w", 0, [(0, 7, 2, 3), (1, 7, 1, 1)]))
    assert arrived(effects) == [(queue, 0, 1, 2), (queue, 0, 3, 3), (queue, 0, 4, 4)]
    runs = list(bench.queue(queue).segments.runs(1, 4))
    assert [(run.sequence, run.command, run.arrival) for run in runs] == [(3, 0, 4), (3, 1, 4), (2, 0, 4)]


def test_a_batch_is_published_once(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "a"))
    publish = PublishStaged("w", 0, [(0, 7, 1, 1)])
    bench.apply(publish)
    assert bench.apply(publish) == []
    bench.apply(staged(queue, "a", attempt=8))
    assert bench.apply(PublishStaged("w", 0, [(0, 8, 1, 1)])) == []
    assert bench.pending(queue) == [(1, 1)]
    assert list(bench.engine.retained()) == [(2, 2)], "what came too late is not kept"


def test_a_writer_that_has_gone_back_is_told_of_its_newest_batch(bench: Log) -> None:
    queue = bench.create("queue:q")
    for number in range(4):
        bench.apply(staged(queue, "a", batch_number=number), PublishStaged("w", number, [(0, 7, 1, 1)]))
    assert bench.apply(staged(queue, "a", batch_number=3, attempt=8)) == [], "a batch that is run again is no news"
    assert bench.apply(staged(queue, "a", batch_number=2, attempt=8)) == [Answer(0, number=3)]
    assert bench.apply(PublishStaged("w", 2, [(0, 8, 1, 1)])) == []
    assert bench.pending(queue) == [(1, 4)]


def test_a_part_that_comes_twice_is_stored_once(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "a"))
    bench.apply(staged(queue, "a"))
    bench.apply(PublishStaged("w", 0, [(0, 7, 1, 1)]))
    assert bench.pending(queue) == [(1, 1)]


def test_only_the_attempts_that_are_named_become_visible(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "lost"), staged(queue, "kept", "kept too", attempt=8))
    bench.apply(PublishStaged("w", 0, [(0, 8, 1, 2)]))
    assert bench.pending(queue) == [(1, 2)]
    assert bench.apply(PublishStaged("w", 0, [(0, 7, 1, 1)])) == []


def test_attempts_that_nobody_will_publish_make_way_for_newer_ones(bench: Log) -> None:
    """A query that fails at the same batch again and again, and is started each time, is never idle."""
    queue = bench.create("queue:q")
    for attempt in range(10 * ATTEMPTS_MAX):
        bench.apply(staged(queue, "a", partition=0, attempt=100 - attempt))
        bench.apply(staged(queue, "b", partition=0, attempt=100 - attempt, part=1))
        bench.apply(staged(queue, "c", partition=1, attempt=attempt))
    assert sum(last - first + 1 for first, last in bench.engine.retained()) == 3 * ATTEMPTS_MAX
    assert bench.engine._state.writers.staged.size == 3 * ATTEMPTS_MAX * len(staged(queue, "a").blob)
    twin = Engine.restore(bench.engine.checkpoint())
    for engine in (bench.engine, twin):
        sequence = engine.sequence + 1
        engine.apply(sequence, Entry([staged(queue, "d", attempt=3)]))
    assert checkpoint_of(twin) == checkpoint_of(bench.engine), "which one goes does not depend on who restarted"
    bench.apply(PublishStaged("w", 0, [(0, 61, 2, 2), (1, 39, 1, 1)]))
    assert bench.pending(queue) == [(1, 3)]


def test_writers_do_not_know_each_other(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "a"), PublishStaged("w", 0, [(0, 7, 1, 1)]))
    other = msgspec.structs.replace(staged(queue, "b"), writer="v")
    bench.apply(other, PublishStaged("v", 0, [(0, 7, 1, 1)]))
    assert bench.pending(queue) == [(1, 2)]


@pytest.mark.parametrize("attempts", [[(0, 7, 2, 1)], [(0, 7, 1, 2)], [(1, 7, 1, 1)], [(0, 8, 1, 1)]])
def test_what_is_not_staged_as_it_was_sent_is_not_published(bench: Log, attempts) -> None:
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "a"))
    assert errors(bench.apply(PublishStaged("w", 0, attempts))) == ["Unavailable"]
    assert bench.pending(queue) == []
    bench.apply(PublishStaged("w", 0, [(0, 7, 1, 1)]))
    assert bench.pending(queue) == [(1, 1)], "and can be put right"


def test_a_number_of_parts_that_nobody_has_staged_costs_nothing(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "a"))
    for writer in ("w", "somebody else"):
        assert errors(bench.apply(PublishStaged(writer, 0, [(0, 7, 1 << 62, 1)]))) == ["Unavailable"]
    assert bench.pending(queue) == []


def test_a_partition_that_is_named_twice_is_refused(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "a"))
    assert errors(bench.apply(PublishStaged("w", 0, [(0, 7, 1, 1), (0, 7, 1, 1)]))) == ["PeerViolation"]
    assert bench.pending(queue) == []


def test_where_one_destination_refuses_nothing_is_published(bench: Log) -> None:
    full = bench.create("queue:full", max_length=1, overflow="reject")
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "a"), staged(full, "b", "c", part=1))
    assert errors(bench.apply(PublishStaged("w", 0, [(0, 7, 2, 3)]))) == ["Blocked"]
    assert (bench.pending(queue), bench.pending(full)) == ([], [])


def test_a_destination_that_is_gone_is_named(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "a"), DeleteDestination(queue))
    assert errors(bench.apply(PublishStaged("w", 0, [(0, 7, 1, 1)]))) == ["InvalidDestination"]
    assert errors(bench.apply(staged(queue, "a"))) == ["InvalidDestination"]


def test_what_is_dropped_is_not_kept(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "a"), staged(queue, "b", batch_number=1))
    bench.apply(DropStaged("w", 0), DropStaged("nobody", 0))
    assert errors(bench.apply(PublishStaged("w", 0, [(0, 7, 1, 1)]))) == ["Unavailable"]
    bench.apply(PublishStaged("w", 1, [(0, 7, 1, 1)]))
    assert bench.pending(queue) == [(1, 1)]


def test_impossible_batches_are_refused(bench: Log) -> None:
    queue = bench.create("queue:q")
    wrong = [
        msgspec.structs.replace(staged(queue, "a"), count=2),
        msgspec.structs.replace(staged(queue, "a"), producer=b"short"),
        msgspec.structs.replace(staged(queue, "a"), writer=""),
        msgspec.structs.replace(staged(queue, "a"), writer="w" * (WRITER_NAME_MAX + 1)),
        msgspec.structs.replace(staged(queue, "a"), batch=-1),
    ]
    for command in wrong:
        assert errors(bench.apply(command)) == ["PeerViolation"]
    assert errors(bench.apply(PublishStaged("", 0, []))) == ["PeerViolation"]


def test_headers_of_staged_messages_count_when_they_are_published(bench: Log) -> None:
    topic = bench.create("topic:t")
    chosen = bench.subscribe(topic, selector="region = 'eu'")
    queue = bench.create("queue:q")
    bench.apply(
        staged(topic, Packed("a", {"region": "us"}), Packed("b", {"region": "eu"})),
        staged(queue, Packed("late", priority=1), Packed("soon", priority=9), part=1),
    )
    bench.apply(PublishStaged("w", 0, [(0, 7, 2, 4)]))
    assert bench.pending(topic, chosen) == [(2, 2)]
    assert bench.candidates(queue) == [2, 1]


def test_staged_messages_keep_the_producer_that_staged_them(bench: Log) -> None:
    topic = bench.create("topic:t")
    bench.subscribe(topic, ALICE, no_local=ALICE)
    bench.apply(staged(topic, "from alice"), PublishStaged("w", 0, [(0, 7, 1, 1)]))
    assert bench.engine.describe()["producers"] == 0, "counters are not the log's to count"
    assert key_of(ALICE, 1) == staged(topic, "a").producer


def test_a_checkpoint_keeps_what_is_staged_and_what_was_published(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "a"), PublishStaged("w", 0, [(0, 7, 1, 1)]))
    for part in range(3):
        bench.apply(staged(queue, f"b{part}", batch_number=1, part=part))
    twin = Engine.restore(bench.engine.checkpoint())
    assert checkpoint_of(twin) == checkpoint_of(bench.engine)
    assert list(twin.retained()) == list(bench.engine.retained())
    for engine in (bench.engine, twin):
        again = [PublishStaged("w", 0, [(0, 7, 1, 1)]), PublishStaged("w", 1, [(0, 7, 3, 3)])]
        assert errors(engine.apply(engine.sequence + 1, Entry(list(again)))) == []
        assert engine.destinations[queue].backlog.count == 4  # type: ignore[union-attr]
    assert checkpoint_of(twin) == checkpoint_of(bench.engine)


def test_what_nobody_publishes_is_let_go_after_a_day(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.tick(1_000)
    bench.apply(staged(queue, "a"))
    bench.tick(2_000)
    assert bench.engine.next_due() == 2_000 + STAGED_IDLE_MS
    bench.tick(1_999 + STAGED_IDLE_MS)
    assert list(bench.engine.retained()) == [(3, 3)]
    bench.tick(2_000 + STAGED_IDLE_MS)
    assert list(bench.engine.retained()) == []


def test_a_writer_is_remembered_for_a_month(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.apply(staged(queue, "a"), PublishStaged("w", 0, [(0, 7, 1, 1)]))
    bench.tick(1_000)
    bench.tick(999 + WRITER_IDLE_MS)
    bench.apply(PublishStaged("w", 0, [(0, 7, 1, 1)]))
    assert bench.pending(queue) == [(1, 1)], "it is known, and heard of just now"
    bench.tick(2_000 + WRITER_IDLE_MS)
    bench.tick(2_000 + 2 * WRITER_IDLE_MS)
    assert bench.engine.describe()["writers"] == 0


def sized(queue: int, size: int, most: int, *, writer: str = "w", part: int = 0, batch_number: int = 0) -> Stage:
    """A staged batch whose blob takes about so many bytes, of a writer that may have so many."""
    made = staged(queue, "x" * size, part=part, batch_number=batch_number)
    return msgspec.structs.replace(made, writer=writer, staged_bytes_max=most)


def test_a_writer_stages_no_more_bytes_than_it_may_and_publishing_makes_room(bench: Log) -> None:
    queue = bench.create("queue:q")
    assert bench.apply(sized(queue, 600, 1000)) == []
    assert errors(bench.apply(sized(queue, 600, 1000, part=1))) == ["Blocked"]
    assert bench.apply(sized(queue, 600, 1000)) == [], "what is staged may come again"
    bench.apply(PublishStaged("w", 0, [(0, 7, 1, 1)]))
    assert bench.apply(sized(queue, 600, 1000, batch_number=1)) == []


def test_all_writers_together_stage_no_more_than_twice_as_much_as_one_may(bench: Log) -> None:
    queue = bench.create("queue:q")
    for writer in ("a", "b"):
        assert bench.apply(sized(queue, 900, 1000, writer=writer)) == []
    [answer] = bench.apply(sized(queue, 900, 1000, writer="c"))
    assert answer.error == "Blocked"
    assert answer.reason.startswith("all writers of the channel have 18")
    bench.apply(DropStaged("a", 0))
    assert bench.apply(sized(queue, 900, 1000, writer="c")) == []


def test_the_bytes_that_are_staged_are_counted_the_same_after_a_checkpoint(bench: Log) -> None:
    queue = bench.create("queue:q")
    for number, writer in enumerate(("a", "b", "a")):
        bench.apply(sized(queue, 100 * (number + 1), 0, writer=writer, part=number))
    restored = Engine.restore([checkpoint_of(bench.engine)])
    writers, before = restored._state.writers, bench.engine._state.writers
    assert writers.staged.size == before.staged.size == sum(writer.size for _, writer in before)
    assert {name: writer.size for name, writer in writers} == {name: writer.size for name, writer in before}


def test_what_is_let_go_because_its_writer_was_silent_counts_no_more(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.apply(sized(queue, 900, 1000))
    bench.tick(1000)
    bench.tick(1000 + STAGED_IDLE_MS)
    assert bench.engine._state.writers.staged.size == 0
    bench.apply(sized(queue, 900, 1000, writer="other"))
    bench.tick(2000 + STAGED_IDLE_MS)
    bench.tick(2000 + STAGED_IDLE_MS + WRITER_IDLE_MS)
    assert bench.engine._state.writers.staged.size == 0
