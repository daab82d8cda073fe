"""An archive takes each message once, whatever is tried again, and is the same after it was compacted."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from alphorn.model.errors import Corruption, Misuse, Unavailable
from alphorn.spark.jobs.archive import append, compact, read_archive, small_groups, sweep, to_archive, verify
from alphorn.spark.jobs.manifest import SNAPSHOT_EVERY, ArchivedFile, Manifest, Outlet, open_manifest
from tests.spark.jobs.tables import message, table

ODD = "topic:a/b=c %é"  # a name whose every sign must survive as a folder


def messages(*sequences: int, **fields: object) -> list[dict[str, object]]:
    return [message(sequence, properties={"n": str(sequence), "a": "b"}, **fields) for sequence in sequences]


def sequences(spark: SparkSession, root: Path, **options: str) -> list[int]:
    return sorted(row["sequence"] for row in read_archive(spark, root, **options).select("sequence").collect())


def test_what_was_archived_is_read_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    rows = table(spark, [*messages(1, 2, 3), *messages(4, 90_000, destination=ODD, key="k", expiration=None)])
    manifest = append(rows, tmp_path)
    assertDataFrameEqual(read_archive(spark, tmp_path), rows)
    assert sequences(spark, tmp_path, destination=ODD) == [4, 90_000]
    files = sorted((file.destination, file.date, file.rows, file.first, file.last) for file in manifest.files.values())
    assert files == [
        (ODD, "2026-01-31", 1, 4, 4),
        (ODD, "2026-02-01", 1, 90_000, 90_000),
        ("topic:orders", "2026-01-31", 3, 1, 3),
    ]
    assert verify(spark, tmp_path) == []


def test_a_batch_that_is_run_again_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    batch = table(spark, messages(1, 2))
    once = append(batch, tmp_path)
    again = append(batch, tmp_path)
    assert (again.version, again.files) == (once.version, once.files)
    append(table(spark, messages(1, 2, 3, 4)), tmp_path)  # begun anew from the earliest message
    assert sequences(spark, tmp_path) == [1, 2, 3, 4]


def test_what_came_along_from_another_channel_is_not_archived_again(spark: SparkSession, tmp_path: Path) -> None:
    append(table(spark, [*messages(1, 2, 3), *messages(1, destination="topic:other")]), tmp_path)
    came = [message(7, channel="new", index=sent, id=f"ID:p:{sent}") for sent in (1, 2, 3, 4)]
    moved = table(spark, [*came, message(8, channel="new"), *messages(9, destination="topic:other")])

    def arrivals(marks: Mapping[Outlet, int]) -> Mapping[Outlet, int]:
        return {("topic:orders", "new"): 7} if marks.get(("topic:orders", "new"), 0) < 7 else {}

    for _ in range(2):  # the second time by the mark that it has on its new channel
        append(moved, tmp_path, arrivals)
    found = [row["id"] for row in read_archive(spark, tmp_path, destination="topic:orders").collect()]
    assert sorted(found) == ["ID:p:1", "ID:p:2", "ID:p:3", "ID:p:4", "ID:p:8"]
    assert sequences(spark, tmp_path, destination="topic:other") == [1, 9]
    assert open_manifest(tmp_path).marks["topic:orders", "new"] == 8
    assert verify(spark, tmp_path) == []


def test_a_mark_holds_for_its_destination_only(spark: SparkSession) -> None:
    rows = table(spark, [*messages(5), *messages(5, destination="topic:new"), *messages(6)])
    left = to_archive(rows, {("topic:orders", "main"): 5}).select("destination", "sequence").collect()
    assert sorted(tuple(row) for row in left) == [("topic:new", 5), ("topic:orders", 6)]


def test_files_of_a_batch_that_was_cut_off_do_not_belong_to_the_archive(spark: SparkSession, tmp_path: Path) -> None:
    append(table(spark, messages(1)), tmp_path)
    kept = next(iter(open_manifest(tmp_path).files))
    stray = (tmp_path / kept).with_name("stray.parquet")
    stray.write_bytes((tmp_path / kept).read_bytes())
    assert sequences(spark, tmp_path) == [1]
    assert sweep(tmp_path, now=stray.stat().st_mtime, kept_s=60.0) == 0, "a writer may still be at it"
    assert sweep(tmp_path, now=stray.stat().st_mtime + 61.0, kept_s=60.0) == 1
    assert [stray.exists(), (tmp_path / kept).exists()] == [False, True]


def test_small_files_become_one_with_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    for sequence in (1, 2):
        append(table(spark, messages(sequence)), tmp_path)
    before = read_archive(spark, tmp_path)
    manifest = compact(spark, tmp_path)
    assert [file.rows for file in manifest.files.values()] == [2]
    assertDataFrameEqual(read_archive(spark, tmp_path), before, checkRowOrder=False)
    assert compact(spark, tmp_path).version == manifest.version, "there is nothing left to join"
    append(table(spark, messages(1, 2, 3)), tmp_path)
    assert sequences(spark, tmp_path) == [1, 2, 3]


def test_rows_that_are_not_what_the_manifest_says_are_found_and_never_joined(
    spark: SparkSession, tmp_path: Path
) -> None:
    for sequence in (1, 2):
        append(table(spark, messages(sequence)), tmp_path)
    first, second = (tmp_path / path for path in open_manifest(tmp_path).files)
    first.write_bytes(second.read_bytes())
    [fault] = verify(spark, tmp_path)
    assert "topic:orders has 2 rows" in fault
    with pytest.raises(Corruption, match="as the manifest says; restore them"):
        compact(spark, tmp_path)


def file_of(first: int, size: int = 10, **fields: str) -> ArchivedFile:
    told = {"destination": "topic:orders", "channel": "main", "date": "2026-01-31", "hash": "0", "sha256": "", **fields}
    return ArchivedFile(path=f"{first}.parquet", rows=1, first=first, last=first, bytes=size, **told)


def test_neighbours_of_one_day_are_joined_up_to_a_size(tmp_path: Path) -> None:
    files = [file_of(1), file_of(2), file_of(3), file_of(4, date="2026-02-01"), file_of(5, destination="topic:other")]
    manifest = Manifest(tmp_path, 1, {file.path: file for file in files})
    assert [[file.first for file in group] for group in small_groups(manifest, 25)] == [[1, 2]]
    assert [[file.first for file in group] for group in small_groups(manifest, 100)] == [[1, 2, 3]]


def test_of_two_writers_one_is_told_to_start_again(tmp_path: Path) -> None:
    mine, other = open_manifest(tmp_path, create=True), open_manifest(tmp_path)
    mine.commit("append", added=[file_of(1)])
    with pytest.raises(Unavailable, match="another job has changed the archive"):
        other.commit("append", added=[file_of(1)])
    assert list(open_manifest(tmp_path).files) == ["1.parquet"]


def test_a_manifest_of_many_versions_is_read_from_its_snapshot(tmp_path: Path) -> None:
    manifest = open_manifest(tmp_path, create=True)
    for number in range(1, SNAPSHOT_EVERY + 3):
        manifest = manifest.commit("append", added=[file_of(number)])
    for path in (tmp_path / "_manifest").glob("*.json"):
        if path.name.count(".") == 1 and int(path.stem) <= SNAPSHOT_EVERY:
            path.unlink()
    again = open_manifest(tmp_path)
    assert (again.version, again.marks) == (SNAPSHOT_EVERY + 2, {("topic:orders", "main"): SNAPSHOT_EVERY + 2})


def test_a_manifest_that_cannot_be_read_stops_the_job(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="the archive /proc/x cannot be made: No such file or directory; choose another"):
        open_manifest(Path("/proc/x"), create=True)
    with pytest.raises(Misuse, match="is no archive; make one with"):
        open_manifest(tmp_path / "nowhere")
    manifest = open_manifest(tmp_path, create=True)
    for number in (1, 2, 3):
        manifest = manifest.commit("append", added=[file_of(number)])
    folder = tmp_path / "_manifest"
    whole = (folder / "0000000003.json").read_text()
    (folder / "0000000003.json").write_text(whole[:-9])
    with pytest.raises(Corruption, match=r"0000000003.json cannot be read"):
        open_manifest(tmp_path)
    (folder / "0000000003.json").write_text(json.dumps({**json.loads(whole), "format": 9}))
    with pytest.raises(Corruption, match="has format 9"):
        open_manifest(tmp_path)
    (folder / "0000000002.json").unlink()
    with pytest.raises(Corruption, match="version 2 of the archive"):
        open_manifest(tmp_path)
