"""The store on LMDB: what it promises, and what it does when the disk breaks its own promises."""

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alphorn.bus.entries import digest_of
from alphorn.bus.machine import (
    DropAfter,
    DropThrough,
    Persist,
    PutChunk,
    PutGroupState,
    PutMeta,
    Retain,
    Write,
)
from alphorn.bus.storage import DAMAGED, CheckpointInfo
from alphorn.io import records
from alphorn.io.bodies import BODIES_FILE, LARGE_BYTES
from alphorn.io.store import Store
from alphorn.io.store_files import DATA_FILE
from alphorn.io.store_writer import TRANSACTION_BYTES_MAX
from alphorn.model.errors import Corruption, Misuse
from alphorn.model.ranges import RangeSet
from alphorn.testing.check_retention import RETENTION_CHECKS
from alphorn.testing.check_storage import (
    CHECKS,
    StorageUnderTest,
    check_storage,
    checkpoint_writes,
    make_meta,
    make_payload,
    put_assignments,
    put_entry,
    put_log,
)
from alphorn.testing.disk import DiskState
from tests.io.storages import RealStorage, SimulatedStorage, flip_in_file, read_record
from tests.io.store_children import child_environment, run_child

MAP_BYTES = 64 << 20


def ignore(_: object) -> None:
    pass


def open_store(path: Path, map_bytes: int = MAP_BYTES) -> Store:
    return Store(path, on_durable=ignore, on_failure=ignore, map_bytes=map_bytes)


@pytest.fixture(params=["real", "ahead", "simulated"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorageUnderTest]:
    ahead = 16 << 10 if request.param == "ahead" else 0
    made = (
        SimulatedStorage() if request.param == "simulated" else RealStorage(tmp_path / "store", ahead_bytes_max=ahead)
    )
    yield made
    made.close()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealStorage]:
    made = RealStorage(tmp_path / "store")
    yield made
    made.close()


@pytest.mark.requirement("BUS-25")
@pytest.mark.parametrize("check", [*CHECKS, *RETENTION_CHECKS], ids=lambda check: check.__name__.removeprefix("check_"))
def test_every_storage_passes_the_same_checks(
    subject: StorageUnderTest, check: Callable[[StorageUnderTest], None]
) -> None:
    check(subject)


def test_the_whole_suite_runs_against_a_factory() -> None:
    check_storage(SimulatedStorage)


def test_the_suite_refuses_a_storage_that_forgets() -> None:
    class Forgetful(SimulatedStorage):
        def reopen(self) -> None:
            self.storage.lose()

    with pytest.raises(AssertionError):
        check_storage(Forgetful)


# Random writes against the simulator's disk as the model: the overlay and the tables must agree at every moment.


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, list[Write]]]:
    """Persists, ends of turns and flushes; assignments stay contiguous, as the bus keeps them."""
    steps: list[tuple[str, list[Write]]] = []
    last, newest = 0, 0
    for index in range(draw(st.integers(1, 25))):
        kinds = ["log", "log", "log", "after", "through", "chunk", "seal", "retain", "put", "state", "turn", "flush"]
        kind = draw(st.sampled_from(kinds))
        writes: list[Write] = []
        if kind == "log":
            count = draw(st.integers(1, 3))
            payload = make_payload(index, draw(st.sampled_from([1, 900, 5000])))
            writes = [put_assignments(last + 1, last + count), put_entry(last + 1, payload)]
            last += count
        elif kind == "after":
            last = draw(st.integers(max(0, last - 3), last))
            writes = [DropAfter(last)]
        elif kind == "through":
            writes = [DropThrough(draw(st.integers(0, last)), draw(st.booleans()))]
        elif kind == "retain":
            needed = RangeSet((n, n + draw(st.integers(0, 2))) for n in draw(st.lists(st.integers(0, 40), max_size=4)))
            writes = [Retain(draw(st.integers(0, last)), needed)]
        elif kind == "put" and last:
            sequence = draw(st.integers(1, last))
            writes = [put_entry(sequence, make_payload(sequence))]
        elif kind == "chunk":
            writes = [PutChunk(draw(st.integers(1, 30)), draw(st.integers(0, 2)), b"chunk %d" % index)]
        elif kind == "seal":
            newest = draw(st.integers(newest + 1, newest + 5))
            writes = checkpoint_writes(newest, [b"c%d" % index] * draw(st.integers(0, 2)))
        elif kind == "state":
            writes = [PutGroupState(last, b"state %d" % index), PutMeta(msgspec.msgpack.encode(make_meta(index)))]
        steps.append((kind, writes))
    return steps


