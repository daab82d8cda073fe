"""A replica hashes what it keeps from its own entries, and readers find the same from what they are given."""

import msgspec
import pytest

from alphorn.message_manager import reading
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.reading import Reading
from alphorn.model import link, log_link
from alphorn.model.commands import Entry, Fragment, Publish, PublishStaged, key_of
from alphorn.model.log_hash import MASK, base_of, hash_of
from alphorn.model.messages import Packed
from tests.message_manager.bench import ALICE, batch
from tests.message_manager.test_staging import Log, staged
from tests.message_manager.test_streaming import LANE, sealing
from tests.message_manager.test_transacting import commit, decide, finish, prepare

FAR = (1 << 40, 0, 0)
BOTH = key_of(ALICE, 2)


@pytest.fixture
def bench() -> Log:
    return Log()


def hashed(bench: Log, topic: int, *, engine: Engine | None = None) -> tuple[int, int]:
    """Messages and hash of everything, from as many answers as it takes."""
    place: log_link.Place = (0, 0, 0)
    messages = total = 0
    while place < (bench.engine.sequence + 1, 0, 0):
        answer = Reading(bench.entries.get).answer(engine or bench.engine, log_link.Hash(1, topic, place, FAR))
        assert answer is not None
        told = link.decode_told(link.encode(answer)[link.LENGTH_BYTES :])
        assert isinstance(told, log_link.Hashed)
        assert told.next > place
        place = told.next
        messages += told.messages
        total += told.hash
    return messages, total & MASK


def read(bench: Log, topic: int) -> tuple[int, int]:
    """What a reader makes of what it is given, message by message."""
    answer = Reading(bench.entries.get).answer(bench.engine, log_link.Scan(1, [topic], (0, 0, 0), FAR, 16 << 20))
    assert isinstance(answer, log_link.Scanned)
    assert answer.next == (bench.engine.sequence + 1, 0, 0)
    total = 0
    for one in answer.batches:
        base = base_of(one.arrival, one.producer, one.counter, one.flags, one.timestamp, one.blob)
        total += sum(hash_of(base, index, 1) for index in range(one.index, one.index + one.count))
    return sum(one.count for one in answer.batches), total & MASK


def fill(bench: Log) -> int:
    """A topic with messages that came in every way there is; 22 of them are kept."""
    topic, other = bench.create("topic:t", retain_s=100.0), bench.create("topic:other", retain_s=100.0)
    bench.publish(topic, *"abc")
    bench.apply(batch(topic, ["x"], key=BOTH), batch(other, ["x"], 2, key=BOTH), batch(topic, ["x", "y"], 3, key=BOTH))
    bench.apply(batch(topic, ["x", "y"], 3, key=BOTH), batch(topic, ["y", "z"], 4, key=BOTH))  # partly sent again
    bench.apply(staged(topic, "s1", "s2"), staged(topic, "s3", part=1))
    bench.apply(staged(topic, "s4", "s5", partition=1), staged(topic, "never", attempt=8))
    bench.publish(topic, Packed("late", deliver_at=50_000), Packed("soon", priority=9, key="k"))
    bench.apply(PublishStaged("w", 0, [(0, 7, 2, 3), (1, 7, 1, 2)]))
    commit(bench, batch(topic, ["t1", "t2"], key=key_of(ALICE, 3)))
    prepare(bench, batch(topic, ["p1", "p2"], key=key_of(ALICE, 4)), counter=2)
    bench.publish(topic, "between")
    decide(bench, is_commit=True, counter=2)
    finish(bench, is_commit=True, counter=2)
    for index in range(3):
        bench.apply(Fragment(topic, LANE, index + 1, index, memoryview(b"piece")))
    bench.apply(sealing(topic, 4, 3, 15))
    bench.publish(topic, Packed("short", expiration=2_000), "long", Packed("short", expiration=2_000), "longer")
    bench.tick(1_000)
    bench.tick(5_000)
    return topic


def test_a_replica_and_a_reader_find_the_same_whichever_way_messages_came(bench: Log) -> None:
    topic = fill(bench)
    messages, found = hashed(bench, topic)
    assert (messages, found) == read(bench, topic)
    assert messages == 22


def test_it_is_found_in_pieces_that_divide_an_entry_where_they_must(
    bench: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fill(bench)
    whole = hashed(bench, topic)
    for name, limit in (
        ("HASHED_BYTES_MAX", 1),
        ("HASHED_BYTES_MAX", 10),
        ("HASHED_RUNS_MAX", 1),
        ("HASHED_RUNS_MAX", 3),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(reading, name, limit)
            assert hashed(bench, topic) == whole


def test_a_restored_replica_finds_the_same(bench: Log) -> None:
    topic = fill(bench)
    assert hashed(bench, topic, engine=Engine.restore(bench.engine.checkpoint())) == hashed(bench, topic)


def test_it_is_of_what_is_stored_and_not_of_what_was_applied(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=100.0)
    bench.publish(topic, "aaa", "bbb")
    messages, found = hashed(bench, topic)
    [stored] = bench.entries[2].commands
    assert isinstance(stored, Publish)
    changed = bytes(stored.blob).replace(b"bbb", b"bxb")
    bench.entries[2] = Entry([msgspec.structs.replace(stored, blob=memoryview(changed))])
    assert hashed(bench, topic) == (messages, read(bench, topic)[1])
    assert hashed(bench, topic) != (messages, found)


def test_an_entry_that_cannot_be_read_here_ends_the_answer_before_it(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=100.0)
    for number in range(3):
        bench.publish(topic, number)
    del bench.entries[3]
    for first in ((0, 0, 0), (3, 0, 0)):
        answer = Reading(bench.entries.get).answer(bench.engine, log_link.Hash(1, topic, first, FAR))
        assert isinstance(answer, log_link.Hashed)
        assert (answer.next[0], answer.messages) == (3, 1 if first[0] < 2 else 0)


def test_an_entry_of_many_batches_is_read_once(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=100.0)
    bench.apply(*(batch(topic, [number], number + 1) for number in range(50)))
    asked: list[int] = []

    def entry(sequence: int) -> Entry | None:
        asked.append(sequence)
        return bench.entries.get(sequence)

    answer = Reading(entry).answer(bench.engine, log_link.Hash(1, topic, (0, 0, 0), FAR))
    assert isinstance(answer, log_link.Hashed)
    assert (answer.messages, asked) == (50, [2])
