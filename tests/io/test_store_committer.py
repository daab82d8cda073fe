"""What is durable is brought into LMDB while more becomes durable; what is durable only there is waited for."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from alphorn.bus.machine import DropThrough
from alphorn.io import store_writer
from alphorn.io.store_committer import Committer, Job
from alphorn.model.errors import Unavailable
from tests.io.test_bodies import LARGE, Owner

AT_ONCE = 3  # large batches that are brought into LMDB together


class Gate:
    """Holds up commits of LMDB, and counts their jobs."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.begun: list[list[int]] = []

    def wait(self, jobs: list[Job]) -> None:
        self.begun.append([job.number for job in jobs])
        self.is_open.wait()


@pytest.fixture(name="gate")
def make_gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, commit = Gate(), Committer._commit

    def wait(committer: Committer, jobs: list[Job]) -> None:
        gate.wait(jobs)
        commit(committer, jobs)

    monkeypatch.setattr(Committer, "_commit", wait)
    monkeypatch.setattr(store_writer, "APPLY_S", 1e9)
    monkeypatch.setattr(store_writer, "UNAPPLIED_BYTES_MAX", AT_ONCE * LARGE)
    yield gate
    gate.is_open.set()


def wait_for(condition: Callable[[], object]) -> None:
    while not condition():
        os.sched_yield()


def test_large_batches_become_durable_while_lmdb_gets_those_before(tmp_path: Path, gate: Gate) -> None:
    owner = Owner(tmp_path)
    owner.put(1, 2, 3)
    wait_for(lambda: gate.begun)
    owner.put(4, 5)
    assert gate.begun == [[1, 2, 3]]
    assert owner.durable[-1] == 5
    assert owner.store.describe()["ahead"] == 5
    assert all(owner.has(sequence) for sequence in range(1, 6))
    owner.store.end_turn()
    gate.is_open.set()
    wait_for(lambda: owner.store.describe()["ahead"] == 2)
    assert all(owner.has(sequence) for sequence in range(1, 6))
    owner.store.close()


def test_what_is_durable_only_in_lmdb_comes_after_all_that_was_begun(tmp_path: Path, gate: Gate) -> None:
    owner = Owner(tmp_path)
    owner.put(1, 2, 3)
    wait_for(lambda: gate.begun)
    dropping = threading.Thread(target=owner.persist, args=(DropThrough(1),))
    dropping.start()
    assert owner.durable[-1] == 3
    gate.is_open.set()
    dropping.join()
    assert gate.begun == [[1, 2, 3], [4]]
    assert owner.durable[-1] == 4
    owner.store.close()


def test_what_is_begun_is_finished_before_a_store_is_closed(tmp_path: Path, gate: Gate) -> None:
    owner = Owner(tmp_path)
    owner.put(1, 2, 3)
    wait_for(lambda: gate.begun)
    closing = threading.Thread(target=owner.store.abandon)
    closing.start()
    gate.is_open.set()
    closing.join()
    assert owner.store.describe()["commits"] == 1
    owner = Owner(tmp_path)
    assert all(owner.has(sequence) for sequence in range(1, 4))
    owner.store.close()


def test_a_commit_that_fails_beside_other_writes_stops_the_store_at_once_and_loses_nothing(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(jobs: list[Job]) -> None:
        gate.begun.append([job.number for job in jobs])
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(gate, "wait", fail)
    owner = Owner(tmp_path)
    owner.put(1, 2, 3)
    wait_for(lambda: owner.failures)
    with pytest.raises(Unavailable, match="could not write"):
        owner.put(4)
    with pytest.raises(Unavailable, match="could not write"):
        owner.store.flush()
    owner.store.close()
    assert (owner.durable[-1], len(owner.failures), gate.begun) == (3, 1, [[1, 2, 3]])
    monkeypatch.undo()
    owner = Owner(tmp_path)
    assert all(owner.has(sequence) for sequence in range(1, 4))
    owner.store.close()


def test_pages_of_bodies_that_are_dropped_meanwhile_are_not_those_that_are_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both threads change which pages are free, as fast as they can."""
    monkeypatch.setattr(store_writer, "UNAPPLIED_BYTES_MAX", 2 * LARGE)
    owner = Owner(tmp_path)
    for sequence in range(1, 200):
        owner.put(sequence)
        if sequence % 5 == 0:
            owner.persist(DropThrough(sequence - 3))
        first = sequence - sequence % 5 - 2
        assert all(owner.has(number) for number in range(max(1, first), sequence + 1))
    owner.store.close()
