"""Frames: golden bytes, round trips, every prefix, every bit, and what mutations may do.

ALPHORN_REWRITE=1 writes the golden bytes anew; a change of format needs a new version, so read the diff.
"""

import os
import random
import struct
from pathlib import Path

import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from alphorn.bus import frames as f
from alphorn.bus.entries import Assignment, digest_of
from alphorn.model.errors import PeerViolation
from tests.bus.frame_values import BATCH, EPOCH, GROUP, NUMBER, ORIGIN, SAMPLES, bodies, encode
from tools.fuzz_frames import draw_frame, look_at, mutate, seal

VECTORS = Path(__file__).parent.parent / "vectors" / "frames"
MUTATIONS = 4000

each_type = pytest.mark.parametrize("name", SAMPLES)


def golden(name: str) -> bytes:
    return bytes.fromhex((VECTORS / f"{name}.hex").read_text())


def test_every_type_has_a_golden_vector_and_no_vector_is_left_over() -> None:
    assert set(SAMPLES) == set(f.FRAME_NAMES.values()) == {path.stem for path in VECTORS.glob("*.hex")}
    assert len(SAMPLES) == 24


@each_type
def test_frames_are_written_as_their_golden_bytes(name: str) -> None:
    if os.environ.get("ALPHORN_REWRITE"):
        (VECTORS / f"{name}.hex").write_text(encode(SAMPLES[name]).hex() + "\n")
    assert encode(SAMPLES[name]) == golden(name)


@each_type
def test_golden_bytes_are_read_as_their_values(name: str) -> None:
    (frame,) = f.decode_all(golden(name))
    assert (frame.group, frame.epoch, frame.number, frame.origin) == (GROUP, EPOCH, NUMBER, ORIGIN)
    assert (frame.name, frame.body) == (name, SAMPLES[name])


@given(bodies(), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**16 - 1), st.binary())
@settings(max_examples=600)
def test_what_is_written_is_read_back(
    body: f.Data | f.Body, group: int, epoch: int, number: int, prefix: bytes
) -> None:
    encoded = b"".join(f.encode(group=group, epoch=epoch, number=number, origin=ORIGIN, body=body))
    decoded = f.decode(prefix + encoded, len(prefix))
    assert decoded == (f.Frame(group, epoch, number, ORIGIN, body), len(prefix) + len(encoded))


@each_type
def test_every_prefix_of_a_frame_asks_a_stream_for_more(name: str) -> None:
    data = golden(name)
    assert [f.decode(data[:length]) for length in range(len(data))] == [None] * len(data)


@each_type
def test_every_prefix_of_a_frame_is_a_violation_as_a_datagram(name: str) -> None:
    data = golden(name)
    for length in range(1, len(data)):
        with pytest.raises(PeerViolation):
            f.decode_all(data[:length])


@each_type
def test_every_flipped_bit_is_refused(name: str) -> None:
    data = golden(name)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PeerViolation):
            f.decode_all(bytes(flipped))


