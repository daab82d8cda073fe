"""`alphorn bench log`: measures the log on this machine, beside a yardstick that does the same with the least code.

`alphorn bench failover` (cli/failover.py) measures how long a killed primary is missed, `alphorn bench processes`
(cli/bench_processes.py) messages between work processes.
"""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from alphorn.cli import bench_messages, bench_processes
from alphorn.cli.failover import failover
from alphorn.cli.measuring import check_directory, describe_machine, show_progress, show_verdict, temporary_folder
from alphorn.testing.limit import LimitResult, run_limit
from alphorn.testing.log_bench import LogResult, measure_log

WIRE_BACKUPS = (1, 2, 4)
TARGET_MEGABYTES_PER_S = 200.0
TARGET_CPU_MS = 0.15
TARGET_WIRE_GROWTH = 0.02
CLIENTS = {"client-1": "client-1 (sends)", "client-2": "client-2"}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one `bench log` found."""

    machine: str
    load: float  # of the machine when the run began: anything above 0.2 disturbs the figures
    log: LogResult
    limit: LimitResult
    ratio: float  # the log's throughput to the yardstick's
    wire: dict[int, float]  # bytes per payload byte at the sender, by the number of backups
    wire_growth: float  # from the fewest to the most backups


def register(app: typer.Typer) -> None:
    """Adds the command and its parts."""
    bench = typer.Typer(help="Measure this machine.", no_args_is_help=True)
    bench.callback()(_describe)
    bench.command("log")(log)
    bench.command("messages")(bench_messages.messages)
    bench.command("failover")(failover)
    bench.command("processes")(bench_processes.processes)
    app.add_typer(bench, name="bench")


def _describe() -> None:
    """Measure this machine."""


def log(
    *,
    backups: Annotated[int, typer.Option(help="Backups beside the primary.", min=1)] = 2,
    size: Annotated[int, typer.Option(help="Bytes of a batch.", min=16)] = 65_536,
    seconds: Annotated[float, typer.Option(help="How long each run is measured.", min=0.01)] = 5.0,
    directory: Annotated[Path | None, typer.Option(help="Where stores are made; its disk is what is measured.")] = None,
    wire: Annotated[bool, typer.Option(help="Measure bytes on the wire with 1, 2 and 4 backups.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Order and replicate batches between real processes, with fsync on two copies, and print what it cost."""
    check_directory(directory)
    console = Console(stderr=as_json)
    report = _measure(console, directory, backups=backups, size=size, seconds=seconds, has_wire=wire)
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        _print(console, report)


def _measure(
    console: Console, directory: Path | None, *, backups: int, size: int, seconds: float, has_wire: bool
) -> Report:
    load = os.getloadavg()[0]
    counts = sorted({*WIRE_BACKUPS, backups} if has_wire else {backups})
    results: dict[int, LogResult] = {}
    with show_progress(console) as progress:
        task = progress.add_task("", total=len(counts) + 1)
        for count in counts:
            progress.update(task, description=f"log with {count} backup{'s' * (count > 1)}")
            with temporary_folder(directory) as folder:
                work = measure_log(folder, backups=count, size=size, seconds=seconds)
                results[count] = asyncio.run(work)
            progress.advance(task)
        progress.update(task, description="yardstick")
        limit = run_limit(backups=backups, size=size, seconds=seconds, directory=directory)
        progress.advance(task)
    measured = results[backups]
    wire = {count: result.wire_per_payload for count, result in results.items()}
    return Report(
        machine=describe_machine(),
        load=load,
        log=measured,
        limit=limit,
        ratio=measured.megabytes_per_s / limit.megabytes_per_s,
        wire=wire,
        wire_growth=wire[counts[-1]] / wire[counts[0]] - 1,
    )


def _print(console: Console, report: Report) -> None:
    result, limit = report.log, report.limit
    console.print(f"{report.machine}; load {report.load:.1f} when the run began", soft_wrap=True)
    console.print(_throughput_table(report))
    console.print(_cost_table(result, limit))
    console.print(_wire_table(report))
    losses = result.losses
    console.print(
        f"losses: {losses.asked} requests, {losses.suppressed} suppressed, {losses.repair_bytes} repair bytes, "
        f"{losses.kernel_drops} kernel drops, {losses.send_drops} send drops, {losses.caught_up} ranges caught up",
        soft_wrap=True,
    )
    options = f"--backups {result.backups} --size {result.size} --seconds {result.seconds:.0f}"
    console.print(f"repeat with: alphorn bench log {options}", soft_wrap=True)


def _throughput_table(report: Report) -> Table:
    result = report.log
    title = f"primary and {result.backups} backups, two clients, batches of {result.size} bytes, two durable copies"
    table = Table("", "log", "yardstick", "ratio", "target", title=title)
    table.add_row(
        "payload MB/s at both clients",
        f"{result.megabytes_per_s:.0f}",
        f"{report.limit.megabytes_per_s:.0f}",
        f"{report.ratio:.2f}",
        show_verdict(f">= {TARGET_MEGABYTES_PER_S:.0f}", is_met=result.megabytes_per_s >= TARGET_MEGABYTES_PER_S),
    )
    table.add_row("batches", str(result.batches), str(report.limit.batches), "", "")
    table.add_row("batches per fsync at the primary", f"{result.batches_per_fsync:.1f}", "", "", "")
    return table


def _cost_table(result: LogResult, limit: LimitResult) -> Table:
    table = Table("CPU ms per batch", "user", "system", "of it sync", "outside", "yardstick", "target")
    for name, cost in result.cost.items():
        is_client = name in CLIENTS
        target = show_verdict(f"< {TARGET_CPU_MS}", is_met=cost.outside_ms < TARGET_CPU_MS) if is_client else ""
        table.add_row(
            CLIENTS.get(name, name),
            f"{cost.user_ms:.3f}",
            f"{cost.system_ms:.3f}",
            f"{cost.sync_ms:.3f}",
            f"{cost.outside_ms:.3f}",
            f"{limit.cpu_ms_per_batch[name]:.3f}",
            target,
        )
    return table


def _wire_table(report: Report) -> Table:
    table = Table("backups", "bytes sent per payload byte", "more than the first")
    first = next(iter(report.wire.values()))
    for count, ratio in report.wire.items():
        table.add_row(str(count), f"{ratio:.5f}", f"{ratio / first - 1:+.3%}")
    is_met = report.wire_growth < TARGET_WIRE_GROWTH
    table.add_row("target", "", show_verdict(f"< {TARGET_WIRE_GROWTH:.0%}", is_met=is_met))
    return table
