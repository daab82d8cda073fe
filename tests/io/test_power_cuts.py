"""A store whose power is cut at any moment has, when it is opened again, all that was durable, and nothing half.

Method: a process writes while a library records its writes and syncs. From these the files are made again as they may
be after a cut: what was synced is there, and of what was not any sectors are, or none.
"""

import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from alphorn.io.store import Store
from alphorn.model.errors import Corruption
from tests.io.cut_child import MAP_BYTES, State, jobs_of
from tests.io.store_children import child_environment

CHILD = Path(__file__).with_name("cut_child.py")
TRACER = Path(__file__).with_name("traced_writes.c")
SECTOR_BYTES = 512
CUTS = 40

_RECORD = struct.Struct("<c31sqqqq")


class Traced(NamedTuple):
    """One record of traced_writes.c."""

    kind: str
    name: str
    first: int
    second: int
    id: int
    data: bytes


class CutFile:
    """One file of the store: what is in it for certain, and what may be."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._open: list[Traced] = []

    def note(self, traced: Traced) -> None:
        match traced.kind:
            case "W" | "T" | "P":
                self._open.append(traced)
            case "S":
                self._close({each.id for each in self._open if each.id <= traced.id})
            case "D":  # with what the journal of a file system has before it
                self._close({each.id for each in self._open if each.id == traced.id} | self._metadata(traced.id))
            case "R":
                self._open, self.content = [], bytearray(traced.data)

    def cut(self, chance: random.Random) -> None:
        """The power is gone: each write that was not synced is there, or in part, or not."""
        for traced in self._open:
            sectors = range(-(-len(traced.data) // SECTOR_BYTES))
            match chance.choice(("whole", "nothing", "beginning", "scattered")):
                case "whole":
                    self._apply(traced)
                case "beginning":
                    self._apply_sectors(traced, sectors[: chance.randint(0, len(sectors))])
                case "scattered":
                    self._apply_sectors(traced, [sector for sector in sectors if chance.random() < 0.5])

    def _metadata(self, before: int) -> set[int]:
        return {each.id for each in self._open if each.kind in "TP" and each.id < before}

    def _close(self, ids: set[int]) -> None:
        for traced in self._open:
            if traced.id in ids:
                self._apply(traced)
        self._open = [traced for traced in self._open if traced.id not in ids]

    def _apply(self, traced: Traced) -> None:
        match traced.kind:
            case "W":
                self._write(traced.first, traced.data)
            case "T":
                self.content = self.content[: traced.first].ljust(traced.first, b"\0")
            case "P":
                end = min(traced.first + traced.second, len(self.content))
                self._write(traced.first, bytes(max(0, end - traced.first)))

    def _apply_sectors(self, traced: Traced, sectors: Iterable[int]) -> None:
        for sector in sectors:
            begin = sector * SECTOR_BYTES
            self._write(traced.first + begin, traced.data[begin : begin + SECTOR_BYTES])

    def _write(self, offset: int, data: bytes) -> None:
        self.content.extend(bytes(max(0, offset - len(self.content))))
        self.content[offset : offset + len(data)] = data


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that records."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the tracer with")
    library = tmp_path_factory.mktemp("tracer") / "traced_writes.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(TRACER), "-ldl", "-lpthread"], check=True)
    return library


def trace(path: Path, tracer: Path, seed: int, *how: str) -> list[Traced]:
    """What a process wrote, in order."""
    settings = {"LD_PRELOAD": str(tracer), "TRACE": str(path / "trace"), "TRACED_DIRECTORY": str(path / "store")}
    command = [sys.executable, str(CHILD), str(path / "store"), str(seed), *how]
    subprocess.run(command, check=True, env=child_environment() | settings)
    data, at, found = (path / "trace").read_bytes(), 0, []
    while at < len(data):
        kind, name, first, second, number, size = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        found.append(Traced(kind.decode(), name.rstrip(b"\0").decode(), first, second, number, data[at : at + size]))
        at += size
    return found


def cut(traced: list[Traced], path: Path, chance: random.Random) -> int:
    """Makes a store as it may be after a cut; gives the last token that was reported durable before."""
    files: dict[str, CutFile] = {}
    durable = 0
    for each in traced:
        if each.name == "marker":
            durable = max(durable, int(each.data or 0))
        else:
            files.setdefault(each.name, CutFile()).note(each)
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for name, file in files.items():
        file.cut(chance)
        (path / name).write_bytes(file.content)
    return durable


def state_in(path: Path) -> State:
    """What a store that is opened again says that it has."""
    store = Store(path, on_durable=print, on_failure=print, map_bytes=MAP_BYTES, ahead_bytes_max=8 << 10)
    entries = {number: store.entry(number) for number in range(500)}
    found = {number: bytes(entry) for number, entry in entries.items() if isinstance(entry, bytes | memoryview)}
    damaged = [number for number, entry in entries.items() if entry is not None and number not in found]
    bounds = store.assignment_bounds()
    store.close()
    assert not damaged
    return found, bounds


@pytest.mark.requirement("BUS-25")
@pytest.mark.parametrize("seed", range(6))
def test_after_a_cut_at_any_moment_a_store_has_what_was_durable_and_whole_jobs_only(
    tmp_path: Path, tracer: Path, seed: int
) -> None:
    traced, states = trace(tmp_path, tracer, seed), jobs_of(seed)[1]
    chance = random.Random(seed)
    for moment in [*range(12), *(chance.randint(12, len(traced)) for _ in range(CUTS))]:
        durable = cut(traced[:moment], tmp_path / "cut", chance)
        assert state_in(tmp_path / "cut") in states[durable:], f"seed {seed}, cut after {moment} of {len(traced)}"


def test_a_store_that_reports_too_early_is_found_out(tmp_path: Path, tracer: Path) -> None:
    traced, states = trace(tmp_path, tracer, 1, "hasty"), jobs_of(1)[1]
    chance, is_found = random.Random(1), False
    for _ in range(CUTS):
        durable = cut(traced[: chance.randint(0, len(traced))], tmp_path / "cut", chance)
        try:
            is_found = is_found or state_in(tmp_path / "cut") not in states[durable:]
        except (AssertionError, Corruption):
            is_found = True
    assert is_found


def test_a_trace_says_what_was_written(tmp_path: Path, tracer: Path) -> None:
    traced = trace(tmp_path, tracer, 2)
    assert {each.name for each in traced} == {"data.mdb", "bodies", "ahead", "marker"}
    path = tmp_path / "cut"
    assert cut(traced, path, random.Random(2)) == len(jobs_of(2)[0])
    written = {name: (tmp_path / "store" / name).read_bytes() for name in ("data.mdb", "bodies", "ahead")}
    assert {name: (path / name).read_bytes() for name in written} == written
