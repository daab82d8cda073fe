"""Large batches in their file beside LMDB: what is durable stays readable, and what is dropped makes room."""

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alphorn.bus.machine import DropAfter, DropThrough, Persist, Retain
from alphorn.bus.storage import DAMAGED
from alphorn.io import bodies, direct_file, free_pages, records, store_writer
from alphorn.io.bodies import BODIES_FILE, LARGE_BYTES
from alphorn.io.direct_file import PAGE_BYTES
from alphorn.io.inspect_store import inspect_store
from alphorn.io.store_files import DATA_FILE
from alphorn.model.ranges import RangeSet
from alphorn.testing.check_storage import make_payload, put_assignments, put_entry
from tests.io.storages import Owner as StoreOwner
from tests.io.storages import check_failed_write, flip_in_file
from tests.io.store_children import child_environment

LARGE = 5 * PAGE_BYTES + 100  # six pages


class Owner(StoreOwner):
    """One that waits for each write, with writes ahead or without."""

    def __init__(self, path: Path, *, map_bytes: int = 256 << 20, ahead_bytes_max: int = 8 << 10) -> None:
        super().__init__(path, map_bytes=map_bytes, ahead_bytes_max=ahead_bytes_max)
        self._token = 0

    def put(self, *sequences: int, size: int = LARGE) -> None:
        """Entries and their assignments, durable when this returns."""
        for sequence in sequences:
            self.persist(put_assignments(sequence, sequence), put_entry(sequence, make_payload(sequence, size)))

    def persist(self, *writes: object) -> None:
        self._token += 1
        self.store.submit(Persist(self._token, list(writes)))
        self.store.end_turn()
        while self.durable[-1:] != [self._token] and not self.failures:
            os.sched_yield()

    def has(self, sequence: int, size: int = LARGE) -> bool:
        return self.store.entry(sequence) == make_payload(sequence, size)


def file_bytes(path: Path) -> int:
    return (path / BODIES_FILE).stat().st_size


@pytest.fixture(params=[8 << 10, 0], ids=["ahead", "lmdb"])
def ahead_bytes_max(request: pytest.FixtureRequest) -> int:
    return request.param


def test_a_large_batch_is_read_back_at_once_after_its_commit_and_after_a_restart(
    tmp_path: Path, ahead_bytes_max: int
) -> None:
    owner = Owner(tmp_path, ahead_bytes_max=ahead_bytes_max)
    owner.put(1, 2)
    assert owner.has(1)
    owner.store.flush()
    assert owner.has(2)
    owner.store.close()
    owner = Owner(tmp_path, ahead_bytes_max=ahead_bytes_max)
    assert owner.has(1)
    assert owner.has(2)
    owner.store.close()
    assert file_bytes(tmp_path) == 12 * PAGE_BYTES
    assert make_payload(2, LARGE)[:200] not in (tmp_path / DATA_FILE).read_bytes()


def test_what_is_only_written_ahead_keeps_its_pages_over_a_crash(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.put(1, 2, 3)
    assert owner.store.describe()["commits"] == 0
    owner.store.abandon()
    owner = Owner(tmp_path)
    owner.put(4, 5)
    assert all(owner.has(sequence) for sequence in range(1, 6))
    owner.store.close()


def test_much_that_is_durable_and_only_in_memory_besides_is_brought_into_lmdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_writer, "APPLY_S", 1e9)
    monkeypatch.setattr(store_writer, "UNAPPLIED_BYTES_MAX", 4 * LARGE)
    owner = Owner(tmp_path)
    owner.put(*range(1, 13))
    owner.store.flush()
    assert owner.store.describe()["commits"] == 4  # after each four, and once more by the flush
    owner.store.close()


def test_what_nobody_follows_is_brought_into_lmdb_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_writer, "APPLY_S", 0.01)
    owner = Owner(tmp_path)
    owner.put(1)
    while owner.store.describe()["ahead"]:
        os.sched_yield()
    assert owner.store.describe()["commits"] == 1
    owner.store.close()


def test_pages_of_what_is_dropped_are_used_again(tmp_path: Path, ahead_bytes_max: int) -> None:
    owner = Owner(tmp_path, ahead_bytes_max=ahead_bytes_max)
    for sequence in range(1, 101):
        owner.put(sequence)
        if sequence > 10:
            owner.persist(DropThrough(sequence - 10))
            owner.store.flush()
    assert owner.store.used_bytes() < 80 * PAGE_BYTES + 30 * LARGE
    assert file_bytes(tmp_path) <= 12 * 6 * PAGE_BYTES
    assert all(owner.has(sequence) for sequence in range(91, 101))
    owner.store.close()


