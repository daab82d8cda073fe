"""Goal: ranges and references give what one object a message would give.

Method: random commands go to the engine and to a reference that knows every message; after each of them both must offer
the same messages in the same order, with the same counts, and dead ones with the same histories. Some queues retain,
which the reference does not know of: nobody is offered anything else for that.
"""

from random import Random

import pytest

from alphorn.message_manager.queue import Queue
from alphorn.model.commands import Redrive
from alphorn.model.messages import Packed
from tests.message_manager.bench import Bench
from tests.message_manager.reference import Place, Reference

STEPS = 150
LIMITS = {"queue:limited": 2, "topic:wide": 3}
# In the order of creation, and so of their numbers; the reference goes by the order of their names.
NAMES = ["queue:_DMQ", "queue:limited", "queue:plain", "topic:wide"]
SUBSCRIPTIONS = ["1", "2", "3"]


class Pair:
    """The engine and the reference, driven as one."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.bench = Bench()
        self.reference = Reference(LIMITS, {"topic:wide": SUBSCRIPTIONS})
        self.numbers = {
            name: self.bench.create(name, delivery_limit=LIMITS.get(name, 0), retain_s=self.retain_s(name))
            for name in NAMES
        }
        for name in SUBSCRIPTIONS:
            self.bench.subscribe(self.numbers["topic:wide"], name=name, is_durable=True)
        self.now = 1_000

    def retain_s(self, name: str) -> float:
        return self.random.choice([0.0, 0.5, 1e6]) if name.startswith("queue:") else 0.0

    def step(self) -> None:
        steps = [self.publish] * 5 + [self.acknowledge] * 4 + [self.give_back] * 4 + [self.tick] * 2
        self.random.choice([*steps, self.redrive])()

    def place(self) -> tuple[Place, int, int]:
        name = self.random.choice(NAMES)
        subscription = self.random.choice(SUBSCRIPTIONS) if name == "topic:wide" else ""
        return (name, subscription), self.numbers[name], int(subscription or 0)

    def publish(self) -> None:
        random = self.random
        name = random.choice(NAMES[1:])
        messages = []
        for _ in range(random.choice([1, 2, 5, 30])):
            is_plain = random.random() < 0.7
            near = self.now + random.randint(-300, 2_000)
            messages.append(
                Packed()
                if is_plain
                else Packed(
                    priority=random.randint(0, 9),
                    expiration=random.choice([0, near]),
                    deliver_at=random.choice([0, near]),
                )
            )
        self.bench.publish(self.numbers[name], *messages)
        self.reference.publish(self.bench.engine.sequence, name, messages)

    def positions(self, place: Place) -> tuple[int, int]:
        waiting = [item.position for item in self.reference.at(place)] or [1]
        first = self.random.choice(waiting[:5])
        return first, first + self.random.choice([0, 1, 4, 50])

    def acknowledge(self) -> None:
        place, number, subscription = self.place()
        first, last = self.positions(place)
        self.bench.acknowledge(number, first, last, subscription=subscription)
        self.reference.acknowledge(place, first, last)

    def give_back(self) -> None:
        place, number, subscription = self.place()
        first, last = self.positions(place)
        delay, is_dead = self.random.choice([0, 0, 400]), self.random.random() < 0.2
        how = {"delay_ms": delay, "is_dead": is_dead}
        self.bench.give_back(number, first, last, subscription=subscription, **how)
        self.reference.give_back(place, first, last, delay, is_dead=is_dead)

    def tick(self) -> None:
        self.now += self.random.choice([-10, 100, 700])
        self.bench.tick(self.now)
        self.reference.tick(self.now)

    def redrive(self) -> None:
        self.bench.apply(Redrive(self.numbers["queue:_DMQ"], []))
        self.reference.redrive()

    def compare(self) -> None:
        places: list[Place] = [(name, "") for name in NAMES[:-1]] + [("topic:wide", name) for name in SUBSCRIPTIONS]
        for place in places:
            assert self.offered(place) == self.reference.candidates(place), place
        for item in self.reference.at(("queue:_DMQ", "")):
            assert item.history is not None
            (name, subscription), reason, deliveries = item.history
            known = self.dead().histories.find(item.position)
            assert known is not None
            told = (known.destination, known.subscription, known.reason, known.deliveries)
            assert told == (name, int(subscription or 0), reason, deliveries)

    def dead(self) -> Queue:
        return self.bench.named("queue:_DMQ")

    def offered(self, place: Place) -> list[tuple[int, tuple[int, int], int, int]]:
        destination = self.bench.engine.destinations[self.numbers[place[0]]]
        backlog = destination.backlog_of(int(place[1] or 0))
        assert backlog is not None
        assert backlog.count == len(backlog.pending)
        offered = []
        for first, last in backlog.candidates():
            for piece in backlog.pieces(first, last):
                for run in destination.segments.runs(piece.first, piece.last):
                    for offset in range(run.count):
                        identity = run.sequence, run.index + offset
                        offered.append((run.position + offset, identity, piece.deliveries, piece.priority))
        return offered


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.requirement("API-3", "MM-7", "MM-10", "DMQ-1", "DMQ-3")
def test_the_engine_offers_what_a_reference_of_single_messages_offers(seed: int) -> None:
    pair = Pair(Random(seed))
    for _ in range(STEPS):
        pair.step()
        pair.compare()


@pytest.mark.parametrize("seed", range(1))
def test_long_streams_through_one_queue_are_swept_and_stay_right(seed: int) -> None:
    random = Random(seed)
    bench = Bench()
    number = bench.create("queue:long")
    kept: set[int] = set()
    origins: dict[int, tuple[int, int]] = {}
    for step in range(3_000):
        bench.publish(number, Packed(expiration=10_000_000 + step), Packed(), Packed())
        first = step * 3 + 1
        origins |= {first + index: (bench.engine.sequence, index) for index in range(3)}
        kept |= {first, first + 1, first + 2}
        if random.random() < 0.9:
            done = random.choice([[first, first + 2], [first + 1, first + 1]])
            bench.acknowledge(number, *done)
            kept -= set(range(done[0], done[1] + 1))
    queue = bench.queue(number)
    assert len(queue.segments) < 3_000, "nothing was swept"
    assert set(bench.candidates(number)) == kept
    for position in kept:
        run = queue.segments.find(position)
        assert run is not None
        assert (run.sequence, run.index) == origins[position]


def test_messages_are_known_by_entry_and_place() -> None:
    bench = Bench()
    number = bench.create("queue:q")
    bench.publish(number, "a", "b")
    bench.publish(number, "c")
    runs = list(bench.queue(number).segments.runs(1, 3))
    assert [(run.sequence, run.command, run.index, run.count, run.position) for run in runs] == [
        (2, 0, 0, 2, 1),
        (3, 0, 0, 1, 3),
    ]
    assert runs[0].size > runs[1].size > 0
