"""The native door's frames as bytes: however one is put together, it reads back as what it was."""

import pytest

from alphorn.doors.native import LENGTH_BYTES, decode_client, encode, encode_publish
from alphorn.model.conversation import Publish


@pytest.mark.parametrize("size", [0, 1, 255, 8191, 8192, 65_536, 300_000])
@pytest.mark.parametrize("after", [-1, 0, 5, 1 << 40])
def test_a_batch_reads_back_whole_however_large(size: int, after: int) -> None:
    blob = memoryview(bytes(range(256)) * (size // 256 + 1))[:size]
    frame = Publish(1, 2, 3, 4, 5, 0, 1_700_000_000_000, blob, after)
    data = encode_publish(frame)
    assert int.from_bytes(data[:LENGTH_BYTES], "big") == len(data) - LENGTH_BYTES
    assert decode_client(data[LENGTH_BYTES:]) == decode_client(encode(frame)[LENGTH_BYTES:]) == frame