def test_pages_are_not_used_again_before_the_drop_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, heads, real = Owner(tmp_path), [], bodies.Bodies.give_back

    def give_back(self: bodies.Bodies, dropped: list[tuple[int, int]], left_bytes: int) -> None:
        if dropped:
            script = "import sys; from tests.io.storages import read_record; from pathlib import Path; " + (
                "read_record(Path(sys.argv[1]), b'heads', int(sys.argv[2]).to_bytes(8, 'big'))"
            )
            for number in ("1", "2"):
                command = [sys.executable, "-c", script, str(tmp_path), number]
                heads.append(subprocess.run(command, check=False, env=child_environment()).returncode == 0)
        real(self, dropped, left_bytes)

    monkeypatch.setattr(bodies.Bodies, "give_back", give_back)
    owner.put(1, 2)
    owner.persist(DropThrough(1))
    owner.store.close()
    assert heads == [False, True]


def test_the_end_of_the_file_goes_back_to_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SPARE_BYTES", 4 * 6 * PAGE_BYTES)
    owner = Owner(tmp_path)
    owner.put(*range(1, 11))
    owner.persist(DropAfter(8))
    assert file_bytes(tmp_path) == 60 * PAGE_BYTES
    owner.persist(DropAfter(5))
    assert file_bytes(tmp_path) == 30 * PAGE_BYTES
    owner.persist(DropAfter(4))
    assert file_bytes(tmp_path) == 30 * PAGE_BYTES
    owner.store.close()
    owner = Owner(tmp_path)
    assert file_bytes(tmp_path) == 24 * PAGE_BYTES
    assert owner.has(4)
    owner.store.close()


def disk_pages(path: Path) -> int:
    """Pages of the file that are no holes; what the file system needs besides does not count."""
    with (path / BODIES_FILE).open("rb") as file:
        holes = direct_file.holes_in(file.fileno(), 0, file_bytes(path))
        return (file_bytes(path) - sum(end - begin for begin, end in holes)) // PAGE_BYTES


def keep(owner: Owner, last: int, *numbers: int) -> None:
    """A checkpoint needs only these."""
    needed = RangeSet([(number, number) for number in numbers])
    owner.persist(Retain(last, needed), DropThrough(last, True))
    owner.store.flush()


def test_gaps_are_kept_where_the_disk_has_room_and_go_back_to_it_where_not(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.put(*range(1, 11))
    keep(owner, 10, 1, 5, 10)
    assert disk_pages(tmp_path) == 60
    owner.store.close()
    owner = Owner(tmp_path, map_bytes=32 << 20)
    owner.put(11)
    owner.store.flush()
    assert file_bytes(tmp_path) == 60 * PAGE_BYTES
    assert disk_pages(tmp_path) == 4 * 6
    assert all(owner.has(number) for number in (1, 5, 10, 11))
    owner.store.close()


def test_holes_are_found_again_when_the_store_is_opened_and_filled_as_far_as_the_limit_permits(tmp_path: Path) -> None:
    limit = 4 << 20
    owner, size = Owner(tmp_path, map_bytes=limit), 10 * 6 * PAGE_BYTES
    owner.put(*range(1, 13), size=size)
    keep(owner, 12, 1, 12)
    assert disk_pages(tmp_path) == 2 * 60
    owner.store.close()
    owner = Owner(tmp_path, map_bytes=limit)
    owner.put(*range(13, 27), size=size)
    assert 12 * 60 < disk_pages(tmp_path) <= limit * 7 // 8 // PAGE_BYTES
    assert (tmp_path / DATA_FILE).stat().st_size > size, "what the file of bodies may not take is in the tables"
    assert all(owner.has(number, size) for number in (1, *range(12, 27)))
    assert not owner.failures
    owner.store.close()


@pytest.mark.parametrize(
    ("code", "tries_again"),
    [(errno.EOPNOTSUPP, False), (errno.ENOSPC, True), (errno.EINTR, True)],
    ids=["never", "full", "signal"],
)
def test_gaps_are_used_again_where_the_file_system_makes_no_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, *, tries_again: bool
) -> None:
    tried: list[object] = []

    def fallocate(*what: object) -> int:
        tried.append(what)
        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(direct_file, "_fallocate", fallocate)
    owner = Owner(tmp_path, map_bytes=32 << 20)
    owner.put(*range(1, 11))
    keep(owner, 10, 1, 10)
    assert (len(tried) > 1) == tries_again
    owner.put(*range(11, 19))
    assert disk_pages(tmp_path) == 60
    assert all(owner.has(number) for number in (1, *range(10, 19)))
    assert not owner.failures
    owner.store.close()


