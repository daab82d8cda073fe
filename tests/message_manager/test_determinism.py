"""Goal: the same entries give the same state everywhere, also where one replica began with a checkpoint.

Method: a random stream of commands, sensible and not, goes to two engines; one of them is replaced every so often by
what its checkpoint gives. Effects, checkpoints and what is due must not differ.
"""

from random import Random

import msgspec
import pytest

from alphorn.message_manager.engine import Engine
from alphorn.model.commands import (
    Abandon,
    Acknowledge,
    AnyCommand,
    CreateDestination,
    DeleteDestination,
    Entry,
    Forget,
    Fragment,
    Publish,
    Purge,
    Redrive,
    Retire,
    Return,
    SetPolicy,
    Tick,
    Unsubscribe,
    key_of,
)
from alphorn.model.destinations import Destination, DestinationKind, Policy
from alphorn.model.messages import Flag, Packed, Streamed
from tests.message_manager.bench import ALICE, BOB, CAROL, batch, subscription

CONNECTIONS = (ALICE, BOB, CAROL, bytes(16))
ENTRIES = 250


class Stream:
    """Makes commands up, in a small world where they often meet."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = 1_000_000
        self.counters: dict[bytes, int] = {}
        self.bodies: dict[bytes, tuple[int, int]] = {}  # destination and next fragment

    def entry(self, engine: Engine) -> Entry:
        return Entry([self.command(engine) for _ in range(self.random.randint(1, 3))])

    def command(self, engine: Engine) -> AnyCommand:
        makers = [self.publish] * 10 + [self.acknowledge] * 4 + [self.give_back] * 3 + [self.tick] * 3
        makers += [self.create] * 3 + [self.subscribe] * 3 + [self.other] * 2 + [self.stream] * 8
        return self.random.choice(makers)(engine)

    def number(self, engine: Engine) -> int:
        return self.random.choice([*engine.destinations, 99])

    def place(self, engine: Engine) -> tuple[int, int]:
        number = self.number(engine)
        found = engine.destinations.get(number)
        places = [subscription for subscription, _ in found.backlogs()] if found else []
        return number, self.random.choice([*places, *places, 9])

    def positions(self, engine: Engine, number: int) -> list[int]:
        end = engine.destinations[number].next_position if number in engine.destinations else 5
        first = self.random.randint(0, end)
        return [first, first + self.random.choice([0, 0, 1, 3, 40])]

    def publish(self, engine: Engine) -> Publish:
        random = self.random
        key = key_of(random.choice(CONNECTIONS), random.randint(1, 2))
        counter = max(1, self.counters.get(key, 1) - random.choice([0, 0, 0, 0, 1, 3]) + (random.random() < 0.03))
        messages = [self.message() if random.random() < 0.3 else Packed("plain") for _ in range(random.randint(1, 6))]
        self.counters[key] = max(counter + len(messages), self.counters.get(key, 1))
        command = batch(self.number(engine), messages, counter, key=key)
        return msgspec.structs.replace(command, blob=memoryview(b"?")) if random.random() < 0.02 else command

    def message(self) -> Packed:
        random = self.random
        return Packed(
            "particular",
            {"n": random.randint(0, 3)} if random.random() < 0.5 else None,
            priority=random.choice([4, 4, 0, 9, 12]),
            expiration=random.choice([0, 0, self.now_ms + random.randint(-100, 3000)]),
            deliver_at=random.choice([0, 0, self.now_ms + random.randint(-100, 3000)]),
            key=random.choice([None, "a", "b"]),
        )

    def stream(self, engine: Engine) -> AnyCommand:
        """The next fragment of a body, mostly; now and then its message, or something that does not fit."""
        random = self.random
        key = key_of(random.choice(CONNECTIONS), 3)
        counter = max(1, self.counters.get(key, 1) - (random.random() < 0.1) + (random.random() < 0.02))
        self.counters[key] = max(counter + 1, self.counters.get(key, 1))
        number, index = self.bodies.get(key, (self.number(engine), 0))
        index += random.random() < 0.02
        draw = random.random()
        if draw < 0.05:
            self.bodies.pop(key, None)
            return Abandon(key, counter)
        if draw < 0.6:
            self.bodies[key] = number, index + 1
            return Fragment(number, key, counter, index, memoryview(b"piece"))
        self.bodies.pop(key, None)
        message = Packed(None, expiration=random.choice([0, self.now_ms + 900]), stream=Streamed(index, 5 * index, b""))
        command = batch(number, [message], counter, key=key)
        return msgspec.structs.replace(command, flags=command.flags | Flag.STREAM)

    def acknowledge(self, engine: Engine) -> Acknowledge:
        number, subscription = self.place(engine)
        return Acknowledge(number, subscription, key_of(BOB, 1), self.positions(engine, number))

    def give_back(self, engine: Engine) -> Return:
        number, subscription = self.place(engine)
        delay_ms, is_dead = self.random.choice([-1, -1, 0, 700]), self.random.random() < 0.2
        return Return(number, subscription, key_of(BOB, 1), self.positions(engine, number), delay_ms, is_dead)

    def tick(self, engine: Engine) -> Tick:
        self.now_ms += self.random.choice([-50, 10, 150, 900, 4000])
        places = [(number, each) for number, found in engine.destinations.items() for each, _ in found.backlogs()]
        held = [(*place, [1, self.random.randint(1, 90)]) for place in places if self.random.random() < 0.4]
        kept = [(*place, [1, self.random.randint(1, 90)]) for place in places if self.random.random() < 0.2]
        return Tick(self.now_ms, [*held, (*self.place(engine), self.positions(engine, 0))], kept)

    def create(self, engine: Engine) -> CreateDestination:
        kind = self.random.choice(list(DestinationKind))
        name = self.random.choice(["one", "two", "three", "dead", "_DMQ", "_MINE"])
        owner = self.random.choice([b"", b"", self.random.choice(CONNECTIONS[:3])])
        otherwise = self.random.choice([-1, 1, 2])
        recorded_at = next(iter(engine.moves.elsewhere.values()))[1] if engine.moves.elsewhere else -1
        is_sent_on = self.random.random() < 0.05
        return CreateDestination(Destination(kind, name), self.policy(kind), owner, otherwise, recorded_at, is_sent_on)

    def policy(self, kind: DestinationKind) -> Policy:
        random = self.random
        is_queue = kind is DestinationKind.QUEUE
        return Policy(
            retain_s=random.choice([0.0, 2.0]),
            retain_bytes=random.choice([0, 60]),
            delivery_limit=random.choice([0, 0, 2]),
            redelivery_delay=random.choice([0.0, 0.5]),
            dead_letter=random.choice([None, "two", "dead"]),
            priority=random.choice([None, None, 7]),
            ttl=random.choice([0.0, 0.0, 1.5]),
            max_length=random.choice([0, 0, 12]),
            overflow=random.choice(["block", "reject"]),
            last_value=is_queue and random.random() < 0.3,
            groups=is_queue and random.random() < 0.3,
        )

    def subscribe(self, engine: Engine) -> AnyCommand:
        random = self.random
        return subscription(
            self.number(engine),
            random.choice(CONNECTIONS[:3]),
            name=random.choice(["", "s", "t"]),
            selector=random.choice(["", "", "n > 1", "n >"]),
            is_durable=random.random() < 0.5,
            is_shared=random.random() < 0.3,
            no_local=random.choice([b"", ALICE]),
            start=random.choice([-1, -1, 0, max(1, engine.sequence - 20)]),
            start_ms=random.choice([0, 0, self.now_ms - 1000]),
        )

    def other(self, engine: Engine) -> AnyCommand:
        number, subscription = self.place(engine)
        kind = self.random.choice(list(DestinationKind))
        return self.random.choice(
            [
                DeleteDestination(number),
                SetPolicy(number, self.policy(kind)),
                SetPolicy(number, self.policy(kind)),
                Unsubscribe(number, subscription),
                Forget(self.random.choice(CONNECTIONS)),
                Retire(self.random.choice(CONNECTIONS), self.random.randint(1, 9), [self.random.randint(1, 9)]),
                Redrive(number, self.random.choice([[], self.positions(engine, number), [3]])),
                Redrive(number, []),
                Purge(number),
            ]
        )


def checkpoint_of(engine: Engine) -> bytes:
    return b"".join(engine.checkpoint())


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.requirement("HA-1", "HA-3")
def test_a_replica_from_a_checkpoint_goes_on_like_one_that_applied_everything(seed: int) -> None:
    random = Random(seed)
    stream = Stream(random)
    lived, restored = Engine(), Engine()
    for sequence in range(1, ENTRIES):
        entry = stream.entry(lived)
        assert lived.apply(sequence, entry) == restored.apply(sequence, entry), sequence
        if random.random() < 0.05:
            restored = Engine.restore(restored.checkpoint())
            assert lived.next_due() == restored.next_due(), sequence
    assert checkpoint_of(lived) == checkpoint_of(restored)
    assert lived.describe() == restored.describe()
    assert checkpoint_of(lived) == checkpoint_of(Engine.restore([checkpoint_of(lived)]))
    assert lived.retained() == restored.retained()
    assert lived.connections() == restored.connections()
    assert lived.numbers == restored.numbers


def test_a_stream_reaches_every_part_of_the_engine() -> None:
    """The test above is worth something only if its streams lead to what it compares."""
    seen: set[str] = set()
    for seed in range(12):
        stream, engine = Stream(Random(seed)), Engine()
        for sequence in range(1, ENTRIES):
            effects = engine.apply(sequence, stream.entry(engine))
            seen |= {type(effect).__name__ for effect in effects}
            seen |= {effect.error for effect in effects if hasattr(effect, "error")}
        dead = engine.numbers.get(Destination(DestinationKind.QUEUE, "_DMQ"))
        seen |= {"dead"} if dead and engine.destinations[dead].next_position > 1 else set()
    effects_seen = {"Arrived", "Gone", "Deferred", "Created", "Deleted", "Subscribed", "Unsubscribed", "Answer"}
    errors_seen = {"PeerViolation", "Unavailable", "Blocked", "InvalidDestination", "InvalidSelector", "Misuse"}
    assert effects_seen | errors_seen | {"dead", "AccessDenied"} <= seen
