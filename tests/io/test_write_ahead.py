"""Small writes ahead of LMDB: where they are put, and what is found of them after a crash."""

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alphorn.bus.machine import DropAfter, Persist, PutGroupState, PutMeta
from alphorn.io.inspect_store import inspect_store
from alphorn.io.store import Store
from alphorn.io.store_writer import Job, StoreWriter
from alphorn.io.write_ahead import AHEAD_FILE, SLOT_BYTES, SLOTS, Record, WriteAhead, encode_record, read_ahead
from alphorn.model.errors import Corruption, Misuse
from alphorn.testing.check_storage import make_payload, put_entry, put_log
from tests.io.storages import Owner as StoreOwner
from tests.io.storages import check_failed_write

RUN = 0x1234_5678_9ABC_DEF0


class Owner(StoreOwner):
    """One that writes ahead, with tokens of the test."""

    def __init__(self, path: Path, *, map_bytes: int = 64 << 20) -> None:
        super().__init__(path, map_bytes=map_bytes, ahead_bytes_max=16 << 10)

    def persist(self, token: int, *, size: int = 0) -> None:
        writes = put_log(token, token) if not size else [put_entry(token, bytes(size))]
        self.store.submit(Persist(token, list(writes)))
        self.store.end_turn()


def record_of(number: int, *, size: int = 100) -> bytes:
    return encode_record(RUN, Record(number, (1, number), [put_entry(number, bytes(size))]))


def append(ahead: WriteAhead, number: int, *, size: int = 100, committed: int = 0) -> bool:
    encoded = record_of(number, size=size)
    place = ahead.place([len(encoded)], committed)
    if place is not None:
        ahead.append(place, [(number, encoded)])
    return place is not None


def numbers(path: Path, applied: int = 0) -> list[int]:
    return [record.number for record in read_ahead(path, RUN, applied)]


def spoil(path: Path, slot: int) -> None:
    with (path / AHEAD_FILE).open("r+b") as file:
        file.seek(slot * SLOT_BYTES + 60)
        file.write(b"\xff")


def test_records_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    ahead = WriteAhead(tmp_path, RUN)
    writes = [*put_log(3, 4), PutMeta(b"meta"), PutGroupState(2, b"state")]
    encoded = encode_record(RUN, Record(1, (2, 4), writes))
    ahead.append(0, [(1, encoded)])
    (found,) = read_ahead(tmp_path, RUN, 0)
    assert found == Record(1, (2, 4), writes)
    ahead.close()


def test_what_lmdb_has_and_what_another_run_wrote_does_not_count(tmp_path: Path) -> None:
    ahead = WriteAhead(tmp_path, RUN)
    for number in range(1, 6):
        append(ahead, number)
    assert numbers(tmp_path, applied=3) == [4, 5]
    assert read_ahead(tmp_path, RUN + 1, 0) == []
    ahead.close()


def test_a_file_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    assert numbers(tmp_path) == []


@pytest.mark.parametrize("call", ["open", "pwrite"])
def test_a_file_system_without_direct_writes_is_written_to_by_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    opened, real_open, real_pwrite = [], os.open, os.pwrite

    def open_(file: Path, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT and call == "open":
            raise OSError(errno.EINVAL, "no direct writes here")
        descriptor = real_open(file, flags, *mode)
        opened.append((descriptor, flags))
        return descriptor

    def pwrite(file: int, data: bytes, offset: int) -> int:
        if call == "pwrite" and dict(opened).get(file, 0) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct writes here")
        return real_pwrite(file, data, offset)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "pwrite", pwrite)
    ahead = WriteAhead(tmp_path, RUN)
    assert append(ahead, 1)
    ahead.close()
    assert numbers(tmp_path) == [1]
    assert opened[-1][1] & os.O_DSYNC


