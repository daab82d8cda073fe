"""What a producer does when it is told to wait: nothing is sent, nothing is lost, and everything goes on in order."""

import pytest

from alphorn.client.inbox import PREFETCHED_BYTES_LOW, PREFETCHED_BYTES_MAX, AckMode, Inbox
from alphorn.client.outbox import WINDOW_BYTES, Outbox, Parcel
from alphorn.client.packing import pack_bodies, pack_body
from alphorn.model import conversation as c
from alphorn.model.messages import count_of
from tests.client.test_core import Script

PLACE = 7


def add(outbox: Outbox, *bodies: object) -> None:
    for body in bodies:
        outbox.add_plain(pack_body(body))


def batches(script: Script) -> list[tuple[int, int]]:
    """Counter and count of every batch that leaves now."""
    frames = [frame for frame in script.said() if isinstance(frame, c.Publish)]
    assert all(count_of(frame.blob) == frame.count for frame in frames)
    return [(frame.counter, frame.count) for frame in frames]


@pytest.mark.requirement("FC-6", "API-14")
def test_nothing_is_sent_to_a_destination_that_takes_nothing() -> None:
    script = Script()
    outbox = script.producer()
    script.hear(c.Flow([PLACE], "queue:q is full"))
    assert not outbox.has_room
    assert outbox.why_full(PLACE) == "queue:q is full"
    add(outbox, "a")
    assert batches(script) == []
    script.hear(c.Flow([PLACE], ""))
    assert outbox.has_room
    assert batches(script) == [(1, 1)]


@pytest.mark.requirement("FC-9")
def test_other_destinations_do_not_wait() -> None:
    script = Script()
    script.producer()
    other = script.core.open_outbox(next(iter(script.core.sessions.values())), 8, is_persistent=True)
    script.hear(c.Flow([PLACE], "queue:q is full"))
    add(other, "a")
    assert batches(script) == [(1, 1)]


@pytest.mark.requirement("FC-7")
def test_a_session_on_hold_sends_nothing_and_other_sessions_do() -> None:
    script = Script()
    held, free = script.producer(), script.producer()
    script.said()
    script.hear(c.Hold(held.session, "wait"))
    add(held, "a")
    add(free, "b")
    [frame] = [frame for frame in script.said() if isinstance(frame, c.Publish)]
    assert frame.producer == free.number
    script.hear(c.Hold(held.session, ""))
    assert batches(script) == [(1, 1)]


def test_a_producer_that_begins_later_knows_what_is_blocked() -> None:
    script = Script()
    script.hear(c.Flow([PLACE], "queue:q is full"))
    assert not script.producer().has_room


@pytest.mark.requirement("FC-4")
def test_postponed_messages_are_sent_again_in_order_before_new_ones() -> None:
    script = Script()
    outbox = script.producer()
    for body in "abc":
        add(outbox, body)
        batches(script)
    script.hear(c.Flow([PLACE], "full"), c.Postponed(outbox.number, 2))
    add(outbox, "d")
    assert batches(script) == []
    script.hear(c.Confirmed(outbox.number, 1), c.Flow([PLACE], ""))
    assert batches(script) == [(2, 1), (3, 1)]
    assert batches(script) == [(4, 1)]
    script.hear(c.Confirmed(outbox.number, 4))
    assert outbox.is_flushed


@pytest.mark.requirement("FC-4")
def test_of_a_batch_that_was_taken_in_part_only_the_rest_is_sent_again_slowly_at_first() -> None:
    script = Script()
    outbox = script.producer()
    [(count, blob)] = pack_bodies(list(range(10)))
    outbox.add(Parcel(PLACE, 0, count, blob))
    assert batches(script) == [(1, 10)]
    script.hear(c.Postponed(outbox.number, 3, 2))
    assert outbox.confirmed == 2
    assert outbox.outcome(2) is True
    assert outbox.outcome(3) is False
    assert batches(script) == [(3, 2)]
    script.hear(c.Confirmed(outbox.number, 4))
    assert batches(script) == [(5, 4)]
    script.hear(c.Postponed(outbox.number, 5, 0))
    assert batches(script) == [(5, 1)]
    script.hear(c.Confirmed(outbox.number, 5))
    assert batches(script) == [(6, 2)]
    script.hear(c.Confirmed(outbox.number, 7))
    assert batches(script) == [(8, 1), (9, 2)]
    script.hear(c.Confirmed(outbox.number, 10))
    assert outbox.is_flushed


