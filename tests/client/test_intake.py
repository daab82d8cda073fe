"""Bytes of a stream into frames, whatever the reads cut them into."""

import pytest

from alphorn.client.blocking.intake import BUFFER_BYTES, Intake
from alphorn.model.conversation import FRAME_BYTES_MAX
from alphorn.model.errors import PeerViolation


def framed(*sizes: int) -> bytes:
    return b"".join(size.to_bytes(4, "big") + bytes([place + 1]) * size for place, size in enumerate(sizes))


@pytest.mark.parametrize("piece", [1, 3, 1000, BUFFER_BYTES - 1, 10 * BUFFER_BYTES])
def test_frames_come_whole_and_in_order_however_they_are_cut(piece: int) -> None:
    sizes = [0, 5, 1000, 3] if piece < 1000 else [0, 5, BUFFER_BYTES - 4, BUFFER_BYTES + 1, 3, 2 * BUFFER_BYTES, 7]
    stream, place, taken = framed(*sizes), 0, list[bytes]()
    intake = Intake()
    while place < len(stream):
        room = intake.room()
        count = min(piece, len(room), len(stream) - place)
        assert count > 0
        room[:count] = stream[place : place + count]
        place += count
        taken += map(bytes, intake.take(count))
    assert taken == [bytes([number + 1]) * size for number, size in enumerate(sizes)]


def test_a_large_frame_does_not_keep_its_memory() -> None:
    intake = Intake()
    stream = framed(3 * BUFFER_BYTES)
    place = 0
    while place < len(stream):
        room = intake.room()
        count = min(len(room), len(stream) - place)
        room[:count] = stream[place : place + count]
        place += count
        frames = intake.take(count)
    assert len(frames) == 1
    assert len(intake.room()) == BUFFER_BYTES


def test_a_frame_that_is_announced_too_large_is_refused() -> None:
    intake = Intake()
    intake.room()[:4] = (FRAME_BYTES_MAX + 1).to_bytes(4, "big")
    with pytest.raises(PeerViolation, match="was announced"):
        intake.take(4)
