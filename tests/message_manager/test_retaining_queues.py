"""A queue that retains: what came can be read in the log for as long as its policy says, and is given out once."""

from random import Random

import pytest

from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import SEGMENTS_MIN
from alphorn.message_manager.reading import Reading
from alphorn.model import log_link
from alphorn.model.commands import (
    Acknowledge,
    CreateDestination,
    PublishStaged,
    Purge,
    Redrive,
    SetPolicy,
    TransactionCommit,
    TransactionFinish,
    TransactionPrepare,
    key_of,
)
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.messages import Packed
from tests.message_manager.bench import BOB, batch
from tests.message_manager.test_reading import ask, bodies, scan, search, survey
from tests.message_manager.test_staging import Log, checkpoint_of, staged
from tests.message_manager.travel import Side, Travel

CONSUMER = key_of(BOB, 1)
SESSION = key_of(BOB, 7)
HOUR_MS = 3_600_000


@pytest.fixture
def bench() -> Log:
    return Log()


def read(bench: Log, queue: int, first: int = 0) -> list[object]:
    """What a reader gets from an entry on: here, and of a replica that has a checkpoint and what that needs."""
    answer = scan(bench, queue, first=(first, 0, 0))
    twin = Engine.restore(bench.engine.checkpoint())
    needed = twin.retained()
    frame = log_link.Scan(1, [queue], (first, 0, 0), answer.next, 1 << 20)
    there = Reading(lambda number: bench.entries[number] if number in needed else None).answer(twin, frame)
    assert there == answer
    assert bench.engine.retained() == needed
    return bodies(answer)


def kept_from(bench: Log, name: str = "queue:q") -> int:
    return survey(bench, name)[name].kept_from


def test_what_was_consumed_is_read_for_as_long_as_the_policy_says_and_given_out_once(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=10.0)
    bench.publish(queue, "a", "b", "c")
    bench.tick(1_000)
    bench.acknowledge(queue, 1, 2)
    assert (bench.candidates(queue), bench.queue(queue).count) == ([3], 1)
    assert read(bench, queue) == ["a", "b", "c"]
    bench.publish(queue, "d")
    bench.tick(6_000)
    bench.acknowledge(queue, 3, 4)
    bench.tick(10_999)
    assert (bench.candidates(queue), read(bench, queue)) == ([], ["a", "b", "c", "d"])
    bench.tick(11_000)
    assert read(bench, queue) == ["d"]
    assert kept_from(bench) == 3
    bench.tick(16_000)
    assert read(bench, queue) == []
    assert list(bench.engine.retained()) == []
    assert len(bench.queue(queue).timeline.times) == 0


def test_a_size_keeps_the_newest_batches(bench: Log) -> None:
    queue = bench.create("queue:q", retain_bytes=250)
    for number in range(6):
        bench.publish(queue, f"{number}" * 97)  # a hundred bytes and a little
    bench.acknowledge(queue, 1, 6)
    bench.tick(1_000)
    assert [body[0] for body in read(bench, queue)] == ["4", "5"]  # type: ignore[index]
    assert bench.queue(queue).retained_bytes == sum(run.size for run in bench.queue(queue).segments.runs(5, 6))


def test_what_nobody_consumed_is_read_however_old_it_is_and_missed_once_it_is_consumed(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=1.0)
    bench.publish(queue, "a")  # entry 2
    bench.publish(queue, "b")
    bench.publish(queue, "c")
    bench.tick(1_000)
    bench.acknowledge(queue, 2, 2)
    bench.tick(9_000)
    assert read(bench, queue) == ["a", "c"]
    assert kept_from(bench) == 4, "b is missing"
    bench.acknowledge(queue, 1, 1)
    assert (read(bench, queue), kept_from(bench)) == (["c"], 4)
    bench.acknowledge(queue, 3, 3)
    assert (read(bench, queue), kept_from(bench)) == ([], 5)


def test_a_reader_that_has_come_far_enough_misses_nothing(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=10.0)
    bench.publish(queue, "a")
    bench.tick(1_000)
    bench.publish(queue, "b")
    bench.acknowledge(queue, 1, 2)
    bench.tick(11_500)
    answer = scan(bench, queue, first=(4, 0, 0))
    assert (bodies(answer), answer.kept_from) == (["b"], 3)


