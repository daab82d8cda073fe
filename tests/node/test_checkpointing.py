"""Checkpoints in slices: who gets a turn in between, and what becomes of one that is not complete."""

import asyncio

import msgspec
import pytest

from alphorn.bus.config import Budget
from alphorn.bus.machine import CheckpointInstalled, CheckpointWritten
from alphorn.io.memory_storage import MemoryStorage
from alphorn.io.store import Store
from alphorn.model.errors import Unavailable
from alphorn.model.ranges import RangeSet
from alphorn.node.checkpointing import Checkpointing
from tests.io.loops import on_both_loops, run, until
from tests.node.test_bus import nodes

CHUNK_BYTES = 4


@pytest.fixture(autouse=True)
def _no_time(monkeypatch):
    """A slice has time for one piece."""
    monkeypatch.setattr("alphorn.node.checkpointing.SLICE_S", 0.0)


class Giver:
    """An upper layer that gives these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self.taken: list[object] = []

    def give_checkpoint(self, sequence):
        for piece in self.pieces:
            self.taken.append(piece)
            yield piece

    def retained(self, sequence):
        self.taken.append(sequence)
        return RangeSet([(sequence, sequence)])


class Bench:
    """What a checkpoint goes through, without a bus."""

    def __init__(self, *pieces: bytes) -> None:
        self.giver = Giver(*pieces)
        self.store = MemoryStorage(on_durable=lambda token: None)
        self.written: list[int] = []
        self.failures: list[BaseException] = []
        self.checkpointing = Checkpointing(
            self.store,
            self.giver,
            chunk_bytes=CHUNK_BYTES,
            on_written=lambda info: self.written.append(info.sequence),
            fail=self.failures.append,
        )

    def begin(self, sequence: int) -> None:
        self.checkpointing.begin(sequence, 1, b"group")

    def chunks(self) -> list[bytes]:
        info = self.store.checkpoint()
        return [self.store.checkpoint_chunk(info.sequence, place) for place in range(info.chunks)]


@pytest.mark.parametrize("pieces", [[], [b""], [b"abc"], [b"abcd"], [b"a", b"bcdefgh", b"", b"ijk"], [b"x" * 1000]])
def test_chunks_hold_the_same_bytes_in_equal_sizes_but_the_last(pieces):
    async def test():
        bench = Bench(*pieces)
        bench.begin(7)
        await until(lambda: bench.written == [7])

        chunks = bench.chunks()
        assert b"".join(chunks) == b"".join(pieces)
        assert all(len(chunk) == CHUNK_BYTES for chunk in chunks[:-1])
        assert all(chunks)

    run(test)


@on_both_loops
def test_between_two_slices_everybody_else_gets_a_turn(loop_name):
    async def test():
        bench = Bench(b"a", b"b", b"c")
        bench.begin(7)
        for turn in range(3):
            bench.giver.taken.append(f"turn {turn}")
            await asyncio.sleep(0)
        await until(lambda: bench.written == [7])

        taken = bench.giver.taken
        assert taken[:6] == [b"a", "turn 0", b"b", "turn 1", b"c", "turn 2"]
        assert bench.checkpointing.describe() == {"taken": 1, "slices": 4, "is_open": False}

    run(test, loop_name)


def test_what_fits_one_slice_is_taken_at_the_mark(monkeypatch):
    monkeypatch.setattr("alphorn.node.checkpointing.SLICE_S", 1e6)

    async def test():
        bench = Bench(*[b"piece"] * 100)
        bench.begin(7)

        assert bench.written == [7]
        assert bench.checkpointing.describe() == {"taken": 1, "slices": 1, "is_open": False}

    run(test)


def test_the_next_mark_finishes_the_open_checkpoint_first():
    async def test():
        bench = Bench(b"a", b"b", b"c")
        bench.begin(7)
        bench.begin(8)

        assert bench.written == [7]
        assert bench.giver.taken == [b"a", b"b", b"c", 7, b"a"]
        await until(lambda: bench.written == [7, 8])
        assert bench.chunks() == [b"abc"]

    run(test)


def test_an_abandoned_checkpoint_leaves_the_one_before_in_force():
    async def test():
        bench = Bench(b"first")
        bench.begin(7)
        await until(lambda: bench.written == [7])
        bench.giver.pieces = (b"second", b"more")
        bench.begin(8)
        bench.checkpointing.abandon()
        before = bench.checkpointing.describe()
        for _ in range(5):
            await asyncio.sleep(0)

        assert bench.checkpointing.describe() == before
        assert b"".join(bench.chunks()) == b"first"

    run(test)


def test_what_goes_wrong_in_a_slice_is_told():
    async def test():
        def give(sequence):
            yield b"a"
            raise Unavailable("the store has stopped")

        bench = Bench()
        bench.giver.give_checkpoint = give
        bench.begin(7)
        await until(lambda: bool(bench.failures))

        assert [str(error) for error in bench.failures] == ["the store has stopped"]
        assert bench.checkpointing.describe() == {"taken": 0, "slices": 2, "is_open": False}
        assert bench.store.checkpoint() is None

    run(test)


async def one_done_and_one_open(node):
    """A checkpoint at 1, and one at 2 that is not complete."""
    node.upper.state = [b"x" * 300]
    node.bus.order(b"checkpoint")
    await until(lambda: node.relay.heard == [CheckpointWritten(1)])
    node.upper.state = []
    node.upper.give_checkpoint = lambda sequence: iter([b"y"] * 100)
    node.bus.order(b"checkpoint")


@pytest.mark.parametrize("is_stored", [True, False])
def test_installing_a_checkpoint_abandons_the_open_one(tmp_path, is_stored):
    async def test():
        async with nodes(tmp_path / "store" if is_stored else None) as (alice,):
            await one_done_and_one_open(alice)
            alice.bus.order(b"install 1")
            await until(lambda: CheckpointInstalled(1) in alice.relay.heard)
            for _ in range(200):
                await asyncio.sleep(0)

            assert alice.upper.state[0] == b"x" * 300
            assert CheckpointWritten(2) not in alice.relay.heard
            assert alice.relay.settings["storage"].checkpoint().sequence == 1

    run(test)


def test_a_member_that_stops_amid_a_checkpoint_starts_from_the_one_before(tmp_path):
    async def test():
        async with nodes(tmp_path / "store", budget=Budget(chunk_bytes=1)) as (alice,):
            await one_done_and_one_open(alice)
            storage = alice.relay.settings["storage"]
            await until(lambda: storage.checkpoint_chunk(2, 9) is not None)
            assert storage.checkpoint_chunk(2, 99) is None

    run(test)
    store = Store(tmp_path / "store", on_durable=lambda _: None, on_failure=lambda _: None)
    info = store.checkpoint()
    chunks = [bytes(store.checkpoint_chunk(info.sequence, place)) for place in range(info.chunks)]
    store.close()
    assert info.sequence == 1
    assert msgspec.msgpack.decode(b"".join(chunks)) == [b"x" * 300]


def test_a_member_whose_state_cannot_be_given_stops_and_says_why():
    async def test():
        def give(sequence):
            yield b"a"
            raise AssertionError("an invariant is broken")

        async with nodes(None) as (alice,):
            alice.upper.give_checkpoint = give
            alice.bus.order(b"checkpoint")

            assert await alice.bus.stopped == "AssertionError: an invariant is broken"

    run(test)
