"""`alphorn chaos`: real processes, killed, frozen and restarted under load; exit code 1 if any promise was broken."""

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from alphorn.bus.entries import describe_epoch
from alphorn.cli.failover import print_cluster_result
from alphorn.model.errors import Misuse
from alphorn.testing.chaos import ChaosResult, Fault, kill_primaries, mix_faults
from alphorn.testing.cluster_chaos import ClusterChaosResult, kill_in_turn, mix_cluster_faults
from alphorn.testing.process_chaos import ProcessChaosResult, kill_servers
from alphorn.testing.transfer_chaos import CRASH_POINTS, TransferChaosResult, run_transfers
from alphorn.testing.transfer_chaos import KILLS as TRANSFER_KILLS

KILLS = 50
TARGET_OUTAGE_S = 1.0

AnyResult = ChaosResult | ClusterChaosResult | TransferChaosResult | ProcessChaosResult


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(chaos)


def chaos(
    *,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="A whole cluster with producers and consumers, not the log alone.")
    ] = False,
    together: Annotated[
        bool,
        typer.Option("--together", help="With --cluster: Client Managers and Message Managers share processes."),
    ] = False,
    kills: Annotated[
        int,
        typer.Option(
            min=0,
            help="Kill the primary so many times in a row (with --cluster: every kind of node in turn), then all.",
        ),
    ] = 0,
    minutes: Annotated[float, typer.Option(min=0, help="Mix faults of every kind for so long.")] = 0.0,
    transfers: Annotated[
        int,
        typer.Option(
            min=0,
            help="Move units between accounts in so many transactions for each step of a transaction, while the nodes "
            "that take the step kill themselves.",
        ),
    ] = 0,
    servers: Annotated[
        bool, typer.Option("--servers", help="Message servers under work processes that tell each other things.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Of the choice of faults; timing is the machine's own.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep stores and logs in any case.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Let members log every step of the protocol.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Kill, freeze and restart real processes under load, and check that nothing promised is lost or reordered."""
    if cluster and trace:
        raise Misuse("nodes of a whole cluster do not trace the protocol; leave --trace or --cluster out")
    if transfers and (cluster or minutes or trace):
        raise Misuse("transfers have a cluster and kills of their own; leave --cluster, --minutes and --trace out")
    if servers and (cluster or minutes or trace or transfers):
        raise Misuse("message servers are killed by themselves; leave all but --kills and --seed out beside --servers")
    if together and not cluster:
        raise Misuse("--together is about a whole cluster; add --cluster")
    console = Console(stderr=as_json)
    drawn = seed if seed is not None else random.SystemRandom().getrandbits(32)
    result: AnyResult
    with _folder(console, "mm1/log" if cluster or transfers else "primary", keep=keep) as directory:
        if servers:
            result = _run_servers(console, directory, kills=kills or KILLS, seed=drawn)
        elif transfers:
            result = _run_transfers(console, directory, transfers=transfers, kills=kills, seed=drawn)
        elif cluster:
            result = _run_cluster(console, directory, kills=kills, minutes=minutes, seed=drawn, together=together)
        else:
            result = _run(console, directory, kills=kills, minutes=minutes, seed=drawn, trace=trace)
        _tell(console, result, as_json=as_json)
        if minutes:
            options = f"{'--cluster ' * cluster}{'--together ' * together}--minutes {minutes:g} --seed {drawn}"
            console.print(f"repeat the choice of faults with: alphorn chaos {options}", soft_wrap=True)
        if result.faults:
            raise typer.Exit(1)


@contextmanager
def _folder(console: Console, store: str, *, keep: bool) -> Iterator[Path]:
    """A directory for stores and logs: removed afterwards, and after Ctrl-C, but kept and named after a failure."""
    directory = Path(tempfile.mkdtemp(prefix="alphorn-chaos-"))
    is_kept = True
    try:
        yield directory
        is_kept = keep
    except KeyboardInterrupt:
        is_kept = keep
        raise
    finally:
        if is_kept:
            text = f"stores and logs are in {directory}; look at a store with: alphorn inspect {directory / store}"
            console.print(text, soft_wrap=True)
        else:
            shutil.rmtree(directory)


def _tell(console: Console, result: AnyResult, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(result).decode())
    elif isinstance(result, ClusterChaosResult):
        print_cluster_result(console, result)
    elif isinstance(result, TransferChaosResult):
        _print_transfers(console, result)
    elif isinstance(result, ProcessChaosResult):
        _print_servers(console, result)
    else:
        _print(console, result)


def _run(console: Console, directory: Path, *, kills: int, minutes: float, seed: int, trace: bool) -> ChaosResult:
    kills = kills or KILLS
    with _progress(console, total=None if minutes else kills + 1) as step:
        if minutes:
            return asyncio.run(mix_faults(directory, seconds=minutes * 60, seed=seed, step=step, trace=trace))
        return asyncio.run(kill_primaries(directory, kills=kills, step=step, trace=trace))


def _run_cluster(
    console: Console, directory: Path, *, kills: int, minutes: float, seed: int, together: bool
) -> ClusterChaosResult:
    kills = kills or KILLS
    with _progress(console, total=None if minutes else kills + 1) as step:

        def on_fault(fault: str, gap_s: float) -> None:
            step(fault)

        if minutes:
            return mix_cluster_faults(directory, seconds=minutes * 60, seed=seed, step=on_fault, together=together)
        return kill_in_turn(directory, kills=kills, step=on_fault, together=together)


def _run_transfers(console: Console, directory: Path, *, transfers: int, kills: int, seed: int) -> TransferChaosResult:
    with _progress(console, total=len(CRASH_POINTS)) as step:
        return run_transfers(directory, transfers=transfers, kills=kills or TRANSFER_KILLS, seed=seed, step=step)


def _run_servers(console: Console, directory: Path, *, kills: int, seed: int) -> ProcessChaosResult:
    with _progress(console, total=kills) as step:
        return asyncio.run(kill_servers(directory, kills=kills, seed=seed, step=step))


def _print_servers(console: Console, result: ProcessChaosResult) -> None:
    said = f"{result.told} messages to one process and {result.told_others} to all others"
    console.print(
        f"{result.kills} kills of message servers in {result.seconds:.0f} s; acknowledged: {said}; {result.received} "
        f"received, {result.unknown} of unknown outcome; nobody waited longer than {result.longest_s:.2f} s",
        soft_wrap=True,
    )
    for fault in result.faults:
        console.print(f"[red]{fault}[/]", soft_wrap=True)
    if not result.faults:
        text = "[green]all is well:[/] everything acknowledged arrived once, and in each sender's order"
        console.print(text, soft_wrap=True)


@contextmanager
def _progress(console: Console, *, total: int | None) -> Iterator[Callable[[str], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("faults", total=total)

        def step(fault: str) -> None:
            progress.update(task, description=fault, advance=1)

        yield step


def _print_transfers(console: Console, result: TransferChaosResult) -> None:
    table = Table("step", "nodes killed there", "transactions committed")
    for point, committed in result.committed.items():
        table.add_row(point, str(result.kills.get(point, 0)), str(committed))
    console.print(table)
    console.print(f"{result.rolled_back} transactions rolled back, {result.unknown} with an unknown outcome")
    for fault in result.faults:
        console.print(f"[red]broken:[/] {fault}", highlight=False, soft_wrap=True)
    if not result.faults:
        console.print("[green]all is well:[/] every unit is in exactly one account", soft_wrap=True)


def _print(console: Console, result: ChaosResult) -> None:
    table = Table("fault", "times", "median s to next commit", "longest")
    for fault, count in result.injected.items():
        median, longest = result.outage_s(fault)
        is_timed = fault in result.outages_s
        table.add_row(fault, str(count), f"{median:.3f}" if is_timed else "", f"{longest:.3f}" if is_timed else "")
    console.print(table)
    if Fault.KILL_PRIMARY in result.outages_s:
        median, _ = result.outage_s(Fault.KILL_PRIMARY)
        verdict = "met" if median < TARGET_OUTAGE_S else "missed"
        console.print(f"target: median below {TARGET_OUTAGE_S:g} s after kill -9 of the primary: {verdict}")
    console.print(
        f"{result.ordered} batches ordered, {result.refused} refused, {result.unknown} of them unknown; "
        f"epoch {describe_epoch(result.epoch)} at the end; no packets were lost on purpose, `alphorn sim` does that",
        soft_wrap=True,
    )
    for fault in result.faults:
        console.print(f"[red]broken:[/] {fault}", highlight=False, soft_wrap=True)
    if not result.faults:
        console.print(
            "[green]all is well:[/] nothing ordered was lost, repeated or reordered, in memory and on disk",
            soft_wrap=True,
        )