def assert_same(store: Store, model: DiskState) -> None:
    for sequence in range(60):
        assert store.entry(sequence) == model.entries.get(sequence)
        assert store.assignment(sequence) == model.assignments.get(sequence)
    numbers = model.assignments
    assert store.assignment_bounds() == ((min(numbers), max(numbers)) if numbers else (1, 0))
    assert store.group_state() == model.group_state
    assert store.checkpoint() == model.checkpoint
    meta = store.meta()
    assert (meta and msgspec.msgpack.encode(meta)) == model.meta
    sealed = model.checkpoint
    for sequence in range(1, 36):
        count = sealed.chunks if sealed and sealed.sequence == sequence else 3
        for chunk in range(count):
            assert store.checkpoint_chunk(sequence, chunk) == model.chunks.get((sequence, chunk))


@settings(max_examples=40)
@given(steps=histories())
def test_reads_agree_with_the_model_whatever_is_committed_meanwhile(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[Write]]]
) -> None:
    path = tmp_path_factory.mktemp("store")
    store, model, token = open_store(path), DiskState(), 0
    try:
        for kind, writes in steps:
            if kind == "turn":
                store.end_turn()
            elif kind == "flush":
                store.flush()
            else:
                token += 1
                store.submit(Persist(token, writes))
                for write in writes:
                    model.apply(write)
            assert_same(store, model)
        store.close()
        store = open_store(path)
        assert_same(store, model)
    finally:
        store.close()
        shutil.rmtree(path)


# Group commit and reports.


