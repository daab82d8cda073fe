"""One table of a destination's messages, from its archive and from the living log, each message once.

    orders = read_tiers(spark, url=url, destination="topic:orders", archive=Path("archive"))

The archive knows the last log entry it has of each destination; the log is read from the next one on. So it does not
matter how far the archive has come, nor how much of what is archived the cluster still keeps.
"""

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from alphorn.model.errors import Misuse
from alphorn.model.patterns import is_pattern
from alphorn.spark import register
from alphorn.spark.cluster import ClusterView
from alphorn.spark.jobs.archive import beyond, read_archive
from alphorn.spark.jobs.manifest import Manifest, open_manifest
from alphorn.spark.options import source_options

TIERS = ("auto", "archive", "live")


def read_tiers(
    spark: SparkSession, *, url: str, destination: str, archive: Path | None, tier: str = "auto", **options: str
) -> DataFrame:
    """The messages of one destination: `auto` reads both tiers, `archive` and `live` only one.

    `options` are those of the source. Raises `Misuse` for what is no tier, and whatever reading raises.
    """
    if tier not in TIERS:
        raise Misuse(f"tier is {tier!r}; it is {', '.join(TIERS)}")
    if is_pattern(destination) or "," in destination:
        raise Misuse(f"{destination} names several destinations; tiers are read of one at a time")
    if tier == "live":
        return live(spark, url, destination, options)
    if archive is None:
        raise Misuse(f"tier {tier} needs to know where the archive is; name it, or read tier live")
    manifest = open_manifest(archive)
    archived = read_archive(spark, archive, destination=destination, manifest=manifest)
    if tier == "archive":
        return archived
    marks = {outlet: last for outlet, last in manifest.marks.items() if outlet[0] == destination}
    view = ClusterView(source_options({"url": url, "destination": destination, **options}))
    try:
        view.check_archived(marks)
    finally:
        view.close()
    following = live(spark, url, destination, {"start": start_after(manifest, destination), **options})
    return archived.unionByName(beyond(following, marks))


def start_after(manifest: Manifest, destination: str) -> str:
    """Where the log goes on behind an archive, as the source's option `start`."""
    found = {channel: last + 1 for (name, channel), last in manifest.marks.items() if name == destination}
    return json.dumps(found, sort_keys=True) if found else "earliest"


def live(spark: SparkSession, url: str, destination: str, options: dict[str, str]) -> DataFrame:
    """What the cluster keeps of a destination."""
    register(spark)
    reader = spark.read.format("alphorn").option("url", url).option("destination", destination)
    return reader.options(**options).load()
