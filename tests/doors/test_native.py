"""The native door's frames as bytes: however one is put together, it reads back as what it was."""

from collections.abc import Iterator

import pytest

from alphorn.doors.native import LENGTH_BYTES, decode_client, encode, encode_publish
from alphorn.model.conversation import ClosePattern, CloseSession, CommitTransaction, Publish
from alphorn.model.errors import PeerViolation
from alphorn.model.frame_kinds import CONSUMERS_MAX, ITEMS_MAX, ClientFrame
from alphorn.model.log_conversation import PublishStaged


@pytest.mark.parametrize("size", [0, 1, 255, 8191, 8192, 65_536, 300_000])
@pytest.mark.parametrize("after", [-1, 0, 5, 1 << 40])
def test_a_batch_reads_back_whole_however_large(size: int, after: int) -> None:
    blob = memoryview(bytes(range(256)) * (size // 256 + 1))[:size]
    frame = Publish(1, 2, 3, 4, 5, 0, 1_700_000_000_000, blob, after)
    data = encode_publish(frame)
    assert int.from_bytes(data[:LENGTH_BYTES], "big") == len(data) - LENGTH_BYTES
    assert decode_client(data[LENGTH_BYTES:]) == decode_client(encode(frame)[LENGTH_BYTES:]) == frame


def overfull() -> Iterator[ClientFrame]:
    """Frames with one value more than there may be."""
    batch = Publish(1, 1, 1, 1, 1, 0, 0, memoryview(b""))
    yield CommitTransaction(1, 1, 1, [batch] * (ITEMS_MAX + 1), [])
    yield CommitTransaction(1, 1, 1, [], [(1, 1, [])] * (ITEMS_MAX + 1))
    yield PublishStaged(1, 0, "writer", 1, [(1, 1, 1, 1)] * (ITEMS_MAX + 1))
    unseen: dict[int, list[int]] = {consumer: [] for consumer in range(CONSUMERS_MAX + 1)}
    yield CloseSession(1, 1, unseen)
    yield ClosePattern(1, 1, unseen)


def test_a_frame_that_would_take_much_more_memory_than_it_has_bytes_is_refused() -> None:
    for frame in overfull():
        with pytest.raises(PeerViolation, match="of length <= "):
            decode_client(encode(frame)[LENGTH_BYTES:])
