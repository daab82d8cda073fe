"""The thin runners of the jobs: where tables come from and where they go. What is decided is decided in the hearts."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from alphorn.model.audit import AUDIT_TOPIC
from alphorn.model.errors import InvalidDestination, Misuse
from alphorn.model.log_lines import LOG_TOPIC
from alphorn.spark import register
from alphorn.spark.cluster import ClusterView
from alphorn.spark.jobs import archive, audit, dead_letters, logs, replay, traffic
from alphorn.spark.jobs.failures import translated
from alphorn.spark.jobs.manifest import open_manifest
from alphorn.spark.jobs.progress import Say, follow, shown
from alphorn.spark.options import source_options
from alphorn.spark.tiers import live, read_tiers

COMPACT_EVERY = 100  # versions of an archive that is written all the time
CHECKPOINT = "_checkpoint"
Row = dict[str, Any]


class Surroundings(msgspec.Struct, frozen=True):
    """What every runner needs."""

    spark: SparkSession
    url: str
    console: Console  # for progress, never for results
    say: Say


def run_archive(
    around: Surroundings,
    root: Path,
    destination: str,
    *,
    every_s: float | None = None,
    batch: int = 1_000_000,
    compacts: bool = False,
    fails_on_loss: bool = True,
) -> int:
    """Archives what is there and ends, or goes on with what comes every so many seconds; gives the rows it read."""
    register(around.spark)
    open_manifest(root, create=True)
    options = {
        "url": around.url,
        "destination": destination,
        "start": "earliest",
        "maxMessagesPerTrigger": str(batch),
        "failOnDataLoss": str(fails_on_loss).lower(),
        "subscription": f"archive {root.name}",
    }

    view = ClusterView(source_options(options))

    def take(rows: DataFrame, number: int) -> None:
        manifest = archive.append(rows, root, view.arrivals)
        if every_s is not None and manifest.version and manifest.version % COMPACT_EVERY == 0:
            archive.compact(around.spark, root)
            archive.sweep(root)

    stream = around.spark.readStream.format("alphorn").options(**options).load()
    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(root / CHECKPOINT))
    writer = (
        writer.trigger(availableNow=True) if every_s is None else writer.trigger(processingTime=f"{every_s} seconds")
    )
    query = writer.start()
    try:
        rows = follow(query, around.say)
    finally:
        query.stop()
        view.close()
    if compacts:
        with shown(around.spark, around.console, "compacting"):
            archive.compact(around.spark, root)
        archive.sweep(root)
    return rows


def run_verify(around: Surroundings, root: Path) -> list[str]:
    """Reads a whole archive; one sentence for each thing that is not as its manifest says."""
    with shown(around.spark, around.console, "verifying"):
        return archive.verify(around.spark, root)


def run_replay(
    around: Surroundings,
    root: Path,
    destination: str,
    *,
    to: str | None,
    start: datetime.datetime | None,
    end: datetime.datetime | None,
) -> int:
    """Sends archived messages again, all of them or none; gives how many."""
    register(around.spark)
    with shown(around.spark, around.console, "replaying"):
        messages = archive.read_archive(around.spark, root, destination=destination)
        sent = replay.to_replay(messages, to=to, start=start, end=end)
        count = sent.count()
        if count:
            sent.write.format("alphorn").option("url", around.url).mode("append").save()
    return count


def run_audit(
    around: Surroundings, *, grace: datetime.timedelta, deadline: datetime.timedelta, out: Path | None
) -> tuple[list[Row], list[Row]]:
    """What the testimony covers, and every violation in it."""
    try:
        with shown(around.spark, around.console, "auditing"):
            told = live(around.spark, around.url, str(AUDIT_TOPIC), {}).cache()
            covered = _rows(audit.coverage(told))
            found = audit.violations(told, grace=grace, deadline=deadline)
            if out is not None:
                found.write.mode("overwrite").parquet(str(out))
                found = around.spark.read.parquet(str(out))
            return covered, _rows(found.orderBy("rule", "destination", "position", "counter"))
    except InvalidDestination:
        raise Misuse(
            "nothing was audited yet, so there is nothing to prove; switch it on for a destination, as in "
            'connection.destinations.policy("queue:orders", audit=True)'
        ) from None


def run_logs(around: Surroundings, *, window: str, last: int, out: Path | None) -> tuple[list[Row], list[Row]]:
    """The last lines of all nodes in order, and how often each node complained."""
    with shown(around.spark, around.console, "reading log lines"):
        lines = logs.lines_of(live(around.spark, around.url, str(LOG_TOPIC), {})).cache()
        if out is not None:
            logs.in_order(lines).coalesce(1).write.mode("overwrite").parquet(str(out))
        newest = _rows(lines.orderBy("time", "node", "event", ascending=False).limit(last))
        return newest[::-1], _rows(logs.complaints(lines, window=window))


def run_dead_letters(around: Surroundings, queue: str) -> list[Row]:
    """The kinds of dead messages that wait in a queue."""
    rows = list(dead_letters.browse(around.url, queue))
    with shown(around.spark, around.console, "sorting dead messages"):
        return _rows(dead_letters.triage(around.spark.createDataFrame(rows, dead_letters.DEAD)))


def run_traffic(
    around: Surroundings, destination: str, *, window: str, archive_root: Path | None, out: Path | None
) -> tuple[list[Row], list[Row], list[Path]]:
    """Totals and delays, and the pictures that were drawn, if a folder for them is named."""
    with shown(around.spark, around.console, "measuring traffic"):
        if archive_root is None:
            messages = live(around.spark, around.url, destination, {})
        else:
            messages = read_tiers(around.spark, url=around.url, destination=destination, archive=archive_root)
        messages = messages.select("destination", "timestamp", "body", "producer", "key").cache()
        summed = _rows(traffic.totals(messages))
        spans = _rows(traffic.rates(messages, window=window)) if out is not None else []
        ways = _delays(around)
    if out is None:
        return summed, ways, []
    from alphorn.spark.jobs.traffic_charts import draw  # matplotlib takes its time to load

    return summed, ways, draw(spans, summed, ways, out)


def _delays(around: Surroundings) -> list[Row]:
    """Of audited destinations, where there are any.

    Message Managers are asked, of which a backup knows as well as a primary: there is no moment in which a channel
    that just lost its primary looks like one without testimony.
    """
    try:
        with translated():
            return _rows(traffic.delays(live(around.spark, around.url, str(AUDIT_TOPIC), {})))
    except InvalidDestination:
        return []


def _rows(frame: DataFrame) -> list[Row]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def rows_text(rows: Sequence[object]) -> str:
    """Rows as JSON, for programs."""
    return json.dumps(rows, ensure_ascii=False, default=str)
