"""The storages that must pass check_storage, each with what a test does to them."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from alphorn.bus.machine import Persist
from alphorn.bus.storage import Storage
from alphorn.io import records
from alphorn.io.store import Store
from alphorn.io.store_files import DATA_FILE
from alphorn.model.errors import Unavailable
from alphorn.testing.disk import SimulatedDisk
from alphorn.testing.schedule import Schedule

META, STATE, CHECKPOINTS, CHUNKS = records.META, records.STATE, records.CHECKPOINTS, records.CHUNKS


def read_record(path: Path, table: bytes, key: bytes) -> bytes:
    """A record as it is stored, read past the store."""
    with lmdb.open(str(path), readonly=True, max_dbs=16) as environment:
        database = environment.open_db(table, create=False)
        with environment.begin(db=database) as txn:
            record = txn.get(key)
    assert record is not None
    return record


def flip_in_file(path: Path, record: bytes, offset: int, bit: int = 0, *, file: str = DATA_FILE) -> None:
    """Flips one bit of a stored record, in every copy of it that the file has."""
    data = bytearray((path / file).read_bytes())
    spoiled = bytearray(record)
    spoiled[offset] ^= 1 << bit
    start = data.find(record)
    assert start >= 0
    while start >= 0:
        data[start : start + len(record)] = spoiled
        start = data.find(record, start)
    (path / file).write_bytes(data)


class Owner:
    """A store with what it has told: as a node has one."""

    def __init__(self, path: Path, *, map_bytes: int, ahead_bytes_max: int) -> None:
        self.durable: list[int] = []
        self.failures: list[str] = []
        self.store = Store(
            path,
            on_durable=self.durable.append,
            on_failure=self.failures.append,
            map_bytes=map_bytes,
            ahead_bytes_max=ahead_bytes_max,
        )


def check_failed_write(owner: Owner, put: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Number 1 is durable; the disk does not take number 2, and the store takes no number 3."""
    put(1)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", fail)
        put(2)
    assert owner.durable == [1]
    assert len(owner.failures) == 1
    assert "could not write" in owner.failures[0]
    with pytest.raises(Unavailable, match="could not write"):
        put(3)
    owner.store.close()


class RealStorage:
    """The store on LMDB, where asked with small writes ahead of it."""

    def __init__(self, path: Path, *, ahead_bytes_max: int = 0) -> None:
        self._path = path
        self._ahead_bytes_max = ahead_bytes_max
        self._open()

    def _open(self) -> None:
        self.durable: list[int] = []
        self.failures: list[str] = []
        self.store = Store(
            self._path,
            on_durable=self.durable.append,
            on_failure=self.failures.append,
            map_bytes=256 << 20,
            ahead_bytes_max=self._ahead_bytes_max,
        )

    @property
    def storage(self) -> Storage:
        self.store.end_turn()
        return self.store

    def submit(self, persist: Persist) -> None:
        self.store.submit(persist)
        if self._ahead_bytes_max:
            self.store.end_turn()

    def flush(self) -> int:
        self.store.flush()
        return self.durable[-1]

    def reopen(self) -> None:
        self.store.close()
        self._open()

    def crash(self) -> None:
        self.store.abandon()
        self._open()

    def damage(self, kind: str, sequence: int, chunk: int) -> None:
        table, key = {
            "meta": (META, records.META_KEY),
            "assignment": (records.ASSIGNMENTS, records.number_key(sequence)),
            "entry": (records.LOG, records.number_key(sequence)),
            "group_state": (STATE, records.GROUP_KEY),
            "checkpoint": (CHECKPOINTS, records.number_key(sequence)),
            "chunk": (CHUNKS, records.chunk_key(sequence, chunk)),
        }[kind]
        self.store.close()
        record = read_record(self._path, table, key)
        flip_in_file(self._path, record, len(record) // 2)
        self._open()

    def close(self) -> None:
        self.store.close()


class SimulatedStorage:
    """The simulator's disk."""

    def __init__(self) -> None:
        self._schedule = Schedule(random.Random(1))
        self._token = 0
        self.storage = SimulatedDisk(
            self._schedule, random.Random(2), on_durable=self._on_durable, on_error=self._on_error
        )

    def submit(self, persist: Persist) -> None:
        self.storage.persist(persist)

    def flush(self) -> int:
        self._schedule.run_until(self._schedule.now + 10.0)
        return self._token

    def reopen(self) -> None:
        self.flush()
        self.storage.crash(keeps_prefix=False, tears=False)

    def crash(self) -> None:
        self.storage.crash(keeps_prefix=True, tears=False)

    def damage(self, kind: str, sequence: int, chunk: int) -> None:
        is_numbered = kind in ("assignment", "entry", "chunk")
        self.storage.damage((kind, sequence if is_numbered else 0, chunk))

    def close(self) -> None:
        pass

    def _on_durable(self, persists: list[Persist]) -> None:
        self._token = persists[-1].token

    def _on_error(self, reason: str) -> None:
        raise AssertionError(reason)
