"""Bodies in fragments, as the engine sees them: one message when all is there, nothing before, nothing of a part."""

import msgspec
import pytest
import xxhash

from alphorn.message_manager.effects import Effect
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.streaming import PLACES_MAX
from alphorn.message_manager.streams import IDLE_MS_MAX, Pieces
from alphorn.model import link
from alphorn.model.commands import (
    Abandon,
    Acknowledge,
    DeleteDestination,
    Entry,
    Forget,
    Fragment,
    Move,
    MoveStage,
    Publish,
    Purge,
    Redrive,
    key_of,
)
from alphorn.model.errors import Corruption
from alphorn.model.messages import FRAGMENT_BYTES_MAX, Flag, Packed, Streamed
from alphorn.model.ranges import RangeSet
from tests.message_manager.bench import ALICE, BOB, Bench, arrived, batch, errors
from tests.message_manager.test_core import FIRST, Serving

LANE = key_of(ALICE, 9)


class StreamBench(Bench):
    """A bench whose producer 9 sends bodies."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = 0

    def fragment(self, destination: int, index: int) -> list[Effect]:
        self.counter += 1
        return self.apply(Fragment(destination, LANE, self.counter, index, memoryview(b"piece")))

    def seal(self, destination: int, fragments: int, size: int = 0, **fields: object) -> list[Effect]:
        self.counter += 1
        return self.apply(sealing(destination, self.counter, fragments, size or 5 * fragments, **fields))

    def body(self, destination: int, fragments: int = 3, **fields: object) -> int:
        """A whole message; gives its counter."""
        for index in range(fragments):
            self.fragment(destination, index)
        assert not errors(self.seal(destination, fragments, **fields))
        return self.counter

    @property
    def retained(self) -> list[tuple[int, int]]:
        return list(self.engine.retained())


def sealing(destination: int, counter: int, fragments: int, size: int, **fields: object) -> Publish:
    streamed = Streamed(fragments, size, xxhash.xxh3_128_digest(b""))
    command = batch(destination, [Packed(None, stream=streamed, **fields)], counter, key=LANE)  # type: ignore[arg-type]
    return msgspec.structs.replace(command, flags=command.flags | Flag.STREAM)


@pytest.fixture(name="bench")
def make_bench() -> StreamBench:
    return StreamBench()


def test_the_body_of_a_consumed_message_is_kept_as_long_as_its_queue_retains_it(bench: StreamBench) -> None:
    queue = bench.create("queue:q", retain_s=10.0)
    first = bench.engine.sequence + 1
    counter = bench.body(queue)
    bench.acknowledge(queue, 1, 1)
    assert bench.retained == [(first, first + 3)]
    assert bench.engine.locate_fragments(LANE, counter, 0)
    refused = bench.answer(Move(queue, MoveStage.PLANNED, 1))
    assert refused.error == "Unavailable"
    assert refused.reason.endswith("have streamed bodies, which do not move; consume them, and retain none of them")
    bench.tick(1_000)
    bench.tick(11_000)
    assert bench.retained == []


@pytest.mark.requirement("VLM-1", "VLM-6")
def test_fragments_are_kept_before_the_last_has_come_and_become_one_message_with_it(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    first = bench.engine.sequence + 1
    for index in range(3):
        assert bench.fragment(queue, index) == []
    assert bench.pending(queue) == []
    assert bench.retained == [(first, first + 2)]
    assert arrived(bench.seal(queue, 3)) == [(queue, 0, 1, 1)]
    assert bench.retained == [(first, first + 3)]
    assert bench.engine.locate_fragments(LANE, 4, 0) == [first, 0, first + 1, 0, first + 2, 0]
    assert bench.engine.locate_fragments(LANE, 4, 2) == [first + 2, 0]


def test_a_consumed_message_lets_go_of_its_fragments(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    counter = bench.body(queue)
    bench.acknowledge(queue, 1, 1)
    assert bench.retained == []
    assert bench.engine.locate_fragments(LANE, counter, 0) == []


def test_a_message_of_the_same_entry_that_waits_does_not_keep_the_fragments_of_one_that_is_consumed(
    bench: StreamBench,
) -> None:
    queue, other = bench.create("queue:q"), bench.create("queue:other")
    bench.fragment(queue, 0)
    bench.apply(batch(other, ["waits"]), sealing(queue, 2, 1, 5))
    bench.acknowledge(queue, 1, 1)
    assert bench.retained == [(4, 4)]


def test_all_subscriptions_have_the_body_and_the_last_lets_go_of_it(bench: StreamBench) -> None:
    topic = bench.create("topic:t")
    bench.subscribe(topic, ALICE)
    bench.subscribe(topic, BOB)
    bench.body(topic)
    bench.apply(Acknowledge(topic, 1, key_of(ALICE, 1), [1, 1]))
    assert len(bench.engine.retained()) == 4
    bench.apply(Acknowledge(topic, 2, key_of(BOB, 1), [1, 1]))
    assert bench.retained == []


def test_a_body_that_no_subscription_wants_is_let_go_at_once(bench: StreamBench) -> None:
    bench.body(bench.create("topic:t"))
    assert bench.retained == []


def test_an_expired_message_takes_its_body_to_the_dead_letter_queue_and_back(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    bench.tick(1_000)
    counter = bench.body(queue, expiration=2_000)
    kept = bench.retained
    bench.tick(3_000)
    assert bench.pending(queue) == []
    assert bench.retained == kept
    assert len(bench.engine.locate_fragments(LANE, counter, 0)) == 6
    dead = bench.named("queue:_DMQ")
    bench.apply(Redrive(dead.number, []))
    assert bench.candidates(queue) == [2]
    assert len(bench.engine.locate_fragments(LANE, counter, 0)) == 6
    bench.apply(Purge(queue))
    assert bench.retained == []


def test_a_returned_message_keeps_its_body(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    counter = bench.body(queue)
    bench.give_back(queue, 1, 1)
    assert bench.candidates(queue) == [1]
    assert len(bench.engine.locate_fragments(LANE, counter, 0)) == 6


def test_what_is_sent_again_is_stored_once(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    bench.fragment(queue, 0)
    kept = bench.retained
    bench.counter = 0
    assert bench.fragment(queue, 0) == []
    assert bench.retained == kept
    bench.seal(queue, 1)
    assert bench.apply(sealing(queue, 2, 1, 5)) == []
    assert bench.pending(queue) == [(1, 1)]


def test_a_gap_between_fragments_changes_nothing_and_says_where_to_go_on(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    bench.fragment(queue, 0)
    bench.counter += 1
    assert errors(bench.fragment(queue, 2)) == ["Unavailable"]
    bench.counter = 1
    assert not errors(bench.fragment(queue, 1))
    assert not errors(bench.seal(queue, 2))


@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_fragment_out_of_order_ends_its_body(bench: StreamBench, index: int) -> None:
    queue = bench.create("queue:q")
    bench.fragment(queue, 0)
    bench.fragment(queue, 1)
    found = errors(bench.fragment(queue, index))
    assert found == ([] if index == 0 else ["PeerViolation"])
    assert errors(bench.seal(queue, 3)) == ["PeerViolation" if index == 0 else "Unavailable"]
    assert bench.pending(queue) == []
    assert bench.retained == []


@pytest.mark.parametrize(("fragments", "size"), [(1, 10), (3, 10), (2, 9), (0, 0)])
def test_a_message_whose_body_is_not_whole_is_refused(bench: StreamBench, fragments: int, size: int) -> None:
    queue = bench.create("queue:q")
    bench.fragment(queue, 0)
    bench.fragment(queue, 1)
    bench.counter += 1
    command = sealing(queue, 3, fragments, size)
    assert bench.answer(command).error == "PeerViolation"
    assert bench.answer(command).error == "PeerViolation", "it stays refused"
    assert bench.pending(queue) == []
    assert not errors(bench.fragment(queue, 0)), "the producer goes on with another body"


def test_a_body_may_be_empty(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    bench.body(queue, 0)
    assert bench.pending(queue) == [(1, 1)]


def test_a_body_for_one_destination_is_not_sealed_for_another(bench: StreamBench) -> None:
    queue, other = bench.create("queue:q"), bench.create("queue:other")
    bench.fragment(queue, 0)
    assert errors(bench.seal(other, 1)) == ["PeerViolation"]


def test_a_deleted_destination_ends_a_body_on_its_way(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    bench.fragment(queue, 0)
    bench.apply(DeleteDestination(queue))
    assert errors(bench.fragment(queue, 1)) == ["InvalidDestination"]
    assert bench.retained == []


def test_nobody_sends_a_body_to_the_dead(bench: StreamBench) -> None:
    dead = bench.create("queue:_DMQ")
    assert errors(bench.fragment(dead, 0)) == ["AccessDenied"]


def test_a_full_queue_refuses_the_message_and_lets_go_of_its_body(bench: StreamBench) -> None:
    queue = bench.create("queue:q", max_length=1, overflow="reject")
    bench.body(queue)
    bench.fragment(queue, 0)
    assert errors(bench.seal(queue, 1)) == ["Blocked"]
    assert len(bench.engine.retained()) == 4


def test_an_abandoned_body_is_let_go(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    bench.fragment(queue, 0)
    bench.counter += 1
    assert bench.apply(Abandon(LANE, bench.counter)) == []
    assert bench.retained == []
    assert errors(bench.seal(queue, 1)) == ["Unavailable"]
    assert bench.pending(queue) == []


def test_a_connection_that_is_forgotten_leaves_no_half_of_a_body(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    bench.fragment(queue, 0)
    assert ALICE in bench.engine.connections()
    bench.apply(Forget(ALICE))
    assert bench.retained == []


def test_a_body_to_which_nothing_is_added_is_given_up_in_time(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    bench.fragment(queue, 0)
    due = bench.engine.next_due()
    assert due is not None
    bench.tick(10_000)
    assert bench.engine.next_due() == 10_000 + IDLE_MS_MAX
    bench.fragment(queue, 1)
    bench.tick(10_000 + IDLE_MS_MAX)
    assert bench.retained, "it was added to meanwhile"
    bench.tick(10_000 + 2 * IDLE_MS_MAX)
    assert bench.retained == []
    assert bench.engine.next_due() is None
    assert errors(bench.fragment(queue, 2)) == ["Unavailable"]


@pytest.mark.parametrize(
    "changes",
    [{"index": -1}, {"blob": memoryview(b"")}, {"blob": memoryview(bytes(FRAGMENT_BYTES_MAX + 1))}, {"counter": 0}],
)
def test_an_impossible_fragment_changes_nothing(bench: StreamBench, changes: dict[str, object]) -> None:
    queue = bench.create("queue:q")
    plain = Fragment(queue, LANE, 1, 0, memoryview(b"piece"))
    assert bench.answer(msgspec.structs.replace(plain, **changes)).error == "PeerViolation"
    assert bench.engine.connections() == set()


def test_a_batch_that_only_says_it_is_streamed_is_refused(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    lying = msgspec.structs.replace(batch(queue, ["plain"], key=LANE), flags=int(Flag.STREAM))
    assert bench.answer(lying).error == "PeerViolation"
    assert bench.pending(queue) == []


@pytest.mark.requirement("VLM-5")
def test_a_body_that_has_the_log_to_itself_is_one_run_whatever_its_size(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    for index in range(5_000):
        bench.fragment(queue, index)
    before = bench.engine.sequence
    assert bench.engine.retained().intervals == 1
    assert bench.seal(queue, 5_000)
    assert len(b"".join(bench.engine.checkpoint())) < 1_000
    places = bench.engine.locate_fragments(LANE, 5_001, 4_000)
    assert len(places) == 2 * PLACES_MAX
    assert places[:2] == [before - 999, 0]


def test_sizes_count_the_whole_body(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    bench.body(queue, 3)
    assert bench.queue(queue).bytes > 15


def test_what_messages_need_and_what_bodies_need_is_needed_together(bench: StreamBench) -> None:
    """A body of 10,000 fragments with 5,000 messages in between, every other of which is consumed."""
    queue, small = bench.create("queue:q"), bench.create("queue:small")
    first, consumed = bench.engine.sequence + 1, set()
    for index in range(10_000):
        bench.fragment(queue, index)
        if index % 2:
            bench.publish(small, f"m{index}")
            if index % 4 == 1:
                consumed.add(bench.engine.sequence)
    bench.seal(queue, 10_000)
    last = bench.engine.sequence
    for position in range(1, 5_001, 2):
        bench.acknowledge(small, position, position)
    assert bench.retained == list(RangeSet((n, n) for n in range(first, last + 1) if n not in consumed))


def test_pieces_are_found_wherever_the_log_interleaves_them() -> None:
    pieces = Pieces()
    places = [(3, 0), (4, 0), (6, 1), (6, 2), (7, 2), (9, 0)]
    for sequence, command in places:
        pieces.append(sequence, command, 10)
    assert (pieces.count, pieces.size, pieces.runs) == (6, 60, 4)
    assert [column.tolist() for column in pieces.entries()] == [[3, 6, 6, 9], [2, 1, 2, 1]]
    for index in range(8):
        for maximum in range(1, 8):
            wanted = [number for place in places[index : index + maximum] for number in place]
            assert pieces.places(index, maximum) == wanted


def test_a_checkpoint_holds_bodies_open_and_whole(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    bench.body(queue)
    bench.body(queue)
    bench.acknowledge(queue, 1, 1)
    for index in range(3):
        bench.fragment(queue, index)
        bench.publish(queue, "between")
    bench.tick(5)
    restored = Engine.restore(bench.engine.checkpoint())
    assert b"".join(restored.checkpoint()) == b"".join(bench.engine.checkpoint())
    assert restored.describe() == bench.engine.describe()
    assert list(restored.retained()) == bench.retained
    entry = Entry([sealing(queue, bench.counter + 1, 3, 15)])
    sequence = bench.engine.sequence + 1
    assert restored.apply(sequence, entry) == bench.engine.apply(sequence, entry)
    place = (LANE, bench.counter + 1, 0)
    assert len(restored.locate_fragments(*place)) == 6
    assert restored.locate_fragments(*place) == bench.engine.locate_fragments(*place)


def test_a_checkpoint_whose_fragments_do_not_follow_is_refused(bench: StreamBench) -> None:
    queue = bench.create("queue:q")
    for index in range(3):
        bench.fragment(queue, index)
        bench.publish(queue, "between")
    data = b"".join(bench.engine.checkpoint())
    starts = b"".join(number.to_bytes(8, "little") for number in (0, 1, 2))
    assert starts in data
    wrong = b"".join(number.to_bytes(8, "little") for number in (0, 2, 2))
    with pytest.raises(Corruption, match="fragments are missing"):
        Engine.restore([data.replace(starts, wrong)])


@pytest.mark.requirement("VLM-4")
def test_the_primary_says_where_pieces_are_and_nothing_of_what_it_has_not_come_to() -> None:
    serving = Serving()
    serving.introduce(1, FIRST)
    serving.apply(Fragment(1, LANE, 1, 0, memoryview(b"piece")))
    serving.apply(sealing(1, 2, 1, 5))
    serving.ask(1, link.LocateFragments(70, LANE, 2, 3, 0))
    serving.ask(1, link.LocateFragments(71, LANE, 7, 3, 0))
    serving.ask(1, link.LocateFragments(72, LANE, 2, 4, 0))
    found = [frame for _, frame in serving.told if isinstance(frame, link.FragmentsLocated)]
    assert found == [link.FragmentsLocated(70, [2, 0]), link.FragmentsLocated(71, [])]
