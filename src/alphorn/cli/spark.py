"""`alphorn spark JOB`: the Spark jobs, on this machine or on any Spark master."""

import contextlib
import datetime
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from alphorn.cli.talking import JsonOption, UrlOption, connected
from alphorn.cli.up import say
from alphorn.client.url import DEFAULT_URL
from alphorn.model.errors import Corruption, Misuse

if TYPE_CHECKING:
    from alphorn.spark.jobs.runners import Surroundings

LOCAL = "local[*]"
WIDTH = 160  # where there is no terminal to ask
SECONDS_MAX = 1e9  # thirty years

MasterOption = Annotated[
    str, typer.Option("--master", help="Spark's master: local[*], spark://host:7077, yarn, k8s://…")
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", help="A setting of Spark as spark.some.key=value; may be repeated.")
]
ArchiveOption = Annotated[Path, typer.Option("--archive", help="The archive's folder; all of Spark must see it.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Also write the result there.")]
WindowOption = Annotated[str, typer.Option("--window", help="The span of time of one row, as in '1 minute'.")]


def register(app: typer.Typer) -> None:
    """Adds the command with its jobs."""
    jobs = typer.Typer(help="Run a Spark job on a cluster's data.", no_args_is_help=True)
    for name, job in (
        ("archive", archive),
        ("replay", replay),
        ("consolidate", consolidate),
        ("audit", audit),
        ("logs", logs),
        ("dead-letters", dead_letters),
        ("traffic", traffic),
    ):
        jobs.command(name)(job)
    app.add_typer(jobs, name="spark")


@contextlib.contextmanager
def _surroundings(job: str, url: str, master: str, conf: list[str] | None) -> Iterator["Surroundings"]:
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise Misuse("Spark jobs need PySpark and PyArrow, which are not installed; pip install 'alphorn[spark]'")
    from alphorn.spark.jobs.runners import Surroundings
    from alphorn.spark.jobs.starting import check_master, parse_setting, start_spark

    check_master(master)
    settings = dict(parse_setting(text) for text in conf or ())
    with connected(url):
        pass  # a cluster that is not there is told before Spark has taken its time to start
    spark = start_spark(job, master, settings)
    try:
        yield Surroundings(spark, url, Console(stderr=True), say)
    finally:
        spark.stop()