def test_what_fills_a_slot_shows_nothing_of_what_was_written_before(tmp_path: Path) -> None:
    ahead = WriteAhead(tmp_path, RUN)
    ahead.append(0, [(1, b"x" * 3000)])
    ahead.append(1, [(2, b"y" * 10)])
    ahead.close()
    assert b"x" not in (tmp_path / AHEAD_FILE).read_bytes()[SLOT_BYTES:]


def test_a_last_record_that_is_torn_was_never_durable(tmp_path: Path) -> None:
    ahead = WriteAhead(tmp_path, RUN)
    for number in range(1, 4):
        append(ahead, number)
    spoil(tmp_path, 2)
    assert numbers(tmp_path) == [1, 2]
    ahead.close()


def test_a_damaged_record_before_others_is_corruption(tmp_path: Path) -> None:
    ahead = WriteAhead(tmp_path, RUN)
    for number in range(1, 4):
        append(ahead, number)
    spoil(tmp_path, 1)
    with pytest.raises(Corruption, match="has lost writes that were durable"):
        read_ahead(tmp_path, RUN, 0)
    ahead.close()


def test_a_message_that_looks_like_a_record_is_none(tmp_path: Path) -> None:
    forged = encode_record(RUN + 1, Record(2, (1, 2), [put_entry(2, b"forged")]))
    ahead = WriteAhead(tmp_path, RUN)
    body = bytes(SLOT_BYTES - 200) + forged
    encoded = [encode_record(RUN, Record(1, (1, 1), [put_entry(1, bytes(gap) + body)])) for gap in range(200)]
    aligned = next(record for record in encoded if record[SLOT_BYTES:].startswith(forged[:8]))
    ahead.append(0, [(1, aligned)])
    assert numbers(tmp_path) == [1]
    ahead.close()


def test_a_full_ring_takes_no_more_until_lmdb_has_the_oldest(tmp_path: Path) -> None:
    ahead = WriteAhead(tmp_path, RUN)
    number = 0
    while append(ahead, number + 1):
        number += 1
    assert number == SLOTS
    assert not append(ahead, number + 1, size=2 * SLOT_BYTES, committed=3)
    assert append(ahead, number + 1, committed=3)
    assert append(ahead, number + 2, committed=3)
    assert not append(ahead, number + 3, committed=3)
    assert numbers(tmp_path, applied=3) == list(range(4, number + 3))
    ahead.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3 * SLOT_BYTES), st.integers(0, 40)), min_size=1, max_size=300))
