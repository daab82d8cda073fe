"""Clients date messages by their clocks, and the log has its own time: a Client Manager turns one into the other."""

import msgspec
import pytest

from alphorn.client_manager.dating import shifted
from alphorn.client_manager.machine import Opened
from alphorn.doors.native import VERSION
from alphorn.model import link
from alphorn.model.conversation import Hello, OpenSession, Publish
from alphorn.model.messages import Flag, headers_of
from tests.client_manager.managing import Client, Managing, encode, published

HOUR_MS = 3_600_000
LOG_MS = 1_700_000_000_000
DATED = int(Flag.EXPIRATION | Flag.DELAY)


def connected(managing: Managing, now_ms: int) -> Client:
    managing.streams += 1
    client = Client(managing, managing.streams)
    managing.receive(Opened(client.stream))
    client.say(Hello(VERSION, now_ms=now_ms), OpenSession(1))
    return client


def dated(managing: Managing, client: Client, expiration: int, deliver_at: int = 0) -> tuple[int, int]:
    """What the log has of a message with these times."""
    blob = memoryview(encode([["x", None, 4, expiration, deliver_at]]))
    client.say(Publish(1, 1, client.resolve(), 1, 1, DATED, 0, blob))
    [header] = headers_of(published(managing)[-1].blob)
    return header.expiration, header.deliver_at


def in_step(time_ms: int = LOG_MS) -> Managing:
    """One that has heard from the primary what time it is."""
    managing = Managing()
    managing.tell(link.Time(time_ms))
    return managing


@pytest.mark.parametrize("skew_ms", [-HOUR_MS, HOUR_MS, 60 * HOUR_MS])
@pytest.mark.requirement("LOG-4")
def test_what_a_client_dates_by_a_wrong_clock_is_dated_by_the_time_of_the_log(skew_ms: int) -> None:
    managing = in_step()
    client = connected(managing, LOG_MS + skew_ms)
    managing.now += 5.0
    now_ms = LOG_MS + skew_ms + 5_000
    assert dated(managing, client, now_ms + 20_000, now_ms + 1_000) == (LOG_MS + 25_000, LOG_MS + 6_000)


def test_messages_of_a_client_whose_clock_is_right_are_left_as_they_are() -> None:
    managing = in_step()
    client = connected(managing, LOG_MS - 300)
    assert dated(managing, client, LOG_MS + 20_000) == (LOG_MS + 20_000, 0)


def test_a_client_that_does_not_say_what_its_clock_shows_dates_by_the_time_of_the_log() -> None:
    managing = in_step()
    client = connected(managing, 0)
    assert dated(managing, client, LOG_MS + 20_000) == (LOG_MS + 20_000, 0)


def test_what_had_expired_before_it_was_sent_stays_so() -> None:
    managing = in_step()
    client = connected(managing, LOG_MS + HOUR_MS)
    assert dated(managing, client, 1) == (1, 0)


@pytest.mark.requirement("LOG-4")
def test_the_next_primary_is_told_the_time_that_held_before_and_its_own_clock_changes_nothing() -> None:
    managing = in_step()
    client = connected(managing, LOG_MS)
    managing.now += 10.0
    managing.tell(link.Role("mm1", 2, True, LOG_MS + HOUR_MS))
    told = [frame for _, frame in managing.asked if isinstance(frame, link.Introduce)]
    assert told[-1].time_ms == LOG_MS + 10_000
    assert dated(managing, client, LOG_MS + 30_000) == (LOG_MS + 30_000, 0)
    managing.tell(link.Time(LOG_MS + HOUR_MS + 10_000))
    assert dated(managing, connected(managing, LOG_MS + 10_000), LOG_MS + 30_000) == (LOG_MS + HOUR_MS + 30_000, 0)


def test_the_first_primary_is_told_no_time_and_believed() -> None:
    managing = Managing()
    managing.tell(link.Role("mm1", 2, True, LOG_MS))
    told = [frame for _, frame in managing.asked if isinstance(frame, link.Introduce)]
    assert [frame.time_ms for frame in told] == [0]
    client = connected(managing, LOG_MS + HOUR_MS)
    assert dated(managing, client, LOG_MS + HOUR_MS + 20_000) == (LOG_MS + 20_000, 0)


def test_all_but_the_times_of_a_batch_stays_byte_by_byte() -> None:
    body = {"a": [1, 2.5, b"b"], "n": None}
    blob = encode(
        [[body, {"p": 1}, 4, 5_000, 0, "key", "type"], ["plain"], [None, None, 9, 0, 7_000], [0, None, 4, 1 << 60]]
    )
    assert msgspec.msgpack.decode(shifted(blob, -2_000)) == [
        [body, {"p": 1}, 4, 3_000, 0, "key", "type"],
        ["plain"],
        [None, None, 9, 0, 5_000],
        [0, None, 4, 1 << 60],
    ]
