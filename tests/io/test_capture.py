import random

import pytest

from alphorn.io.capture import START, Capture, Captured, Direction, read_capture
from alphorn.model.errors import Corruption, Misuse
from tests.small_disks import small_disk

GOLDEN = START + bytes.fromhex(
    "00000000000003e8" "00000005" "01" "05" "2a64617461" "68656c6c6f"
    "00000000000003e9" "00000002" "02" "0b" "31302e302e302e373a3737" "6869"
)  # fmt: skip
RECORDS = [
    Captured(1000, Direction.SENT, "*data", b"hello"),
    Captured(1001, Direction.RECEIVED, "10.0.0.7:77", b"hi"),
]


def write_golden(path, **settings):
    times = iter((1000, 1001))
    capture = Capture(path, clock=lambda: next(times), **settings)
    capture.record(Direction.SENT, "*data", (b"hel", memoryview(b"lo")))
    capture.record(Direction.RECEIVED, "10.0.0.7:77", (b"hi",))
    capture.close()
    return capture


def test_a_capture_has_its_documented_bytes(tmp_path):
    path = tmp_path / "capture"
    write_golden(path)

    assert path.read_bytes() == GOLDEN
    assert list(read_capture(path)) == RECORDS
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_capture_cut_short_keeps_its_whole_records(tmp_path):
    path = tmp_path / "capture"
    first_end = len(START) + 14 + 5 + 5
    for end in range(len(START), len(GOLDEN)):
        path.write_bytes(GOLDEN[:end])

        assert list(read_capture(path)) == RECORDS[: int(end >= first_end)]


def test_a_changed_capture_is_read_or_refused_and_nothing_else(tmp_path):
    path = tmp_path / "capture"
    stream = random.Random(9)
    for _ in range(300):
        changed = bytearray(GOLDEN)
        changed[stream.randrange(len(changed))] = stream.randrange(256)
        path.write_bytes(changed)
        try:
            list(read_capture(path))
        except Corruption:
            continue


def test_a_file_that_is_no_capture_is_refused(tmp_path):
    path = tmp_path / "capture"
    path.write_bytes(b"AHCAP\x00\x00\x02")

    with pytest.raises(Corruption, match="version 1"):
        list(read_capture(path))
    with pytest.raises(Misuse, match="cannot be read"):
        list(read_capture(tmp_path / "nothing"))


def test_a_full_capture_stops_growing_and_counts_what_it_skips(tmp_path):
    path = tmp_path / "capture"
    capture = write_golden(path, bytes_max=len(GOLDEN) - 1)

    assert (capture.records, capture.skipped) == (1, 1)
    assert list(read_capture(path)) == RECORDS[:1]


def test_a_capture_never_replaces_a_file(tmp_path):
    path = tmp_path / "capture"
    path.write_bytes(b"precious")

    with pytest.raises(Misuse, match="choose a new file"):
        Capture(path)


def test_a_capture_on_a_full_disk_harms_nobody_and_keeps_what_it_has(tmp_path):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        capture = Capture(disk / "capture", clock=lambda: 1000)
        for _ in range(100):
            capture.record(Direction.SENT, "*data", (bytes(30_000),))
        capture.close()
        found = list(read_capture(disk / "capture"))
    assert capture.records + capture.skipped == 100
    assert 0 < len(found) <= capture.records < 40
    assert {record.data for record in found} == {bytes(30_000)}
