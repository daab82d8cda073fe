"""What a topic keeps can be let go of once it is consolidated."""

import msgspec

from alphorn.message_manager.effects import Answer, Effect
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.reading import Reading
from alphorn.model import log_link
from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    CreateDestination,
    Entry,
    Publish,
    Release,
    Subscribe,
    Tick,
    key_of,
)
from alphorn.model.destinations import Policy, parse_destination

PRODUCER, CONSUMER = key_of(b"p" * 16, 1), key_of(b"c" * 16, 1)
TOPIC = 1


class Channel:
    """An engine with one topic that keeps its messages; entry 1 created it."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.counter = 1
        self.apply(CreateDestination(parse_destination("topic:t"), Policy(retain_s=3600.0)))

    def apply(self, *commands: AnyCommand) -> list[Effect]:
        return self.engine.apply(self.engine.sequence + 1, Entry(list(commands)))

    def publish(self, count: int) -> None:
        blob = memoryview(msgspec.msgpack.encode([[None]] * count))
        self.apply(Publish(TOPIC, PRODUCER, self.counter, count, 0, 1000, blob))
        self.counter += count

    def kept(self) -> list[tuple[int, int]]:
        topic = self.engine.destinations[TOPIC]
        return list(topic.retained)  # type: ignore[union-attr]


def filled() -> Channel:
    channel = Channel()
    for count in (3, 1, 2):  # entries 2, 3 and 4
        channel.publish(count)
    channel.apply(Tick(1))
    return channel


def test_what_is_released_is_kept_no_more_and_readers_hear_of_it() -> None:
    channel = filled()
    channel.apply(Release(TOPIC, 3))
    assert channel.kept() == [(5, 6)]
    assert channel.engine.retained().flat() == [4, 4]
    channel.apply(Release(TOPIC, 3), Release(TOPIC, 1))
    assert channel.kept() == [(5, 6)]
    restored = Engine.restore(list(channel.engine.checkpoint()))
    for engine in (channel.engine, restored):
        answer = Reading(lambda sequence: None).answer(engine, log_link.Survey(1, ["topic:t"], []))
        assert isinstance(answer, log_link.Surveyed)
        [topic] = answer.destinations
        assert (topic.kept_from, topic.first) == (4, 4)


def test_all_can_be_released_and_new_messages_are_kept_again() -> None:
    channel = filled()
    channel.apply(Release(TOPIC, 5))
    assert channel.kept() == []
    channel.publish(2)
    assert channel.kept() == [(7, 8)]


def test_a_subscription_keeps_what_it_has_not_consumed() -> None:
    channel = Channel()
    channel.apply(Subscribe(TOPIC, "name", "client", CONSUMER, "", True, False, b"", -1))
    channel.publish(2)
    channel.apply(Tick(1))
    channel.apply(Release(TOPIC, 3))
    assert channel.kept() == []
    assert channel.engine.retained().flat() == [3, 3]


def test_a_queue_releases_what_was_consumed_and_still_gives_out_the_rest() -> None:
    channel = filled()
    channel.apply(CreateDestination(parse_destination("queue:q"), Policy(retain_s=3600.0)))
    blob = memoryview(msgspec.msgpack.encode([[None]] * 3))
    channel.apply(Publish(2, PRODUCER, channel.counter, 3, 0, 1000, blob))  # entry 7
    channel.apply(Publish(2, PRODUCER, channel.counter + 3, 3, 0, 1000, blob))
    channel.apply(Acknowledge(2, 0, CONSUMER, [1, 2, 4, 4]))
    channel.apply(Release(2, 7))
    queue = channel.engine.destinations[2]
    assert isinstance(queue, Queue)
    assert (queue.readable(1, 9), queue.kept_from) == ([(3, 3), (4, 6)], 8)
    assert list(queue.backlog.candidates()) == [(3, 3), (5, 6)]


def test_what_is_to_come_cannot_be_released_nor_what_a_queue_without_retain_holds() -> None:
    channel = filled()
    channel.apply(CreateDestination(parse_destination("queue:q"), Policy()))
    refused = channel.apply(Release(TOPIC, 7), Release(2, 1), Release(99, 1))
    assert [(effect.command, effect.error) for effect in refused if isinstance(effect, Answer)] == [
        (0, "Misuse"),
        (1, "InvalidDestination"),
        (2, "InvalidDestination"),
    ]
    assert channel.kept() == [(1, 6)]
