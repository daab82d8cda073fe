"""`alphorn demo`: a whole group on this machine, with a trickle of traffic, to watch and to disturb."""

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from alphorn.io.control import Described, StartLoad
from alphorn.model.errors import Misuse, Unavailable
from alphorn.testing.processes import GroupShape, MemberProcess, ProcessGroup

REFRESH_S = 0.5
ANSWER_S = 1.0  # after which a member counts as silent: frozen, or too busy
DOWN_S = 5.0  # after which a member that was killed is started again
LOADER = "client-1"
TRAFFIC = StartLoad(size=1024, per_s=50.0)
STORE_MARK = "primary.json"  # present where a demonstration ran before


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One member, as the table shows it."""

    name: str
    pid: int
    role: str
    epoch: str = ""
    committed: int = 0
    delivered: int = 0
    at: float = 0.0


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(demo)


def demo(
    *,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="A new directory for the members' logs, which is kept afterwards.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="Stop by itself after so long; 0 waits for Ctrl-C.")] = 0.0,
) -> None:
    """Run a primary, two backups, a witness and two clients on this machine; Ctrl-C stops them all."""
    with contextlib.ExitStack() as stack:
        if directory is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="alphorn-demo-")))
        else:
            folder = directory
            _make(folder)
        asyncio.run(_run(Console(), folder, seconds))


def _make(folder: Path) -> None:
    """A directory that has nothing else in it; raises `Misuse`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misuse(f"{folder} cannot be made: {error.strerror}; choose another directory") from None
    if (folder / STORE_MARK).exists():
        raise Misuse(f"{folder} holds an earlier demonstration; choose a new directory, or remove it")
    if any(folder.iterdir()):
        raise Misuse(f"{folder} is not empty; choose a new directory for the demonstration")


async def _run(console: Console, folder: Path, seconds: float) -> None:
    shape = GroupShape(servers=3, witnesses=1, clients=2)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with ProcessGroup(folder, shape) as group:

        def end() -> None:
            stop.set()
            group.wake()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end)
        await _started_or(stop, group)
        if not stop.is_set():
            _introduce(console, group)
            await group.members[LOADER].start_load(TRAFFIC)
            if seconds:
                loop.call_later(seconds, end)  # counted from here on, so that there is always something to see
            await _watch(console, group, stop)
        console.print("stopping all members in good order")
    console.print("stopped")


async def _started_or(stop: asyncio.Event, group: ProcessGroup) -> None:
    """Waits until the group is whole, or until told to stop."""
    for member in group.members.values():
        await member.start(founding=member.number > 0)
    await group.until(
        lambda: stop.is_set() or all(member.is_synchronised for member in group.members.values()),
        "all members to follow the log",
    )


def _introduce(console: Console, group: ProcessGroup) -> None:
    for member in group.members.values():
        console.print(f"{member.name} listens at {member.address}, pid {member.pid}", highlight=False)
    primary = group.primary()
    pid = primary.pid if primary is not None else group.servers[0].pid
    console.print(f"ready: try `kill -9 {pid}` in another terminal and watch a backup become primary", highlight=False)


async def _watch(console: Console, group: ProcessGroup, stop: asyncio.Event) -> None:
    before: dict[str, Standing] = {}
    down_since: dict[str, float] = {}
    with _shown(console) as show:
        while not stop.is_set():
            looks = await asyncio.gather(*(_look(group, member) for member in group.members.values()))
            standings = {standing.name: standing for standing in looks}
            show(standings, before)
            before = standings
            await _revive(group, down_since)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), REFRESH_S)


async def _revive(group: ProcessGroup, down_since: dict[str, float]) -> None:
    """Starts members again that somebody killed a while ago."""
    for name, member in group.members.items():
        if member.is_running:
            down_since.pop(name, None)
        elif time.monotonic() - down_since.setdefault(name, time.monotonic()) >= DOWN_S:
            await member.start()
            if name == LOADER:
                await member.start_load(TRAFFIC)


@contextlib.contextmanager
def _shown(console: Console) -> Iterator[Any]:
    """A live table on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield lambda standings, before: console.print(_line(standings), highlight=False, soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda standings, before: live.update(_table(standings, before), refresh=True)


async def _look(group: ProcessGroup, member: MemberProcess) -> Standing:
    primary = group.primary()
    role = "primary" if member is primary else member.file.me().tag
    if not member.is_running:
        return Standing(name=member.name, pid=0, role="down")
    try:
        described = await member.describe(deadline_s=ANSWER_S)
    except Unavailable:
        return Standing(name=member.name, pid=member.pid, role="silent" if member.is_running else "down")
    return Standing(name=member.name, pid=member.pid, role=role, at=time.monotonic(), **_numbers(described))


def _numbers(described: Described) -> dict[str, Any]:
    endpoint: Any = described.node["endpoint"]
    return {
        "epoch": endpoint["epoch"],
        "committed": endpoint["ledger"]["committed"],
        "delivered": endpoint["receiver"]["delivered"],
    }


def _table(standings: dict[str, Standing], before: dict[str, Standing]) -> Table:
    table = Table("member", "pid", "role", "epoch", "committed", "numbers/s", "lag")
    front = max((standing.committed for standing in standings.values()), default=0)
    for name, now in standings.items():
        if now.role in ("down", "silent"):
            table.add_row(name, str(now.pid or ""), f"[red]{now.role}[/]", "", "", "", "")
            continue
        role = f"[green]{now.role}[/]" if now.role == "primary" else now.role
        rate = f"{_rate(before.get(name), now):.0f}"
        table.add_row(name, str(now.pid), role, now.epoch, str(now.committed), rate, str(front - now.delivered))
    return table


def _rate(old: Standing | None, now: Standing) -> float:
    if old is None or not old.at or now.at <= old.at:
        return 0.0
    return max(0, now.committed - old.committed) / (now.at - old.at)


def _line(standings: dict[str, Standing]) -> str:
    parts = [
        f"{now.name}={now.role},epoch={now.epoch},committed={now.committed}" if now.at else f"{now.name}={now.role}"
        for now in standings.values()
    ]
    return " ".join(parts)
