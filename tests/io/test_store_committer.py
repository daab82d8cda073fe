"""What is durable is brought into LMDB while more becomes durable; what is durable only there is waited for."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from alphorn.bus.machine import DropAfter, DropThrough
from alphorn.bus.storage import CheckpointInfo
from alphorn.io import store_writer
from alphorn.io.inspect_store import OWN_WRITES, inspect_store
from alphorn.io.store_committer import Committer, Job
from alphorn.io.store_files import DATA_FILE
from alphorn.model.errors import Unavailable
from alphorn.model.ranges import RangeSet
from alphorn.testing.check_storage import make_payload
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
    cutting = threading.Thread(target=owner.persist, args=(DropAfter(2),))
    cutting.start()
    assert owner.durable[-1] == 3
    gate.is_open.set()
    cutting.join()
    assert gate.begun == [[1, 2, 3], [4]]
    assert owner.durable[-1] == 4
    owner.store.close()
    owner = Owner(tmp_path)
    assert owner.store.assignment_bounds() == (1, 2)
    owner.store.close()


def test_nothing_waits_for_a_drop_or_a_checkpoint(tmp_path: Path, gate: Gate) -> None:
    owner = Owner(tmp_path)
    owner.put(1, 2)
    taken: list[CheckpointInfo] = []
    writing = owner.store.begin_checkpoint(2, 1, b"state")
    writing.add(bytes(100_000))
    writing.seal(RangeSet([(2, 2)]), taken.append)
    wait_for(lambda: gate.begun)
    owner.persist(DropThrough(1, is_retaining=True))
    owner.put(3)
    assert (owner.durable[-1], taken) == (4, [])
    assert owner.store.entry(1) is None
    assert owner.has(2)
    assert isinstance(owner.store.checkpoint(), CheckpointInfo)
    owner.store.end_turn()
    gate.is_open.set()
    owner.store.flush()
    assert [info.sequence for info in taken] == [2]
    owner.store.close()
    assert {number for numbers in gate.begun for number in numbers} == set(range(1, 8))


def test_an_inspection_names_the_own_writes_of_a_store_that_only_have_a_number_yet(tmp_path: Path, gate: Gate) -> None:
    owner = Owner(tmp_path / "store")
    owner.put(1)
    owner.store.begin_checkpoint(1, 1, b"state").add(bytes(100_000))
    wait_for(lambda: gate.begun)
    owner.put(2)
    crashed = Path(shutil.copytree(tmp_path / "store", tmp_path / "crashed"))
    ahead = {row.key: row.details for row in inspect_store(crashed) if row.table == "ahead"}
    assert list(ahead) == ["1", "2", "3"]
    assert ahead["2"] == OWN_WRITES
    assert "entry 2" in ahead["3"]
    gate.is_open.set()
    owner.store.close()


def test_the_room_that_a_drop_makes_is_free_at_once_also_where_nothing_follows(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.put(1, 2)
    owner.store.flush()
    commits = owner.store.describe()["commits"]
    owner.persist(DropThrough(1))
    wait_for(lambda: owner.store.describe()["commits"] != commits)
    owner.store.close()


def test_a_body_for_which_a_drop_makes_room_waits_for_it_instead_of_going_to_the_tables(
    tmp_path: Path, gate: Gate
) -> None:
    def is_in_tables(sequence: int) -> bool:
        owner.store.flush()
        return make_payload(sequence, LARGE)[:200] in (tmp_path / DATA_FILE).read_bytes()

    owner, last = Owner(tmp_path, map_bytes=1 << 20), 1
    gate.is_open.set()
    owner.put(last)
    while not is_in_tables(last):
        last += 1
        owner.put(last)
    gate.is_open.clear()
    owner.persist(DropThrough(5))
    putting = threading.Thread(target=owner.put, args=(last + 1,))
    putting.start()
    gate.is_open.set()
    putting.join()
    assert not is_in_tables(last + 1)
    assert all(owner.has(sequence) for sequence in range(6, last + 2))
    owner.store.close()


def test_a_drop_that_is_only_written_ahead_survives_a_crash_and_what_it_may_have_spared_too(
    tmp_path: Path, gate: Gate
) -> None:
    owner = Owner(tmp_path)
    owner.put(1, 2)
    owner.store.retain(2, RangeSet([(2, 2)]))
    wait_for(lambda: gate.begun)
    owner.persist(DropThrough(1, is_retaining=True))
    abandoned = tmp_path.with_name("crashed")
    shutil.copytree(tmp_path, abandoned)
    gate.is_open.set()
    owner.store.close()
    owner = Owner(abandoned)
    assert owner.store.assignment_bounds() == (2, 2)
    assert owner.has(1), "nobody has said yet what is needed"
    assert owner.has(2)
    owner.store.retain(2, RangeSet([(2, 2)]))
    assert not owner.has(1)
    assert owner.has(2)
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


def test_who_waits_for_the_queue_to_end_is_told_when_its_commit_fails(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(jobs: list[Job]) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(gate, "wait", fail)
    owner = Owner(tmp_path)
    owner.put(1)
    with pytest.raises(Unavailable, match="could not write"):
        owner.store.flush()
    owner.store.close()
    assert len(owner.failures) == 1


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
