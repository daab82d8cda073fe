"""A lane: fragments on their way, one with each write, and the same again after a reconnection."""

import pytest
import xxhash

from alphorn.client.inbox import AckMode
from alphorn.client.lane import FRAGMENT_BYTES, WINDOW_BYTES, Lane, room
from alphorn.client.packing import flags_of, pack_body, pack_message
from alphorn.doors.native import LENGTH_BYTES, decode_client
from alphorn.model import conversation as c
from alphorn.model.errors import InvalidDestination, UnknownOutcome
from alphorn.model.messages import Flag, Packed, Streamed
from tests.client.test_core import Script

PLACE = 7
PIECE = bytes(FRAGMENT_BYTES)


def lane_of(script: Script) -> Lane:
    lane = script.core.open_lane(script.core.open_session(AckMode.AUTO).number)
    script.core.begin_body(lane, PLACE)
    return lane


def finish(lane: Lane) -> int:
    message = Packed(None, stream=lane.streamed())
    return lane.finish(pack_message(message), flags_of(message), 1000)


def fragments(frames: list[c.ClientFrame]) -> list[tuple[int, int, bytes]]:
    return [(frame.counter, frame.index, bytes(frame.blob)) for frame in frames if isinstance(frame, c.SendFragment)]


@pytest.mark.requirement("VLM-2")
def test_small_messages_leave_between_fragments() -> None:
    script = Script()
    lane, outbox = lane_of(script), script.producer()
    lane.add(b"one")
    lane.add(b"two")
    outbox.add_plain(pack_body("small"))
    first, second = script.said(), script.said()
    assert fragments(first) == [(1, 0, b"one")]
    assert any(isinstance(frame, c.Publish) for frame in first)
    assert fragments(second) == [(2, 1, b"two")]
    assert not script.core.has_output


@pytest.mark.requirement("VLM-5")
def test_only_a_window_is_under_way() -> None:
    script = Script()
    lane = lane_of(script)
    added = 0
    while lane.has_room:
        lane.add(PIECE)
        added += 1
    assert added == WINDOW_BYTES // FRAGMENT_BYTES
    while script.core.has_output:
        script.said()
    script.hear(c.Confirmed(lane.number, 1))
    assert lane.has_room
    assert not lane.is_idle


def test_the_message_names_what_was_sent() -> None:
    script = Script()
    lane = lane_of(script)
    lane.add(b"one")
    lane.add(b"three")
    assert lane.streamed() == Streamed(2, 8, xxhash.xxh3_128_digest(b"onethree"))
    counter = finish(lane)
    frames = [frame for _ in range(3) for frame in script.said()]
    [publish] = [frame for frame in frames if isinstance(frame, c.Publish)]
    assert (publish.counter, publish.count, publish.flags) == (counter, 1, int(Flag.STREAM))
    assert lane.outcome(counter) is False
    script.hear(c.Confirmed(lane.number, counter))
    assert lane.outcome(counter) is True


def test_what_was_not_confirmed_is_sent_again_the_same_and_then_the_rest() -> None:
    script = Script()
    lane = lane_of(script)
    for piece in (b"one", b"two", b"three", b"four"):
        lane.add(piece)
    for _ in range(3):
        script.said()
    script.hear(c.Confirmed(lane.number, 1))
    script.cut()
    assert fragments(script.said()) == [(2, 1, b"two"), (3, 2, b"three"), (4, 3, b"four")]
    script.hear(c.Confirmed(lane.number, 4))
    assert lane.is_idle


def test_a_refused_fragment_ends_the_body() -> None:
    script = Script()
    lane = lane_of(script)
    lane.add(b"one")
    lane.add(b"two")
    script.said()
    script.said()
    script.hear(c.Refused(lane.number, 2, 1, "InvalidDestination", "it is gone"))
    assert isinstance(lane.refusal, InvalidDestination)
    assert lane.confirmed == 0
    script.hear(c.Confirmed(lane.number, 1))
    assert lane.confirmed == 2
    assert lane.is_idle


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_refusal_of_the_body_before_is_not_told_of_the_next(is_finished: bool) -> None:
    script = Script()
    lane = lane_of(script)
    lane.add(b"one")
    if is_finished:
        finish(lane)
    else:
        lane.abandon()
    for _ in range(2):
        script.said()
    script.hear(c.Refused(lane.number, 1, 1, "InvalidDestination", "it is gone"))
    script.core.begin_body(lane, PLACE)
    lane.add(b"two")
    script.hear(c.Refused(lane.number, 2, 1, "Unavailable", "it was given up"))
    assert lane.refusal is None
    counter = finish(lane)
    for _ in range(2):
        script.said()
    assert lane.outcome(counter) is False
    script.hear(c.Confirmed(lane.number, counter))
    assert lane.outcome(counter) is True


def test_an_abandoned_body_is_said_once_and_another_follows() -> None:
    script = Script()
    lane = lane_of(script)
    lane.abandon()
    assert not lane.wants_packing, "nothing was begun"
    lane.add(b"one")
    lane.abandon()
    script.core.begin_body(lane, PLACE)
    lane.add(b"new")
    frames = [frame for _ in range(3) for frame in script.said()]
    assert [type(frame) for frame in frames][-2:] == [c.AbandonStream, c.SendFragment]
    assert fragments(frames) == [(1, 0, b"one"), (3, 0, b"new")]


def test_a_library_that_gives_up_does_not_know_what_became_of_the_body() -> None:
    script = Script()
    lane = lane_of(script)
    lane.add(b"one")
    script.said()
    script.core.fail(InvalidDestination("over"))
    assert isinstance(lane.outcome(1), UnknownOutcome)
    assert not lane.is_open
    assert lane.describe()["bytes"] == 3


