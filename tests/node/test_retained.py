"""What the upper layer needs of a collected log is kept, read and put back; a checkpoint may take its time."""

import asyncio

import pytest

from alphorn.bus.machine import CheckpointInstalled, CheckpointRefused, CheckpointWritten
from alphorn.io.inspect_store import inspect_store
from alphorn.model.errors import Misuse, Unavailable
from alphorn.model.ranges import RangeSet
from tests.io.loops import run, until
from tests.node.test_bus import nodes


def order_all(node, *payloads):
    for payload in payloads:
        node.bus.order(payload)


async def collected(node, needed):
    """Six entries, a checkpoint at 7 that needs some of them, and a collection through 7."""
    order_all(node, *[b"quiet %d" % number for number in range(1, 7)])
    node.upper.needed = RangeSet(needed)
    order_all(node, b"checkpoint")
    await until(lambda: CheckpointWritten(7) in node.relay.heard)
    order_all(node, b"collect 7")
    await until(lambda: len(node.upper.told) == 8)


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_the_checkpoint_needs_can_be_read_after_the_log_is_collected(tmp_path, is_stored):
    async def test():
        store = tmp_path / "store" if is_stored else None
        async with nodes(store) as (alice,):
            await collected(alice, [(2, 3), (5, 5)])

            assert [number for number in range(10) if alice.bus.read_entry(number) is not None] == [2, 3, 5, 8]
            assert bytes(alice.bus.read_entry(3)) == b"quiet 3"
            await until(lambda: alice.bus.describe()["store"]["retained"] == 3)  # as soon as the drop is on disk
            assert alice.bus.describe()["store"]["retained_bytes"] == 21

        if is_stored:
            rows = [row for row in inspect_store(store) if row.table == "retained"]
            assert [(row.key, row.verdict, row.size) for row in rows] == [
                ("2", "ok", 7),
                ("3", "ok", 7),
                ("5", "ok", 7),
            ]

    run(test)


def test_retained_entries_are_there_after_a_restart_and_go_when_the_installed_state_needs_them_no_more(tmp_path):
    async def test():
        async with nodes(tmp_path / "store") as (alice,):
            await collected(alice, [(2, 3)])
        async with nodes(tmp_path / "store") as (alice,):
            assert alice.bus.describe()["store"]["retained"] == 2
            assert bytes(alice.bus.read_entry(2)) == b"quiet 2"
            alice.upper.needed = RangeSet([(3, 3)])
            alice.relay.sequence = 8  # where its log ended
            order_all(alice, b"install 7")
            await until(lambda: CheckpointInstalled(7) in alice.relay.heard)
            assert alice.bus.read_entry(2) is None
            assert bytes(alice.bus.read_entry(3)) == b"quiet 3"

    run(test)


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_missing_entry_is_put_back_durably(tmp_path, is_stored):
    async def test():
        async with nodes(tmp_path / "store" if is_stored else None) as (alice,):
            await collected(alice, [])
            assert alice.bus.read_entry(4) is None
            await alice.bus.put_retained(4, b"quiet 4")
            assert bytes(alice.bus.read_entry(4)) == b"quiet 4"
            assert alice.bus.describe()["store"]["retained"] == 1
        if is_stored:
            assert [row.key for row in inspect_store(tmp_path / "store") if row.table == "retained"] == ["4"]

    run(test)


def test_only_what_precedes_the_newest_checkpoint_is_put_back_and_only_the_bytes_of_the_log():
    async def test():
        async with nodes(None) as (alice,):
            with pytest.raises(Misuse, match="entry 1 is not before the newest checkpoint"):
                alice.bus.put_retained(1, b"quiet 1")
            order_all(alice, b"quiet 1", b"checkpoint")
            await until(lambda: CheckpointWritten(2) in alice.relay.heard)
            with pytest.raises(Misuse, match="entry 3 is not before the newest checkpoint"):
                alice.bus.put_retained(3, b"later")
            with pytest.raises(Misuse, match="not the bytes of entry 1"):
                alice.bus.put_retained(1, b"another")
            await alice.bus.put_retained(1, b"quiet 1")

    run(test)


def test_what_is_being_put_back_fails_when_the_member_stops(tmp_path):
    async def test():
        async with nodes(tmp_path / "store", store_bytes_max=1 << 20) as (alice,):
            order_all(alice, b"quiet 1", b"checkpoint")
            await until(lambda: CheckpointWritten(2) in alice.relay.heard)
            order_all(alice, b"collect 2")
            await until(lambda: len(alice.upper.told) == 3)
            with pytest.raises(Unavailable, match="has reached its limit"):
                await alice.bus.put_retained(1, bytes(2 << 20))

    run(test)


def test_a_checkpoint_counts_as_installed_when_the_upper_layer_has_all_it_needs():
    async def test():
        async with nodes(None) as (alice,):
            await collected(alice, [(2, 2)])
            fetched = asyncio.Event()

            async def finish(sequence):
                await fetched.wait()
                await alice.bus.put_retained(3, b"quiet 3")
                alice.upper.needed = RangeSet([(3, 3)])

            alice.upper.finish = finish
            order_all(alice, b"install 7", b"quiet 9")
            await until(lambda: len(alice.upper.told) == 10)
            assert CheckpointInstalled(7) not in alice.relay.heard
            fetched.set()
            await until(lambda: CheckpointInstalled(7) in alice.relay.heard)
            assert [number for number in range(8) if alice.bus.read_entry(number) is not None] == [3]

    run(test)


def test_an_upper_layer_that_finds_nobody_with_an_entry_refuses_the_checkpoint():
    async def test():
        async with nodes(None) as (alice,):
            await collected(alice, [])

            async def finish(sequence):
                raise Unavailable("no member has entry 2 any more")

            alice.upper.finish = finish
            order_all(alice, b"install 7")
            await until(lambda: CheckpointRefused(7) in alice.relay.heard)
            assert CheckpointInstalled(7) not in alice.relay.heard

    run(test)


def test_a_newer_checkpoint_ends_the_wait_for_an_older_one():
    async def test():
        async with nodes(None) as (alice,):
            await collected(alice, [])
            ended = []

            async def finish(sequence):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    ended.append(sequence)
                    raise

            alice.upper.finish = finish
            order_all(alice, b"install 7", b"quiet 10")
            await until(lambda: len(alice.upper.told) == 10)
            alice.upper.finish = None
            order_all(alice, b"checkpoint")
            await until(lambda: CheckpointWritten(11) in alice.relay.heard)
            order_all(alice, b"install 11")
            await until(lambda: CheckpointInstalled(11) in alice.relay.heard)
            await until(lambda: ended == [7])
            assert CheckpointInstalled(7) not in alice.relay.heard

    run(test)


def test_stopping_ends_the_wait_for_a_checkpoint():
    async def test():
        async with nodes(None) as (alice,):
            await collected(alice, [])
            alice.upper.finish = lambda sequence: asyncio.Event().wait()
            order_all(alice, b"install 7", b"quiet 10")
            await until(lambda: len(alice.upper.told) == 10)
            await asyncio.sleep(0)  # so that the wait has begun
        assert CheckpointInstalled(7) not in alice.relay.heard

    run(test)


def test_an_upper_layer_that_breaks_while_it_installs_stops_the_member():
    async def test():
        async with nodes(None) as (alice,):
            await collected(alice, [])

            async def finish(sequence):
                raise ValueError("this state makes no sense")

            alice.upper.finish = finish
            order_all(alice, b"install 7")
            assert await alice.bus.stopped == "ValueError: this state makes no sense"

    run(test)
