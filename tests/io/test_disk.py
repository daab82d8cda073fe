"""A disk that is full or fails: how far a store may grow on it, and what is said of it."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from alphorn.bus.machine import DropThrough, Persist, Retain
from alphorn.io.disk import DiskSpace, measure, refusal_of, tells_no_space
from alphorn.io.node_directory import NodeDirectory
from alphorn.io.store import Store
from alphorn.model.errors import Unavailable
from alphorn.model.ranges import RangeSet
from alphorn.testing.check_storage import make_payload, put_entry, put_log
from tests.small_disks import fill, free, small_disk

MIB = 1 << 20


@pytest.mark.requirement("FC-4")
@pytest.mark.parametrize(
    ("held", "left", "sharers", "within"),
    [
        (0, 200, 1, 100),  # the limit comes first
        (0, 60, 1, 60),
        (40, 20, 1, 60),  # what the store has taken already it may use again
        (40, 20, 2, 50),
        (40, 0, 2, 40),
        (150, 50, 1, 100),
    ],
)
def test_a_store_may_grow_by_its_share_of_what_is_left_up_to_its_limit(
    held: int, left: int, sharers: int, within: int
) -> None:
    assert DiskSpace(held, left).within(100, sharers) == within


def test_what_a_file_takes_on_disk_is_not_how_long_it_is(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(64 * MIB)
        file.write(bytes(MIB))
        os.fsync(file.fileno())
    found = measure(tmp_path, ("sparse",))
    assert MIB <= found.held < 4 * MIB
    assert found.left > 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_not_damage_and_the_sentence_is_known_wherever_it_is_passed_on(
    tmp_path: Path, code: int
) -> None:
    refusal = refusal_of("store", tmp_path, OSError(code, os.strerror(code)))
    assert isinstance(refusal, Unavailable)
    assert str(refusal) == f"no space left on the disk of store {tmp_path}; free some, then start this node again"
    assert tells_no_space(f"node mm1 cannot go on: {refusal}; see its log")


def test_a_disk_that_fails_is_not_damage_either_and_is_no_full_one(tmp_path: Path) -> None:
    refusal = refusal_of("store", tmp_path, OSError(errno.EIO, os.strerror(errno.EIO)))
    assert "could not write ([Errno 5] Input/output error); see to its disk" in str(refusal)
    assert not tells_no_space(str(refusal))


@pytest.mark.parametrize("error", [lmdb.CorruptedError("page"), OSError(errno.EACCES, "no"), ValueError("other")])
def test_what_the_disk_has_no_part_in_is_left_to_others(tmp_path: Path, error: Exception) -> None:
    assert refusal_of("store", tmp_path, error) is None


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 16 * MIB) as path:
        yield path


def open_store(path: Path, failures: list[str], ahead_bytes_max: int = 8 << 10) -> Store:
    return Store(
        path,
        on_durable=lambda _: None,
        on_failure=failures.append,
        map_bytes=256 * MIB,
        ahead_bytes_max=ahead_bytes_max,
    )


@pytest.mark.requirement("FC-4", "BUS-25")
@pytest.mark.parametrize("size", [3 * MIB, 12_000], ids=["bodies", "tables"])
def test_a_store_on_a_full_disk_stops_says_so_and_has_everything_when_there_is_space(disk: Path, size: int) -> None:
    failures: list[str] = []
    store = open_store(disk / "store", failures, ahead_bytes_max=0)
    store.submit(Persist(1, put_log(1, 3)))
    store.flush()
    fill(disk)
    store.submit(Persist(2, [put_entry(n, bytes(size)) for n in range(4, 1000 if size < MIB else 5)]))
    with pytest.raises(Unavailable, match="no space left on the disk of store"):
        store.flush()
    store.close()
    assert len(failures) == 1
    free(disk)
    store = open_store(disk / "store", failures)
    assert store.assignment_bounds() == (1, 3)
    assert [store.entry(n) for n in (1, 2, 3)] == [make_payload(n) for n in (1, 2, 3)]
    store.close()


@pytest.mark.requirement("FC-4", "BUS-25")
@pytest.mark.parametrize("is_new", [True, False])
def test_a_store_cannot_be_opened_on_a_full_disk_and_is_not_called_damaged(disk: Path, *, is_new: bool) -> None:
    if not is_new:
        store = open_store(disk / "store", [], ahead_bytes_max=0)
        store.submit(Persist(1, put_log(1, 3)))
        store.flush()
        store.close()
    (disk / "store").mkdir(exist_ok=True)
    (disk / "store" / "owner").write_text("1\n")
    fill(disk)
    with pytest.raises(Unavailable, match="no space left on the disk of store"):
        open_store(disk / "store", [])
    free(disk)
    store = open_store(disk / "store", [])
    assert store.assignment_bounds() == ((1, 0) if is_new else (1, 3))
    store.close()


SMALL, LARGE = 12_000, 100_000  # an entry within the tables, and one among the bodies


@pytest.mark.requirement("FC-4")
@pytest.mark.parametrize(("first", "second"), [(SMALL, LARGE), (LARGE, SMALL)], ids=["tables", "bodies"])
def test_what_was_used_for_one_kind_of_entries_is_there_for_the_other_when_it_is_dropped(
    disk: Path, first: int, second: int
) -> None:
    failures: list[str] = []
    store = open_store(disk / "store", failures, ahead_bytes_max=0)
    number = 0
    for size, total in ((first, 8 * MIB), (second, 9 * MIB)):
        for _ in range(total // size):
            number += 1
            store.submit(Persist(number, [*put_log(number, number), put_entry(number, bytes(size))]))
            if number % 4 == 0:
                store.flush()
        store.submit(Persist(number + 1, [Retain(number, RangeSet()), DropThrough(number, True)]))
        store.flush()
    store.close()
    assert not failures


@pytest.mark.requirement("FC-4")
def test_gaps_between_large_batches_are_there_for_the_tables_on_a_disk_that_is_nearly_full(disk: Path) -> None:
    failures: list[str] = []
    store = open_store(disk / "store", failures, ahead_bytes_max=0)
    count = 9 * MIB // LARGE
    for number in range(1, count + 1):
        store.submit(Persist(number, [*put_log(number, number), put_entry(number, bytes(LARGE))]))
        store.flush()
    kept = RangeSet([(1, 1), (count // 2, count // 2), (count, count)])  # so the file cannot be cut
    store.submit(Persist(count + 1, [Retain(count, kept), DropThrough(count, True)]))
    store.flush()
    assert store.disk_space().held < store.used_bytes() + MIB
    for number in range(count + 1, count + 1 + 8 * MIB // SMALL):
        store.submit(Persist(number + 1, [*put_log(number, number), put_entry(number, bytes(SMALL))]))
        store.flush()
    assert [len(store.entry(first)) for first, _ in kept] == [LARGE] * 3
    store.close()
    assert not failures


def test_a_node_cannot_take_its_directory_on_a_full_disk_and_says_so(disk: Path) -> None:
    (disk / "mm1").mkdir()
    (disk / "mm1" / "running").touch()
    fill(disk)
    with pytest.raises(Unavailable, match="no space left on the disk of directory"):
        NodeDirectory(disk, "mm1").take()
