"""What shares a log entry, and what waits for which."""

import math
from random import Random

import pytest

from alphorn.client_manager.channel import (
    BULK_BYTES_MAX,
    BULK_BYTES_SHARED,
    ENTRY_BYTES,
    ENTRY_WORK,
    LITTLE_BYTES,
    POSITION_BYTES,
    QUIET_S,
    UNDER_WAY_MAX,
    Channel,
)
from alphorn.client_manager.wishes import HEAVY_BYTES
from alphorn.model import commands
from alphorn.model.commands import decode_entry
from alphorn.model.destinations import Destination, DestinationKind, Policy
from alphorn.model.link import Answered
from alphorn.model.messages import BATCH_BYTES_MAX


def _forget(number: int) -> commands.Forget:
    return commands.Forget(bytes([number]) * 16)


def _fragment(size: int) -> commands.Fragment:
    return commands.Fragment(1, bytes(20), 1, 0, memoryview(bytes(size)))


def _acknowledge(position: int) -> commands.Acknowledge:
    return commands.Acknowledge(5, 0, b"k" * 20, [position, position])


def _take(channel: Channel, now: float = 0.0) -> list[tuple[int, list[object]]]:
    return [(handle, list(decode_entry(payload).commands)) for handle, payload in channel.take_entries(now)]


def test_what_is_wanted_in_one_turn_is_one_entry_and_leaves_at_once() -> None:
    channel = Channel(cache_bytes=0)
    channel.want(_forget(1))
    channel.want(_forget(2))
    assert [commands for _, commands in _take(channel)] == [[_forget(1), _forget(2)]]


def test_little_waits_for_the_entry_that_is_under_way_and_shares_the_next() -> None:
    channel = Channel(cache_bytes=0)
    channel.want(_forget(1))
    [(handle, _)] = _take(channel)
    channel.want(_forget(2))
    assert _take(channel) == []
    channel.want(_forget(3))
    assert _take(channel) == []
    channel.committed(handle, 7)
    assert [commands for _, commands in _take(channel)] == [[_forget(2), _forget(3)]]


def test_little_leaves_when_nobody_knows_what_became_of_the_entry_before() -> None:
    channel = Channel(cache_bytes=0)
    channel.want(_forget(1))
    [(handle, _)] = _take(channel)
    channel.want(_forget(2))
    channel.lost(handle)
    assert [commands for _, commands in _take(channel)] == [[_forget(2)]]


def test_much_leaves_while_other_entries_are_under_way() -> None:
    channel = Channel(cache_bytes=0)
    channel.want(_forget(1))
    _take(channel)
    channel.want(_forget(2), size=LITTLE_BYTES)
    assert [commands for _, commands in _take(channel)] == [[_forget(2)]]


def test_nothing_waits_for_bulk() -> None:
    channel = Channel(cache_bytes=0)
    channel.want(_fragment(100))
    assert len(_take(channel)) == 1
    channel.want(_forget(1))
    assert [commands for _, commands in _take(channel)] == [[_forget(1)]]
    channel.want(_fragment(100))
    assert len(_take(channel)) == 1


def _beside_a_fragment(size: int) -> tuple[Channel, int, int]:
    """A channel with a fragment under way, something of this size behind it, and another fragment that waits."""
    channel = Channel(cache_bytes=0)
    channel.want(_forget(9))
    [(first, _)] = _take(channel)
    channel.committed(first, 6)
    for _ in range(2):
        channel.want(_fragment(BULK_BYTES_SHARED))
    [(bulk, _)] = _take(channel)
    channel.want(_forget(1), size=size)
    [(little, _)] = _take(channel)
    return channel, bulk, little


@pytest.mark.requirement("VLM-7")
def test_what_is_little_and_behind_a_fragment_ends_before_the_next_one_leaves() -> None:
    channel, bulk, little = _beside_a_fragment(100)
    channel.committed(bulk, 7)
    assert _take(channel) == []
    channel.committed(little, 8)
    assert [type(command) for _, [command] in _take(channel)] == [commands.Fragment]


