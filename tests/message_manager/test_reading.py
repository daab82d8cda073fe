"""What readers of the log are told: the same by every replica, for as long as messages are kept."""

from collections.abc import Iterator

import msgspec
import pytest
from xxhash import xxh3_64_intdigest

from alphorn.message_manager import reading
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.flow import FlowControl
from alphorn.message_manager.reading import BATCH_BITS, Reading
from alphorn.message_manager.status import About, Picture
from alphorn.model import frame_kinds, link, log_link
from alphorn.model.commands import DeleteDestination, NoteReader, PublishStaged, SetPolicy
from alphorn.model.destinations import Policy
from tests.message_manager.bench import batch, errors
from tests.message_manager.test_staging import Log, staged

FAR = (1 << 40, 0, 0)


@pytest.fixture
def bench() -> Log:
    return Log()


def ask(bench: Log, frame: link.AnyAsked) -> frame_kinds.Told:
    answer = Reading(bench.entries.get).answer(bench.engine, frame)
    assert answer is not None
    return link.decode_told(link.encode(answer)[link.LENGTH_BYTES :])


def scan(
    bench: Log,
    *destinations: int,
    first: log_link.Place = (0, 0, 0),
    end: log_link.Place = FAR,
    bytes_max: int = 1 << 20,
):
    answer = ask(bench, log_link.Scan(1, list(destinations), first, end, bytes_max))
    assert isinstance(answer, log_link.Scanned)
    return answer


def bodies(answer: log_link.Scanned) -> list[object]:
    found = []
    for one in answer.batches:
        assert xxh3_64_intdigest(one.blob) == one.digest
        found += [message[0] for message in msgspec.msgpack.decode(one.blob)][one.index : one.index + one.count]
    return found


def read_in_steps(bench: Log, *destinations: int) -> Iterator[object]:
    place: log_link.Place = (0, 0, 0)
    end = (bench.engine.sequence + 1, 0, 0)
    while place < end:
        answer = scan(bench, *destinations, first=place, end=end, bytes_max=1)
        assert answer.next > place
        yield from bodies(answer)
        place = answer.next


def test_a_retaining_topic_is_read_in_the_order_of_the_log(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=100.0)
    for number in range(5):
        bench.publish(topic, f"a{number}", f"b{number}")
    answer = scan(bench, topic)
    assert bodies(answer) == [f"{letter}{number}" for number in range(5) for letter in "ab"]
    assert [one.arrival for one in answer.batches] == [2, 3, 4, 5, 6]
    assert answer.next == (7, 0, 0), "no further than what is applied"


def test_whoever_reads_what_was_deleted_meanwhile_is_told(bench: Log) -> None:
    topic, other = bench.create("topic:t", retain_s=100.0), bench.create("topic:other", retain_s=100.0)
    bench.publish(topic, "a")
    not_yet = other + 1
    assert scan(bench, topic, other, not_yet).kept_from == 0, "a replica that lags does not know what will be"
    bench.apply(DeleteDestination(topic))
    for read in ([topic], [topic, other]):
        assert scan(bench, *read, first=(3, 0, 0)).kept_from == bench.engine.sequence + 1
        measured = ask(bench, log_link.Measure(1, read, (3, 0, 0), FAR, 1, 1))
        assert isinstance(measured, log_link.Measured)
        assert measured.kept_from == bench.engine.sequence + 1
    assert bench.create("topic:t", retain_s=100.0) == not_yet
    assert scan(bench, other, not_yet).kept_from == 0, "one that was made again begins anew"


def test_a_range_begins_and_ends_where_it_says(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=100.0)
    for number in range(5):
        bench.publish(topic, number)
    answer = scan(bench, topic, first=(3, 0, 0), end=(5, 0, 0))
    assert (bodies(answer), answer.next) == ([1, 2], (5, 0, 0))


def test_messages_sent_twice_are_read_once(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=100.0)
    bench.apply(batch(topic, ["a", "b"]))
    bench.apply(batch(topic, ["a", "b", "c"]))
    answer = scan(bench, topic)
    assert bodies(answer) == ["a", "b", "c"]
    assert [(one.index, one.ordinal, one.counter) for one in answer.batches] == [(0, 0, 1), (2, 2, 1)]


def test_batches_of_one_entry_are_told_apart(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=100.0)
    bench.apply(batch(topic, ["a"]), batch(topic, ["b"], 2))
    assert [one.ordinal for one in scan(bench, topic).batches] == [0, 1 << BATCH_BITS]


