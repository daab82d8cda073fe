"""What belongs to the system is a whole with a part on every channel: received from, purged, sent back as one."""

from collections.abc import Iterator

import msgspec
import pytest

from alphorn.model.conversation import (
    Acknowledge,
    Administer,
    ClosePattern,
    ConsumePattern,
    Delivered,
    Done,
    Failed,
    Joined,
    Resolve,
    Unsubscribe,
    place_of,
)
from alphorn.model.destinations import Policy, parse_destination
from alphorn.model.joining import number_for
from alphorn.model.log_lines import LOG_POLICY
from tests.client_manager.operating import CHANNELS, Operator, drawing

WATCH = 70
DEAD = "queue:_DMQ"
PARTS = [DEAD, *(f"{DEAD}@channel-{number}" for number in range(1, CHANNELS))]


class Undertaker(Operator):
    """An operator who receives from a whole."""

    def wish(self, whole: str = DEAD, **choices: object) -> int:
        """Begins to receive; gives the request."""
        return self.begin(ConsumePattern(0, 1, WATCH, f"glob:{whole}", 100, **choices))  # type: ignore[arg-type]

    def said(self, kind: type) -> list:  # type: ignore[type-arg]
        return [frame for frame in self.meeting.said.get(self._stream, []) if isinstance(frame, kind)]

    def joined(self) -> dict[int, str]:
        return {frame.consumer: frame.destination for frame in self.said(Joined)}

    def received(self) -> list[tuple[str, object]]:
        """From which part, and what."""
        names = self.joined()
        return [
            (names[frame.consumer], body)
            for frame in self.said(Delivered)
            if frame.consumer in names
            for [body, *_] in msgspec.msgpack.decode(frame.blob)
        ]

    def die(self, channel: int, body: object) -> str:
        """A message dies on a channel; gives where."""
        name = drawing(channel)
        self.reject(name, body)
        return name


@pytest.fixture
def operator() -> Iterator[Undertaker]:
    made = Undertaker()
    yield made
    made.meeting.check_replicas()


@pytest.mark.requirement("DMQ-1", "WKD-1")
def test_a_consumer_of_dead_messages_receives_those_of_every_channel(operator: Undertaker) -> None:
    operator.die(0, "here")
    operator.die(2, "there")
    request = operator.wish()
    assert sorted(operator.joined().values()) == sorted(PARTS)
    assert isinstance(operator.wait(request), Done)
    assert sorted(operator.received()) == [(DEAD, "here"), (f"{DEAD}@channel-2", "there")]


@pytest.mark.requirement("DMQ-1")
def test_the_first_dead_message_of_a_channel_reaches_a_consumer_that_began_before(operator: Undertaker) -> None:
    operator.wait(operator.wish())
    operator.die(3, "first")
    assert operator.received() == [(f"{DEAD}@channel-3", "first")]


def test_whoever_begins_is_answered_when_it_receives_from_every_part(operator: Undertaker) -> None:
    operator.meeting.lose_primary(2)
    request = operator.wish()
    assert operator.answer(request) is None
    operator.die(1, "meanwhile")
    assert operator.received() == [(f"{DEAD}@channel-1", "meanwhile")], "others do not wait for that channel"
    operator.meeting.take_over(2)
    assert isinstance(operator.wait(request), Done)
    operator.die(2, "after")
    assert operator.received()[1:] == [(f"{DEAD}@channel-2", "after")]


def test_a_channel_that_is_drained_has_its_part_and_one_that_is_removed_has_none(operator: Undertaker) -> None:
    operator.die(2, "left behind")
    operator.drain(2)
    operator.drain(3)
    operator.renew(3)
    operator.wait(operator.wish())
    assert sorted(operator.joined().values()) == sorted(PARTS[:3])
    assert operator.received() == [(f"{DEAD}@channel-2", "left behind")]


def test_a_part_is_acknowledged_by_itself(operator: Undertaker) -> None:
    operator.die(0, "here")
    operator.die(1, "there")
    operator.wait(operator.wish())
    [there] = [consumer for consumer, name in operator.joined().items() if name == PARTS[1]]
    operator.do(Acknowledge(0, there, [1, 1]))
    assert operator.dead() == {(0, DEAD): 1}


def test_after_a_reconnection_no_part_joins_twice_and_those_that_are_missing_do(operator: Undertaker) -> None:
    operator.die(0, "one")
    operator.wait(operator.wish())
    known = place_of(0, operator.engine(0).numbers[parse_destination(DEAD)])
    number = number_for(WATCH, known, ())
    assert operator.joined()[number] == DEAD
    operator.renew()
    operator.wait(operator.wish(joined=[known]))
    assert sorted(operator.joined().values()) == sorted(PARTS[1:])


def test_nobody_has_to_advertise_destinations_for_it(operator: Undertaker) -> None:
    operator.wait(operator.wish())
    operator.resolve("queue:other")
    assert operator.meeting.manager.describe()["wildcards"] == {"patterns": 1, "destinations": 0}


