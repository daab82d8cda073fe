"""Entries for the upper layer: read from the log or from what is retained of it, and put back where one is missing."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from alphorn.bus.entries import Assignment, digest_of
from alphorn.bus.storage import CheckpointInfo, Storage
from alphorn.model.errors import Misuse, Unavailable


class EntryStore(Storage, Protocol):
    """A store whose entries can be put back."""

    def put_retained(self, sequence: int, payload: bytes, on_written: Callable[[], None]) -> None:
        """Stores an entry; `on_written`, on any thread, when it is durable."""


class Retained:
    """The upper layer's access to entries. Its calls belong to the thread of the event loop."""

    def __init__(self, store: EntryStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._writing: set[asyncio.Future[None]] = set()

    def read(self, sequence: int) -> bytes | memoryview | None:
        """An entry whose checksum holds, or None."""
        found = self._store.entry(sequence)
        return found if isinstance(found, bytes | memoryview) else None

    def put(self, sequence: int, payload: bytes) -> "asyncio.Future[None]":
        """Stores an entry that precedes the newest checkpoint; done when durable."""
        newest = self._store.checkpoint()
        if not isinstance(newest, CheckpointInfo) or not 0 < sequence <= newest.sequence:
            raise Misuse(f"entry {sequence} is not before the newest checkpoint; only such entries are put back")
        known = self._store.assignment(sequence)
        if isinstance(known, Assignment) and known.digest != digest_of(payload):
            raise Misuse(f"these are not the bytes of entry {sequence}; fetch them again, from another member")
        done: asyncio.Future[None] = self._loop.create_future()
        self._writing.add(done)
        done.add_done_callback(self._writing.discard)

        def on_written() -> None:
            self._loop.call_soon_threadsafe(_settle, done)

        self._store.put_retained(sequence, payload, on_written)
        return done

    def fail(self, reason: str) -> None:
        """The store has stopped: nothing more becomes durable."""
        for done in list(self._writing):
            if not done.done():
                done.set_exception(Unavailable(reason))


def _settle(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
