"""A bench to try the engine on: numbers entries, packs batches, keeps the counters of producers."""

from collections.abc import Iterable

import msgspec

from alphorn.message_manager.effects import Answer, Arrived, Effect, Gone
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.topic import Subscription, Topic
from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    CreateDestination,
    Entry,
    Publish,
    Return,
    SetPolicy,
    Subscribe,
    Tick,
    decode_entry,
    encode_entry,
    key_of,
)
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.messages import PRIORITY_DEFAULT, Flag, Packed

ALICE, BOB, CAROL = (bytes([number]) * 16 for number in (1, 2, 3))


class Bench:
    """An engine and what a test needs around it."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.counters: dict[bytes, int] = {}

    def apply(self, *commands: AnyCommand) -> list[Effect]:
        """Applies one entry, as it comes out of the log."""
        entry = decode_entry(encode_entry(Entry(list(commands))))
        return self.engine.apply(self.engine.sequence + 1, entry)

    def answer(self, *commands: AnyCommand) -> Answer:
        """Applies one entry whose last command is answered."""
        last = self.apply(*commands)[-1]
        assert isinstance(last, Answer)
        return last

    def create(self, name: str, owner: bytes = b"", **policy: object) -> int:
        """A destination's number. Its dead letter queue is made too, as Client Managers do."""
        destination, wanted = parse_destination(name), Policy(**policy)  # type: ignore[arg-type]
        first = msgspec.structs.replace(wanted, dead_letter=None)
        made = self.answer(CreateDestination(destination, first, owner))
        assert not made.error, made
        if wanted.dead_letter is not None:
            self.create(f"queue:{wanted.dead_letter}")
            self.apply(SetPolicy(made.number, wanted))
        return made.number

    def subscribe(self, topic: int, connection: bytes = BOB, **changes: object) -> int:
        """A subscription's number."""
        made = self.answer(subscription(topic, connection, **changes))
        assert not made.error, made
        return made.number

    def publish(
        self, destination: int, *messages: object, connection: bytes = ALICE, number: int = 1, timestamp: int = 7
    ) -> list[Effect]:
        """One batch of a producer's next messages: bodies, or `Packed`."""
        key = key_of(connection, number)
        counter = self.counters.get(key, 1)
        self.counters[key] = counter + len(messages)
        return self.apply(batch(destination, messages, counter, key=key, timestamp=timestamp))

    def acknowledge(self, destination: int, *positions: int, subscription: int = 0) -> list[Effect]:
        return self.apply(Acknowledge(destination, subscription, key_of(BOB, 1), list(positions)))

    def give_back(self, destination: int, *positions: int, subscription: int = 0, **how: object) -> list[Effect]:
        command = Return(destination, subscription, key_of(BOB, 1), list(positions), **how)  # type: ignore[arg-type]
        return self.apply(command)

    def tick(self, now_ms: int) -> list[Effect]:
        return self.apply(Tick(now_ms))

    def queue(self, number: int) -> Queue:
        found = self.engine.destinations[number]
        assert isinstance(found, Queue)
        return found

    def topic(self, number: int) -> Topic:
        found = self.engine.destinations[number]
        assert isinstance(found, Topic)
        return found

    def named(self, name: str) -> Queue:
        """A queue by its name."""
        return self.queue(self.engine.numbers[parse_destination(name)])

    def pending(self, number: int, subscription: int = 0) -> list[tuple[int, int]]:
        backlog = self.engine.destinations[number].backlog_of(subscription)
        assert backlog is not None
        return list(backlog.pending)

    def candidates(self, number: int, subscription: int = 0) -> list[int]:
        """Positions in the order in which they would be given out."""
        backlog = self.engine.destinations[number].backlog_of(subscription)
        assert backlog is not None
        return [position for first, last in backlog.candidates() for position in range(first, last + 1)]

    def of(self, topic: int, number: int) -> Subscription:
        return self.topic(topic).subscriptions[number]


def batch(
    destination: int, messages: Iterable[object], counter: int = 1, *, key: bytes = key_of(ALICE, 1), timestamp: int = 7
) -> Publish:
    """A publish command of these messages, with the flags they need."""
    packed = [message if isinstance(message, Packed) else Packed(message) for message in messages]
    blob = msgspec.msgpack.encode(packed)
    return Publish(destination, key, counter, len(packed), flags_of(packed), timestamp, memoryview(blob))


def flags_of(messages: list[Packed]) -> int:
    occurs = {
        Flag.PROPERTIES: any(message.properties is not None for message in messages),
        Flag.PRIORITY: any(message.priority != PRIORITY_DEFAULT for message in messages),
        Flag.EXPIRATION: any(message.expiration for message in messages),
        Flag.DELAY: any(message.deliver_at for message in messages),
        Flag.KEY: any(message.key is not None for message in messages),
        Flag.OTHER: any(message.type or message.correlation_id for message in messages),
    }
    return sum(int(flag) for flag, is_there in occurs.items() if is_there)


def subscription(topic: int, connection: bytes = BOB, **changes: object) -> Subscribe:
    """A volatile subscription of a connection's consumer 1 to new messages, unless changed."""
    plain = Subscribe(
        topic,
        name="",
        client="",
        consumer=key_of(connection, 1),
        selector="",
        is_durable=False,
        is_shared=False,
        no_local=b"",
        start=-1,
    )
    return msgspec.structs.replace(plain, **changes)


def arrived(effects: list[Effect]) -> list[tuple[int, int, int, int]]:
    """What has arrived where."""
    return [
        (effect.destination, effect.subscription, effect.first, effect.last)
        for effect in effects
        if isinstance(effect, Arrived)
    ]


def gone(effects: list[Effect]) -> list[tuple[int, int, list[int]]]:
    """What is gone from where."""
    return [
        (effect.destination, effect.subscription, effect.positions) for effect in effects if isinstance(effect, Gone)
    ]


def errors(effects: list[Effect]) -> list[str]:
    """Names of the errors that were answered."""
    return [effect.error for effect in effects if isinstance(effect, Answer) and effect.error]
