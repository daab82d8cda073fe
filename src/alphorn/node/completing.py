"""Completes a state that was taken over: log entries that it needs and this node has not are fetched and stored.

A state may need more than memory holds, so entries are looked at a few at a time, with turns for everybody else in
between, and only so many bytes wait for the disk.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from alphorn.model.ranges import RangeSet

LOOK_AT_ONCE = 16  # entries read and checked in one turn
UNWRITTEN_BYTES_MAX = 32 << 20


class Entries(Protocol):
    """This node's own entries."""

    def read_entry(self, sequence: int) -> bytes | memoryview | None:
        """An entry whose checksum holds."""

    def put_retained(self, sequence: int, payload: bytes) -> Awaitable[None]:
        """Stores one; done when it is durable."""


Fetch = Callable[[list[int]], AsyncIterator[tuple[int, bytes]]]


async def complete(entries: Entries, needed: RangeSet, fetch: Fetch) -> None:
    """Returns when every needed entry is here, durably; raises what `fetch` raises."""
    missing = await _find_missing(entries, needed)
    writing: list[Awaitable[None]] = []
    size = 0
    if missing:
        async for sequence, payload in fetch(missing):
            writing.append(entries.put_retained(sequence, payload))
            size += len(payload)
            if size >= UNWRITTEN_BYTES_MAX:
                await asyncio.gather(*writing)
                writing, size = [], 0
    await asyncio.gather(*writing)


async def _find_missing(entries: Entries, needed: RangeSet) -> list[int]:
    missing = []
    seen = 0
    for first, last in needed:
        for number in range(first, last + 1):
            if entries.read_entry(number) is None:
                missing.append(number)
            seen += 1
            if seen % LOOK_AT_ONCE == 0:
                await asyncio.sleep(0)
    return missing
