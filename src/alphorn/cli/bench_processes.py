"""`alphorn bench processes`: measures messages between work processes, beside a yardstick that only relays frames."""

import os
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from alphorn.cli.measuring import describe_machine, show_progress, show_verdict
from alphorn.testing.message_bench.figures import Figure
from alphorn.testing.process_bench.measure import Setting, measure_others, measure_tells


class ProcessesReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one `bench processes` found."""

    machine: str
    load: float  # of the machine when the run began: anything above 0.2 disturbs the figures
    setting: Setting
    figures: list[Figure]


def processes(
    *,
    count: Annotated[int, typer.Option("--messages", help="Messages to one process.", min=100)] = 100_000,
    size: Annotated[int, typer.Option(help="Bytes of each.", min=1, max=1 << 20)] = 100,
    others: Annotated[int, typer.Option(help="Processes that hear what is for all.", min=1, max=500)] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Let work processes tell each other things through message servers, and print how fast that goes."""
    console = Console(stderr=as_json)
    load, setting = os.getloadavg()[0], Setting(count=count, size=size, others=others)
    with show_progress(console) as progress:
        task = progress.add_task("one server", total=3)
        figures = measure_tells(setting, servers=1)
        progress.update(task, description="two servers", advance=1)
        figures += measure_tells(setting, servers=2)
        progress.update(task, description="all others", advance=1)
        figures += measure_others(setting)
        progress.update(task, advance=1)
    report = ProcessesReport(machine=describe_machine(), load=load, setting=setting, figures=figures)
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        _print(console, report)


def _print(console: Console, report: ProcessesReport) -> None:
    title = f"{report.machine}; load {report.load:.1f} when the run began; {report.setting.size} bytes each"
    table = Table("figure", "value", "yardstick", "ratio", "target", title=title)
    for row in report.figures:
        limit = f"{row.limit:,.3g}" if row.limit is not None and row.limit < 1000 else f"{row.limit or 0:,.0f}"
        value = f"{row.value:,.3g}" if row.value < 1000 else f"{row.value:,.0f}"
        target = show_verdict(f"{row.target.bound:,.0f}", is_met=bool(row.is_met)) if row.target is not None else ""
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
        table.add_row(row.name, f"{value} {row.unit}", limit if row.limit is not None else "", ratio, target)
    console.print(table)
