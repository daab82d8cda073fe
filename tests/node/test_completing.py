import asyncio
from collections.abc import AsyncIterator

import pytest

from alphorn.model.errors import Unavailable
from alphorn.model.ranges import RangeSet
from alphorn.node.completing import UNWRITTEN_BYTES_MAX, complete

LARGE = bytes(UNWRITTEN_BYTES_MAX // 4)


class Entries:
    """Entries in memory; what is put waits until the loop has nothing else to do."""

    def __init__(self, *known: int) -> None:
        self.known = dict.fromkeys(known, b"known")
        self.unwritten = 0
        self.unwritten_most = 0
        self.turns = 0

    def read_entry(self, sequence: int) -> bytes | None:
        return self.known.get(sequence)

    def put_retained(self, sequence: int, payload: bytes) -> "asyncio.Future[None]":
        self.unwritten += len(payload)
        self.unwritten_most = max(self.unwritten, self.unwritten_most)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def write() -> None:
            self.unwritten -= len(payload)
            self.known[sequence] = payload
            done.set_result(None)

        loop.call_soon(write)
        return done


def run(entries: Entries, needed: RangeSet) -> list[int]:
    asked: list[int] = []

    async def fetch(missing: list[int]) -> AsyncIterator[tuple[int, bytes]]:
        asked.extend(missing)
        for sequence in missing:
            yield sequence, LARGE

    asyncio.run(complete(entries, needed, fetch))
    return asked


@pytest.mark.requirement("HA-12")
def test_only_what_is_missing_is_fetched_and_all_of_it_is_written() -> None:
    entries = Entries(1, 2, 5)
    assert run(entries, RangeSet([(1, 3), (5, 6)])) == [3, 6]
    assert (sorted(entries.known), entries.unwritten) == ([1, 2, 3, 5, 6], 0)


def test_nothing_is_fetched_where_nothing_is_missing() -> None:
    assert run(Entries(1, 2), RangeSet([(1, 2)])) == []


@pytest.mark.requirement("VLM-5")
def test_what_waits_for_the_disk_is_bounded_however_much_is_missing() -> None:
    entries = Entries()
    run(entries, RangeSet([(1, 40)]))
    assert len(entries.known) == 40
    assert entries.unwritten_most <= UNWRITTEN_BYTES_MAX


def test_others_have_their_turns_while_entries_are_looked_at() -> None:
    entries = Entries(*range(1, 1001))

    async def work() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())

        async def fetch(missing: list[int]) -> AsyncIterator[tuple[int, bytes]]:
            raise AssertionError
            yield 0, b""

        await complete(entries, RangeSet([(1, 1000)]), fetch)
        other.cancel()
        return turns

    assert asyncio.run(work()) > 50


def test_an_entry_that_nobody_has_is_told() -> None:
    async def fetch(missing: list[int]) -> AsyncIterator[tuple[int, bytes]]:
        raise Unavailable("log entry 3 is not to be had")
        yield 0, b""

    with pytest.raises(Unavailable, match="entry 3"):
        asyncio.run(complete(Entries(), RangeSet([(3, 3)]), fetch))
