"""A store as rows to print. Reads only, and beside a running node too.

`inspect_store` gives one row for each record, with the verdict of its checksum. Nothing is repaired, nothing created:
a running node is not disturbed, except that it cannot use free pages again while the rows are being read.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import lmdb
import msgspec

from alphorn.bus.entries import Assignment, decode_system, describe_epoch, digest_of
from alphorn.bus.storage import DAMAGED, Damaged
from alphorn.io import records
from alphorn.io.bodies import read_body
from alphorn.io.retention import last_outside
from alphorn.io.store_files import DATA_FILE, LOCK_FILE, bytes_claimed, check_version
from alphorn.io.write_ahead import describe_write, read_ahead
from alphorn.model.errors import Corruption, Misuse
from alphorn.model.ids import describe_id

GROWTH_BYTES = 1 << 30  # a running node may add so much to its tables meanwhile
OK = "ok"
DAMAGED_VERDICT = "damaged"
MISSING = "missing"
OWN_WRITES = "the store's own: parts of a checkpoint, or entries put back"  # only numbered ahead, decision 40

_Cursor = Iterator[tuple[bytes, memoryview]]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an inspection."""

    table: str  # meta, bounds, assignment, entry, group state, checkpoint, chunk, ahead
    key: str
    verdict: str  # ok, damaged or missing
    details: str = ""
    size: int = 0  # bytes of a batch or chunk


def is_faulty(row: Row) -> bool:
    """Whether the row names a fault."""
    return row.verdict != OK


