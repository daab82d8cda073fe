"""`archive`: destinations as Parquet files, each message once, and read together with the living log.

Exactly once rests on the log's numbers: messages of a destination reach the archive in the order of the log, the
manifest knows the last number it has of each (`Manifest.marks`), and what is not beyond that is left out. So a batch
that Spark runs again after a crash, or a job that was begun anew from the earliest message, adds nothing twice.

A destination that was moved to another channel has numbers of another log there, and with one entry of it all that it
keeps arrived: no mark tells what of that is archived. Messages keep their ids, so these are compared as long as the
archive has not come beyond that entry.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from alphorn.model.errors import Corruption
from alphorn.spark.jobs.hashing import add_hashes, row_hash, table_hash
from alphorn.spark.jobs.manifest import ArchivedFile, Manifest, Outlet, open_manifest
from alphorn.spark.jobs.parquet_files import DATE, HASH, WRITTEN, write_files
from alphorn.spark.schema import COLUMNS, SCHEMA

COMPACT_BYTES = 128 << 20  # files are joined until they have this size
KEPT_S = 3600.0  # how long files that were replaced stay for readers that began before
_OUTLET = ("destination", "channel")

Arrivals = Callable[[Mapping[Outlet, int]], Mapping[Outlet, int]]  # as `ClusterView.arrivals`


def no_arrivals(marks: Mapping[Outlet, int]) -> Mapping[Outlet, int]:
    """Nothing was moved."""
    return {}


def to_archive(messages: DataFrame, marks: dict[Outlet, int]) -> DataFrame:
    """The messages beyond the marks, with their day (UTC) and their hash."""
    dated = messages.select(*COLUMNS).withColumn(DATE, F.date_format("timestamp", "yyyy-MM-dd"))
    return beyond(dated, marks).withColumn(HASH, row_hash())


def beyond(messages: DataFrame, marks: dict[Outlet, int]) -> DataFrame:
    """The messages that came after the marks of their destinations, and those of destinations without a mark."""
    if not marks:
        return messages
    entries = [part for (place, channel), last in marks.items() for part in (_outlet(place, channel), F.lit(last))]
    reached = F.try_element_at(F.create_map(*entries), F.concat_ws("\n", *_OUTLET))
    return messages.where(reached.isNull() | (F.col("sequence") > reached))


def _outlet(destination: str, channel: str) -> Column:
    return F.lit(f"{destination}\n{channel}")


def append(messages: DataFrame, root: Path, arrivals: Arrivals = no_arrivals) -> Manifest:
    """Takes what the archive does not have yet; raises `Unavailable` when another job writes at the same time.

    `arrivals` tells what came from another channel since it was archived.
    """
    manifest = open_manifest(root, create=True)
    if manifest.marks and (came := arrivals(manifest.marks)):
        names = {destination for destination, _ in came}
        files = [file for file in manifest.files.values() if file.destination in names]
        messages = without(messages, _read(messages.sparkSession, root, files))
    files = _written(to_archive(messages, manifest.marks), root)
    return manifest.commit("append", added=files) if files else manifest


def without(messages: DataFrame, archived: DataFrame) -> DataFrame:
    """The messages that are not among those which were archived, be it from another channel."""
    left = messages.join(archived.select("destination", "id"), ["destination", "id"], "left_anti")
    return left.sortWithinPartitions("sequence", "index")


def _written(rows: DataFrame, root: Path) -> list[ArchivedFile]:
    written = rows.mapInArrow(write_files(str(root)), WRITTEN).collect()
    return sorted((ArchivedFile(**row.asDict()) for row in written), key=lambda file: (file.destination, file.first))


def read_archive(
    spark: SparkSession, root: Path, *, destination: str | None = None, manifest: Manifest | None = None
) -> DataFrame:
    """The archived messages with the columns of the source, of all destinations or of one."""
    manifest = manifest or open_manifest(root)
    files = [file for file in manifest.files.values() if destination in (None, file.destination)]
    return _read(spark, root, files)


def _read(spark: SparkSession, root: Path, files: Iterable[ArchivedFile]) -> DataFrame:
    paths = [str(root / file.path) for file in files]
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    schema = StructType([*SCHEMA.fields, StructField(DATE, StringType())])
    return spark.read.schema(schema).option("basePath", str(root)).parquet(*paths).select(*COLUMNS)


def compact(spark: SparkSession, root: Path, *, target_bytes: int = COMPACT_BYTES) -> Manifest:
    """Joins small files of the same destination and day, in the order of the log.

    What is written is counted and hashed again, and takes the old files' place only if it is the same; else raises
    `Corruption`. The old files stay for `sweep`.
    """
    manifest = open_manifest(root)
    for group in small_groups(manifest, target_bytes):
        rows = _read(spark, root, group).withColumn(DATE, F.lit(group[0].date)).withColumn(HASH, row_hash())
        joined = _written(rows.coalesce(1).sortWithinPartitions("sequence", "index"), root)
        before = sum(file.rows for file in group), add_hashes([file.hash for file in group])
        after = sum(file.rows for file in joined), add_hashes([file.hash for file in joined])
        if before != after:
            raise Corruption(
                f"the files of {group[0].destination} of {group[0].date} hold {after[0]} rows with the hash {after[1]} "
                f"and not {before[0]} with {before[1]}, as the manifest says; restore them from a copy of {root}"
            )
        manifest = manifest.commit("compact", added=joined, removed=[file.path for file in group])
    return manifest


def small_groups(manifest: Manifest, target_bytes: int) -> list[list[ArchivedFile]]:
    """The files to be joined, in order of the log: neighbours of one destination, channel and day, up to a size."""
    found: list[list[ArchivedFile]] = []
    ordered = sorted(manifest.files.values(), key=lambda file: (file.destination, file.channel, file.date, file.first))
    for file in ordered:
        here = found[-1] if found else []
        is_same = bool(here) and _group(here[0]) == _group(file)
        if is_same and sum(other.bytes for other in here) + file.bytes <= target_bytes:
            here.append(file)
        else:
            found.append([file])
    return [group for group in found if len(group) > 1]


def _group(file: ArchivedFile) -> tuple[str, str, str]:
    return file.destination, file.channel, file.date


def sweep(root: Path, *, kept_s: float = KEPT_S, now: float | None = None) -> int:
    """Deletes files that belong to no version any more, once they are old enough; gives how many."""
    manifest = open_manifest(root)
    limit = (time.time() if now is None else now) - kept_s
    swept = 0
    for path in root.glob("destination=*/date=*/*.parquet"):
        if str(path.relative_to(root)) not in manifest.files and path.stat().st_mtime < limit:
            path.unlink()
            swept += 1
    return swept


def verify(spark: SparkSession, root: Path) -> list[str]:
    """Reads the whole archive; one sentence for each destination whose rows are not what the manifest says."""
    manifest = open_manifest(root)
    faults: list[str] = []
    for destination in sorted({file.destination for file in manifest.files.values()}):
        files = [file for file in manifest.files.values() if file.destination == destination]
        said = sum(file.rows for file in files), add_hashes([file.hash for file in files])
        found = table_hash(_read(spark, root, files))
        if said != found:
            faults.append(
                f"{destination} has {found[0]} rows with the hash {found[1]}, and not {said[0]} with {said[1]}, "
                "as the manifest says; restore its files from a copy"
            )
    return faults