@each_type
def test_every_flipped_bit_under_a_right_checksum_parses_or_is_refused(name: str) -> None:
    data = golden(name)
    for bit in range(64, len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        look_at(seal(flipped))


@pytest.mark.parametrize("seed", range(4))
def test_random_mutations_under_a_right_checksum_parse_or_are_refused(seed: int) -> None:
    stream = random.Random(seed)
    seen = [look_at(mutate(stream, draw_frame(stream))) for _ in range(MUTATIONS // 4)]
    assert 0 < sum(seen) < len(seen), "some mutations should parse and some should not"


@given(bodies(), st.data())
@settings(max_examples=400)
def test_replaced_bytes_under_a_right_checksum_parse_or_are_refused(body: f.Data | f.Body, draw: st.DataObject) -> None:
    data = bytearray(encode(body))
    start = draw.draw(st.integers(8, len(data)))
    data[start : start + draw.draw(st.integers(0, 8))] = draw.draw(st.binary(max_size=12))
    look_at(seal(data))


@given(st.binary(max_size=200))
def test_bytes_that_nobody_encoded_are_refused(data: bytes) -> None:
    assert look_at(data) is (data == b"")


def test_several_frames_share_a_datagram_in_order() -> None:
    datagram = b"".join(map(golden, SAMPLES))
    assert [frame.name for frame in f.decode_all(datagram)] == list(SAMPLES)


def test_one_bad_frame_spoils_its_whole_datagram() -> None:
    bad = bytearray(golden("Commit"))
    bad[-1] ^= 1
    with pytest.raises(PeerViolation, match="checksum"):
        f.decode_all(golden("Heartbeat") + bytes(bad) + golden("Heartbeat"))


def test_a_payload_is_a_view_into_the_datagram_and_never_a_copy() -> None:
    datagram = golden("Data")
    (frame,) = f.decode_all(datagram)
    assert isinstance(frame.body, f.Data)
    assert isinstance(frame.body.payload, memoryview)
    assert frame.body.payload.obj is datagram


def test_a_batch_is_written_without_a_copy() -> None:
    payload = bytes(100_000)
    (data,) = f.fragment_batch(BATCH, payload, digest=0, timestamp=0, limit=200_000)
    _, written = f.encode(group=GROUP, epoch=EPOCH, number=NUMBER, origin=ORIGIN, body=data)
    assert isinstance(written, memoryview)
    assert written.obj is payload


def with_header(name: str, place: int, value: bytes) -> bytes:
    data = bytearray(golden(name))
    data[place : place + len(value)] = value
    return seal(data)


@pytest.mark.parametrize("kind", [0, 25, 255])
def test_an_unknown_type_is_refused(kind: int) -> None:
    with pytest.raises(PeerViolation, match=f"type {kind} is unknown"):
        f.decode_all(with_header("Heartbeat", 11, bytes([kind])))


@pytest.mark.parametrize("version", [0, 2, 255])
def test_an_unknown_version_is_refused_by_its_number(version: int) -> None:
    with pytest.raises(PeerViolation, match=f"version {version} is unknown; this node speaks version 1"):
        f.decode_all(with_header("Heartbeat", 10, bytes([version])))


def test_foreign_bytes_are_refused_as_soon_as_their_head_is_there() -> None:
    with pytest.raises(PeerViolation, match="not a bus frame"):
        f.decode(b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize("length", [0, 1, f.HEADER_BYTES - 1, f.FRAME_BYTES_MAX + 1, (1 << 32) - 1])
def test_a_length_outside_the_limits_is_refused_before_anything_is_waited_for(length: int) -> None:
    head = with_header("Heartbeat", 12, struct.pack(">I", length))[:16]
    with pytest.raises(PeerViolation, match=f"frame of {length} bytes"):
        f.decode(head)


def test_the_largest_frame_asks_for_more_and_no_larger_one_does() -> None:
    head = with_header("Heartbeat", 12, struct.pack(">I", f.FRAME_BYTES_MAX))[:16]
    assert f.decode(head) is None
    assert f.frame_length(head) == f.FRAME_BYTES_MAX


def repacked(body: bytes, name: str) -> bytes:
    data = bytearray(golden(name)[: f.HEADER_BYTES] + body)
    data[12:16] = struct.pack(">I", len(data))
    return seal(data)


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3],
        [-1, 2, 3, 4],
        [1, 2, 3, 1 << 32],
        [1, 2, 3, "four"],
        [1, 2, 3, None],
        {"committed": 1},
        "text",
    ],
    ids=["too-few", "negative", "too-large", "text", "nothing", "map", "no-array"],
)
def test_a_body_of_the_wrong_shape_is_refused(values: object) -> None:
    with pytest.raises(PeerViolation, match="Heartbeat frame is malformed"):
        f.decode_all(repacked(msgspec.msgpack.encode(values), "Heartbeat"))


@pytest.mark.parametrize("batch", [b"", b"short", bytes(17)])
def test_an_id_of_the_wrong_length_is_refused(batch: bytes) -> None:
    with pytest.raises(PeerViolation, match="Absent frame is malformed"):
        f.decode_all(repacked(msgspec.msgpack.encode([[batch]]), "Absent"))


def test_an_array_that_claims_billions_of_items_is_refused_without_room_being_made() -> None:
    with pytest.raises(PeerViolation, match="DataReport frame is malformed"):
        f.decode_all(repacked(b"\x91\xdd\xff\xff\xff\xff", "DataReport"))


def test_a_body_nested_too_deep_is_refused() -> None:
    with pytest.raises(PeerViolation, match="Heartbeat frame is malformed"):
        f.decode_all(repacked(b"\x95\0\0\0\0" + b"\x91" * 5000 + b"\0", "Heartbeat"))


@pytest.mark.parametrize("name", ["CommitSubmit", "Commit", "AssignmentAnswer", "Promise", "Range"])
@pytest.mark.parametrize("system", [b"\xff\xff", b"\x91\x63", b"\x91\x01"], ids=["noise", "unknown", "too-short"])
def test_a_malformed_system_entry_is_refused_wherever_it_travels(name: str, system: bytes) -> None:
    bad = Assignment(EPOCH, BATCH, system=system)
    body = SAMPLES[name]
    changed: dict[str, object] = {"assignments": [bad]}
    if isinstance(body, f.Range):
        changed = {"entries": [f.RangeEntry(bad, b"")]}
    with pytest.raises(PeerViolation, match=f"{name} frame is malformed"):
        f.decode_all(encode(msgspec.structs.replace(body, **changed)))


def test_text_that_is_no_text_is_refused() -> None:
    values = msgspec.msgpack.encode([43, 5, "?"])[:-1] + b"\xff"
    with pytest.raises(PeerViolation, match="NewEpoch frame is malformed"):
        f.decode_all(repacked(values, "NewEpoch"))


@pytest.mark.parametrize(
    ("fragment", "fragments", "offset", "size"),
    [(0, 0, 0, 20), (1, 1, 0, 20), (9, 3, 0, 20), (0, 1, 1, 20), (0, 1, 0, 19), (0, 1, 2**32 - 1, 20)],
)
def test_a_fragment_that_does_not_fit_its_batch_is_refused(
    fragment: int, fragments: int, offset: int, size: int
) -> None:
    body = struct.pack(">16sQQQIII", BATCH, 1, 0, 0, size, offset, fragments << 16 | fragment) + bytes(20)
    with pytest.raises(PeerViolation, match="does not fit its own batch"):
        f.decode_all(repacked(body, "Data"))


def test_a_data_frame_without_its_whole_head_is_refused() -> None:
    with pytest.raises(PeerViolation, match="shorter than its header"):
        f.decode_all(repacked(bytes(f.DATA_HEADER_BYTES - 1), "Data"))


LIMIT = 200
ROOM = LIMIT - f.HEADER_BYTES - f.DATA_HEADER_BYTES


@pytest.mark.parametrize(
    "size", [0, 1, ROOM - 1, ROOM, ROOM + 1, 2 * ROOM - 1, 2 * ROOM, 2 * ROOM + 1, 10 * ROOM, 10 * ROOM + 7]
)
def test_a_batch_is_cut_into_as_few_frames_as_fit_the_limit(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    fragments = f.fragment_batch(BATCH, payload, digest=digest_of(payload), timestamp=9, limit=LIMIT)
    assert len(fragments) == max(1, -(-size // ROOM))
    assert [data.fragment for data in fragments] == list(range(len(fragments)))
    assert {(data.fragments, data.size, data.digest, data.timestamp) for data in fragments} == {
        (len(fragments), size, digest_of(payload), 9)
    }
    assert b"".join(data.payload for data in fragments) == payload
    assert [data.offset for data in fragments] == [
        sum(len(before.payload) for before in fragments[:place]) for place in range(len(fragments))
    ]
    assert all(len(encode(data)) <= LIMIT for data in fragments)
    assert [frame.body for data in fragments for frame in f.decode_all(encode(data))] == fragments


def test_a_batch_of_more_fragments_than_can_be_counted_is_refused() -> None:
    limit = f.HEADER_BYTES + f.DATA_HEADER_BYTES + 1
    assert len(f.fragment_batch(BATCH, bytes(0xFFFF), digest=0, timestamp=0, limit=limit)) == 0xFFFF
    with pytest.raises(ValueError, match="does not fit"):
        f.fragment_batch(BATCH, bytes(0x10000), digest=0, timestamp=0, limit=limit)


def test_the_checksum_covers_every_byte_after_it() -> None:
    data = golden("Status")
    assert data[:8] == struct.pack(">Q", xxhash.xxh3_64_intdigest(data[8:]))


@pytest.mark.requirement("BUS-23")
def test_every_data_frame_names_its_batch() -> None:
    (frame,) = f.decode_all(golden("Data"))
    assert isinstance(frame.body, f.Data)
    assert frame.body.id == BATCH
