"""What shares a log entry, and what waits for which."""

import math

from alphorn.client_manager.channel import (
    BULK_BYTES_MAX,
    BULK_BYTES_SHARED,
    ENTRY_BYTES,
    LITTLE_BYTES,
    POSITION_BYTES,
    QUIET_S,
    Channel,
)
from alphorn.model import commands
from alphorn.model.commands import decode_entry
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


def test_nothing_waits_for_bulk_and_bulk_for_nothing_else() -> None:
    channel = Channel(cache_bytes=0)
    channel.want(_fragment(100))
    assert len(_take(channel)) == 1
    channel.want(_forget(1))
    assert [commands for _, commands in _take(channel)] == [[_forget(1)]]
    channel.want(_fragment(100))
    assert len(_take(channel)) == 1


def test_less_bulk_is_under_way_while_there_is_other_traffic() -> None:
    channel = Channel(cache_bytes=0)
    count = BULK_BYTES_MAX // BULK_BYTES_SHARED
    for _ in range(2 * count):
        channel.want(_fragment(BULK_BYTES_SHARED))
    quiet = _take(channel, 1.0)
    assert len(quiet) == count
    channel.want(_acknowledge(1))
    assert [commands for _, commands in _take(channel, 2.0)] == [[_acknowledge(1)]]
    for handle, _ in quiet[:-1]:
        channel.committed(handle, 7)
    assert _take(channel, 2.1) == []
    channel.committed(quiet[-1][0], 9)
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
