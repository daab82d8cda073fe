"""Appends ahead of LMDB that a power cut interrupts: a drive may have written any of their pages, in any order."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from alphorn.bus.machine import Persist
from alphorn.io.store import Store
from alphorn.io.store_writes import WriteTransaction
from alphorn.io.write_ahead import AHEAD_FILE, SLOT_BYTES, SLOTS, Record, WriteAhead, encode_record, read_ahead
from alphorn.model.errors import Corruption
from alphorn.testing.check_storage import make_payload, put_assignments, put_entry
from tests.io.storages import Owner

RUN = 0x1234_5678_9ABC_DEF0
SLOTS_OF_GROUP = (1, 3, 1, 2)  # of the records of one append
WITHOUT_PLACE = [
    "4f3d293e91aca54d123456789abcdef000000000000000010000001393010191940101c40131cf65cd25028f98f158",
    "980919cbb206d4f3123456789abcdef000000000000000020000001393010291940102c40132cffb95a7322f5da314",
    "850163573f7f7bd5123456789abcdef000000000000000030000001393010391940103c40133cf7324dc1e7e9474f0",
]
WITH_PLACE = "6638af4a56ea3aa6123456789abcdef000000000000000020000001494010291940102c40132cffb95a7322f5da31401"


class Drive:
    """Knows what was in the pages of the last write before it, so that it can have written only some of them."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self._offset, self._before, self._after = 0, b"", b""
        real = os.pwrite

        def pwrite(file: int, data: memoryview, offset: int) -> int:
            if (path / AHEAD_FILE).stat().st_ino == os.fstat(file).st_ino:
                content = (path / AHEAD_FILE).read_bytes()
                self._offset, self._before, self._after = offset, content[offset : offset + len(data)], bytes(data)
            return real(file, data, offset)

        monkeypatch.setattr(os, "pwrite", pwrite)

    @property
    def pages(self) -> int:
        """Of the last write."""
        return len(self._before) // SLOT_BYTES

    def subsets(self) -> Iterator[frozenset[int]]:
        """Which of these pages may be there after a power cut."""
        for bits in range(1 << self.pages):
            yield frozenset(page for page in range(self.pages) if bits >> page & 1)

    def leave(self, written: frozenset[int], path: Path | None = None) -> None:
        """These pages of the last write are on the disk, or on its copy at `path`; the others are as they were."""
        with ((path or self._path) / AHEAD_FILE).open("r+b") as file:
            for page in range(self.pages):
                content = self._after if page in written else self._before
                file.seek(self._offset + page * SLOT_BYTES)
                file.write(content[page * SLOT_BYTES : (page + 1) * SLOT_BYTES])


def append(ahead: WriteAhead, first: int, *slots: int, committed: int = 0) -> None:
    """One append of records that take so many slots each."""
    encoded = []
    for before, count in enumerate(slots):
        number = first + before
        payload = make_payload(number, (count - 1) * SLOT_BYTES + 100)
        encoded.append((number, encode_record(RUN, Record(number, (1, number), [put_entry(number, payload)], before))))
    place = ahead.place([len(record) for _, record in encoded], committed)
    assert place is not None
    ahead.append(place, encoded)


def numbers(path: Path, applied: int = 0) -> list[int]:
    return [record.number for record in read_ahead(path, RUN, applied)]


def whole_before_the_first_gap(written: frozenset[int], slots: tuple[int, ...]) -> int:
    """How many records of an append are there when these pages of it are."""
    page = 0
    for count, size in enumerate(slots):
        if not written.issuperset(range(page, page + size)):
            return count
        page += size
    return len(slots)


@pytest.mark.parametrize("slots", [(1,), (3,), (1, 1, 1), SLOTS_OF_GROUP], ids=str)
@pytest.mark.parametrize("earlier", [0, 1, 2])
def test_whatever_pages_of_the_last_append_are_there_all_before_it_is_read_and_its_first_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: tuple[int, ...], earlier: int
) -> None:
    drive, ahead = Drive(tmp_path, monkeypatch), WriteAhead(tmp_path, RUN)
    for number in range(1, 2 * earlier, 2):
        append(ahead, number, 1, 2)
    append(ahead, 2 * earlier + 1, *slots)
    for applied in range(2 * earlier + 1):
        for written in drive.subsets():
            drive.leave(written)
            through = 2 * earlier + whole_before_the_first_gap(written, slots)
            assert numbers(tmp_path, applied) == list(range(applied + 1, through + 1)), (applied, written)
    ahead.close()


def test_an_append_that_is_cut_off_after_the_ring_has_wrapped_leaves_older_records_of_the_run_that_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive, ahead = Drive(tmp_path, monkeypatch), WriteAhead(tmp_path, RUN)
    for number in range(1, SLOTS - 4, 2):
        append(ahead, number, 1, 1)
    last = SLOTS - 4
    append(ahead, last + 1, *SLOTS_OF_GROUP, committed=100)
    for written in drive.subsets():
        drive.leave(written)
        through = last + whole_before_the_first_gap(written, SLOTS_OF_GROUP)
        for applied in (100, last):
            assert numbers(tmp_path, applied) == list(range(applied + 1, through + 1)), (applied, written)
    ahead.close()


