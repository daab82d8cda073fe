"""An inspection decodes every record, tells damage, and disturbs nothing."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from alphorn.bus.config import Role
from alphorn.bus.entries import (
    Assignment,
    CheckpointMark,
    Collected,
    EpochBegun,
    InSyncChanged,
    IntervalChanged,
    Member,
    MemberJoined,
    MemberLeft,
    Nothing,
    SystemEntry,
    VoterAdded,
    VoterRemoved,
    encode_system,
    make_epoch,
)
from alphorn.bus.machine import Persist, PutAssignments, PutChunk, PutGroupState, PutMeta
from alphorn.io import records
from alphorn.io.inspect_store import Row, inspect_store, is_faulty
from alphorn.io.store import Store
from alphorn.model.errors import Corruption, Misuse
from alphorn.model.ids import Kind, make_id, make_origin
from alphorn.testing.check_storage import checkpoint_writes, make_meta, make_payload, put_entry, put_log
from tests.io.storages import flip_in_file, read_record

ORIGIN = make_origin(bytes([10, 0, 0, 7]), 21_100, 0xABC)


def open_store(path: Path) -> Store:
    return Store(path, on_durable=lambda _: None, on_failure=lambda _: None, map_bytes=64 << 20)


def fill(path: Path) -> Store:
    store = open_store(path)
    begun = Assignment(
        make_epoch(2, 3), make_id(ORIGIN, Kind.NODE, 1), 4, system=encode_system(EpochBegun(make_epoch(2, 3), 3))
    )
    writes = [
        PutMeta(msgspec.msgpack.encode(make_meta(5))),
        *put_log(1, 2),
        PutAssignments(3, [begun]),
        PutGroupState(2, b"group state"),
        *checkpoint_writes(2, [b"chunk"]),
        PutChunk(9, 4, b"arriving"),
    ]
    store.submit(Persist(1, writes))
    store.flush()
    return store


def row(rows: list[Row], table: str, key: str) -> Row:
    (found,) = [row for row in rows if (row.table, row.key) == (table, key)]
    return found


def test_every_record_of_a_store_is_decoded(tmp_path: Path) -> None:
    fill(tmp_path).close()
    rows = list(inspect_store(tmp_path))
    assert {row.verdict for row in rows} == {"ok"}
    assert [(row.table, row.key) for row in rows] == [
        ("version", ""),
        ("meta", ""),
        ("bounds", ""),
        ("group state", "2"),
        ("assignment", "1"),
        ("assignment", "2"),
        ("assignment", "3"),
        ("entry", "1"),
        ("entry", "2"),
        ("chunk", "2/0"),
        ("chunk", "9/4"),
        ("checkpoint", "2"),
    ]
    assert row(rows, "meta", "").details.startswith("member=3 incarnation=5 start=7 promised=5.3 committed=0 barred=no")
    assert row(rows, "bounds", "").details == "first=1 last=3"
    assert row(rows, "assignment", "1").details.startswith("epoch=1.1 id=127.0.0.1:21000@7/batch#1 timestamp=0 size=0")
    assert row(rows, "assignment", "3").details == (
        "epoch=2.3 id=10.0.0.7:21100@abc/node#1 system=EpochBegun(epoch=131075, number=3)"
    )
    assert row(rows, "entry", "2").details.startswith(f"size={len(make_payload(2))} digest=")
    assert row(rows, "checkpoint", "2").details.startswith("epoch=1.1 size=5 chunks=1 digest=")


def test_a_store_without_a_checkpoint_mark_is_well(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.submit(Persist(1, [PutMeta(msgspec.msgpack.encode(make_meta(5))), *put_log(1, 2)]))
    store.close()
    rows = list(inspect_store(tmp_path))
    assert not any(map(is_faulty, rows))
    assert row(rows, "group state", "").details == "none before the first checkpoint mark"


def test_the_one_store_of_a_node_is_found_in_its_folder(tmp_path: Path) -> None:
    fill(tmp_path / "mm1" / "log").close()
    assert list(inspect_store(tmp_path / "mm1")) == list(inspect_store(tmp_path / "mm1" / "log"))
    assert list(inspect_store(tmp_path)) == list(inspect_store(tmp_path / "mm1" / "log"))


def test_of_several_stores_one_is_to_be_named(tmp_path: Path) -> None:
    for name in ("witness-0", "witness-1"):
        fill(tmp_path / "cm1" / name).close()
    with pytest.raises(Misuse, match=r"cm1 has several stores; name one of .*cm1/witness-0, .*cm1/witness-1"):
        list(inspect_store(tmp_path / "cm1"))


@pytest.mark.parametrize(
    ("table", "key", "shown"),
    [
        (records.META, records.META_KEY, ("meta", "")),
        (records.ASSIGNMENTS, records.number_key(2), ("assignment", "2")),
        (records.HEADS, records.number_key(2), ("entry", "2")),
        (records.LOG, records.number_key(2), ("entry", "2")),
        (records.STATE, records.GROUP_KEY, ("group state", "")),
        (records.CHECKPOINTS, records.number_key(2), ("checkpoint", "2")),
        (records.CHUNKS, records.chunk_key(9, 4), ("chunk", "9/4")),
    ],
)
def test_a_damaged_record_is_shown_as_such(tmp_path: Path, table: bytes, key: bytes, shown: tuple[str, str]) -> None:
    fill(tmp_path).close()
    record = read_record(tmp_path, table, key)
    flip_in_file(tmp_path, record, len(record) // 2)
    damaged = [(row.table, row.key) for row in inspect_store(tmp_path) if row.verdict != "ok"]
    assert damaged == [shown]


@pytest.mark.parametrize(
    "entry",
    [
        MemberJoined(Member(3, "c", "10.0.0.3:1", int(Role.DATA | Role.COMMIT), 1, "queue", bytes(ORIGIN), 2)),
        MemberLeft(3, bytes(ORIGIN), True),
        VoterAdded(4),
        VoterRemoved(4, True),
        InSyncChanged((1, 2), 2),
        CheckpointMark(),
        Collected(77),
        IntervalChanged(10, 20),
        Nothing(),
    ],
    ids=lambda entry: type(entry).__name__,
)
def test_every_system_entry_is_shown_by_name(tmp_path: Path, entry: SystemEntry) -> None:
    store = open_store(tmp_path)
    assignment = Assignment(65537, make_id(ORIGIN, Kind.NODE, 1), system=encode_system(entry))
    store.submit(Persist(1, [PutAssignments(1, [assignment])]))
    store.close()
    details = row(list(inspect_store(tmp_path)), "assignment", "1").details
    assert details.endswith(f"system={entry!r}")


def test_a_system_entry_of_a_later_release_does_not_end_the_inspection(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assignment = Assignment(65537, make_id(ORIGIN, Kind.NODE, 1), system=b"\x92\xcc\xff\x01")
    store.submit(Persist(1, [PutAssignments(1, [assignment]), put_entry(1, b"x")]))
    store.close()
    rows = list(inspect_store(tmp_path))
    assert "system entry cannot be decoded" in row(rows, "assignment", "1").details
    assert row(rows, "entry", "1").verdict == "ok"


def test_a_store_can_be_inspected_while_its_node_runs(tmp_path: Path) -> None:
    store = fill(tmp_path)
    script = (
        "import sys; from alphorn.io.inspect_store import inspect_store; print(len(list(inspect_store(sys.argv[1]))))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    store.submit(Persist(2, put_log(4, 4)))
    store.close()
    assert int(done.stdout) == 12


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="is no store"):
        list(inspect_store(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_store_is_corruption(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"\xa5" * 8192)
    with pytest.raises(Corruption, match="cannot be read on"):
        list(inspect_store(tmp_path))
