"""What one connection may have open or wait for: beyond that it is refused with a sentence, and all else goes on."""

from collections.abc import Iterator
from typing import Any

import pytest

from alphorn.bus.config import Budget
from alphorn.client_manager.desk import Settings
from alphorn.model import link
from alphorn.model.commands import NUMBER_MAX, USED_MAX, CreateDestination, Subscribe
from alphorn.model.commands import Retire as Retired
from alphorn.model.commands import Stage as Staged
from alphorn.model.conversation import (
    AnyClientFrame,
    Browse,
    CloseConsumer,
    CloseSession,
    CommitTransaction,
    Confirmed,
    Consume,
    ConsumePattern,
    ConsumerClosed,
    Done,
    Failed,
    Goodbye,
    Joined,
    OpenSession,
    Publish,
    Recover,
    Refused,
    Resolve,
    Resolved,
    Retire,
)
from alphorn.model.destinations import parse_destination
from alphorn.model.log_conversation import Stage
from tests.client_manager.managing import Client, Managing, attached, encode

BLOB = memoryview(encode([["body"]]))


def is_served(client: Client, counter: int, producer: int = 90) -> bool:
    """Whether what a client sends is confirmed."""
    client.publish(client.resolve(), counter, "body", producer=producer)
    return bool(client.take(Confirmed))


def stage(request: int, place: int, part: int) -> Stage:
    return Stage(request, place, b"p" * 20, part + 1, 1, 0, 1000, BLOB, "writer", 1, 0, 1, part)


def test_a_connection_with_as_many_consumers_as_it_may_have_gets_another_when_it_closes_one() -> None:
    managing = Managing(consumers_max=2)
    client, other = managing.connect(), managing.connect()
    place = client.resolve()
    client.say(Consume(11, 1, 1, place, 10), Consume(12, 1, 2, place, 10), Consume(13, 1, 3, place, 10))
    [failed] = client.take(Failed)
    assert (failed.request, failed.error) == (13, "Misuse")
    assert failed.reason == (
        "this connection has 2 consumers, and may have no more; close some, or open another connection"
    )
    assert len(attached(managing)) == 2
    other.consume(other.resolve())
    assert len(attached(managing)) == 1, "of another connection nothing is refused"
    client.say(CloseConsumer(14, 1), Consume(15, 1, 3, place, 10))
    assert client.take(Failed) == []
    assert is_served(client, 1)


def test_a_consumer_that_comes_back_and_is_one_too_many_is_closed() -> None:
    managing = Managing(consumers_max=1)
    client = managing.connect()
    place = client.resolve()
    client.say(Consume(0, 1, 1, place, 10), Consume(0, 1, 2, place, 10))
    assert [frame.consumer for frame in client.take(ConsumerClosed)] == [2]


def test_of_a_pattern_only_so_many_destinations_are_received_from_and_the_client_hears_of_the_others() -> None:
    managing = Managing(consumers_max=2)
    client = managing.connect()
    client.say(ConsumePattern(11, 1, 7, "glob:queue:*", 10))
    [watch] = [frame for _, frame in managing.asked if isinstance(frame, link.Watch)]
    managing.tell(link.Advertised(0, [(n, parse_destination(f"queue:q{n}")) for n in (1, 2, 3)]))
    managing.tell(link.Answered(watch.request))
    for attach in attached(managing):
        managing.tell(link.Answered(attach.request))
    joined = [frame.consumer for frame in client.take(Joined)]
    assert [frame.consumer for frame in client.take(ConsumerClosed)] == joined[2:]
    assert client.take(Done) == [Done(11)]


def test_a_connection_has_so_many_patterns_and_others_may_have_as_many() -> None:
    managing = Managing(patterns_max=1)
    client, other = managing.connect(), managing.connect()
    for each in (client, other):
        each.say(ConsumePattern(11, 1, 7, "glob:queue:a*", 10))
        assert each.take(Failed) == []
    client.say(ConsumePattern(12, 1, 8, "glob:queue:b*", 10))
    [failed] = client.take(Failed)
    assert failed.reason.startswith("this connection has 1 consumers of patterns")
    client.say(CloseSession(13, 1), OpenSession(2), ConsumePattern(14, 2, 8, "glob:queue:b*", 10))
    assert client.take(Failed) == []