def test_nothing_is_reported_before_it_can_be_read_by_another_process(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def on_durable(token: int) -> None:
        script = "import sys; from tests.io.storages import read_record; from pathlib import Path; " + (
            "read_record(Path(sys.argv[1]), b'assignments', int(sys.argv[2]).to_bytes(8, 'big'))"
        )
        command = [sys.executable, "-c", script, str(tmp_path / "store"), str(token)]
        done = subprocess.run(command, check=False, env=child_environment())
        seen.append((token, done.returncode == 0))

    store = Store(tmp_path / "store", on_durable=on_durable, on_failure=ignore, map_bytes=MAP_BYTES)
    store.submit(Persist(1, put_log(1, 1)))
    store.flush()
    store.close()
    assert seen == [(1, True)]


def test_writes_that_arrive_during_a_commit_share_the_next_one(tmp_path: Path) -> None:
    tokens: list[int] = []
    first_reported, may_go_on = threading.Event(), threading.Event()

    def on_durable(token: int) -> None:
        tokens.append(token)
        first_reported.set()
        may_go_on.wait()

    store = Store(tmp_path / "store", on_durable=on_durable, on_failure=ignore, map_bytes=MAP_BYTES)
    store.submit(Persist(1, put_log(1, 1)))
    first_reported.wait()
    for sequence in range(2, 40):
        store.submit(Persist(sequence, put_log(sequence, sequence)))
    may_go_on.set()
    store.flush()
    commits = store.describe()["commits"]
    store.close()
    assert tokens == [1, 39]
    assert commits == 2


def test_an_entry_put_back_while_others_are_dropped_counts_as_retained(tmp_path: Path) -> None:
    first_reported, may_go_on = threading.Event(), threading.Event()

    def on_durable(_: int) -> None:
        first_reported.set()
        may_go_on.wait()

    store = Store(tmp_path / "store", on_durable=on_durable, on_failure=ignore, map_bytes=MAP_BYTES)
    store.submit(Persist(1, put_log(1, 4)))
    first_reported.wait()
    filling = put_entry(5, make_payload(5, TRANSACTION_BYTES_MAX))  # so that this goes to disk alone
    store.submit(Persist(2, [*put_log(5, 5), filling, Retain(4, RangeSet([(2, 2)])), DropThrough(4, True)]))
    store.put_retained(3, b"back again", lambda: None)
    may_go_on.set()
    store.flush()
    assert store.describe()["retained"] == 2
    store.close()


def test_a_checkpoint_written_by_the_upper_layer_is_durable_when_reported(real: RealStorage) -> None:
    written: list[CheckpointInfo] = []
    chunks = [b"a" * 70_000, b"b" * 70_000, b"c"]
    writing = real.store.begin_checkpoint(40, 65537, b"group")
    for chunk in chunks:
        writing.add(chunk)
    assert real.store.checkpoint() is None
    info = writing.seal(RangeSet(), written.append)
    assert real.store.checkpoint() == info
    real.store.flush()
    assert written == [info]
    assert info.digest == digest_of(b"".join(chunks))
    real.crash()
    assert real.storage.checkpoint() == info
    assert [real.storage.checkpoint_chunk(40, index) for index in range(4)] == [*chunks, None]


def test_sealing_drops_surplus_chunks_of_an_abandoned_transfer(real: RealStorage) -> None:
    real.submit(Persist(1, [PutChunk(10, index, b"stale") for index in range(5)]))
    real.submit(Persist(2, checkpoint_writes(10, [b"fresh"])))
    real.flush()
    assert [real.storage.checkpoint_chunk(10, index) for index in range(3)] == [b"fresh", None, None]


def test_a_view_stays_good_until_the_turn_ends_while_the_number_is_dropped_and_pages_are_reused(
    real: RealStorage,
) -> None:
    real.submit(Persist(1, put_log(1, 20)))
    real.flush()
    view = real.storage.entry(7)
    assert isinstance(view, memoryview)
    for token in range(2, 30):
        real.submit(Persist(token, [DropThrough(20 * token - 20), *put_log(20 * token - 19, 20 * token)]))
        real.store.flush()
    assert view == make_payload(7)


@pytest.mark.parametrize(("size", "file"), [(LARGE_BYTES - 1, DATA_FILE), (65_536, BODIES_FILE)])
def test_free_pages_are_used_again(real: RealStorage, tmp_path: Path, size: int, file: str) -> None:
    sizes = []
    for token in range(1, 60):
        entries = [put_entry(10 * token + index, make_payload(index, size)) for index in range(10)]
        real.submit(Persist(token, [*entries, DropThrough(max(0, 10 * token - 20))]))
        real.flush()
        real.store.end_turn()
        sizes.append((tmp_path / "store" / file).stat().st_size)
    assert sizes[-1] == sizes[20]
    assert sizes[-1] < 80 * size


# Opening.


def test_directory_and_files_are_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "node" / "store"
    previous = os.umask(0)
    try:
        open_store(path).close()
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    assert modes == {"bodies": 0o600, "data.mdb": 0o600, "lock.mdb": 0o600, "owner": 0o600}


def test_a_second_opener_is_refused_and_told_who_has_the_store(real: RealStorage, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=rf"store .* is open in process {os.getpid()}; stop that process"):
        open_store(tmp_path / "store")


def test_another_process_is_refused_too(real: RealStorage, tmp_path: Path) -> None:
    done = run_child("write", tmp_path / "store")
    assert done.returncode != 0
    assert f"is open in process {os.getpid()}" in done.stderr


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    with lmdb.open(str(tmp_path), max_dbs=16) as environment:
        table = environment.open_db(records.META)
        with environment.begin(write=True, db=table) as txn:
            txn.put(records.VERSION_KEY, records.pack_version(5))
    with pytest.raises(Misuse, match="is of version 5, and this node reads version 4; start the release that wrote it"):
        open_store(tmp_path)


def test_a_damaged_version_record_is_corruption(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    flip_in_file(tmp_path, records.pack_version(records.VERSION), 3)
    with pytest.raises(Corruption, match="has no readable version record"):
        open_store(tmp_path)


@pytest.mark.parametrize("spoil", [lambda data: b"\0" * len(data), lambda data: b"\xa5" * len(data)])
def test_a_file_damaged_beyond_opening_is_corruption(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    open_store(tmp_path).close()
    data = (tmp_path / DATA_FILE).read_bytes()
    (tmp_path / DATA_FILE).write_bytes(spoil(data))
    with pytest.raises(Corruption, match="move the directory away and start this node on a blank one"):
        open_store(tmp_path)


def test_a_store_refused_can_be_opened_after_it_was_put_right(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    good = (tmp_path / DATA_FILE).read_bytes()
    (tmp_path / DATA_FILE).write_bytes(b"\xa5" * len(good))
    with pytest.raises(Corruption):
        open_store(tmp_path)
    (tmp_path / DATA_FILE).write_bytes(good)
    open_store(tmp_path).close()


def test_a_cut_off_file_gives_damaged_entries_and_no_crash(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for token in range(1, 31):
        store.submit(Persist(token, [put_entry(token, make_payload(token, LARGE_BYTES - 1))]))
        store.flush()
    store.submit(Persist(31, put_log(31, 31)))  # so that the last pages of the tables are not the last of the file
    store.close()
    size = (tmp_path / DATA_FILE).stat().st_size
    os.truncate(tmp_path / DATA_FILE, size - 20 * 4096)
    done = run_child("read", tmp_path)
    assert done.returncode in (0, 3), done.stderr  # 3 is a plain refusal with `Corruption`; a signal would be negative
    assert "damaged" in done.stdout.lower()


# Damage.


@pytest.mark.parametrize(
    ("table", "key", "read"),
    [
        (records.META, records.META_KEY, lambda store: store.meta()),
        (records.ASSIGNMENTS, records.number_key(2), lambda store: store.assignment(2)),
        (records.HEADS, records.number_key(2), lambda store: store.entry(2)),
        (records.LOG, records.number_key(2), lambda store: store.entry(2)),
        (records.STATE, records.GROUP_KEY, lambda store: store.group_state()),
        (records.CHECKPOINTS, records.number_key(2), lambda store: store.checkpoint()),
        (records.CHUNK_HEADS, records.chunk_key(2, 0), lambda store: store.checkpoint_chunk(2, 0)),
        (records.CHUNKS, records.chunk_key(2, 0), lambda store: store.checkpoint_chunk(2, 0)),
    ],
    ids=lambda value: value.decode() if value in records.TABLES else "",
)
@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 0.99])
def test_a_flipped_bit_in_the_file_reads_as_damaged(
    tmp_path: Path, table: bytes, key: bytes, read: Callable[[Store], object], place: float
) -> None:
    store = open_store(tmp_path)
    others = [PutMeta(msgspec.msgpack.encode(make_meta(5))), PutGroupState(2, b"g" * 200)]
    store.submit(Persist(1, [*put_log(1, 3), *others, *checkpoint_writes(2, [b"chunk of state " * 400])]))
    store.close()
    record = read_record(tmp_path, table, key)
    flip_in_file(tmp_path, record, int(len(record) * place), bit=5)
    store = open_store(tmp_path)
    assert read(store) is DAMAGED
    assert store.assignment_bounds() == (1, 3)
    assert store.entry(3) == make_payload(3)
    store.close()


def test_an_assignment_whose_key_is_damaged_is_missed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.submit(Persist(1, put_log(1, 9)))
    store.close()
    key = records.number_key(9)
    stored = key + read_record(tmp_path, records.ASSIGNMENTS, key)
    flip_in_file(tmp_path, stored, 0, bit=6)
    store = open_store(tmp_path)
    assert store.assignment_bounds() == (1, 9)
    assert store.assignment(9) is DAMAGED
    assert store.assignment(8) is not DAMAGED
    store.close()


def test_damaged_bounds_are_found_again_from_the_assignments(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.submit(Persist(1, put_log(4, 9)))
    store.close()
    flip_in_file(tmp_path, records.pack_bounds(4, 9), 12)
    store = open_store(tmp_path)
    assert store.assignment_bounds() == (4, 9)
    store.close()


def test_a_record_at_another_key_reads_as_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.submit(Persist(1, put_log(1, 3)))
    store.close()
    with lmdb.open(str(tmp_path), max_dbs=16) as environment:
        for name in (records.ASSIGNMENTS, records.HEADS, records.LOG):
            table = environment.open_db(name)
            with environment.begin(write=True, db=table) as txn:
                txn.put(records.number_key(2), txn.get(records.number_key(1), b""))
    store = open_store(tmp_path)
    assert store.assignment(2) is DAMAGED
    assert store.entry(2) is DAMAGED
    store.close()


def test_a_batch_that_vanished_behind_its_head_is_damaged_not_absent(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.submit(Persist(1, put_log(1, 3)))
    store.close()
    with lmdb.open(str(tmp_path), max_dbs=16) as environment:
        table = environment.open_db(records.LOG)
        with environment.begin(write=True, db=table) as txn:
            txn.delete(records.number_key(2))
    store = open_store(tmp_path)
    assert store.entry(2) is DAMAGED
    store.close()


def test_memory_for_uncommitted_writes_is_given_back(real: RealStorage) -> None:
    for token in range(1, 50):
        real.submit(Persist(token, put_log(token, token)))
    real.flush()
    real.store.end_turn()
    assert real.store.describe()["uncommitted"] == 0


def test_a_store_that_lingers_writes_what_came_meanwhile_in_one_go(tmp_path: Path) -> None:
    durable: list[int] = []
    reached = threading.Event()

    def on_durable(token: int) -> None:
        durable.append(token)
        if token == 3:
            reached.set()

    store = Store(tmp_path / "store", on_durable=on_durable, on_failure=pytest.fail, linger_s=1.0)
    for token in (1, 2, 3):
        store.submit(Persist(token, [PutMeta(b"meta")], is_urgent=False))
    assert reached.wait(20)
    assert durable == [3], "one fsync for all three, and the last token stands for all"
    store.close()


def test_what_is_urgent_ends_the_lingering_of_all_before_it(tmp_path: Path) -> None:
    reached = threading.Event()
    store = Store(tmp_path / "store", on_durable=lambda _: reached.set(), on_failure=pytest.fail, linger_s=1e6)
    store.submit(Persist(1, [PutMeta(b"one")], is_urgent=False))
    store.submit(Persist(2, [PutMeta(b"two")]))
    assert reached.wait(20)
    store.submit(Persist(3, [PutMeta(b"three")], is_urgent=False))
    store.close()  # which is urgent too