def archive(
    *,
    root: ArchiveOption,
    destination: Annotated[str, typer.Option(help="What to archive: topic:orders, or glob:topic:orders.*")],
    every: Annotated[
        float | None,
        typer.Option(
            min=0, max=SECONDS_MAX, help="Go on, and look every so many seconds; without it, end with what is there."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Messages of one batch at most.", min=1)] = 1_000_000,
    compact: Annotated[bool, typer.Option("--compact", help="Join small files afterwards.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read it all afterwards, and compare the hashes.")] = False,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Go on where the cluster keeps no more what is not archived yet.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
) -> None:
    """Write topics to Parquet files, each message once, however often the job is stopped and started again."""
    if every is not None and (compact or verify):
        raise Misuse("--compact and --verify come after the job, which --every never ends; leave one of them out")
    with _surroundings("archive", url, master, conf) as around:
        from alphorn.spark.jobs.manifest import open_manifest
        from alphorn.spark.jobs.runners import run_archive, run_verify

        run_archive(
            around, root, destination, every_s=every, batch=batch, compacts=compact, fails_on_loss=not allow_loss
        )
        if verify and (faults := run_verify(around, root)):
            raise Corruption("; ".join(faults))
        files = open_manifest(root).files.values()
        print(f"{sum(file.rows for file in files):,} messages in {len(files):,} files in {root}")


def replay(
    *,
    root: ArchiveOption,
    destination: Annotated[str, typer.Option(help="Whose archived messages: topic:orders")],
    to: Annotated[str | None, typer.Option(help="Where they go; without it, where they were.")] = None,
    since: Annotated[datetime.datetime | None, typer.Option(help="Only messages sent from this time on (UTC).")] = None,
    until: Annotated[datetime.datetime | None, typer.Option(help="Only messages sent before this time (UTC).")] = None,
    url: UrlOption = DEFAULT_URL,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
) -> None:
    """Send archived messages again, in their order: all of them become visible together, or none."""
    with _surroundings("replay", url, master, conf) as around:
        from alphorn.spark.jobs.runners import run_replay

        sent = run_replay(around, root, destination, to=to, start=_utc(since), end=_utc(until))
        print(f"{sent:,} messages sent to {to or destination}")


def consolidate(
    *,
    destination: Annotated[str, typer.Option(help="A topic or queue that retains its messages.")],
    checkpoints: Annotated[Path, typer.Option(help="The folder for checkpoints; all of Spark must see it.")],
    through: Annotated[
        int | None, typer.Option(help="The last log entry to fold in; without it, the newest.", show_default="newest")
    ] = None,
    publish: Annotated[str | None, typer.Option(help="Also send the state there, one message for each key.")] = None,
    release: Annotated[
        bool, typer.Option("--release", help="Let the cluster forget what was folded, once all replicas agree.")
    ] = False,
    forget_unkeyed: Annotated[
        bool, typer.Option("--forget-unkeyed", help="Release messages without a key too, which no state has.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
) -> None:
    """Fold what a destination retains into the last message of each key: a checkpoint that all replicas agree to."""
    with _surroundings("consolidate", url, master, conf) as around:
        from alphorn.spark.jobs.consolidating import run_consolidate

        made = run_consolidate(
            around,
            checkpoints,
            destination,
            through=through,
            publish=publish,
            releases=release,
            forgets_unkeyed=forget_unkeyed,
        )
        print(
            f"{made.keys:,} keys of {destination} through log entry {made.terminal}, from {made.messages:,} messages "
            f"whose hash is {made.log_hash} here and on every replica that answered; hash of the state {made.hash}"
        )


def audit(
    *,
    grace: Annotated[
        float, typer.Option(min=0, max=SECONDS_MAX, help="Seconds of the newest testimony that are not judged yet.")
    ] = 30.0,
    deadline: Annotated[
        float, typer.Option(min=0, max=SECONDS_MAX, help="Seconds until something must have become of a message.")
    ] = 3600.0,
    out: OutOption = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
) -> None:
    """Prove that nothing was lost, doubled, reordered or changed on audited destinations; exit code 1 if not."""
    with _surroundings("audit", url, master, conf) as around:
        from alphorn.spark.jobs.runners import rows_text, run_audit

        spans = {"grace": datetime.timedelta(seconds=grace), "deadline": datetime.timedelta(seconds=deadline)}
        covered, found = run_audit(around, out=out, **spans)
        if as_json:
            print(f'{{"coverage": {rows_text(covered)}, "violations": {rows_text(found)}}}')
        else:
            _show(("what was said", covered), ("violations", found))
            print("the ten rules hold" if not found else f"{len(found):,} violations")
    if found:
        raise typer.Exit(1)


def logs(
    *,
    window: WindowOption = "1 minute",
    last: Annotated[int, typer.Option(help="How many of the newest lines to show.", min=0)] = 20,
    out: OutOption = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
) -> None:
    """Show the log lines of all nodes in order of time, and how often each node complains."""
    with _surroundings("logs", url, master, conf) as around:
        from alphorn.spark.jobs.runners import rows_text, run_logs

        lines, complaints = run_logs(around, window=window, last=last, out=out)
        if as_json:
            print(f'{{"lines": {rows_text(lines)}, "complaints": {rows_text(complaints)}}}')
        else:
            _show(("complaints", complaints), ("newest lines", lines))


def dead_letters(
    *,
    queue: Annotated[str, typer.Option(help="Their queue; queue:_DMQ means that of every channel.")] = "queue:_DMQ",
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
) -> None:
    """Sort dead messages by where and why they died and what they look like, with advice; they stay where they are."""
    with _surroundings("dead-letters", url, master, conf) as around:
        from alphorn.spark.jobs.runners import rows_text, run_dead_letters

        kinds = run_dead_letters(around, queue)
        print(rows_text(kinds)) if as_json else _show(("dead messages", kinds))


def traffic(
    *,
    destination: Annotated[str, typer.Option(help="What to measure: topic:orders, or glob:topic:orders.*")],
    window: WindowOption = "1 minute",
    root: Annotated[
        Path | None, typer.Option("--archive", help="Measure the archive too, not only what the cluster keeps.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A folder for pictures (PNG) and a page (HTML).")] = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
) -> None:
    """Measure rates and sizes, and delays where destinations are audited; draw them."""
    with _surroundings("traffic", url, master, conf) as around:
        from alphorn.spark.jobs.runners import rows_text, run_traffic

        totals, delays, drawn = run_traffic(around, destination, window=window, archive_root=root, out=out)
        if as_json:
            print(f'{{"totals": {rows_text(totals)}, "delays": {rows_text(delays)}, "files": {rows_text(drawn)}}}')
            return
        _show(("destinations", totals), ("milliseconds on the way", delays))
        for path in drawn:
            print(path)


def _utc(time: datetime.datetime | None) -> datetime.datetime | None:
    return None if time is None else time.replace(tzinfo=time.tzinfo or datetime.UTC)


def _show(*tables: tuple[str, list[dict[str, Any]]]) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for title, rows in tables:
        if not rows:
            console.print(f"{title}: none\n")
            continue
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for name in rows[0]:
            table.add_column(name.replace("_", " "), overflow="fold")
        for row in rows:
            table.add_row(*(_cell(value) for value in row.values()))
        console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, datetime.datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, list):
        return "\n".join(map(str, value)).replace("[", "\\[")
    return str(value).replace("[", "\\[")
