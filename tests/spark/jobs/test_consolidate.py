"""Consolidation: the last message of each key, in one go or step by step, and checkpoints that are what they say."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from alphorn.model.errors import Corruption, Misuse
from alphorn.model.log_hash import hash_of, hash_text
from alphorn.spark.jobs.consolidate import Checkpoints, fold, log_hash, unkeyed
from alphorn.spark.jobs.hashing import add_hashes, table_hash
from tests.spark.jobs.tables import message, table

ROWS = [
    message(1, key="a", body="1"),
    message(1, index=1, key="a", body="2"),
    message(2, key="b", body="3"),
    message(3, key="c", body="4"),
    message(4, key="b", body=None),
    message(4, index=1, key=None, body="no key"),
    message(5, key="a", body="5"),
    message(5, key="a", body="other", destination="topic:other"),
]


def states(frame: DataFrame) -> dict[tuple[str, str], str]:
    return {(row["destination"], row["key"]): bytes(row["body"]).decode() for row in frame.collect()}


def test_the_last_message_of_each_key_stays_and_one_without_a_body_ends_its_key(spark: SparkSession) -> None:
    rows = table(spark, ROWS)
    assert states(fold(rows)) == {("topic:orders", "a"): "5", ("topic:orders", "c"): "4", ("topic:other", "a"): "other"}
    assert unkeyed(rows) == 1


def test_folding_step_by_step_gives_the_same_state(spark: SparkSession) -> None:
    steps = [table(spark, ROWS[:3]), table(spark, ROWS[3:5]), table(spark, ROWS[5:])]
    state = fold(steps[0])
    for step in steps[1:]:
        state = fold(step, state)
    assertDataFrameEqual(state, fold(table(spark, ROWS)))


def test_rows_add_up_to_what_the_replicas_find(spark: SparkSession) -> None:
    hashes = [hash_of(7, index, 1) for index in range(1000)]
    signed = [(value - (1 << 64) if value >> 63 else value,) for value in hashes]
    rows = spark.createDataFrame(signed, "log_hash long")
    assert log_hash(rows.repartition(3)) == (1000, hash_text(hash_of(7, 0, 1000)))
    assert log_hash(rows.limit(0)) == (0, hash_text(0))


def test_a_hash_depends_on_rows_and_not_on_their_order(spark: SparkSession) -> None:
    rows, half = table(spark, ROWS), [table(spark, ROWS[:4]), table(spark, ROWS[4:])]
    assert table_hash(rows) == table_hash(table(spark, ROWS[::-1]))
    assert table_hash(rows)[1] == add_hashes([table_hash(part)[1] for part in half])
    changed = [*ROWS[:-1], {**ROWS[-1], "properties": {"a": "b"}}]
    assert table_hash(rows) != table_hash(table(spark, changed))


def test_a_checkpoint_is_read_as_it_was_written_and_the_newest_counts(spark: SparkSession, tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, "topic:orders")
    assert kept.newest() is None
    for terminal, rows in ((3, ROWS[:4]), (5, ROWS[:7])):
        kept.write(fold(table(spark, rows)), "main", terminal, messages=1, log_hash="0", before=0)
    newest = kept.newest()
    assert newest is not None
    assert (newest.terminal, newest.keys, newest.channel) == (5, 2, "main")
    assertDataFrameEqual(kept.state(spark, newest), fold(table(spark, ROWS[:7])))


def test_a_state_without_manifest_does_not_count_and_one_that_was_changed_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    kept = Checkpoints(tmp_path, "topic:orders")
    first = kept.write(fold(table(spark, ROWS[:2])), "main", 1, messages=1, log_hash="0", before=0)
    kept.write(fold(table(spark, ROWS)), "main", 5, messages=1, log_hash="0", before=1)
    (kept.folder / "through=5" / "checkpoint.json").unlink()
    assert kept.newest() == first
    fold(table(spark, ROWS)).write.mode("overwrite").parquet(str(kept.folder / "through=1" / "state"))
    with pytest.raises(Corruption, match="is not what its manifest says"):
        kept.state(spark, first)
    (kept.folder / "through=1" / "checkpoint.json").write_text("{")
    with pytest.raises(Corruption, match="cannot be read"):
        kept.newest()


def test_manifests_of_the_first_format_are_read_and_those_of_a_later_one_refused(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, "topic:orders")
    fields = {"destination": "topic:orders", "channel": "main", "terminal": 3, "messages": 4, "keys": 2, "hash": "a"}
    manifest = kept.folder / "through=3" / "checkpoint.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"format": 1, "weight": "b", **fields}))
    newest = kept.newest()
    assert newest is not None
    assert (newest.format, newest.terminal, newest.log_hash) == (1, 3, "")
    manifest.write_text(json.dumps({"format": 3, **fields}))
    with pytest.raises(Misuse, match="has format 3, and this alphorn knows 2; use the newer one"):
        kept.newest()
