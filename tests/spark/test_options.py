"""Options are checked at once and refused with one sentence."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.types import IntegerType, MapType, StringType, StructField, StructType

from alphorn.model.errors import Error, Misuse
from alphorn.spark.options import Bound, sink_options, source_options
from alphorn.spark.schema import COLUMNS, SCHEMA, schema_of
from alphorn.spark.sink import check_columns
from alphorn.spark.source import AlphornDataSource

ROOT = Path(__file__).parents[2]


def test_defaults_suit_most() -> None:
    options = source_options({"destination": "topic:orders"})
    assert (options.destinations, options.columns, options.read_from) == (("topic:orders",), COLUMNS, "any")
    assert (options.start, options.end, options.fail_on_data_loss) == (None, None, True)


def test_names_of_options_have_no_case() -> None:
    options = source_options({"DESTINATION": "queue:q", "maxmessagespertrigger": "7", "FailOnDataLoss": "FALSE"})
    assert (options.max_messages, options.fail_on_data_loss) == (7, False)


def test_several_destinations_are_told_apart() -> None:
    text = "topic:a, queue:b,glob:topic:c.*,regex:topic:d{1,2}"
    expected = ("topic:a", "queue:b", "glob:topic:c.*", "regex:topic:d{1,2}")
    assert source_options({"destination": text}).destinations == expected


def test_a_path_is_a_destination() -> None:
    assert source_options({"path": "topic:orders"}).destinations == ("topic:orders",)
    assert sink_options({"path": "topic:orders"}).destination == "topic:orders"


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Bound("earliest")),
        ("Latest", Bound("latest")),
        ('{"main": 17}', Bound("numbers", numbers={"main": 17})),
        ("1970-01-01T00:00:01", Bound("time", time_ms=1000)),
        ("1970-01-01T01:00:01+01:00", Bound("time", time_ms=1000)),
        ("1970-01-02", Bound("time", time_ms=86_400_000)),
    ],
)
def test_a_start_is_a_word_a_time_or_numbers(text: str, bound: Bound) -> None:
    assert source_options({"destination": "topic:t", "start": text}).start == bound


@pytest.mark.parametrize(
    ("heading", "read"), [("## Options for reading", source_options), ("## The sink", sink_options)]
)
def test_every_option_has_a_line_of_documentation(heading: str, read: Callable[[dict[str, str]], object]) -> None:
    with pytest.raises(Misuse) as caught:
        read({"no such option": "x"})
    names = str(caught.value).partition("it has ")[2].split(", ")
    _, _, rest = (ROOT / "docs" / "spark.md").read_text().partition(f"{heading}\n")
    lines = [line.split("|")[1] for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert sorted(name for line in lines for name in re.findall("`(.+?)`", line)) == sorted(names)


def test_an_archive_is_for_batches() -> None:
    source = AlphornDataSource({"destination": "topic:t", "archive": "/data/archive"})
    with pytest.raises(Misuse, match="the options tier and archive are for batches; a stream reads the log"):
        source.streamReader(SCHEMA)


def test_an_archive_that_is_none_is_named(tmp_path: Path) -> None:
    source = AlphornDataSource({"destination": "topic:t", "archive": str(tmp_path)})
    with pytest.raises(Misuse, match="is no archive; make one with: alphorn spark archive --archive"):
        source.reader(SCHEMA).partitions()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"destination": ""},
        {"destination": "orders"},
        {"destination": "glob:"},
        {"destination": "regex:topic:("},
        {"destination": "topic:a", "path": "topic:b"},
        {"destination": "topic:a", "start": "soon"},
        {"destination": "topic:a", "start": "{"},
        {"destination": "topic:a", "start": '{"main": -1}'},
        {"destination": "topic:a", "end": '{"main": 1.5}'},
        {"destination": "topic:a", "maxMessagesPerTrigger": "many"},
        {"destination": "topic:a", "maxBytesPerTrigger": "-1"},
        {"destination": "topic:a", "minPartitions": "0"},
        {"destination": "topic:a", "subscription": "s" * 256},
        {"destination": "topic:a", "maxBytesPerPartition": str(10**30)},
        {"destination": "topic:a", "maxBytesPerTrigger": "1" * 5000},
        {"destination": "topic:a", "start": '{"main": 1%s}' % ("0" * 30)},
        {"destination": "topic:a", "start": '{"main": 1%s}' % ("0" * 5000)},
        {"destination": "topic:a", "maxBytesPerPartition": "0"},
        {"destination": "topic:a", "failOnDataLoss": "perhaps"},
        {"destination": "topic:a", "pushdown": "1"},
        {"destination": "topic:a", "readFrom": "tape"},
        {"destination": "topic:a", "columns": "body,body"},
        {"destination": "topic:a", "timeout": "never"},
        {"destination": "topic:a", "timeout": "0"},
        {"destination": "topic:a", "url": "kafka://x"},
        {"destination": "topic:a", "topic": "b"},
        {"destination": "topic:a", "tier": "both"},
        {"destination": "topic:a", "tier": "archive"},
        {"destination": "topic:a", "archive": "/a", "start": "latest"},
        {"destination": "topic:a", "archive": "/a", "columns": "body,log_hash"},
        {"destination": "topic:a", "archive": "/a", "columns": "body,stream_bytes"},
        {"destination": "topic:a", "archive": "/a", "end": "2026-07-01"},
    ],
)
def test_what_does_not_fit_is_one_sentence(options: dict[str, str]) -> None:
    with pytest.raises(Misuse) as caught:
        source_options(options)
    assert "\n" not in str(caught.value)


def test_the_size_of_streams_is_there_where_it_is_asked_for() -> None:
    options = source_options({"destination": "topic:a", "columns": "body,stream_bytes"})
    assert schema_of(options.columns).simpleString() == "struct<body:binary,stream_bytes:bigint>"
    check_columns(schema_of((*COLUMNS, "stream_bytes")), sink_options({}), overwrite=False)


def test_the_log_hash_is_there_where_it_is_asked_for() -> None:
    options = source_options({"destination": "topic:a", "columns": "body,log_hash", "archive": "/a", "tier": "live"})
    assert schema_of(options.columns).simpleString() == "struct<body:binary,log_hash:bigint>"
    assert "log_hash" not in COLUMNS
    check_columns(schema_of((*COLUMNS, "log_hash")), sink_options({}), overwrite=False)


def test_a_password_is_never_repeated() -> None:
    with pytest.raises(Error) as caught:
        source_options({"destination": "topic:a", "url": "alphorn://me:secret@host:port"})
    assert "secret" not in str(caught.value)


def columns(**kinds: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "options", "sentence"),
    [
        (columns(text=StringType()), {"destination": "topic:t"}, "the rows have no column body"),
        (columns(body=StringType()), {}, "nothing says where to send"),
        (
            columns(body=IntegerType()),
            {"destination": "topic:t"},
            "the column body is int; the sink takes it as binary",
        ),
        (columns(body=StringType(), colour=StringType()), {"destination": "topic:t"}, "no use for the column 'colour'"),
        (
            columns(body=StringType(), properties=MapType(StringType(), IntegerType())),
            {"destination": "topic:t"},
            "the column properties is map<string,int>",
        ),
    ],
)
def test_rows_that_cannot_be_sent_are_refused(schema: StructType, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(Misuse, match=sentence):
        check_columns(schema, sink_options(options), overwrite=False)


def test_what_was_read_can_be_written() -> None:
    check_columns(SCHEMA, sink_options({}), overwrite=False)


@pytest.mark.parametrize(
    "options",
    [
        {"destination": "t"},
        {"destination": "topic:t", "start": "1"},
        {"timeout": "x"},
        {"url": "x"},
        {"writer": "nightly"},
        {"batch": "1"},
        {"writer": "nightly", "batch": "one"},
        {"writer": "n" * 201, "batch": "1"},
    ],
)
def test_options_of_the_sink_are_checked(options: dict[str, str]) -> None:
    with pytest.raises(Misuse):
        sink_options(options)
