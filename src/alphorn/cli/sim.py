"""`alphorn sim`: groups, clusters, transactions, message servers under faults: one seed, a campaign, the mutants."""

import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from alphorn.testing.campaign import Totals, Verdict, hunt_all, run_campaign
from alphorn.testing.kinds import Kind, describe_seed, run_seed
from alphorn.testing.mutants import MUTANTS
from alphorn.testing.run import Result
from alphorn.testing.timeline import Timeline

FAILURE_LINES = 60
MUTANT_SEEDS = 200
FAILURES_MAX = 5
TOLD_EVERY = 100  # seeds between two lines where there is no terminal to draw on


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(sim)


def sim(
    *,
    seed: Annotated[int | None, typer.Option(help="Run this one seed and print its timeline.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Print only so many last lines of the timeline.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Run so many seeds.")] = 200,
    start: Annotated[int, typer.Option(help="First seed of a campaign.")] = 1,
    kind: Annotated[
        Kind,
        typer.Option(
            help="Groups with their log alone, message clusters, those of several channels, transfers over several "
            "channels, message servers, or all but these: of four seeds one is a cluster, every other time of several "
            "channels, and one transfers."
        ),
    ] = Kind.ALL,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0 uses every core.")] = 0,
    mutants: Annotated[bool, typer.Option("--mutants", help="Prove that each deliberate mistake is caught.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Simulate groups, clusters, transactions, message servers in virtual time; exit code 1 if a promise is broken."""
    console = Console(stderr=as_json)
    if seed is not None:
        is_well = _run_one(seed, last, kind, as_json=as_json)
    elif mutants:
        is_well = _run_mutants(console, start, jobs, as_json=as_json)
    else:
        is_well = _run_many(console, range(start, start + seeds), jobs, kind, as_json=as_json)
    if not is_well:
        raise typer.Exit(1)


def _run_one(seed: int, last: int | None, kind: Kind, *, as_json: bool) -> bool:
    timeline = Timeline(last)
    result = run_seed(seed, kind, timeline=timeline)
    if as_json:
        print(msgspec.json.encode(result).decode())
        return not result.failure
    for line in timeline.lines(last):
        print(line)
    print(describe_seed(seed, kind))
    print(_describe(result))
    return not result.failure


def _run_many(console: Console, seeds: range, jobs: int, kind: Kind, *, as_json: bool) -> bool:
    with _progress(console) as progress:
        task = progress.add_task("seeds", total=len(seeds))

        def on_result(totals: Totals, result: Result) -> bool:
            progress.advance(task)
            if not console.is_terminal and not as_json and totals.seeds % TOLD_EVERY == 0:
                console.print(_describe_totals(totals, len(seeds)), highlight=False)
            return len(totals.failures) >= FAILURES_MAX

        totals = run_campaign(seeds, jobs=jobs, kind=kind, on_result=on_result)
    if as_json:
        print(msgspec.json.encode(totals).decode())
    else:
        console.print(_table(totals))
    for result in totals.failures:
        _explain(result)
    return not totals.failures


def _run_mutants(console: Console, start: int, jobs: int, *, as_json: bool) -> bool:
    verdicts: list[Verdict] = []
    with _progress(console) as progress:
        task = progress.add_task("mutants", total=len(MUTANTS))
        for verdict in hunt_all(range(start, start + MUTANT_SEEDS), jobs=jobs):
            verdicts.append(verdict)
            progress.console.print(_describe_verdict(verdict), highlight=False)
            progress.advance(task)
    order = {mutant.name: place for place, mutant in enumerate(MUTANTS)}
    verdicts.sort(key=lambda verdict: order[verdict.mutant])
    if as_json:
        print(msgspec.json.encode(verdicts).decode())
    else:
        console.print(_mutant_table(verdicts))
    return all(verdict.is_caught for verdict in verdicts)


def _describe_verdict(verdict: Verdict) -> str:
    if verdict.is_caught:
        return f"{verdict.mutant}: caught at seed {verdict.seed}"
    return f"{verdict.mutant}: SURVIVED {verdict.seeds} seeds"


def _mutant_table(verdicts: list[Verdict]) -> Table:
    caught = sum(verdict.is_caught for verdict in verdicts)
    table = Table("mutant", "what is wrong", "caught by", "at seed", "seeds tried")
    table.title = f"{len(verdicts)} mutants, {caught} caught"
    for verdict in verdicts:
        seed = str(verdict.seed) if verdict.is_caught else "-"
        checker = verdict.checker or "[bold red]SURVIVED[/]"
        table.add_row(verdict.mutant, verdict.description, checker, seed, str(verdict.seeds))
    return table


def _explain(result: Result) -> None:
    """Replays a failed seed and prints its end, on standard error."""
    timeline = Timeline(FAILURE_LINES)
    run_seed(result.seed, Kind(result.kind), timeline=timeline)
    for line in timeline.lines():
        print(line, file=sys.stderr)
    replay = f"alphorn sim --seed {result.seed} --kind {result.kind} --last {FAILURE_LINES}"
    print(f"{_describe(result)}\nreplay with: {replay}", file=sys.stderr)


def _describe(result: Result) -> str:
    verdict = f"seed {result.seed} FAILED: {result.failure}\n{result.details}" if result.failure else "all is well"
    return (
        f"{verdict.strip()}\n"
        f"{result.virtual_s:.1f} virtual s, {result.events} events, {result.committed} numbers committed, "
        f"{result.ordered} batches ordered, {result.unknown} unknown, healed in {result.healed_s:.1f} s, "
        f"{result.messages} messages confirmed, {result.receipts} received, "
        f"{result.transactions} transactions committed, trace {result.trace_hash}"
    )


def _describe_totals(totals: Totals, seeds: int) -> str:
    rate = totals.seeds / totals.elapsed_s if totals.elapsed_s else 0.0
    return f"{totals.seeds} of {seeds} seeds, {len(totals.failures)} failed, {rate:.1f} seeds/s"


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def _table(totals: Totals) -> Table:
    table = Table(title=f"{totals.seeds} seeds, {len(totals.failures)} failed", show_header=False)
    rate = totals.seeds / totals.elapsed_s if totals.elapsed_s else 0.0
    table.add_row("seeds per second", f"{rate:.1f}")
    table.add_row("virtual seconds", f"{totals.virtual_s:.0f}")
    table.add_row("events", f"{totals.events}")
    table.add_row("batches committed", f"{totals.ordered}")
    table.add_row("message clusters", f"{totals.clusters}")
    table.add_row("messages confirmed", f"{totals.messages}")
    table.add_row("runs of transfers", f"{totals.transfers}")
    table.add_row("transactions committed", f"{totals.transactions}")
    table.add_row("runs of message servers", f"{totals.servers}")
    table.add_row("seeds run twice, same trace", f"{totals.replayed}")
    table.add_row("slowest healing", f"{totals.healed_s_max:.1f} s")
    for fault, count in sorted(totals.faults.items()):
        table.add_row(f"fault: {fault}", f"{count}")
    return table
