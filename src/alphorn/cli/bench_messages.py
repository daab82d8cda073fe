"""`alphorn bench messages`: measures the message cluster on this machine, beside a yardstick where there is one."""

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from alphorn.cli.measuring import check_directory, describe_machine, show_progress, show_verdict
from alphorn.model.errors import Misuse
from alphorn.testing.message_bench.figures import Figure, WorkResult
from alphorn.testing.message_bench.scale import Scale
from alphorn.testing.message_bench.works import WORKS, Work, measure, measure_limit

ALL = ",".join(WORKS)


class MessagesReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one `bench messages` found."""

    machine: str
    load: float  # of the machine when the run began: anything above 0.2 disturbs the figures
    together: bool  # the Client Manager was in the primary's process
    works: tuple[WorkResult, ...]


def messages(
    *,
    work: Annotated[str, typer.Option(help="What to measure, separated by commas.")] = ALL,
    count: Annotated[int | None, typer.Option("--messages", help="Messages of each work.", min=1)] = None,
    seconds: Annotated[float, typer.Option(help="How long latency (W2) is measured.", min=0.01)] = 10.0,
    connections: Annotated[int, typer.Option(help="Idle connections of W7.", min=1)] = 10_000,
    destinations: Annotated[int, typer.Option(help="How many destinations are many.", min=10)] = 10_000,
    together: Annotated[
        bool, typer.Option("--together", help="The Client Manager shares a process with the primary.")
    ] = False,
    directory: Annotated[Path | None, typer.Option(help="Where stores are made; its disk is what is measured.")] = None,
    limit: Annotated[bool, typer.Option(help="Run the yardstick beside each figure that it can measure.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Send and receive messages through real processes, with fsync on two copies, and print what it cost."""
    check_directory(directory)
    scale = Scale(
        messages=count or 0, seconds=seconds, connections=connections, destinations=destinations, together=together
    )
    console = Console(stderr=as_json)
    load = os.getloadavg()[0]
    found = _measure(console, _choose(work), scale, directory, has_limit=limit)
    report = MessagesReport(machine=describe_machine(), load=load, together=together, works=found)
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        _print(console, report)


def _choose(named: str) -> list[Work]:
    names = [name.strip() for name in named.split(",") if name.strip()]
    if unknown := [name for name in names if name not in WORKS]:
        raise Misuse(f"there is no work {', '.join(unknown)}; there are {', '.join(WORKS)}")
    if not names:
        raise Misuse(f"no work is named; there are {', '.join(WORKS)}")
    return [WORKS[name] for name in names]


def _measure(
    console: Console, works: list[Work], scale: Scale, directory: Path | None, *, has_limit: bool
) -> tuple[WorkResult, ...]:
    found = []
    with show_progress(console) as progress:
        task = progress.add_task("", total=len(works))
        for work in works:
            progress.update(task, description=f"{work.name}: yardstick")
            limit = measure_limit(work, scale, directory) if has_limit else None
            progress.update(task, description=work.name)
            found.append(measure(work, scale, limit, directory))
            progress.advance(task)
    return tuple(found)


def _print(console: Console, report: MessagesReport) -> None:
    console.print(f"{report.machine}; load {report.load:.1f} when the run began", soft_wrap=True)
    console.print(_figure_table(report))
    if any(result.cpu_s_per_million for result in report.works):
        console.print(_cost_table(report))
    for result in report.works:
        console.print(f"{result.work}: {result.setting}", soft_wrap=True)


def _figure_table(report: MessagesReport) -> Table:
    apart = "primary, 1 backup and 1 Client Manager with a witness"
    title = f"{'primary with a Client Manager, 1 backup, witness' if report.together else apart}; two durable copies"
    table = Table("work", "figure", "value", "target", "yardstick", "ratio", title=title)
    for result in report.works:
        for number, found in enumerate(result.figures):
            table.add_row(
                result.work if number == 0 else "",
                found.name,
                f"{_show(found.value)} {found.unit}",
                _show_target(found),
                _show(found.limit) if found.limit is not None else "",
                f"{found.ratio:.2f}" if found.ratio is not None else "",
            )
    return table


def _show_target(found: Figure) -> str:
    if found.target is None:
        return ""
    sign = "<=" if found.target.is_most else ">="
    return show_verdict(f"{sign} {_show(found.target.bound)}", is_met=bool(found.is_met))


def _show(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cost_table(report: MessagesReport) -> Table:
    names = list(dict.fromkeys(name for result in report.works for name in result.cpu_s_per_million))
    table = Table("CPU s per million", *names, "servers", "yardstick's servers")
    for result in report.works:
        cost, limit = result.cpu_s_per_million, result.limit_cpu_s_per_million
        if cost:
            servers = sum(value for name, value in cost.items() if name != "clients")
            shown = [f"{cost[name]:.2f}" if name in cost else "" for name in names]
            table.add_row(result.work, *shown, f"{servers:.2f}", f"{sum(limit.values()):.2f}" if limit else "")
    return table