def test_a_queue_without_retain_tells_nobody_that_something_is_missing(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.publish(queue, "a", "b")
    bench.acknowledge(queue, 1, 1)
    assert (read(bench, queue), kept_from(bench)) == (["b"], 0)
    assert b"retained" not in checkpoint_of(bench.engine)


def test_retaining_begins_with_what_comes_after_the_policy(bench: Log) -> None:
    queue = bench.create("queue:q")
    bench.publish(queue, "consumed", "pending")
    bench.acknowledge(queue, 1, 1)
    bench.apply(SetPolicy(queue, Policy(retain_s=10.0)))
    bench.publish(queue, "new")
    assert read(bench, queue) == ["pending", "new"]
    assert kept_from(bench) == 0
    bench.acknowledge(queue, 2, 3)
    assert read(bench, queue) == ["new"]
    assert kept_from(bench) == 3, "what can be read no more is missed, also where it was never to be kept"


def test_a_policy_that_is_taken_away_leaves_what_is_pending_and_readers_hear_of_the_rest(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=10.0)
    bench.publish(queue, "a")
    bench.publish(queue, "b")
    bench.publish(queue, "c")
    bench.acknowledge(queue, 2, 2)
    bench.apply(SetPolicy(queue, Policy()))
    assert (read(bench, queue), kept_from(bench)) == (["a", "c"], 4)
    assert list(bench.engine.retained()) == [(2, 2), (4, 4)]
    bench.acknowledge(queue, 1, 1)
    assert (read(bench, queue), kept_from(bench)) == (["c"], 4)
    assert bench.queue(queue).retained_bytes == 0
    bench.apply(SetPolicy(queue, Policy(retain_s=10.0)))
    bench.publish(queue, "d")
    bench.acknowledge(queue, 3, 4)
    assert read(bench, queue) == ["d"]


def test_a_policy_that_becomes_shorter_or_longer_holds_for_what_is_kept(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=100.0)
    bench.publish(queue, "a")
    bench.tick(1_000)
    bench.publish(queue, "b")
    bench.tick(20_000)
    bench.acknowledge(queue, 1, 2)
    bench.apply(SetPolicy(queue, Policy(retain_s=10.0)))
    assert read(bench, queue) == ["a", "b"]
    bench.tick(20_200)
    assert read(bench, queue) == ["b"]
    bench.apply(SetPolicy(queue, Policy(retain_s=1000.0)))
    bench.tick(900_000)
    assert read(bench, queue) == ["b"]


def test_expired_messages_stay_readable_and_are_dead_letters(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=100.0)
    bench.tick(1_000)
    bench.publish(
        queue, Packed("short", expiration=2_000), Packed("late", expiration=500), Packed("used", expiration=2_000)
    )
    bench.acknowledge(queue, 3, 3)
    bench.tick(3_000)
    assert bench.candidates(queue) == []
    assert read(bench, queue) == ["short", "late", "used"]
    assert read(bench, bench.named("queue:_DMQ").number) == ["late", "short"]
    bench.tick(200_000)
    assert read(bench, queue) == []


def test_a_time_to_live_by_policy_ends_waiting_and_not_reading(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=100.0, ttl=1.0)
    bench.publish(queue, "a")
    bench.tick(1_000)
    bench.tick(2_500)
    assert (bench.candidates(queue), read(bench, queue)) == ([], ["a"])
    bench.tick(101_000)
    assert read(bench, queue) == []


def test_purging_takes_messages_from_readers_too_and_they_hear_of_it(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=100.0)
    bench.publish(queue, "a", "b")
    bench.acknowledge(queue, 1, 1)
    assert bench.answer(Purge(queue)).number == 1
    assert (read(bench, queue), kept_from(bench)) == ([], 3)
    assert list(bench.engine.retained()) == []
    bench.publish(queue, "c")
    assert read(bench, queue) == ["c"]


def test_dead_messages_stay_where_they_were_published_and_are_read_again_where_they_come_back(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=100.0, delivery_limit=1)
    bench.publish(queue, "a")
    bench.give_back(queue, 1, 1)
    assert (bench.candidates(queue), read(bench, queue)) == ([], ["a"])
    bench.apply(Redrive(bench.named("queue:_DMQ").number, []))
    assert bench.candidates(queue) == [2]
    answer = scan(bench, queue)
    assert [(one.arrival, one.position) for one in answer.batches] == [(2, 1), (4, 2)]
    bench.acknowledge(queue, 2, 2)
    assert read(bench, queue) == ["a", "a"]


def test_values_that_were_replaced_stay_readable(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=100.0, last_value=True)
    bench.publish(queue, Packed("old", key="k"), Packed("new", key="k"))
    assert (bench.candidates(queue), read(bench, queue)) == ([2], ["old", "new"])


def test_a_full_queue_counts_what_is_pending_only(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=100.0, max_length=2, overflow="reject")
    for number in range(5):
        bench.publish(queue, number, number)
        bench.acknowledge(queue, 2 * number + 1, 2 * number + 2)
    assert len(read(bench, queue)) == 10
    assert bench.engine.occupied(queue) == 0


def test_staged_messages_are_kept_from_when_they_were_published(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=10.0)
    bench.apply(staged(queue, "s"))
    bench.tick(1_000)
    bench.tick(9_000)
    bench.apply(PublishStaged("w", 0, [(0, 7, 1, 1)]))
    bench.tick(9_500)
    bench.acknowledge(queue, 1, 1)
    bench.tick(19_000)
    assert read(bench, queue) == ["s"]
    bench.tick(19_500)
    assert read(bench, queue) == []


def test_what_a_transaction_consumes_is_read_whatever_becomes_of_it(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=10.0)
    bench.publish(queue, "a", "b")
    bench.apply(TransactionCommit(SESSION, 1, 1), Acknowledge(queue, 0, CONSUMER, [1, 1]))
    assert read(bench, queue) == ["a", "b"]
    bench.apply(TransactionPrepare(SESSION, 2, [0, 1], 1), Acknowledge(queue, 0, CONSUMER, [2, 2]))
    assert (bench.candidates(queue), read(bench, queue)) == ([], ["a", "b"])
    bench.tick(1_000)
    bench.tick(20_000)
    assert read(bench, queue) == []
    assert kept_from(bench) == 3
    bench.apply(TransactionFinish(SESSION, 2, is_commit=False))
    assert (bench.candidates(queue), read(bench, queue)) == ([2], ["b"])


def test_a_time_is_found_among_what_was_consumed(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=1000.0)
    for number in range(4):
        bench.apply(batch(queue, [number], number + 1, timestamp=1_000 * number))
        bench.tick(1_000 * (number + 1))
    bench.acknowledge(queue, 1, 4)
    assert search(bench, queue, 2_000).sequence == 6


def test_the_hash_of_what_is_kept_does_not_depend_on_who_consumed_it(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=1000.0)
    bench.publish(queue, *range(10))
    frame = log_link.Hash(1, queue, (0, 0, 0), (3, 0, 0))
    before = ask(bench, frame)
    bench.acknowledge(queue, 2, 5)
    assert ask(bench, frame) == before


def test_segments_of_what_is_kept_are_not_swept(bench: Log) -> None:
    queue = bench.create("queue:q", retain_s=1000.0)
    for number in range(3 * SEGMENTS_MIN):
        bench.publish(queue, number)
        bench.acknowledge(queue, number + 1, number + 1)
    bench.tick(1_000)
    answer = ask(bench, log_link.Measure(1, [queue], (0, 0, 0), (1 << 40, 0, 0), 0, 0))
    assert isinstance(answer, log_link.Measured)
    assert sum(messages for _, messages, _ in answer.marks) == 3 * SEGMENTS_MIN
    bench.tick(HOUR_MS)
    bench.queue(queue).sweep()
    assert len(bench.queue(queue).segments) == 0


def test_what_is_kept_moves_along_with_its_age(bench: Log) -> None:
    here, there = Side(0), Side(1)
    there.order(CreateDestination(parse_destination("queue:other"), Policy()))
    here.order(CreateDestination(parse_destination("queue:q"), Policy(retain_s=10.0)))
    here.order(batch(1, ["a", "b"]), batch(1, ["c"], 3))
    bench.tick(1_000)
    here.order(*bench.entries[1].commands)
    here.order(batch(1, ["d"], 4))
    here.order(Acknowledge(1, 0, CONSUMER, [1, 3]))
    travel = Travel(here, there, 1)
    for step in travel.steps():
        step()
        here.restart()
        there.restart()
    found = there.engine.destinations[travel.target]
    assert (list(found.retained), list(found.backlogs()[0][1].pending)) == ([(1, 4)], [(4, 4)])
    assert (found.kept_from, found.retained_bytes) == (there.engine.sequence - 1, found.segments.size)
    bench.engine, bench.entries = there.engine, {}
    bench.tick(2_000)
    assert list(found.retained) == [(1, 4)]
    bench.tick(11_000)
    assert (list(found.retained), found.readable(1, 9)) == ([(4, 4)], [(4, 4)])


class Model:
    """A queue as a list of all that was ever put into it; nothing is clever here."""

    def __init__(self) -> None:
        self.messages: list[dict[str, object]] = []
        self.fresh: list[dict[str, object]] = []
        self.lost = 0  # the newest arrival that stopped to be readable

    def arrive(self, arrival: int, *bodies: object, is_retained: bool) -> None:
        made = [{"body": body, "arrival": arrival, "pending": True, "kept": is_retained, "at": -1} for body in bodies]
        self.messages += made
        self.fresh += made

    def readable(self, first: int) -> list[object]:
        found = [it for it in self.messages if it["pending"] or it["kept"]]
        return [it["body"] for it in found if it["arrival"] >= first]  # type: ignore[operator]

    def lose(self, is_told: bool) -> None:
        for it in self.messages:
            if it.get("read", True) and not it["pending"] and not it["kept"]:
                it["read"] = False
                self.lost = max(self.lost, it["arrival"]) if is_told else self.lost  # type: ignore[type-var,assignment]


@pytest.mark.parametrize("seed", range(20))
def test_readers_get_what_a_list_of_all_messages_gives(seed: int) -> None:
    random, bench, model = Random(seed), Log(), Model()
    queue = bench.create("queue:q", retain_s=2.0)
    retain_s, now_ms, body = 2.0, 10_000, 0
    for _ in range(200):
        draw = random.random()
        if draw < 0.4:
            count = random.randint(1, 5)
            bench.publish(queue, *range(body, body + count))
            model.arrive(bench.engine.sequence, *range(body, body + count), is_retained=retain_s > 0)
            body += count
        elif draw < 0.7:
            first = random.randint(1, max(1, len(model.messages)))
            last = min(first + random.choice([0, 2, 9]), len(model.messages))
            bench.acknowledge(queue, first, max(first, last))
            for it in model.messages[first - 1 : last]:
                it["pending"] = False
        elif draw < 0.92:
            now_ms += random.choice([200, 500, 1_500])
            bench.tick(now_ms)
            for it in model.fresh:
                it["at"] = now_ms
            model.fresh.clear()
            for it in model.messages:
                it["kept"] = bool(it["kept"]) and now_ms - it["at"] < retain_s * 1000  # type: ignore[operator]
        elif draw < 0.97:
            was, retain_s = retain_s, random.choice([0.0, 1.0, 4.0])
            bench.apply(SetPolicy(queue, Policy(retain_s=retain_s)))
            if not retain_s:
                for it in model.messages:
                    it["kept"] = False
                model.lose(is_told=was > 0)
        else:
            bench.apply(Purge(queue))
            for it in model.messages:
                it["pending"] = it["kept"] = False
        model.lose(is_told=retain_s > 0)
        assert kept_from(bench) == (model.lost + 1 if model.lost else 0)
        if random.random() < 0.1:
            bench.engine = Engine.restore(bench.engine.checkpoint()).read_with(bench.entries.get)
        for first in (0, bench.engine.sequence - 10):
            assert bodies(scan(bench, queue, first=(max(0, first), 0, 0))) == model.readable(first)