@pytest.mark.requirement("FC-4", "FC-6")
def test_fragments_wait_while_their_destination_takes_nothing_and_are_sent_again_in_order() -> None:
    script = Script()
    lane = lane_of(script)
    for piece in (b"a", b"b", b"c"):
        lane.add(piece)
    said = [frame for _ in range(2) for frame in script.said()]
    assert fragments(said) == [(1, 0, b"a"), (2, 1, b"b")]
    script.hear(c.Flow([PLACE], "the store is full"), c.Postponed(lane.number, 2))
    assert fragments(script.said()) == []
    script.hear(c.Confirmed(lane.number, 1), c.Flow([PLACE], ""))
    assert fragments([frame for _ in range(2) for frame in script.said()]) == [(2, 1, b"b"), (3, 2, b"c")]


def test_a_body_that_begins_while_its_session_is_on_hold_waits_as_well() -> None:
    script = Script()
    lane = lane_of(script)
    script.hear(c.Hold(lane.session, "too much of this session is under way"))
    script.core.begin_body(lane, PLACE)
    lane.add(b"a")
    assert fragments(script.said()) == []
    script.hear(c.Hold(lane.session, ""))
    assert fragments(script.said()) == [(1, 0, b"a")]


@pytest.mark.requirement("FC-4")
def test_that_a_body_is_given_up_is_said_also_while_its_destination_takes_nothing() -> None:
    script = Script()
    lane = lane_of(script)
    lane.add(b"a")
    script.said()
    lane.add(b"b")
    script.hear(c.Flow([PLACE], "the store is full"), c.Postponed(lane.number, 1))
    lane.abandon()
    assert lane.is_idle
    said = [frame for _ in range(3) for frame in script.said()]
    assert [(type(frame), frame.counter) for frame in said] == [(c.AbandonStream, counter) for counter in (1, 2, 3)]
    script.hear(c.Confirmed(lane.number, 3))
    assert lane.confirmed == lane.counter


def test_a_message_that_waits_for_room_when_nobody_waits_for_it_any_more_never_leaves() -> None:
    script = Script()
    lane = lane_of(script)
    lane.add(b"a")
    script.hear(c.Flow([PLACE], "the store is full"))
    finish(lane)
    lane.abandon()
    assert not lane.is_stuck
    script.hear(c.Flow([PLACE], ""))
    said = [frame for _ in range(3) for frame in script.said()]
    assert [type(frame) for frame in said if not isinstance(frame, c.OpenSession)] == [c.AbandonStream] * 3


def test_a_lane_is_stuck_while_a_message_that_left_is_postponed() -> None:
    script = Script()
    lane = lane_of(script)
    counter = finish(lane)
    assert not lane.is_stuck
    script.said()
    lane.abandon()
    script.hear(c.Flow([PLACE], "the store is full"), c.Postponed(lane.number, counter))
    assert lane.is_stuck
    script.hear(c.Flow([PLACE], ""))
    assert not lane.is_stuck


def test_giving_up_a_body_leaves_the_message_before_it_alone() -> None:
    script = Script()
    lane = lane_of(script)
    lane.add(b"a")
    lane.finish(pack_message(Packed("x")), 0, 1000)
    script.said()
    script.said()
    script.hear(c.Flow([PLACE], "full"), c.Postponed(lane.number, 2))
    script.core.begin_body(lane, PLACE)
    lane.add(b"b")
    lane.abandon()
    assert script.said() == []
    script.hear(c.Flow([PLACE], ""))
    said = [frame for _ in range(3) for frame in script.said()]
    assert [type(frame) for frame in said] == [c.Publish, c.AbandonStream, c.AbandonStream]


def test_a_buffer_is_used_again_once_its_fragment_is_confirmed() -> None:
    script = Script()
    lane = lane_of(script)
    first = lane.buffer()
    room(first)[:3] = b"one"
    lane.add_from(first, 3)
    assert fragments(script.said()) == [(1, 0, b"one")]
    assert lane.buffer() is not first
    script.hear(c.Confirmed(lane.number, 1))
    assert lane.buffer() is first


def test_a_buffer_that_was_sent_again_is_not_used_again() -> None:
    script = Script()
    lane = lane_of(script)
    first = lane.buffer()
    room(first)[:3] = b"one"
    lane.add_from(first, 3)
    script.said()
    again = lane.unconfirmed_frames()  # as on a new connection, where they may wait to leave for long
    script.hear(c.Confirmed(lane.number, 1))
    assert lane.buffer() is not first
    assert bytes(again[0]).endswith(b"one")


def test_a_lane_keeps_no_buffers_between_bodies() -> None:
    script = Script()
    lane = lane_of(script)
    first = lane.buffer()
    lane.add_from(first, FRAGMENT_BYTES)
    counter = finish(lane)
    while script.core.has_output:
        script.said()
    script.hear(c.Confirmed(lane.number, counter))
    script.core.begin_body(lane, PLACE)
    assert lane.buffer() is not first


def test_what_the_program_changes_later_does_not_change_what_it_sent() -> None:
    script = Script()
    lane = lane_of(script)
    piece = bytearray(b"one")
    lane.add(piece)
    piece[:] = b"two"
    assert fragments(script.said()) == [(1, 0, b"one")]


def test_every_head_fits_before_the_bulk() -> None:
    script = Script()
    session = script.core.open_session(AckMode.AUTO).number
    lane = Lane(number=(1 << 32) - 1, session=session)
    lane.begin((1 << 63) - 1)
    lane.counter = (1 << 62) - 1
    lane.add(b"x")
    frame = bytes(lane.pack(0)[0])
    assert isinstance(decode_client(frame[LENGTH_BYTES:]), c.SendFragment)