def test_a_fragment_waits_only_for_what_was_under_way_when_the_one_before_it_ended() -> None:
    channel, bulk, little = _beside_a_fragment(100)
    channel.committed(bulk, 7)
    channel.want(_forget(2))
    channel.committed(little, 8)
    assert [type(command) for _, [command] in _take(channel)] == [commands.Forget, commands.Fragment]


def test_a_fragment_does_not_wait_for_much() -> None:
    channel, bulk, _ = _beside_a_fragment(BULK_BYTES_SHARED)
    channel.committed(bulk, 7)
    assert [type(command) for _, [command] in _take(channel)] == [commands.Fragment]


def test_fragments_leave_however_much_that_is_little_keeps_coming() -> None:
    channel = Channel(cache_bytes=0)
    under_way: list[int] = []
    fragments = 0
    for turn in range(100):
        channel.want(_forget(turn))
        channel.want(_fragment(BULK_BYTES_SHARED))
        for handle, ordered in _take(channel):
            under_way.append(handle)
            fragments += isinstance(ordered[0], commands.Fragment)
        channel.committed(under_way.pop(0), 1)
    assert fragments >= 30, "about every third entry"


def test_a_fragment_waits_no_longer_for_what_is_lost() -> None:
    channel, bulk, little = _beside_a_fragment(100)
    channel.committed(bulk, 7)
    channel.lost(little)
    assert len(_take(channel)) == 1


def test_less_bulk_is_under_way_while_there_is_other_traffic() -> None:
    channel = Channel(cache_bytes=0)
    count = BULK_BYTES_MAX // BULK_BYTES_SHARED
    for _ in range(2 * count):
        channel.want(_fragment(BULK_BYTES_SHARED))
    quiet = _take(channel, 1.0)
    assert len(quiet) == count
    channel.want(_acknowledge(1))
    [(little, ordered)] = _take(channel, 2.0)
    assert ordered == [_acknowledge(1)]
    channel.committed(little, 8)
    for handle, _ in quiet[:-1]:
        channel.committed(handle, 7)
    assert _take(channel, 2.1) == []
    channel.committed(quiet[-1][0], 7)
    assert len(_take(channel, 2.2)) == 1
    assert len(_take(channel, 2.0 + QUIET_S)) == count - 1


def test_what_may_wait_leaves_with_what_may_not() -> None:
    channel = Channel(cache_bytes=0)
    channel.want(_acknowledge(1), until=2.0)
    assert channel.take_entries(1.0) == []
    assert channel.next_deadline() == 2.0
    channel.want(_forget(1))
    assert [commands for _, commands in _take(channel, 1.0)] == [[_acknowledge(1), _forget(1)]]


def test_what_may_wait_leaves_by_itself_when_it_has_waited_long_enough() -> None:
    channel = Channel(cache_bytes=0)
    channel.want(_acknowledge(1), until=2.0)
    channel.want(_acknowledge(2), until=3.0)
    assert channel.take_entries(1.9) == []
    assert [commands for _, commands in _take(channel, 2.0)] == [[_acknowledge(1), _acknowledge(2)]]


def test_an_acknowledgement_that_may_not_wait_takes_the_one_it_joins_along() -> None:
    channel = Channel(cache_bytes=0)
    channel.want(_acknowledge(1), until=2.0)
    assert channel.join(_acknowledge(2), until=0.0)
    assert len(_take(channel, 1.0)) == 1


def test_much_does_not_wait() -> None:
    channel = Channel(cache_bytes=0)
    channel.want(_acknowledge(1), size=LITTLE_BYTES, until=2.0)
    assert channel.next_deadline() == 0.0
    assert len(_take(channel, 1.0)) == 1


def test_nothing_is_due_while_an_entry_is_under_way_or_the_bus_takes_none() -> None:
    channel = Channel(cache_bytes=0)
    channel.want(_forget(1))
    [(handle, _)] = _take(channel)
    channel.want(_acknowledge(1), until=2.0)
    assert channel.next_deadline() == math.inf
    channel.committed(handle, 7)
    assert channel.next_deadline() == 2.0
    channel.is_open = False
    assert channel.next_deadline() == math.inf
    assert channel.take_entries(3.0) == []