def test_messages_of_one_producer_too_many_are_refused_and_those_of_others_confirmed() -> None:
    managing = Managing(producers_max=2)
    client = managing.connect()
    place = client.resolve()
    for producer in (1, 2, 3):
        client.publish(place, 1, "a", "b", producer=producer)
    [refused] = client.take(Refused)
    assert (refused.producer, refused.counter, refused.count, refused.error) == (3, 1, 2, "Misuse")
    client.publish(place, 3, "c", producer=1)
    assert [frame.producer for frame in client.take(Confirmed)] == [1, 2, 1]
    client.say(Retire(2, [2]))
    client.publish(place, 1, "a", producer=3)
    assert [frame.producer for frame in client.take(Confirmed)] == [3]


def test_producers_that_only_logs_know_count_until_the_client_says_that_it_does_not_use_them() -> None:
    managing = Managing(producers_max=2)
    client = managing.connect()
    place = client.resolve()
    for number in range(1, 10):
        client.say(OpenSession(number + 1), Publish(number + 1, number, place, 1, 1, 0, 1000, BLOB))
        client.say(CloseSession(20 + number, number + 1))
    assert [frame.producer for frame in client.take(Refused)] == [9]
    client.say(Retire(9, []), Publish(1, 10, place, 1, 1, 0, 1000, BLOB))
    assert any(isinstance(command, Retired) for entry in managing.entries for command in entry.commands)
    assert [frame.producer for frame in client.take(Confirmed)][-1] == 10


def test_a_session_too_many_ends_the_connection_because_nobody_would_hear_that_it_is_refused() -> None:
    managing = Managing(sessions_max=2)
    client, other = managing.connect(), managing.connect()
    client.say(OpenSession(2), OpenSession(3))
    [goodbye] = client.take(Goodbye)
    assert goodbye.reason.startswith("this connection has 2 sessions, and may have no more")
    assert is_served(other, 1)


def test_requests_that_wait_are_so_many_and_answers_make_room_for_others() -> None:
    managing = Managing(requests_max=2)
    client, other = managing.connect(), managing.connect()
    managing.link_down("mm1")
    client.say(*[Resolve(request, f"queue:{request}") for request in (11, 12, 13)])
    [failed] = client.take(Failed)
    assert (failed.request, failed.error) == (13, "Misuse")
    assert failed.reason == "2 requests of this connection wait for their answers; ask again when some have come"
    other.say(Resolve(11, "queue:11"))
    assert other.take(Failed) == []
    managing.link_up("mm2", is_primary=True, epoch=2)
    requests = [request for entry in managing.entries for request in entry.requests if request]
    for request in dict.fromkeys(requests):
        managing.tell(link.Answered(request, request), "mm2")
    assert {frame.request for frame in client.take(Resolved)} == {11, 12}
    client.say(Resolve(13, "queue:13"), Resolve(14, "queue:14"))
    assert client.take(Failed) == []


def test_what_waits_with_messages_in_it_is_so_much_and_one_of_any_size_is_taken() -> None:
    managing = Managing(requests_bytes_max=len(BLOB))
    client = managing.connect()
    place = client.resolve()
    publishes = [Publish(1, producer, place, 1, 1, 0, 1000, BLOB) for producer in (1, 2)]
    client.say(CommitTransaction(11, 1, 1, publishes, []))
    client.say(stage(12, place, 0), CommitTransaction(13, 1, 2, publishes, []), Resolve(14, "queue:other"))
    failed = client.take(Failed)
    assert [(frame.request, frame.error) for frame in failed] == [(12, "Misuse"), (13, "TransactionRolledBack")]
    managing.answer()
    managing.tell(link.Answered(managing.entries[-2].requests[0]))
    assert {frame.request for frame in client.take(Done)} >= {11}
    client.say(stage(15, place, 0))
    assert client.take(Failed) == []


@pytest.mark.parametrize(
    "again", [Resolve(11, "queue:b"), CloseConsumer(11, 5)], ids=lambda frame: type(frame).__name__
)
def test_a_number_that_waits_for_its_answer_is_not_used_again(again: Resolve | CloseConsumer) -> None:
    managing = Managing()
    client = managing.connect()
    client.say(Resolve(11, "queue:a"), again)
    [goodbye] = client.take(Goodbye)
    assert goodbye.reason == "request 11 waits for its answer already; each has a number of its own"