def test_a_record_that_was_durable_before_the_append_that_was_cut_off_is_missed_if_any_of_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive, ahead = Drive(tmp_path, monkeypatch), WriteAhead(tmp_path, RUN)
    append(ahead, 1, 1, 1)
    append(ahead, 3, 1, 1)
    with (tmp_path / AHEAD_FILE).open("r+b") as file:
        file.seek(SLOT_BYTES + 60)
        file.write(b"\xff")
    for written in drive.subsets():
        drive.leave(written)
        if not written:
            assert numbers(tmp_path) == [1], "nothing says that it was durable"
            continue
        with pytest.raises(Corruption, match="has lost writes that were durable"):
            numbers(tmp_path)
        assert numbers(tmp_path, applied=2) == [3, 4][: whole_before_the_first_gap(written, (1, 1))]
    ahead.close()


def test_an_append_of_which_lmdb_has_a_part_was_durable_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive, ahead = Drive(tmp_path, monkeypatch), WriteAhead(tmp_path, RUN)
    append(ahead, 1, 1, 1, 1)
    drive.leave(frozenset({0, 2}))
    assert numbers(tmp_path, applied=2) == [3]
    with pytest.raises(Corruption, match="has lost writes that were durable"):
        numbers(tmp_path, applied=1)
    ahead.close()


def test_records_without_a_place_in_their_append_are_appends_of_their_own(tmp_path: Path) -> None:
    # The bytes of numbers 1 to 3, as releases wrote them that did not note it.
    records = [bytes.fromhex(line) for line in WITHOUT_PLACE]
    ahead = WriteAhead(tmp_path, RUN)
    ahead.append(0, list(enumerate(records, 1)))
    assert numbers(tmp_path) == [1, 2, 3]
    ahead.append(1, [(2, bytes(len(records[1])))])
    with pytest.raises(Corruption, match="has lost writes that were durable"):
        numbers(tmp_path)
    ahead.close()


def test_a_record_has_these_bytes() -> None:
    record = encode_record(RUN, Record(2, (1, 2), [put_entry(2, b"2")], before=1))
    assert record.hex() == WITH_PLACE
    assert Record(2, (1, 2), [], before=1).append_first == 1


# The real store, on whatever a power cut left.


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB gets what was written ahead only when the store is opened again."""
    monkeypatch.setattr("alphorn.io.store.APPLY_S", 1e9)
    monkeypatch.setattr("alphorn.io.store_writer.APPLY_S", 1e9)
    monkeypatch.setattr("alphorn.io.store.SLOW_S", 1e9)


def open_owner(path: Path) -> Owner:
    return Owner(path, map_bytes=64 << 20, ahead_bytes_max=16 << 10)


def write(store: Store, first: int, *payloads: bytes) -> None:
    """One turn that writes these numbers of the log, each by a job of its own."""
    for sequence, payload in enumerate(payloads, first):
        store.submit(Persist(sequence, [put_assignments(sequence, sequence), put_entry(sequence, payload)]))
    store.end_turn()


def entries(store: Store) -> list[object]:
    first, last = store.assignment_bounds()
    found = [store.entry(sequence) for sequence in range(first, last + 1)]
    assert store.entry(last + 1) is None
    assert store.assignment(last + 1) is None
    return found


@pytest.mark.usefixtures("lazy")
@pytest.mark.parametrize("durable", [[], [b"one"]], ids=["first-append", "later-append"])
def test_a_store_opens_after_every_power_cut_within_a_group_and_what_it_drops_never_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: list[bytes]
) -> None:
    path, slots = tmp_path / "store", (1, 2, 1, 1)
    owner, drive = open_owner(path), Drive(path, monkeypatch)
    if durable:
        write(owner.store, 1, *durable)
    group = [b"two", bytes(SLOT_BYTES), b"four", b"five"]
    write(owner.store, len(durable) + 1, *group)
    assert drive.pages == sum(slots)
    for written in drive.subsets():
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        drive.leave(written, copy)
        kept = durable + group[: whole_before_the_first_gap(written, slots)]
        _check_that_it_goes_on(copy, kept)
        shutil.rmtree(copy)
    owner.store.abandon()


def _check_that_it_goes_on(path: Path, expected: list[bytes]) -> None:
    """A store has these entries. It goes on with others of the same numbers as those it has not, over two crashes."""
    expected = list(expected)
    for word in (b"other", b"another"):
        owner = open_owner(path)
        assert entries(owner.store) == expected
        more = [b"%s %d" % (word, place) for place in range(2)]
        write(owner.store, len(expected) + 1, *more)
        assert owner.durable == [len(expected) + 2]
        expected += more
        owner.store.abandon()
    store = open_owner(path).store
    assert entries(store) == expected
    store.close()


@pytest.mark.usefixtures("lazy")
def test_a_crash_while_the_store_is_opened_changes_nothing_about_what_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    owner, drive = open_owner(path), Drive(path, monkeypatch)
    write(owner.store, 1, b"one", b"two", b"three")
    shutil.copytree(path, tmp_path / "copy")
    owner.store.abandon()
    drive.leave(frozenset({0, 2}), tmp_path / "copy")
    with monkeypatch.context() as broken:
        broken.setattr(WriteTransaction, "finish", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            open_owner(tmp_path / "copy")
    _check_that_it_goes_on(tmp_path / "copy", [b"one"])