def test_a_disk_that_fails_to_make_a_hole_stops_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fallocate(*_: object) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(direct_file, "_fallocate", fallocate)
    owner = Owner(tmp_path, map_bytes=32 << 20)
    owner.put(*range(1, 11))
    owner.persist(Retain(10, RangeSet([(1, 1), (10, 10)])), DropThrough(10, True))
    owner.store.close()
    assert len(owner.failures) == 1
    assert "could not write ([Errno 5]" in owner.failures[0]


def test_a_number_that_is_written_again_has_the_later_batch_and_the_pages_of_one(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.put(1)
    used = owner.store.used_bytes()
    for size in (LARGE, 100, LARGE):
        owner.persist(put_entry(1, make_payload(7, size)))
        owner.store.flush()
        assert owner.store.entry(1) == make_payload(7, size)
    assert abs(owner.store.used_bytes() - used) < LARGE
    owner.store.close()


def test_batches_behind_many_small_gaps_are_not_written_over_or_cut_off(tmp_path: Path) -> None:
    owner, size = Owner(tmp_path), LARGE_BYTES
    small = 2 * free_pages.LOOKED_AT + 2
    owner.put(*range(1, small + 1), size=size)  # of which each second goes:
    owner.put(*range(small + 1, small + 11), size=4 * size)
    owner.persist(DropAfter(small))  # leaves a long free run at the end, and
    kept = RangeSet([(number, number) for number in range(1, small + 1, 2)])
    owner.persist(Retain(small, kept), DropThrough(small, True))  # gaps before it that are too short
    numbers = range(small + 1, small + 31)
    owner.put(*numbers, size=2 * size)
    owner.persist(Retain(small + 10, kept), DropThrough(small + 10, True))
    owner.store.flush()
    assert all(owner.has(number, 2 * size) for number in numbers[10:])
    assert all(owner.has(first, size) for first, _ in kept)
    owner.store.close()


def test_retained_batches_keep_their_pages(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.put(*range(1, 6))
    owner.persist(Retain(5, RangeSet([(2, 3)])), DropThrough(5, True))
    owner.put(*range(6, 12))
    assert owner.has(2)
    assert owner.has(3)
    assert owner.store.entry(4) is None
    assert owner.store.describe()["retained"] == 2
    owner.store.close()


def test_a_flipped_bit_reads_as_damage_and_is_put_right_by_another_copy(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.put(1, 2)
    owner.store.close()
    flip_in_file(tmp_path, make_payload(1, LARGE), 9000, file=BODIES_FILE)
    assert [(row.key, row.verdict) for row in inspect_store(tmp_path) if row.table == "entry"] == [
        ("1", "damaged"),
        ("2", "ok"),
    ]
    owner = Owner(tmp_path)
    assert owner.store.entry(1) is DAMAGED
    assert owner.has(2)
    owner.store.put_retained(1, make_payload(1, LARGE), lambda: None)
    owner.store.flush()
    assert owner.has(1)
    owner.store.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.EBADMSG, errno.EUCLEAN])
def test_a_sector_that_cannot_be_read_is_damage_and_is_put_right_by_another_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.pread

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        if offset == 0 and size == LARGE:
            raise OSError(code, os.strerror(code))
        return real(descriptor, size, offset)

    owner = Owner(tmp_path)
    owner.put(1, 2)
    owner.store.flush()
    monkeypatch.setattr(os, "pread", pread)
    owner.store.end_turn()
    assert owner.store.entry(1) is DAMAGED
    assert owner.has(2)
    assert bodies.read_body(tmp_path, 0, LARGE) == b""
    owner.store.put_retained(1, make_payload(1, LARGE), lambda: None)
    owner.store.flush()
    owner.store.end_turn()
    assert owner.has(1)
    assert not owner.failures
    owner.store.close()


@pytest.mark.parametrize("size", [0, 7 * PAGE_BYTES])
def test_a_cut_off_file_reads_as_damage(tmp_path: Path, size: int) -> None:
    owner = Owner(tmp_path)
    owner.put(1, 2)
    owner.store.close()
    os.truncate(tmp_path / BODIES_FILE, size)
    owner = Owner(tmp_path)
    assert owner.store.entry(2) is DAMAGED
    assert owner.has(1) == (size > 0)
    owner.put(3)
    assert owner.has(3)
    owner.store.close()


def test_a_file_that_is_gone_reads_as_damage(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.put(1)
    owner.store.close()
    (tmp_path / BODIES_FILE).unlink()
    assert [row.verdict for row in inspect_store(tmp_path) if row.table == "entry"] == ["damaged"]
    owner = Owner(tmp_path)
    assert owner.store.entry(1) is DAMAGED
    owner.store.close()


def test_the_file_leaves_room_for_the_tables_and_what_it_does_not_take_goes_there(tmp_path: Path) -> None:
    limit = 4 << 20
    owner = Owner(tmp_path, map_bytes=limit)
    size = 200_000
    owner.put(*range(1, 19), size=size)
    assert file_bytes(tmp_path) <= limit * 7 // 8
    assert all(owner.has(sequence, size) for sequence in range(1, 19))
    assert file_bytes(tmp_path) + (tmp_path / DATA_FILE).stat().st_size <= limit
    owner.persist(DropThrough(17))
    assert owner.has(18, size)
    owner.store.close()


def test_a_failed_write_of_a_body_stops_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(tmp_path)
    check_failed_write(owner, owner.put, monkeypatch)
    owner = Owner(tmp_path)
    assert owner.store.assignment_bounds() == (1, 1)
    assert owner.has(1)
    owner.store.close()


def test_a_batch_larger_than_the_buffer_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BUFFER_BYTES", 2 * PAGE_BYTES)
    owner = Owner(tmp_path)
    owner.put(1, 2, 3)
    owner.store.flush()
    assert all(owner.has(sequence) for sequence in (1, 2, 3))
    owner.store.close()


INSPECTION = """
import sys
from alphorn.io.inspect_store import inspect_store
for row in inspect_store(sys.argv[1]):
    if row.table in ("entry", "retained"):
        print(row.key, row.verdict, flush=True)
        if row.key == "1":
            sys.stdin.readline()
"""


def test_an_inspection_leaves_out_what_was_dropped_meanwhile(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.put(*range(1, 31))
    owner.store.flush()
    command = [sys.executable, "-c", INSPECTION, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
    ) as inspection:
        assert inspection.stdout is not None
        assert inspection.stdout.readline() == "1 ok\n"
        owner.persist(DropThrough(20))
        owner.store.flush()
        owner.put(*range(31, 51))  # in the pages of those that were dropped
        owner.store.flush()
        rows, _ = inspection.communicate("\n")
    assert inspection.returncode == 0
    assert rows.splitlines() == [f"{number} ok" for number in range(21, 31)]
    owner.store.close()


def test_a_store_of_the_version_before_is_opened_and_is_one_of_this_version_from_then_on(tmp_path: Path) -> None:
    Owner(tmp_path).store.close()
    (tmp_path / BODIES_FILE).unlink()
    with lmdb.open(str(tmp_path), max_dbs=16) as environment:
        table = environment.open_db(records.META)
        with environment.begin(write=True, db=table) as txn:
            txn.put(records.VERSION_KEY, records.pack_version(2))
    assert next(inspect_store(tmp_path)).details == "2"
    Owner(tmp_path).store.close()
    assert next(inspect_store(tmp_path)).details == str(records.VERSION)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from([100, LARGE_BYTES, LARGE, 3 * LARGE]), st.integers(1, 4)),
        st.tuples(st.just("drop through"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("retain"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("drop after"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("close"), st.just(0), st.just(0)),
        st.tuples(st.just("crash"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps, st.sampled_from([256 << 20, 8 << 20]))  # with room, and where gaps become holes
def test_whatever_happens_each_number_reads_as_what_was_durable_last(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], map_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("store")
    owner, model, last, writing = Owner(path, map_bytes=map_bytes), {}, 0, 0
    for step, amount, count in steps:
        match step:
            case "put":
                for _ in range(count):
                    last, writing = last + 1, writing + 1
                    model[last] = make_payload(writing, amount)
                    owner.persist(put_assignments(last, last), put_entry(last, model[last]))
            case "drop through":
                through = max(0, last - amount)
                owner.persist(DropThrough(through))
                model = {number: payload for number, payload in model.items() if number > through}
            case "drop after":
                first = min(model, default=last + 1)
                last = max(last - amount, first - 1)
                owner.persist(DropAfter(last))
                model = {number: payload for number, payload in model.items() if number <= last}
            case "close":
                owner.store.close()
                owner = Owner(path, map_bytes=map_bytes)
            case "crash":
                owner.store.abandon()
                owner = Owner(path, map_bytes=map_bytes)
            case "retain":
                kept = [number for number in model if number % (amount + 2) == 0]
                owner.persist(Retain(last, RangeSet([(n, n) for n in kept])), DropThrough(last, True))
                model = {number: model[number] for number in kept}
        owner.store.end_turn()
        for number in range(1, last + 3):
            assert owner.store.entry(number) == model.get(number)
    owner.store.close()