def test_split_batches_hold_the_messages_they_say() -> None:
    script = Script()
    outbox = script.producer()
    [(count, blob)] = pack_bodies(["a", "b", "c"])
    outbox.add(Parcel(PLACE, 0, count, blob))
    script.said()
    script.hear(c.Postponed(outbox.number, 2, 1))
    [first] = [frame for frame in script.said() if isinstance(frame, c.Publish)]
    script.hear(c.Confirmed(outbox.number, 2))
    [second] = [frame for frame in script.said() if isinstance(frame, c.Publish)]
    assert (first.counter, bytes(first.blob)) == (2, pack_bodies(["b"])[0][1])
    assert (second.counter, bytes(second.blob)) == (3, pack_bodies(["c"])[0][1])


@pytest.mark.requirement("API-12")
def test_after_a_reconnection_nothing_counts_as_blocked_and_postponed_messages_follow_unconfirmed_ones() -> None:
    script = Script()
    outbox = script.producer()
    for body in "abc":
        add(outbox, body)
        script.said()
    script.hear(c.Hold(outbox.session, "wait"), c.Flow([PLACE], "full"), c.Postponed(outbox.number, 2))
    script.cut()
    assert outbox.has_room
    assert batches(script) == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.requirement("FC-3")
def test_no_more_than_a_window_is_under_way() -> None:
    script = Script()
    outbox = script.producer()
    size = 60_000
    add(outbox, *["x" * size] * 150)
    sent = batches(script)
    assert WINDOW_BYTES - 2 * size < size * sum(count for _, count in sent) < WINDOW_BYTES + 2 * size
    assert batches(script) == []
    answered = sum(count for _, count in sent[:3])
    script.hear(c.Confirmed(outbox.number, answered))
    assert sum(count for _, count in batches(script)) == answered


def test_a_producer_without_a_destination_of_its_own_waits_only_where_it_sends() -> None:
    script = Script()
    shared = script.core.open_outbox(script.core.open_session(AckMode.AUTO), 0, is_persistent=True)
    script.hear(c.Flow([PLACE], "full"))
    assert shared.why_full(PLACE) == "full"
    assert shared.why_full(8) == ""
    shared.add(Parcel(8, 0, 0, pack_body("a")))
    assert batches(script) == [(1, 1)]


def deliver(script: Script, inbox: Inbox, position: int) -> None:
    [(_, blob)] = pack_bodies(["x" * 1_000_000])
    script.hear(c.Delivered(inbox.number, position, 1, 5, 0, bytes(20), position, 1000, b"", memoryview(blob)))


def regulations(script: Script) -> list[bool]:
    return [frame.is_blocked for frame in script.said() if isinstance(frame, c.Regulate)]


@pytest.mark.requirement("FC-2", "FC-5")
def test_a_consumer_with_more_than_its_program_uses_says_so_until_the_low_mark() -> None:
    script = Script()
    inbox = script.consumer()
    most, low = PREFETCHED_BYTES_MAX // 1_000_000, PREFETCHED_BYTES_LOW // 1_000_000
    for position in range(1, most + 1):
        deliver(script, inbox, position)
    assert regulations(script) == []
    deliver(script, inbox, most + 1)
    assert inbox.is_urgent
    assert regulations(script) == [True]
    deliver(script, inbox, most + 2)
    assert len(inbox.take(most + 1 - low)) == most + 1 - low
    assert regulations(script) == []
    inbox.take(1)
    assert regulations(script) == [False]


@pytest.mark.requirement("FC-5")
def test_a_consumer_says_it_again_after_a_reconnection() -> None:
    script = Script()
    inbox = script.consumer()
    for position in range(1, 20):
        deliver(script, inbox, position)
    assert regulations(script) == [True]
    script.cut()
    script.resolve()
    said = script.said()
    kinds = [type(frame) for frame in said]
    assert kinds.index(c.Consume) < kinds.index(c.Regulate)


def test_a_consumer_that_gives_everything_back_can_use_more() -> None:
    script = Script()
    inbox = script.consumer(AckMode.CLIENT)
    for position in range(1, 20):
        deliver(script, inbox, position)
    assert regulations(script) == [True]
    inbox.recover()
    assert regulations(script) == [False]