def test_a_pattern_beside_it_finds_what_it_matches_and_ends_by_itself(operator: Undertaker) -> None:
    name = drawing(1)
    operator.resolve(name)
    operator.wait(operator.wish())
    operator.do(ConsumePattern(0, 1, WATCH + 1, "glob:queue:*", 100))
    assert {frame.destination for frame in operator.said(Joined) if frame.watch == WATCH + 1} == {name}
    assert len([frame for frame in operator.said(Joined) if frame.watch == WATCH]) == CHANNELS
    operator.do(ClosePattern(0, WATCH + 1))
    assert operator.meeting.manager.describe()["wildcards"] == {"patterns": 1, "destinations": 0}
    operator.meeting.take_over(1)
    operator.die(1, "still received")
    assert operator.received() == [(PARTS[1], "still received")]
    assert operator.meeting.manager.describe()["wildcards"] == {"patterns": 1, "destinations": 0}


def test_a_part_has_its_name_also_where_a_pattern_is_compared_with_what_its_channel_advertises(
    operator: Undertaker,
) -> None:
    operator.die(2, "there")
    operator.renew()
    operator.do(ConsumePattern(0, 1, WATCH + 1, "glob:queue:*", 100))
    operator.meeting.lose_primary(2)
    request = operator.wish()
    operator.meeting.take_over(2)
    assert isinstance(operator.wait(request), Done)
    assert operator.received() == [(PARTS[2], "there")]


@pytest.mark.requirement("LOG-2", "WKD-1")
def test_a_subscription_to_log_lines_is_one_on_every_channel_with_its_own_name_and_ends_on_all(
    operator: Undertaker,
) -> None:
    operator.wait(operator.wish("topic:_LOG", subscription="watch", is_durable=True))
    log = parse_destination("topic:_LOG")
    engines = [operator.engine(channel) for channel in range(CHANNELS)]
    topics = [engine.destinations[engine.numbers[log]] for engine in engines]
    assert [[each.name for each in topic.subscriptions.values()] for topic in topics] == [["watch"]] * CHANNELS
    assert [topic.policy for topic in topics] == [LOG_POLICY] * CHANNELS, "whoever needs it first"
    operator.do(ClosePattern(0, WATCH))
    operator.do(Unsubscribe(0, "watch"))
    assert not any(topic.subscriptions for topic in topics)


@pytest.mark.requirement("DMQ-1", "DMQ-3")
def test_dead_messages_of_all_channels_are_sent_back_together_and_counted(operator: Undertaker) -> None:
    for channel in (0, 0, 1, 3):
        operator.die(channel, channel)
    answer = operator.ask(Administer(0, "redrive", DEAD))
    assert isinstance(answer, Done)
    assert (answer.number, operator.dead()) == (4, {})


@pytest.mark.requirement("DMQ-1")
def test_dead_messages_of_one_channel_are_sent_back_alone(operator: Undertaker) -> None:
    for channel in (0, 1):
        operator.die(channel, channel)
    answer = operator.ask(Administer(0, "redrive", PARTS[1]))
    assert isinstance(answer, Done)
    assert (answer.number, operator.dead()) == (1, {(0, DEAD): 1})


@pytest.mark.requirement("DMQ-1", "DMQ-3")
def test_dead_messages_that_cannot_be_sent_back_are_told_with_their_part_and_the_others_go(
    operator: Undertaker,
) -> None:
    gone = [operator.die(channel, channel) for channel in (1, 2)]
    operator.die(3, "returns")
    for name in gone:
        operator.do(Administer(0, "delete", name))
    answer = operator.ask(Administer(0, "redrive", DEAD))
    assert isinstance(answer, Failed)
    first, second, rest = answer.reason.split("; queue:_DMQ@channel-2: ")[0], *answer.reason.split("; ")[-2:]
    assert first.startswith(f"{PARTS[1]}: 0 of 1 dead messages went back"), answer.reason
    assert f"{gone[1]} or the subscription" in answer.reason
    assert second == "receive or purge them"
    assert rest == "1 of other channels went back"
    assert operator.dead() == {(1, DEAD): 1, (2, DEAD): 1}


def test_where_there_is_one_channel_no_part_is_named(operator: Undertaker) -> None:
    operator.do(Administer(0, "delete", operator.die(0, "stays")))
    operator.renew(1, 2, 3)
    assert operator.refusal(Administer(0, "redrive", DEAD)).startswith("0 of 1 dead messages went back; ")
    operator.wait(operator.wish())
    assert operator.received() == [(DEAD, "stays")]


@pytest.mark.requirement("DMQ-1")
def test_dead_messages_of_all_channels_are_let_go_of_together_and_counted(operator: Undertaker) -> None:
    for channel in (0, 1, 1):
        operator.die(channel, channel)
    answer = operator.ask(Administer(0, "purge", DEAD))
    assert isinstance(answer, Done)
    assert (answer.number, operator.dead()) == (3, {})
    answer = operator.ask(Administer(0, "purge", DEAD))
    assert isinstance(answer, Done)
    assert answer.number == 0


def test_a_policy_of_a_whole_holds_on_every_channel_also_where_nothing_has_come_yet(operator: Undertaker) -> None:
    operator.die(1, "one")
    operator.set_policy(DEAD, ttl=60.0)
    dead = parse_destination(DEAD)
    engines = [operator.engine(channel) for channel in range(CHANNELS)]
    assert [engine.destinations[engine.numbers[dead]].policy for engine in engines] == [Policy(ttl=60.0)] * CHANNELS


def test_whoever_asks_for_log_lines_first_does_not_take_their_retention(operator: Undertaker) -> None:
    operator.do(Resolve(0, "topic:_LOG@channel-1"))
    engine = operator.engine(1)
    assert engine.destinations[engine.numbers[parse_destination("topic:_LOG")]].policy == LOG_POLICY
