"""Record layouts: golden bytes, round trips, and every mutation told."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from alphorn.bus.entries import Assignment, EpochBegun, encode_system, make_epoch
from alphorn.bus.storage import DAMAGED, CheckpointInfo, Meta
from alphorn.io import records
from alphorn.model.ids import Kind, make_id, make_origin

VECTORS = Path(__file__).parent.parent / "vectors" / "store"
ORIGIN = make_origin(bytes([10, 0, 0, 7]), 21_100, 0xABCDEF)
KEY = records.number_key(0x0102030405060708)
CHUNK_KEY = records.chunk_key(0x0102030405060708, 9)
BATCH = Assignment(make_epoch(2, 3), make_id(ORIGIN, Kind.BATCH, 77), 41, 0x1122334455667788, 65_536)
SYSTEM = Assignment(
    make_epoch(2, 3), make_id(ORIGIN, Kind.NODE, 1), 41, system=encode_system(EpochBegun(make_epoch(2, 3), 3))
)
META = Meta(
    config=bytes(range(16)), number=3, incarnation=4, start=5, promised=make_epoch(6, 7), committed=8,
    is_voter_barred=True,
)  # fmt: skip
CHECKPOINT = CheckpointInfo(
    sequence=0x0102030405060708, epoch=make_epoch(2, 3), size=1 << 33, chunks=8192, digest=0x99AA, state=b"the group"
)


class Layout(NamedTuple):
    """One kind of record: its bytes, its value, and how to read it."""

    packed: bytes
    value: object
    unpack: Callable[[bytes], object]


LAYOUTS = {
    "version": Layout(records.pack_version(1), 1, records.unpack_version),
    "meta": Layout(records.pack_meta(msgspec.msgpack.encode(META)), META, records.unpack_meta),
    "bounds": Layout(records.pack_bounds(5, 1 << 40), (5, 1 << 40), records.unpack_bounds),
    "assignment_of_a_batch": Layout(
        records.pack_assignment(KEY, BATCH), BATCH, lambda record: records.unpack_assignment(KEY, record)
    ),
    "assignment_of_a_system_entry": Layout(
        records.pack_assignment(KEY, SYSTEM), SYSTEM, lambda record: records.unpack_assignment(KEY, record)
    ),
    "head_of_an_entry": Layout(
        records.pack_head(records.HEADS, KEY, records.Head(0x1122334455667788, 65_536)),
        (0x1122334455667788, 65_536, None),
        lambda record: records.unpack_head(records.HEADS, KEY, record),
    ),
    "head_of_a_body": Layout(
        records.pack_head(records.HEADS, KEY, records.Head(0x1122334455667788, 65_536, 0x0A0B0C)),
        (0x1122334455667788, 65_536, 0x0A0B0C),
        lambda record: records.unpack_head(records.HEADS, KEY, record),
    ),
    "head_of_a_chunk": Layout(
        records.pack_head(records.CHUNK_HEADS, CHUNK_KEY, records.Head(0x1122334455667788, 1 << 20)),
        (0x1122334455667788, 1 << 20, None),
        lambda record: records.unpack_head(records.CHUNK_HEADS, CHUNK_KEY, record),
    ),
    "group_state": Layout(
        records.pack_group_state(4096, b"the group"), (4096, b"the group"), records.unpack_group_state
    ),
    "checkpoint": Layout(
        records.pack_checkpoint(CHECKPOINT), CHECKPOINT, lambda record: records.unpack_checkpoint(KEY, record)
    ),
}

each_layout = pytest.mark.parametrize("name", LAYOUTS)


@each_layout
def test_records_are_written_as_their_golden_bytes(name: str) -> None:
    assert LAYOUTS[name].packed.hex() == (VECTORS / f"{name}.hex").read_text().strip()


@each_layout
def test_golden_bytes_are_read_as_their_values(name: str) -> None:
    golden = bytes.fromhex((VECTORS / f"{name}.hex").read_text())
    assert LAYOUTS[name].unpack(golden) == LAYOUTS[name].value


@each_layout
def test_every_flipped_bit_is_told(name: str) -> None:
    packed, _, unpack = LAYOUTS[name]
    for offset in range(len(packed)):
        for bit in range(8):
            spoiled = bytearray(packed)
            spoiled[offset] ^= 1 << bit
            assert unpack(bytes(spoiled)) is DAMAGED


@each_layout
def test_every_prefix_and_every_addition_is_told(name: str) -> None:
    packed, _, unpack = LAYOUTS[name]
    for length in range(len(packed)):
        assert unpack(packed[:length]) is DAMAGED
    assert unpack(packed + b"\0") is DAMAGED


def test_a_record_in_another_table_or_place_is_told() -> None:
    head = records.pack_head(records.HEADS, KEY, records.Head(1, 2))
    assert records.unpack_head(records.CHUNK_HEADS, KEY, head) is DAMAGED
    assert records.unpack_head(records.HEADS, records.number_key(2), head) is DAMAGED
    assignment = records.pack_assignment(KEY, BATCH)
    assert records.unpack_assignment(records.number_key(2), assignment) is DAMAGED


def test_keys_sort_by_number_and_chunk() -> None:
    keys = [records.chunk_key(number, chunk) for number in (1, 255, 256, 1 << 63) for chunk in (0, 1, 300)]
    assert keys == sorted(keys)


def test_there_is_a_golden_vector_for_every_layout_and_no_other() -> None:
    assert {path.stem for path in VECTORS.iterdir()} == set(LAYOUTS)
