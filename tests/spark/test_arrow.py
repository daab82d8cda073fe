"""Messages to Arrow and back, without Spark and without a cluster."""

import msgspec
import pyarrow
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from xxhash import xxh3_64_intdigest

from alphorn.model.errors import Corruption, MessageTooLarge, Misuse
from alphorn.model.log_hash import MASK, base_of, hash_of
from alphorn.model.log_link import ScannedBatch
from alphorn.model.messages import Flag, Packed, Streamed
from alphorn.spark.arrow import TEXT, VALUE, record_batches
from alphorn.spark.packing import BATCH_BYTES_TARGET, pack
from alphorn.spark.schema import COLUMNS, schema_of


def scanned(
    *messages: object, flags: int = 0, index: int = 0, count: int | None = None, arrival: int = 9
) -> ScannedBatch:
    blob = msgspec.msgpack.encode([it if isinstance(it, Packed) else [it] for it in messages])
    given = len(messages) - index if count is None else count
    return ScannedBatch(
        3, arrival, 50, 70 + index, index, given, b"p" * 20, 11, flags, 1_000, xxh3_64_intdigest(blob), memoryview(blob)
    )


def table(*batches: ScannedBatch, columns: tuple[str, ...] = COLUMNS) -> pyarrow.Table:
    schema = to_arrow_schema(schema_of(columns), timezone="UTC")
    found = list(record_batches([list(batches)], schema, "main", {3: "topic:t"}))
    assert all(batch.schema.equals(schema) for batch in found)
    return pyarrow.Table.from_batches(found, schema)


def test_all_columns_are_there_for_plain_batches() -> None:
    found = table(scanned(b"a", b"b"), scanned(b"c", arrival=10)).to_pylist()
    assert [row["body"] for row in found] == [b"a", b"b", b"c"]
    assert [(row["sequence"], row["index"]) for row in found] == [(9, 70), (9, 71), (10, 70)]
    assert [row["producer_counter"] for row in found] == [11, 12, 11]
    assert [row["id"] for row in found][:2] == [f"ID:{(b'p' * 20).hex()}:{number}" for number in (11, 12)]
    assert {row["priority"] for row in found} == {4}
    assert found[0]["timestamp"].timestamp() == 1.0
    assert all(found[0][name] is None for name in ("key", "properties", "expiration", "type", "content_type"))


def test_part_of_a_batch_is_cut_out() -> None:
    found = table(scanned(*"abcd", index=1, count=2)).to_pylist()
    assert [(row["body"], row["index"], row["producer_counter"]) for row in found] == [(b"b", 71, 12), (b"c", 72, 13)]


def test_headers_are_unpacked_where_they_occur() -> None:
    message = Packed(b"a", {"x": 1, "y": b"\x00"}, 9, 2_000, 0, "k", "t", "c", "queue:r", "text/csv")
    everything = sum(Flag)
    first, second = table(scanned(message, flags=everything), scanned(b"plain")).to_pylist()
    assert first["properties"] == [("x", "1"), ("y", "AA==")]
    assert (first["priority"], first["key"], first["type"], first["content_type"]) == (9, "k", "t", "text/csv")
    assert first["expiration"].timestamp() == 2.0
    assert (second["priority"], second["key"], second["properties"], second["expiration"]) == (4, None, None, None)


def test_a_clock_that_is_far_off_stops_nobody_from_reading() -> None:
    late = Packed(b"a", expiration=(1 << 63) - 1)
    batches = [msgspec.structs.replace(scanned(late, flags=int(Flag.EXPIRATION)), timestamp=at) for at in (1 << 62, -7)]
    found = table(*batches, columns=("timestamp", "expiration"))
    moments = [found.column(name).cast(pyarrow.int64()).to_pylist() for name in ("timestamp", "expiration")]
    most = ((1 << 63) - 1) // 1000 * 1000
    assert moments == [[most, -7000], [most, most]]


def test_few_columns_need_few() -> None:
    assert table(scanned(b"a"), columns=("sequence",)).to_pydict() == {"sequence": [9]}
    assert table(scanned(Packed(b"a", {"x": 1}), flags=1), columns=("body",)).to_pydict() == {"body": [b"a"]}


def test_a_body_that_came_in_fragments_is_known_by_its_size() -> None:
    film = Packed(None, stream=Streamed(3, 2_500_000, bytes(16)))
    found = table(scanned(film, flags=Flag.STREAM), scanned(None), columns=("body", "stream_bytes")).to_pydict()
    assert found == {"body": [None, None], "stream_bytes": [2_500_000, None]}
    assert table(scanned(b"a"), columns=("stream_bytes",)).to_pydict() == {"stream_bytes": [None]}


