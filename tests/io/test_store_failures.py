"""The store on a disk that fails, and in a process that is killed."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from alphorn.bus.machine import Persist
from alphorn.bus.storage import DAMAGED
from alphorn.io.store import Store
from alphorn.model.errors import Misuse, Unavailable
from alphorn.testing.check_storage import make_payload, put_entry, put_log
from tests.io.store_children import child_command, child_environment, run_child

SHIM = Path(__file__).with_name("failing_fdatasync.c")


def open_store(path: Path) -> Store:
    return Store(path, on_durable=lambda _: None, on_failure=lambda _: None, map_bytes=256 << 20)


def test_a_full_store_stops_for_good_and_names_its_limit(tmp_path: Path) -> None:
    failures: list[str] = []
    durable: list[int] = []
    store = Store(tmp_path, on_durable=durable.append, on_failure=failures.append, map_bytes=1 << 20)
    store.submit(Persist(1, put_log(1, 3)))
    store.flush()
    store.submit(Persist(2, [put_entry(4, b"x" * (2 << 20))]))
    with pytest.raises(Unavailable, match="has reached its limit of 1048576 bytes; raise the limit"):
        store.flush()
    with pytest.raises(Unavailable, match="has reached its limit"):
        store.submit(Persist(3, put_log(5, 5)))
    store.close()
    assert durable == [1]
    assert len(failures) == 1
    store = open_store(tmp_path)
    assert store.assignment_bounds() == (1, 3)
    assert store.entry(4) is None
    store.close()


CALLS = ("open", "pwrite", "ftruncate", "truncate", "fsync", "posix_fallocate", "chmod", "mkdir", "stat", "fstat")


def fail_at(count: int, code: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets so manieth of the system's calls fail; the list gets the name of each that is made."""
    made: list[str] = []

    def failing(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            made.append(name)
            if len(made) == count:
                raise OSError(code, os.strerror(code))
            return real(*arguments, **options)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, failing(name, getattr(os, name)))
    return made


@pytest.mark.requirement("BUS-25")
@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_whichever_call_fails_a_store_that_cannot_be_opened_says_so_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, *, is_new: bool
) -> None:
    def open_ahead(path: Path) -> Store:
        return Store(path, on_durable=print, on_failure=print, map_bytes=64 << 20, ahead_bytes_max=8 << 10)

    for count in range(1, 1000):
        path = tmp_path / str(count)
        if not is_new:
            store = open_ahead(path)
            store.submit(Persist(1, [*put_log(1, 3), put_entry(4, make_payload(4, 40_000))]))
            store.flush()
            store.submit(Persist(2, put_log(5, 5)))
            store.end_turn()
            store.abandon()
        store, before = None, len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as broken:
            made = fail_at(count, code, broken)
            with contextlib.suppress(Unavailable, Misuse):  # and nothing else
                store = open_ahead(path)
        if store is not None:
            store.close()
        assert len(os.listdir("/proc/self/fd")) == before, made
        store = open_ahead(path)
        assert store.assignment_bounds() == ((1, 0) if is_new else (1, 5)), made
        store.close()
        shutil.rmtree(path)
        if len(made) < count:
            return


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that lets the n-th fdatasync fail with EIO."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the failing fdatasync with")
    library = tmp_path_factory.mktemp("shim") / "failing_fdatasync.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(SHIM), "-ldl"], check=True)
    return library


def test_a_failed_fsync_stops_the_store(tmp_path: Path, shim: Path) -> None:
    # The child opens a store (two commits), then persists numbers one by one; its fourth fdatasync fails.
    done = run_child("write", tmp_path, LD_PRELOAD=str(shim), FAIL_FDATASYNC_AT="4")
    lines = done.stdout.splitlines()
    assert lines[0] == "durable 1"
    assert lines[1].startswith("failed store ")
    assert "could not write" in lines[1]
    assert lines[2].startswith("refused store ")
    assert len(lines) == 3
    store = open_store(tmp_path)
    assert store.assignment_bounds() == (1, 1)
    assert store.entry(1) == make_payload(1)
    assert store.entry(2) is None
    store.close()


def test_a_failed_write_stops_the_store(tmp_path: Path) -> None:
    # A limit on file size makes the kernel refuse the write itself, as a full disk does.
    done = run_child("limited", tmp_path)
    lines = done.stdout.splitlines()
    assert lines[-2].startswith("failed store ")
    assert lines[-1].startswith("refused store ")
    reported = int(lines[-3].split()[1])
    store = open_store(tmp_path)
    assert store.assignment_bounds() == (1, reported)
    assert store.entry(reported) == make_payload(reported)
    store.close()


def kill_writer(mode: str, path: Path, reports_before_kill: int) -> int:
    """Starts a child that writes, and kills it after so many reports; gives the last number reported."""
    child = subprocess.Popen(child_command(mode, path), stdout=subprocess.PIPE, text=True, env=child_environment())
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(reports_before_kill)]
    child.send_signal(signal.SIGKILL)
    lines += [line for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    child.wait()
    child.stdout.close()
    return int(lines[-1].split()[1])


@pytest.mark.requirement("BUS-25")
@pytest.mark.parametrize(("mode", "size"), [("ahead", 3000), ("bodies", 40_000)])
@pytest.mark.parametrize("reports_before_kill", [1, 3, 60, 700, 1500])
def test_everything_written_ahead_survives_kill(tmp_path: Path, reports_before_kill: int, mode: str, size: int) -> None:
    reported = kill_writer(mode, tmp_path, reports_before_kill)
    store = open_store(tmp_path)
    first, last = store.assignment_bounds()
    assert last >= reported
    assert first == max(1, last // 50 * 50 - 49)
    for sequence in range(first, last + 1):
        assert store.entry(sequence) == make_payload(sequence, size)
        assert store.assignment(sequence) not in (None, DAMAGED)
    assert store.entry(first - 1) is None
    store.close()


@pytest.mark.requirement("BUS-25")
@pytest.mark.parametrize("reports_before_kill", [1, 3, 10, 40, 150])
def test_everything_reported_durable_survives_kill(tmp_path: Path, reports_before_kill: int) -> None:
    # A child appends, drops what is 50 numbers old, and prints each report; it is killed in the middle of its writes.
    reported = kill_writer("write", tmp_path, reports_before_kill)
    store = open_store(tmp_path)
    first, last = store.assignment_bounds()
    assert last >= reported
    assert first == max(1, last - 49)
    for sequence in range(first, last + 1):
        assert store.entry(sequence) == make_payload(sequence)
        assert store.assignment(sequence) not in (None, DAMAGED)
    assert store.entry(first - 1) is None
    store.close()