def test_limits_are_far_beyond_what_a_program_needs() -> None:
    settings = Settings(name="cm1")
    assert settings.consumers_max >= 2 * 100_000, "one pattern of all destinations, and as much again"
    assert settings.patterns_max >= 2 * 10_000
    assert min(settings.sessions_max, settings.producers_max, settings.requests_max) >= 10 * 10_000
    assert settings.sessions_max + settings.producers_max <= USED_MAX, "or what is closed is never known to be"


def test_what_a_client_says_of_its_numbers_again_and_again_makes_no_entry_that_the_bus_does_not_take() -> None:
    managing = Managing()
    managing.commits = False
    client = managing.connect()
    client.say(*[Retire(NUMBER_MAX - number, list(range(1, 10_000))) for number in range(150)])
    assert len(managing.waiting) > 1
    assert max(len(order.payload) for order in managing.waiting) <= Budget().batch_bytes_max


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (Consume(11, 1, 1, 5, 10, selector="x" * 20_000), "InvalidSelector"),
        (Consume(11, 1, 1, 5, 10, subscription="x" * 256), "Misuse"),
        (ConsumePattern(11, 1, 1, "glob:*", 10, selector="x" * 20_000), "InvalidSelector"),
        (ConsumePattern(11, 1, 1, "glob:*", 10, subscription="x" * 256), "Misuse"),
        (Browse(11, 5, "x" * 20_000, 0, 1), "InvalidSelector"),
    ],
)
def test_words_that_are_too_long_are_refused_at_the_door_and_not_kept(frame: AnyClientFrame, error: str) -> None:
    managing = Managing()
    client = managing.connect()
    managing.link_down("mm1")
    client.say(frame)
    [failed] = client.take(Failed)
    assert (failed.request, failed.error) == (11, error)
    assert not managing.manager._desk.consumers


class Unwalked(dict[int, Any]):
    """Consumers or producers that may be looked up, and not gone through."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the end of a session must not cost by what others have")

    values = items = __iter__  # type: ignore[assignment]


def test_the_end_of_a_session_costs_nothing_by_what_other_sessions_have() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve()
    client.say(OpenSession(2), ConsumePattern(10, 1, 7, "glob:queue:none*", 10))
    client.say(Consume(11, 1, 1, place, 10), Consume(12, 2, 2, place, 10))
    client.say(Publish(1, 1, place, 1, 1, 0, 1000, BLOB), Publish(2, 2, place, 1, 1, 0, 1000, BLOB))
    [connection] = managing.manager._desk.connections.values()
    connection.consumers, connection.producers = Unwalked(connection.consumers), Unwalked(connection.producers)
    client.say(CloseSession(13, 2))
    [detach] = [frame for _, frame in managing.asked if isinstance(frame, link.Detach)]
    managing.tell(link.Answered(detach.request))
    assert Done(13) in client.take(Done)
    assert (len(connection.consumers), len(connection.producers)) == (1, 1)


def test_a_consumer_that_has_not_begun_recovers_once_however_often_its_client_says_so() -> None:
    managing = Managing()
    client = managing.connect()
    place = client.resolve("topic:t")
    client.say(Consume(11, 1, 1, place, 10, held=[1, 4]))
    client.say(*[Recover(20 + number, 1, [1, 4], []) for number in range(3)])
    assert [frame.request for frame in client.take(Failed)] == [21, 22]
    [consumer] = managing.manager._desk.consumers.values()
    assert len(consumer.postponed) == 1
    managing.answer(number=3)
    [pause] = [frame for _, frame in managing.asked if isinstance(frame, link.Pause)]
    managing.tell(link.Answered(pause.request))
    assert Done(20) in client.take(Done)


def test_the_limits_of_a_channel_stand_in_the_commands_that_they_are_for() -> None:
    managing = Managing(destinations_max=3, subscriptions_max=4, staged_bytes_max=5)
    client = managing.connect()
    place = client.resolve("topic:t")
    client.say(Consume(11, 1, 1, place, 10, subscription="s", is_durable=True))
    [claim] = [frame for _, frame in managing.asked if isinstance(frame, link.Claim)]
    managing.tell(link.Answered(claim.request))
    client.say(stage(12, place, 0))
    ordered = [command for entry in managing.entries for command in entry.commands]
    assert [command.destinations_max for command in ordered if isinstance(command, CreateDestination)] == [3]
    assert [command.subscriptions_max for command in ordered if isinstance(command, Subscribe)] == [4]
    assert [command.staged_bytes_max for command in ordered if isinstance(command, Staged)] == [5]