def test_several_destinations_are_read_by_arrival(bench: Log) -> None:
    first, second = bench.create("topic:t", retain_s=100.0), bench.create("queue:q")
    for number in range(3):
        bench.publish(second, f"q{number}")
        bench.publish(first, f"t{number}")
    assert bodies(scan(bench, first, second)) == ["q0", "t0", "q1", "t1", "q2", "t2"]
    assert list(read_in_steps(bench, first, second)) == ["q0", "t0", "q1", "t1", "q2", "t2"]


def test_a_queue_is_read_as_far_as_it_is_not_consumed(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.publish(queue, *range(6))
    bench.acknowledge(queue, 2, 3)
    assert bodies(scan(bench, queue)) == [0, 3, 4, 5]


def test_staged_messages_are_read_where_they_became_visible(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=100.0)
    bench.apply(staged(topic, "s1", "s2"))
    bench.apply(staged(topic, "s3", part=1))
    bench.publish(topic, "plain")
    assert bodies(scan(bench, topic)) == ["plain"]
    bench.apply(PublishStaged("w", 0, [(0, 7, 2, 3)]))
    answer = scan(bench, topic, first=(5, 0, 0))
    assert bodies(answer) == ["s1", "s2", "s3"]
    assert {one.arrival for one in answer.batches} == {5}
    ordinals = [one.ordinal + place for one in answer.batches for place in range(one.count)]
    assert len(set(ordinals)) == 3
    assert list(read_in_steps(bench, topic)) == ["plain", "s1", "s2", "s3"], "an entry is read in several answers"


def test_dead_messages_are_read_where_they_were_moved(bench: Log) -> None:
    queue = bench.create("queue:q", delivery_limit=1)
    bench.publish(queue, "a")
    bench.publish(queue, "b")
    bench.give_back(queue, 1, 1)
    dead = bench.named("queue:_DMQ").number
    answer = scan(bench, dead)
    assert (bodies(answer), [one.arrival for one in answer.batches]) == (["a"], [4])


def test_an_entry_that_cannot_be_read_here_ends_the_answer(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=100.0)
    for number in range(3):
        bench.publish(topic, number)
    del bench.entries[3]
    answer = scan(bench, topic)
    assert bodies(answer) == [0]
    assert answer.next[0] == 3


def test_amounts_come_in_steps_and_add_up(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=100.0)
    for number in range(10):
        bench.publish(topic, *range(number + 1))
    answer = ask(bench, log_link.Measure(1, [topic], (0, 0, 0), FAR, 10, 0))
    assert isinstance(answer, log_link.Measured)
    assert [messages for _, messages, _ in answer.marks] == [10, 11, 15, 19]
    assert sum(size for _, _, size in answer.marks) == bench.topic(topic).retained_bytes
    assert answer.marks[0][0] == (6, 0, 0)
    assert answer.marks[-1][0] == answer.next == (12, 0, 0)


def test_an_answer_looks_at_so_much_only(bench: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RUNS_MAX", 4)
    topic = bench.create("topic:t", retain_s=100.0)
    for number in range(10):
        bench.publish(topic, number)
    answer = ask(bench, log_link.Measure(1, [topic], (0, 0, 0), FAR, 0, 0))
    assert isinstance(answer, log_link.Measured)
    assert (answer.next, [messages for _, messages, _ in answer.marks]) == ((6, 0, 0), [4])
    assert bodies(scan(bench, topic)) == [0, 1, 2, 3]


def survey(bench: Log, *names: str, prefixes: tuple[str, ...] = ()) -> dict[str, log_link.SurveyedDestination]:
    answer = ask(bench, log_link.Survey(1, list(names), list(prefixes)))
    assert isinstance(answer, log_link.Surveyed)
    assert answer.applied == bench.engine.sequence
    return {found.name: found for found in answer.destinations}


def test_destinations_are_found_by_name_and_by_how_it_begins(bench: Log) -> None:
    for name in ("topic:orders.eu", "topic:orders.us", "queue:orders.eu", "topic:prices"):
        bench.create(name)
    found = survey(bench, "topic:prices", "topic:nothing", prefixes=("topic:orders.",))
    assert sorted(found) == ["topic:orders.eu", "topic:orders.us", "topic:prices"]
    assert not any(it.is_kept for it in found.values()), "topics keep nothing unless their policy says so"
    assert survey(bench, "queue:orders.eu")["queue:orders.eu"].is_kept


def test_what_a_topic_has_outgrown_is_known(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=10.0)
    bench.publish(topic, "old")
    bench.tick(1_000)
    bench.publish(topic, "new")
    bench.tick(5_000)
    assert survey(bench, "topic:t")["topic:t"].kept_from == 0
    bench.tick(11_500)
    found = survey(bench, "topic:t")["topic:t"]
    assert (found.kept_from, found.first) == (3, 4)
    answer = scan(bench, topic)
    assert (bodies(answer), answer.kept_from) == (["new"], 3)
    twin = Engine.restore(bench.engine.checkpoint())
    assert Reading(bench.entries.get).answer(twin, log_link.Scan(1, [topic], (0, 0, 0), FAR, 1 << 20)) == answer


def test_what_came_before_a_topic_retained_is_not_kept(bench: Log) -> None:
    topic = bench.create("topic:t")
    bench.publish(topic, "gone")
    bench.apply(SetPolicy(topic, Policy(retain_s=10.0)))
    bench.publish(topic, "kept")
    assert survey(bench, "topic:t")["topic:t"].kept_from == 3
    bench.apply(SetPolicy(topic, Policy()))
    assert not survey(bench, "topic:t")["topic:t"].is_kept
    bench.apply(SetPolicy(topic, Policy(retain_s=10.0)))
    assert survey(bench, "topic:t")["topic:t"].kept_from == 5


def test_expired_messages_are_no_loss(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=1000.0, ttl=1.0)
    bench.publish(topic, "short")
    bench.tick(1_000)
    bench.tick(5_000)
    assert bodies(scan(bench, topic)) == []
    assert survey(bench, "topic:t")["topic:t"].kept_from == 0


def search(bench: Log, topic: int, time_ms: int, first: int = 0) -> log_link.Searched:
    answer = ask(bench, log_link.Search(1, [topic], time_ms, first))
    assert isinstance(answer, log_link.Searched)
    return answer


def test_a_time_is_found_by_what_senders_said(bench: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = bench.create("topic:t", retain_s=1000.0)
    for number in range(5):
        bench.apply(batch(topic, [number], number + 1, timestamp=1_000 * number))
    bench.tick(4_500)
    assert [search(bench, topic, time_ms).sequence for time_ms in (0, 1, 1_000, 3_500, 4_000, 4_001)] == [
        2, 3, 3, 6, 6, 8
    ]  # fmt: skip
    monkeypatch.setattr(reading, "SEARCHED_MAX", 2)
    assert search(bench, topic, 4_000) == log_link.Searched(1, 4, False)
    assert search(bench, topic, 4_000, first=6) == log_link.Searched(1, 6, True)
    assert search(bench, topic, 4_000, first=4) == log_link.Searched(1, 6, False)


def test_a_time_to_come_is_after_everything(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=1000.0)
    bench.publish(topic, "a")
    bench.tick(1_000)
    assert search(bench, topic, 10_000) == log_link.Searched(1, 4, True)


def test_a_reader_lags_by_messages(bench: Log) -> None:
    topic = bench.create("topic:t", retain_s=1000.0)
    for number in range(4):
        bench.publish(topic, number, number)
    bench.apply(NoteReader("archive", [topic, 99], 4))
    assert errors(bench.apply(NoteReader("", [topic], 4))) == ["PeerViolation"]
    twin = Engine.restore(bench.engine.checkpoint())
    about = About(name="mm1", pid=1, address="", channel="main")
    for engine in (bench.engine, twin):
        [reader] = engine.readers
        assert (reader.name, reader.sequence) == ("archive", 4)
        assert reading_status(about, engine) == [{"name": "archive", "channel": "main", "sequence": 4, "lag": 4}]


def reading_status(about: About, engine: Engine) -> list[dict[str, object]]:
    from alphorn.message_manager.dispatch import Dispatcher

    dispatcher = Dispatcher(engine, lambda sequence: None)
    flow = FlowControl("mm1", lambda link, frame: None, lambda level, event, details: None)
    described = Picture(about, flow).answer(link.Describe(1, 10), engine, dispatcher, 1, {}, 0)
    found: list[dict[str, object]] = msgspec.json.decode(described.data)["readers"]
    return found
