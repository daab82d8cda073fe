"""Values of every frame type: one fixed sample each for the golden bytes, and strategies drawn from the types."""

from typing import get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from alphorn.bus import frames as f
from alphorn.bus.entries import Assignment, EpochBegun, Member, SystemEntry, digest_of, encode_system, make_epoch
from alphorn.model.ids import Kind, make_id, make_origin

GROUP = 0x0A0B0C0D
EPOCH = make_epoch(5, 2)
NUMBER = 3
ORIGIN = make_origin(bytes([10, 0, 0, 7]), 21_100, 0x00ABCDEF)
PAYLOAD = b"the bytes of a batch"
BATCH = make_id(ORIGIN, Kind.BATCH, 77)
OTHER = make_id(ORIGIN, Kind.BATCH, 78)
MEMBER = Member(3, "c", "10.0.0.7:21100", 15, 2, "store", ORIGIN, 4, is_live=True, is_voter=True)
ASSIGNMENTS = [
    Assignment(EPOCH, BATCH, 40, digest_of(PAYLOAD), len(PAYLOAD)),
    Assignment(EPOCH, make_id(ORIGIN, Kind.NODE, 1), 41, system=encode_system(EpochBegun(EPOCH, 2))),
]

SAMPLES: dict[str, f.Data | f.Body] = {
    "Data": f.Data(BATCH, 40, 0, digest_of(PAYLOAD), 60, 20, 1, 3, PAYLOAD),
    "Repair": f.Data(BATCH, 40, 42, digest_of(PAYLOAD), len(PAYLOAD), 0, 0, 1, PAYLOAD, is_repair=True),
    "DataReport": f.DataReport([f.Held(BATCH, 40, 1 << 63, 20), f.Held(OTHER, 41, 2, 70_000)]),
    "CommitSubmit": f.CommitSubmit(41, make_epoch(4, 1), 40, ASSIGNMENTS),
    "CommitAcknowledge": f.CommitAcknowledge(43, 42),
    "Commit": f.Commit(43, 42, ASSIGNMENTS),
    "Heartbeat": f.Heartbeat(43, 44, 12, 3 << 20),
    "Status": f.Status(43, 43, 42, 16, 77, True, "10.0.0.7:21100"),
    "AssignmentQuery": f.AssignmentQuery(41, 44),
    "AssignmentAnswer": f.AssignmentAnswer(41, ASSIGNMENTS),
    "Fetch": f.Fetch(2, [(42, 42), (44, 50)], [(BATCH, 0, 0), (OTHER, 3, 9)], [0x1122334455667788, 7], [0, 12]),
    "Absent": f.Absent([BATCH, OTHER]),
    "RangeFetch": f.RangeFetch(17, True),
    "Range": f.Range(42, 43, [f.RangeEntry(ASSIGNMENTS[0], PAYLOAD), f.RangeEntry(ASSIGNMENTS[1], b"")]),
    "CheckpointOffer": f.CheckpointOffer(16, make_epoch(4, 1), 1 << 33, 8192, 0x99AA, b"the group"),
    "CheckpointFetch": f.CheckpointFetch(16, 0x99AA, 8191),
    "CheckpointChunk": f.CheckpointChunk(16, 0x99AA, 8191, 8192, b"a piece"),
    "CheckpointReport": f.CheckpointReport(16, 1 << 33, 0x99AA),
    "Prepare": f.Prepare(43, 4),
    "Promise": f.Promise(True, EPOCH, EPOCH, 4, 41, make_epoch(4, 1), 41, 43, EPOCH, ASSIGNMENTS),
    "NewEpoch": f.NewEpoch(43, make_epoch(4, 1), "10.0.0.7:21100"),
    "Join": f.Join(MEMBER, False, bytes(range(16)), 43, EPOCH, 42, (EPOCH, 44)),
    "Welcome": f.Welcome(3, 43, EPOCH, b"the group", 44, "", 45),
    "Leave": f.Leave(ORIGIN),
}


def encode(body: f.Data | f.Body) -> bytes:
    """A whole frame with the usual header."""
    return b"".join(f.encode(group=GROUP, epoch=EPOCH, number=NUMBER, origin=ORIGIN, body=body))


def values_of(kind: inspect.Type) -> st.SearchStrategy[object]:
    """Everything a field of this type may hold."""
    match kind:
        case inspect.IntType(ge=ge, lt=lt):
            return st.integers(ge or 0, lt - 1 if lt is not None else (1 << 64) - 1)
        case inspect.BoolType():
            return st.booleans()
        case inspect.BytesType(min_length=low, max_length=high):
            return st.binary(min_size=low or 0, max_size=high if high is not None and high < 64 else 64)
        case inspect.StrType(max_length=high):
            return st.text(max_size=min(high or 16, 16))
        case inspect.ListType(item_type=item):
            return st.lists(values_of(item), max_size=3)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(values_of, items))
        case inspect.VarTupleType(item_type=item):
            return st.lists(values_of(item), max_size=3).map(tuple)
        case inspect.StructType(cls=cls, fields=fields):
            values = {field.name: values_of(field.type) for field in fields}
            if cls is Assignment:
                values["system"] = st.just(b"") | system_entries().map(encode_system)
            return st.builds(cls, **values)
    raise NotImplementedError(kind)


def system_entries() -> st.SearchStrategy[SystemEntry]:
    """Commands of the group itself, of every kind."""
    return st.one_of(*map(values_of, msgspec.inspect.multi_type_info(get_args(SystemEntry))))  # type: ignore[arg-type,unused-ignore]


@st.composite
def data_frames(draw: st.DrawFn) -> f.Data:
    """Fragments that fit their batch."""
    size = draw(st.integers(0, 300))
    offset = draw(st.integers(0, size))
    payload = draw(st.binary(max_size=size - offset))
    fragments = draw(st.integers(1, 0xFFFF))
    timestamp, sequence, digest = (draw(st.integers(0, (1 << 64) - 1)) for _ in range(3))
    batch = draw(st.binary(min_size=16, max_size=16))
    place = draw(st.integers(0, fragments - 1))
    is_repair = draw(st.booleans())
    return f.Data(batch, timestamp, sequence, digest, size, offset, place, fragments, payload, is_repair)


def bodies() -> st.SearchStrategy[f.Data | f.Body]:
    """Frames of every type."""
    kinds = [type(body) for body in SAMPLES.values() if not isinstance(body, f.Data)]
    msgpack = [values_of(info) for info in msgspec.inspect.multi_type_info(kinds)]
    return st.one_of(data_frames(), *msgpack)  # type: ignore[arg-type,unused-ignore]