def test_nothing_that_is_needed_is_ever_overwritten(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    """Of steps, each writes so many bytes and leaves so many records that LMDB has not."""
    path = tmp_path_factory.mktemp("ring")
    ahead = WriteAhead(path, RUN)
    number = committed = 0
    for size, lag in steps:
        committed = max(committed, number - lag)
        if append(ahead, number + 1, size=size, committed=committed):
            number += 1
    assert numbers(path, applied=committed) == list(range(committed + 1, number + 1))
    ahead.close()


def test_a_small_write_is_durable_when_its_turn_has_ended_and_lmdb_takes_it_later(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.persist(1)
    owner.persist(2)
    assert owner.durable == [1, 2]
    assert owner.store.describe()["ahead"] == 2
    assert owner.store.describe()["commits"] == 0
    assert owner.store.entry(2) == make_payload(2)
    owner.store.flush()
    assert owner.store.describe()["commits"] == 1
    assert owner.store.entry(2) == make_payload(2)
    owner.store.close()


def test_what_waits_longest_brings_all_into_lmdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alphorn.io.store.APPLY_S", 0.0)
    owner = Owner(tmp_path)
    owner.persist(1)
    assert owner.store.describe()["ahead"] == 0
    owner.store.close()


def test_a_ring_that_is_half_full_is_brought_into_lmdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alphorn.io.store.APPLY_S", 1e9)
    owner = Owner(tmp_path)
    for token in range(1, 3 * SLOTS):
        owner.persist(token)
    assert owner.durable[-1] == 3 * SLOTS - 1 or not owner.store.flush()
    assert owner.durable[-1] == 3 * SLOTS - 1
    assert owner.durable == sorted(owner.durable)
    owner.store.abandon()
    assert Owner(tmp_path).store.assignment_bounds() == (1, 3 * SLOTS - 1)


def test_what_is_large_or_drops_something_goes_to_lmdb_with_all_before_it(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.persist(1)
    owner.persist(2, size=20 << 10)
    owner.store.submit(Persist(3, [DropAfter(1)]))
    owner.store.end_turn()
    owner.store.flush()
    assert owner.durable[0] == 1
    assert owner.durable[-1] == 3
    assert owner.store.assignment_bounds() == (1, 1)
    assert owner.store.entry(2) is None
    owner.store.close()


def test_a_crash_between_two_openings_loses_nothing_that_was_durable(tmp_path: Path) -> None:
    token = 0
    for _ in range(4):
        owner = Owner(tmp_path)
        assert owner.store.assignment_bounds()[1] == token
        for _ in range(5):
            token += 1
            owner.persist(token)
        assert owner.durable[-1] == token
        owner.store.abandon()
    store = Owner(tmp_path).store
    assert [store.entry(number) for number in range(1, token + 1)] == [make_payload(n) for n in range(1, token + 1)]
    store.close()


def test_a_store_without_the_permission_still_finds_what_was_written_ahead(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.persist(1)
    owner.store.abandon()
    store = Store(tmp_path, on_durable=lambda _: None, on_failure=lambda _: None)
    assert store.entry(1) == make_payload(1)
    store.close()


def test_a_failed_write_ahead_stops_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(tmp_path)
    check_failed_write(owner, owner.persist, monkeypatch)
    assert Owner(tmp_path).store.assignment_bounds() == (1, 1)


def test_a_write_ahead_of_which_the_disk_takes_less_than_all_stops_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(tmp_path)
    owner.persist(1)
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", lambda file, data, offset: 0)
        owner.persist(2)
    assert (owner.durable, len(owner.failures)) == ([1], 1)
    owner.store.close()
    assert Owner(tmp_path).store.assignment_bounds() == (1, 1)


def test_nothing_is_written_ahead_of_what_the_thread_has_not_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, original = threading.Event(), StoreWriter._placed

    def wait(writer: StoreWriter, jobs: list[Job]) -> list[Job]:
        may_go_on.wait()
        return original(writer, jobs)

    monkeypatch.setattr(StoreWriter, "_placed", wait)
    owner = Owner(tmp_path)
    owner.persist(1, size=32 << 10)
    owner.persist(2)
    assert owner.durable == []
    may_go_on.set()
    owner.store.flush()
    assert owner.durable[-1] == 2


def test_after_a_slow_write_the_thread_does_all_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alphorn.io.store.SLOW_S", -1.0)
    monkeypatch.setattr("alphorn.io.store.DISTRUST_S", 1e9)
    owner = Owner(tmp_path)
    owner.persist(1)
    assert owner.store.describe()["commits"] == 0
    owner.persist(2)
    owner.store.flush()
    assert owner.store.describe()["commits"] in (1, 2)
    assert owner.durable == [1, 2]
    owner.store.close()


def test_a_store_that_is_too_small_for_what_is_durable_says_so(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    for token in range(1, 40):
        owner.persist(token, size=12 << 10)
    assert owner.durable[-1] == 39
    owner.store.abandon()
    with pytest.raises(Misuse, match="raise the limit, then start this node again"):
        Owner(tmp_path, map_bytes=256 << 10)
    assert Owner(tmp_path).store.entry(39) == bytes(12 << 10)


def test_an_inspection_shows_what_is_only_written_ahead(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.persist(1)
    owner.store.abandon()
    rows = [row for row in inspect_store(tmp_path) if row.table == "ahead"]
    assert [(row.key, row.verdict, row.details) for row in rows] == [
        ("1", "ok", "assignments 1 to 1, entry 1 of 3000 bytes")
    ]
    Owner(tmp_path).store.close()
    assert not [row for row in inspect_store(tmp_path) if row.table == "ahead"]