def test_the_log_hash_of_a_message_is_found_from_the_bytes_that_were_read() -> None:
    batches = [scanned(*"abcdef", index=2, count=3), scanned("x", arrival=10), scanned(*range(2000), arrival=11)]
    found = table(*batches, columns=("log_hash", "sequence")).to_pydict()["log_hash"]
    bases = [base_of(one.arrival, one.producer, one.counter, one.flags, one.timestamp, one.blob) for one in batches]
    pairs = [(base, one.index + place) for base, one in zip(bases, batches, strict=True) for place in range(one.count)]
    assert [value & MASK for value in found] == [hash_of(base, index, 1) for base, index in pairs]
    false = msgspec.structs.replace(batches[1], blob=memoryview(b"\x91\x91\xa1y"))
    assert table(false, columns=("body", "log_hash")).to_pydict()["log_hash"] != found[3:4], "whatever its digest says"


@pytest.mark.parametrize("blob", [b"\x91", b"\xc1", b"\x90"])
def test_what_is_no_batch_is_named(blob: bytes) -> None:
    wrong = msgspec.structs.replace(scanned(b"a"), blob=memoryview(blob))
    with pytest.raises(Corruption, match="log entry 9 of channel main"):
        table(wrong)


def packed(rows: pyarrow.RecordBatch, destination: str = "topic:t") -> list[tuple[str, list, int]]:
    found = list(pack(rows, destination))
    assert all(len(msgspec.msgpack.decode(blob)) == count for _, blob, count, _ in found)
    return [(name, msgspec.msgpack.decode(blob), flags) for name, blob, _, flags in found]


def test_bodies_alone_are_packed_as_bodies_alone() -> None:
    rows = pyarrow.RecordBatch.from_pydict({"body": [b"a", None, b"c"]})
    assert packed(rows) == [("topic:t", [[b"a"], [None], [b"c"]], 0)]


def test_rows_are_no_longer_than_they_must() -> None:
    rows = pyarrow.RecordBatch.from_pydict({"body": ["a", "b"], "priority": [None, 9], "type": [None, None]})
    assert packed(rows) == [("topic:t", [["a", None, 4], ["b", None, 9]], int(Flag.PRIORITY))]


def test_an_expiration_is_kept_to_the_millisecond_and_one_before_1970_is_over() -> None:
    moments = [None, 1_782_907_200_123_999, 0, -5_000_000, 1 << 62]
    for zone in ("UTC", "Asia/Kolkata"):
        column = pyarrow.array(moments, pyarrow.timestamp("us", zone))
        [(_, rows, _)] = packed(pyarrow.RecordBatch.from_pydict({"body": ["a"] * 5, "expiration": column}))
        assert [row[3] for row in rows] == [0, 1_782_907_200_123, 1, 1, (1 << 62) // 1000]


def test_large_batches_are_cut() -> None:
    rows = pyarrow.RecordBatch.from_pydict({"body": [bytes(1000)] * 999 + [bytes(100_000)]})
    found = packed(rows)
    assert sum(len(messages) for _, messages, _ in found) == 1000
    sizes = [len(blob) for _, blob, _, _ in pack(rows, "topic:t")]
    assert max(sizes) <= 2 * BATCH_BYTES_TARGET


def test_a_row_that_is_too_large_is_refused() -> None:
    rows = pyarrow.RecordBatch.from_pydict({"body": [bytes(4 << 20)]})
    with pytest.raises(MessageTooLarge):
        packed(rows)


def test_what_arrow_was_made_of_comes_back() -> None:
    bodies = [b"bytes", "text", {"a": [1, None, 2.5]}, None, 7]
    found = table(scanned(*bodies)).select(["body", "content_type"]).to_batches()[0]
    assert [message[0] for _, messages, _ in packed(found) for message in messages] == bodies


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.string()], ids=["binary", "text"])
def test_values_and_texts_are_themselves_again_whether_the_body_is_binary_or_text(kind: pyarrow.DataType) -> None:
    bodies = [b'{"a":[1,null]}', b"7", b"plain", None]
    types = [VALUE, TEXT, None, VALUE]
    columns = [pyarrow.array(bodies, pyarrow.binary()).cast(kind), pyarrow.array(types)]
    rows = pyarrow.RecordBatch.from_arrays(columns, ["body", "content_type"])
    ((_, messages, flags),) = packed(rows, "topic:t")
    plain = b"plain" if kind == pyarrow.binary() else "plain"
    assert messages == [[{"a": [1, None]}], ["7"], [plain], [None]]
    assert not flags


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"body": [b"\xff"], "content_type": [TEXT]}, "a row has the content type text/plain; charset=utf-8, and its"),
        ({"body": [b"{"], "content_type": [VALUE]}, "a row has the content type application/vnd.alphorn.value"),
        ({"body": [b""], "delay": [float("inf")]}, "a row has the delay inf; it is a number of seconds"),
        ({"body": [b""], "delay": [1e300]}, "a row has the delay 1e.300; it is a number of seconds"),
        ({"body": [b""], "priority": [10]}, "a row has the priority 10"),
    ],
)
def test_a_row_that_cannot_be_sent_is_refused_with_a_sentence(columns: dict[str, list[object]], sentence: str) -> None:
    with pytest.raises(Misuse, match=sentence):
        packed(pyarrow.RecordBatch.from_pydict(columns), "topic:t")
