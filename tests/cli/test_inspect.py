import json

import msgspec
import pytest

from alphorn.bus.entries import Assignment, digest_of
from alphorn.bus.frames import Heartbeat, encode
from alphorn.bus.machine import Persist, PutAssignments, PutEntry, PutMeta
from alphorn.bus.storage import Meta
from alphorn.io.capture import Capture, Direction
from alphorn.io.store import Store
from alphorn.model.ids import Kind, make_id, make_origin
from tests.cli.commands import run

META = msgspec.msgpack.encode(Meta(config=bytes(16), number=1, incarnation=1, start=1, committed=30))
ORIGIN = make_origin(bytes([10, 0, 0, 7]), 21_100, 5)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store"
    opened = Store(path, on_durable=lambda _: None, on_failure=lambda _: None)
    payloads = [b"batch %d" % number for number in range(30)]
    assignments = [
        Assignment(1 << 16 | 1, make_id(ORIGIN, Kind.BATCH, number), 0, digest_of(payload), len(payload))
        for number, payload in enumerate(payloads)
    ]
    writes = [PutEntry(number, payload, digest_of(payload)) for number, payload in enumerate(payloads, 1)]
    opened.submit(Persist(1, [PutMeta(META), PutAssignments(1, assignments), *writes]))
    opened.close()
    return path


@pytest.fixture
def capture(tmp_path):
    path = tmp_path / "frames"
    made = Capture(path, clock=lambda: 1_700_000_000_000_000_000)
    beat = Heartbeat(7, 8, 0, 9)
    made.record(Direction.SENT, "*control", encode(group=1, epoch=1 << 16, number=2, origin=ORIGIN, body=beat))
    made.record(Direction.RECEIVED, "*control", [b"no frame at all"])
    made.close()
    return path


def test_a_store_is_shown_as_tables(store, capsys):
    assert run("inspect", str(store)) == 0
    shown = capsys.readouterr().out
    assert "assignment" in shown
    assert "summary" in shown
    assert "10.0.0.7:21100" in shown


def test_a_store_is_shown_as_one_object_for_each_record(store, capsys):
    assert run("inspect", str(store), "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["key"] for row in rows if row["table"] == "entry"] == [str(number) for number in range(1, 31)]


def test_only_the_first_rows_are_shown_unless_all_are_asked_for(store, capsys):
    run("inspect", str(store))
    few = capsys.readouterr().out
    run("inspect", str(store), "--all")
    everything = capsys.readouterr().out
    assert "│ 20 " in few
    assert "│ 21 " not in few
    assert "│ 30 " in everything


def test_a_capture_is_shown_frame_by_frame(capture, capsys):
    assert run("inspect", str(capture), "--json") == 0
    sent, received = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sent["frame"] == "Heartbeat"
    assert sent["direction"] == "sent"
    assert sent["origin"].startswith("10.0.0.7:21100@")
    assert "committed=7" in sent["details"]
    assert received["frame"] == "unreadable"
    assert run("inspect", str(capture)) == 0
    assert "Heartbeat" in capsys.readouterr().out


def test_a_path_that_leads_nowhere_is_one_sentence(tmp_path, capsys):
    assert run("inspect", str(tmp_path / "nothing")) == 1
    assert capsys.readouterr().err.endswith("nothing does not exist; name a store's directory or a capture file\n")


def test_a_directory_without_a_store_is_one_sentence(tmp_path, capsys):
    assert run("inspect", str(tmp_path)) == 1
    assert "is no store" in capsys.readouterr().err


def test_a_file_that_is_no_capture_is_one_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("hello")
    assert run("inspect", str(tmp_path / "file")) == 1
    assert "is not a frame capture" in capsys.readouterr().err
