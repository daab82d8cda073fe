"""`alphorn bench failover`: how long deliveries stand still when the primary is killed; and how such runs are shown."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from alphorn.testing.cluster_chaos import ClusterChaosResult, ClusterFault, kill_primaries_of_cluster

KILLS = 10
MESSAGES_PER_S = 500.0
TARGET_GAP_S = 0.4  # at the median


class FailoverReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one `bench failover` found."""

    load: float  # of the machine when the run began
    per_s: float
    gaps_s: list[float]  # without a delivery, for each kill
    median_s: float
    longest_s: float
    lost: int
    duplicates: int  # without a mark
    redelivered: int  # marked
    confirmed: int
    faults: list[str]


def failover(
    *,
    kills: Annotated[int, typer.Option(help="How often the primary is killed.", min=1)] = KILLS,
    per_s: Annotated[float, typer.Option(help="Messages per second while that happens.", min=1)] = MESSAGES_PER_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Kill the primary of a real cluster under load, and print for how long no message was delivered."""
    console = Console(stderr=as_json)
    load = os.getloadavg()[0]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="alphorn-bench-") as made,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        task = progress.add_task("kill -9 primary", total=kills)
        result = kill_primaries_of_cluster(
            Path(made), kills=kills, per_s=per_s, step=lambda fault, gap_s: progress.advance(task)
        )
    report = _report(result, load=load, per_s=per_s)
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        _print(console, report)
    if report.faults:
        raise typer.Exit(1)


def _report(result: ClusterChaosResult, *, load: float, per_s: float) -> FailoverReport:
    median, longest = result.gap_s(ClusterFault.KILL_PRIMARY)
    return FailoverReport(
        load=load,
        per_s=per_s,
        gaps_s=result.gaps_s.get(ClusterFault.KILL_PRIMARY, []),
        median_s=median,
        longest_s=longest,
        lost=result.traffic.lost,
        duplicates=result.traffic.duplicates,
        redelivered=result.traffic.redelivered,
        confirmed=result.traffic.confirmed,
        faults=result.faults,
    )


def _print(console: Console, report: FailoverReport) -> None:
    title = f"kill -9 of the primary under {report.per_s:g} messages/s; load {report.load:.1f} when the run began"
    table = Table("kill", "ms without a delivery", title=title)
    for number, gap_s in enumerate(report.gaps_s, 1):
        table.add_row(str(number), f"{gap_s * 1000:.0f}")
    table.add_section()
    is_met = report.median_s <= TARGET_GAP_S
    verdict = f"[green]at most {TARGET_GAP_S * 1000:.0f}[/]" if is_met else f"[red]{TARGET_GAP_S * 1000:.0f} missed[/]"
    table.add_row("median", f"{report.median_s * 1000:.0f} ({verdict})")
    table.add_row("longest", f"{report.longest_s * 1000:.0f}")
    console.print(table)
    console.print(
        f"{report.confirmed} messages confirmed, {report.lost} lost, {report.duplicates} duplicates, "
        f"{report.redelivered} marked redeliveries",
        soft_wrap=True,
    )
    _print_faults(console, report.faults)


def print_cluster_result(console: Console, result: ClusterChaosResult) -> None:
    """What `alphorn chaos --cluster` found."""
    table = Table("fault", "times", "median s without a delivery", "longest")
    for fault, count in result.injected.items():
        median, longest = result.gap_s(fault)
        table.add_row(fault, str(count), f"{median:.3f}", f"{longest:.3f}")
    console.print(table)
    traffic = result.traffic
    console.print(
        f"{traffic.sent} messages sent, {traffic.confirmed} confirmed, {traffic.refused} refused; "
        f"{traffic.received} received, {traffic.redelivered} again and marked, "
        f"{traffic.marked} marked and received once; "
        f"{traffic.lost} lost, {traffic.duplicates} duplicates, {traffic.disordered} out of order",
        soft_wrap=True,
    )
    _print_faults(console, result.faults)
    if not result.faults:
        text = "[green]all is well:[/] what was confirmed arrived, in order, and again only with a mark"
        console.print(text, soft_wrap=True)


def _print_faults(console: Console, faults: list[str]) -> None:
    for fault in faults:
        console.print(f"[red]broken:[/] {fault}", highlight=False, soft_wrap=True)