def test_a_request_that_the_bus_would_not_take_is_refused_alone_and_never_ordered() -> None:
    channel = Channel(cache_bytes=0)
    answers: list[Answered] = []
    number = channel.request(commands.NoteReader("r" * BATCH_BYTES_MAX, [], 1), answers.append)
    channel.want(_forget(1))
    assert (answers, channel.next_deadline()) == ([], 0.0)
    assert [commands for _, commands in _take(channel)] == [[_forget(1)]]
    assert [(answer.request, answer.error) for answer in answers] == [(number, "Misuse")]
    channel.repeat_requests()
    assert _take(channel) == []


def test_acknowledgements_join_only_while_the_entry_is_small() -> None:
    channel = Channel(cache_bytes=0)
    many = list(range(ENTRY_BYTES // POSITION_BYTES))
    channel.want(_acknowledge(1))
    assert not channel.join(commands.Acknowledge(5, 0, b"k" * 20, many))
    assert channel.join(_acknowledge(2))


A, B = b"a" * 16, b"b" * 16


def _create(name: str) -> commands.CreateDestination:
    return commands.CreateDestination(Destination(DestinationKind.QUEUE, name), Policy())


def _publish(whose: bytes, counter: int, size: int = 100) -> commands.Publish:
    return commands.Publish(5, commands.key_of(whose, 1), counter, 1, 0, 1000, memoryview(bytes(size)))


def _want(channel: Channel, command: commands.Publish) -> None:
    channel.want(command, size=len(command.blob))


def _flood(channel: Channel, count: int) -> None:
    for number in range(count):
        channel.request(_create(f"q{number}"), lambda answer: None, whose=A)


def test_who_wants_very_many_commands_keeps_another_waiting_for_one_entry_besides_what_is_under_way() -> None:
    channel = Channel(cache_bytes=0)
    _flood(channel, 10_000)
    under_way = _take(channel)
    _want(channel, _publish(B, 1))
    for handle, _ in under_way:
        channel.committed(handle, handle)
    closed, following, *_ = _take(channel)
    assert _publish(B, 1) not in closed[1]
    assert following[1].index(_publish(B, 1)) <= 1


def test_only_so_much_work_is_under_way_however_small_the_commands_are() -> None:
    channel = Channel(cache_bytes=0)
    _flood(channel, 10_000)
    entries = _take(channel)
    assert max(len(ordered) for _, ordered in entries) * HEAVY_BYTES <= ENTRY_WORK
    assert UNDER_WAY_MAX <= sum(len(ordered) for _, ordered in entries) * HEAVY_BYTES <= UNDER_WAY_MAX + ENTRY_WORK
    assert _take(channel) == []
    assert channel.next_deadline() == math.inf
    channel.committed(entries[0][0], 1)
    assert len(_take(channel)) == 1


def test_large_batches_of_two_connections_enter_the_log_in_turn() -> None:
    channel = Channel(cache_bytes=0)
    channel.is_open = False
    for whose in (A, B):
        for counter in range(1, 4):
            _want(channel, _publish(whose, counter, ENTRY_BYTES))
    channel.is_open = True
    order = [(command.producer[:1], command.counter) for _, [command] in _take(channel)]  # type: ignore[attr-defined]
    assert order == [(b"a", 1), (b"a", 2), (b"b", 1), (b"a", 3), (b"b", 2), (b"b", 3)]


def test_the_commands_of_each_connection_leave_in_the_order_in_which_they_were_wanted() -> None:
    random, channel = Random(3), Channel(cache_bytes=0)
    names = [bytes([65 + number]) * 16 for number in range(4)]
    counters, left = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    under_way: list[int] = []
    for _ in range(3000):
        whose = random.choice(names)
        counters[whose] += 1
        _want(channel, _publish(whose, counters[whose], random.choice((10, 1000, 100_000))))
        if random.random() < 0.02:
            entries = _take(channel)
            under_way += [handle for handle, _ in entries]
            for _, ordered in entries:
                for command in ordered:
                    assert isinstance(command, commands.Publish)
                    whose = commands.connection_of(command.producer)
                    left[whose] += 1
                    assert command.counter == left[whose]
            while under_way and random.random() < 0.7:
                channel.committed(under_way.pop(0), 1)
    assert sum(left.values()) > 500


def test_what_has_not_left_is_not_wanted_twice_when_the_primary_changes() -> None:
    channel = Channel(cache_bytes=0)
    _flood(channel, 1000)
    has_left = sum(len(ordered) for _, ordered in _take(channel))
    channel.repeat_requests()
    channel.repeat_requests()
    total, entries = has_left, [(handle, []) for handle in channel.in_flight]
    while entries:
        for handle, _ in entries:
            channel.committed(handle, 1)
        entries = _take(channel)
        total += sum(len(ordered) for _, ordered in entries)
    assert total == 1000 + has_left


def test_an_acknowledgement_joins_the_one_before_it_that_waits_in_line() -> None:
    channel = Channel(cache_bytes=0)
    channel.is_open = False
    channel.want(_acknowledge(1))
    _want(channel, _publish(A, 1, ENTRY_BYTES))
    assert not channel.join(_acknowledge(2)), "it would overtake"
    channel.want(_acknowledge(2))
    assert channel.join(_acknowledge(3))
    channel.is_open = True
    _, (_, [last]) = _take(channel)
    assert last == commands.Acknowledge(5, 0, b"k" * 20, [2, 2, 3, 3])


def test_the_end_of_a_connection_comes_after_all_that_it_wanted_be_it_bulk_or_not() -> None:
    channel = Channel(cache_bytes=0)
    channel.is_open = False
    producer = commands.key_of(A, 2)
    _want(channel, _publish(B, 1, ENTRY_BYTES))
    for counter in (1, 2):
        channel.want(commands.Fragment(5, producer, counter, counter - 1, memoryview(bytes(BULK_BYTES_SHARED))))
    _want(channel, _publish(A, 1, ENTRY_BYTES))
    channel.want(commands.Forget(A))
    channel.is_open = True
    order: list[type] = []
    while entries := _take(channel):
        order += [type(command) for _, ordered in entries for command in ordered]
        for handle, _ in entries:
            channel.committed(handle, 1)
    assert order[-1] is commands.Forget
    assert sorted(each.__name__ for each in order[:-1]) == ["Fragment", "Fragment", "Publish", "Publish"]


def test_bulk_of_two_connections_enters_the_log_in_turn() -> None:
    channel = Channel(cache_bytes=0)
    for whose in (A, B):
        for counter in (1, 2, 3):
            blob = memoryview(bytes(1000))
            channel.want(commands.Fragment(5, commands.key_of(whose, 2), counter, counter - 1, blob))
    order = [command.producer[:1] for _, [command] in _take(channel)]  # type: ignore[attr-defined]
    assert order == [b"a", b"b", b"a", b"b", b"a", b"b"]


def test_what_is_wanted_last_is_heard_of_when_all_before_it_is_committed() -> None:
    channel = Channel(cache_bytes=0)
    channel.is_open = False
    heard: list[object] = []
    for whose in (A, B):
        for counter in range(1, 4):
            key = (whose, counter)
            channel.want(_publish(*key), lambda key=key: heard.append(key), size=ENTRY_BYTES)  # type: ignore[misc]
    channel.want_last(commands.Acknowledge(5, 0, b"", []), lambda: heard.append("last"))
    channel.is_open = True
    while entries := _take(channel):
        for handle, _ in entries:
            channel.committed(handle, 1)
    assert heard[-1] == "last"
    assert len(heard) == 7


def test_a_share_is_of_those_who_have_something_waiting() -> None:
    channel = Channel(cache_bytes=0)
    channel.is_open = False
    _want(channel, _publish(A, 1, 10_000))
    assert channel.is_over(A, 10_000)
    assert not channel.is_over(B, 10_000)
    assert channel.greedy(10_000) == [A]
    _want(channel, _publish(B, 1, 6_000))
    assert channel.is_over(B, 10_000)
    assert sorted(channel.greedy(10_000)) == [A, B]
    assert channel.greedy(20_000) == []