def find_store(path: Path) -> Path:
    """The store in this directory: itself, or the only one below, as in the folder of a node; raises `Misuse`."""
    if (path / DATA_FILE).is_file():
        return path
    found = sorted(file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/{DATA_FILE}"))
    if len(found) == 1:
        return found[0]
    if found:
        raise Misuse(f"{path} has several stores; name one of {', '.join(map(str, found))}")
    raise Misuse(f"{path} is no store, it has no {DATA_FILE}; name a node's folder, or a store in it")


def inspect_store(path: str | os.PathLike[str]) -> Iterator[Row]:
    """Every record of the store that `find_store` finds in this directory, table by table.

    Raises `Misuse` when there is no store or it is of another version, and `Corruption` when LMDB cannot read it.
    """
    directory = find_store(Path(path))
    try:
        # Without the table of readers a running node could use pages again while they are read here.
        has_lock = os.access(directory / LOCK_FILE, os.W_OK)
        map_bytes = (directory / DATA_FILE).stat().st_size + GROWTH_BYTES
        with lmdb.open(
            str(directory), map_size=map_bytes, readonly=True, max_dbs=len(records.TABLES), lock=has_lock, create=False
        ) as environment:
            yield from _rows(directory, environment)
    except lmdb.Error as error:
        raise Corruption(
            f"store {directory} cannot be read on ({error}); start its node on a blank directory, so that it "
            "rejoins as a member that lost its disk"
        ) from error


def _rows(directory: Path, environment: lmdb.Environment) -> Iterator[Row]:
    if bytes_claimed(environment) > (directory / DATA_FILE).stat().st_size:
        raise Corruption(
            f"store {directory} is cut off, its file is shorter than its last commit says; start its node, which finds "
            "what is missing and fetches it"
        )
    tables = {name: environment.open_db(name, create=False) for name in records.TABLES}
    with environment.begin(buffers=True) as txn:
        version = txn.get(records.VERSION_KEY, db=tables[records.META])
        check_version(directory, None if version is None else bytes(version))
        yield Row(table="version", key="", verdict=OK, details=str(records.unpack_version(bytes(version or b""))))
        yield from _singles(txn, tables[records.META], tables[records.STATE])
        for key, record in _items(txn, tables[records.ASSIGNMENTS]):
            yield _row_of_assignment(key, record)
        outside = _last_outside(txn, tables[records.META])
        for table, heads, payloads in (
            ("entry", records.HEADS, records.LOG),
            ("chunk", records.CHUNK_HEADS, records.CHUNKS),
        ):
            for key, record in _items(txn, tables[heads]):
                name = "retained" if table == "entry" and key <= outside else table
                head = records.unpack_head(heads, key, record)
                payload: bytes | memoryview | None = txn.get(key, db=tables[payloads])
                if head is not DAMAGED and head.page is not None:
                    payload = read_body(directory, head.page, head.size)
                row = _row_of_payload(name, key, head, payload)
                if is_faulty(row) and _is_changed(environment, tables[heads], key, record):
                    continue  # dropped meanwhile; its pages may have been used again
                yield row
            for key, payload in _items(txn, tables[payloads]):
                if txn.get(key, db=tables[heads]) is None:
                    yield Row(table=table, key=_key(key), verdict=MISSING, details=f"no head, size={len(payload)}")
        for key, record in _items(txn, tables[records.CHECKPOINTS]):
            yield _row_of_checkpoint(key, record)
        meta = tables[records.META]
        applied = txn.get(records.APPLIED_KEY, db=meta)
        yield from _rows_ahead(directory, environment, meta, None if applied is None else bytes(applied))


def _is_changed(environment: lmdb.Environment, heads: "lmdb._Database", key: bytes, record: memoryview) -> bool:
    """Whether a running node has another head by now, or none."""
    with environment.begin(db=heads) as later:
        return later.get(key) != bytes(record)


def _rows_ahead(
    directory: Path, environment: lmdb.Environment, meta: "lmdb._Database", applied: bytes | None
) -> Iterator[Row]:
    """What is durable and not in the tables yet; a running node may have brought some of it there meanwhile."""
    last = (0, 0) if applied is None else records.unpack_applied(applied)
    if last is DAMAGED:
        yield Row(table="applied", key="", verdict=DAMAGED_VERDICT)
        return
    try:
        found = read_ahead(directory, *last)
    except Corruption:
        with environment.begin(db=meta) as later:
            now = later.get(records.APPLIED_KEY)
        if now == applied:
            raise
        yield from _rows_ahead(directory, environment, meta, now)
        return
    for record in found:
        details = ", ".join(describe_write(write) for write in record.writes) or OWN_WRITES
        yield Row(table="ahead", key=str(record.number), verdict=OK, details=details)


def _items(txn: "lmdb.Transaction[memoryview]", table: "lmdb._Database") -> _Cursor:
    with txn.cursor(table) as cursor:
        for key, value in cursor:
            yield bytes(key), value


def _last_outside(txn: "lmdb.Transaction[memoryview]", meta: "lmdb._Database") -> bytes:
    """Entries through this key are not in the log any more: they are retained for the upper layer."""
    record = txn.get(records.BOUNDS_KEY, db=meta)
    bounds = DAMAGED if record is None else records.unpack_bounds(record)
    return b"" if bounds is DAMAGED else records.number_key(last_outside(bounds))


def _key(key: bytes) -> str:
    """A key as people read it; bytes of any other length are shown as they are."""
    if len(key) == 8:
        return str(records.number_of(key))
    if len(key) == 12:
        return f"{records.number_of(key)}/{records.chunk_of(key)}"
    return key.hex()


def _singles(txn: "lmdb.Transaction[memoryview]", meta: "lmdb._Database", state: "lmdb._Database") -> Iterator[Row]:
    if (record := txn.get(records.META_KEY, db=meta)) is None:
        yield Row(table="meta", key="", verdict=MISSING)
    elif (found := records.unpack_meta(record)) is DAMAGED:
        yield Row(table="meta", key="", verdict=DAMAGED_VERDICT)
    else:
        details = (
            f"member={found.number} incarnation={found.incarnation} start={found.start:x} "
            f"promised={describe_epoch(found.promised)} committed={found.committed} "
            f"barred={'yes' if found.is_voter_barred else 'no'} config={found.config.hex()}"
        )
        yield Row(table="meta", key="", verdict=OK, details=details)
    if (record := txn.get(records.BOUNDS_KEY, db=meta)) is None:
        yield Row(table="bounds", key="", verdict=MISSING)
    elif (bounds := records.unpack_bounds(record)) is DAMAGED:
        yield Row(table="bounds", key="", verdict=DAMAGED_VERDICT)
    else:
        yield Row(table="bounds", key="", verdict=OK, details=f"first={bounds[0]} last={bounds[1]}")
    if (record := txn.get(records.GROUP_KEY, db=state)) is None:
        yield Row(table="group state", key="", verdict=OK, details="none before the first checkpoint mark")
    elif (group := records.unpack_group_state(record)) is DAMAGED:
        yield Row(table="group state", key="", verdict=DAMAGED_VERDICT, details=f"size={len(record)}")
    else:
        yield Row(table="group state", key=str(group[0]), verdict=OK, details=f"size={len(group[1])}")


def _row_of_assignment(key: bytes, record: memoryview) -> Row:
    found = records.unpack_assignment(key, record)
    if found is DAMAGED:
        return Row(table="assignment", key=_key(key), verdict=DAMAGED_VERDICT, details=f"size={len(record)}")
    return Row(table="assignment", key=_key(key), verdict=OK, details=describe_assignment(found))


def describe_assignment(assignment: Assignment) -> str:
    """An assignment as people read it."""
    start = f"epoch={describe_epoch(assignment.epoch)} id={describe_id(assignment.id)}"
    if not assignment.system:
        return f"{start} timestamp={assignment.timestamp} size={assignment.size} digest={assignment.digest:016x}"
    try:
        return f"{start} system={decode_system(assignment.system)!r}"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"{start} system entry cannot be decoded: {error}"


def _row_of_payload(table: str, key: bytes, head: records.Head | Damaged, payload: bytes | memoryview | None) -> Row:
    if head is DAMAGED:
        details = "head damaged" if payload is None else f"head damaged, size={len(payload)}"
        return Row(table=table, key=_key(key), verdict=DAMAGED_VERDICT, details=details)
    if payload is None:
        return Row(table=table, key=_key(key), verdict=MISSING, details="the head is there, its bytes are not")
    is_good = len(payload) == head.size and digest_of(payload) == head.digest
    details = f"size={head.size} digest={head.digest:016x}"
    if head.page is not None:
        details += f" page={head.page}"
    verdict = OK if is_good else DAMAGED_VERDICT
    return Row(table=table, key=_key(key), verdict=verdict, details=details, size=len(payload))


def _row_of_checkpoint(key: bytes, record: memoryview) -> Row:
    found = records.unpack_checkpoint(key, record)
    if found is DAMAGED:
        return Row(table="checkpoint", key=_key(key), verdict=DAMAGED_VERDICT, details=f"size={len(record)}")
    details = (
        f"epoch={describe_epoch(found.epoch)} size={found.size} chunks={found.chunks} digest={found.digest:016x} "
        f"group state size={len(found.state)}"
    )
    return Row(table="checkpoint", key=_key(key), verdict=OK, details=details)
