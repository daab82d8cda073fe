"""`alphorn up`: a whole cluster on this machine, each node a process of its own."""

import asyncio
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from alphorn.cli.demonstration import run_traffic
from alphorn.cli.happenings import tell_happenings
from alphorn.cli.pipeline import run_pipeline
from alphorn.io.cluster_file import ClusterFile, read_cluster_file
from alphorn.io.local_cluster import (
    BASE_PORT,
    NODES_MAX,
    LocalShape,
    Wish,
    check_ports,
    open_local_cluster,
    shape_of,
    take_directory,
    tunnel_url_of,
    url_of,
)
from alphorn.io.probe import until_serving
from alphorn.io.supervisor import Supervisor
from alphorn.io.tasks import Tasks
from alphorn.model.errors import Misuse, Unavailable

SERVING_S = 120.0  # generous: a log that has to be replayed takes its time
DIRECTORY = Path("alphorn-data")


class TransportChoice(StrEnum):
    """How nodes talk to each other."""

    MULTICAST = "multicast"
    RELAY = "relay"


def directory_of(text: str) -> Path:
    """Where a cluster is kept; an empty name, as of a variable that is not set, is not the place where one is."""
    if not text:
        raise Misuse("--dir names no directory; give its path, or . for the one you are in")
    return Path(text)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(up)


def up(
    *,
    directory: Annotated[
        Path,
        typer.Option(
            "--dir", parser=directory_of, metavar="DIR", help="Where everything is kept; the next `up` there continues."
        ),
    ] = DIRECTORY,
    client_managers: Annotated[
        int | None, typer.Option(help=f"How many take clients, 1 to {NODES_MAX}.", show_default="1")
    ] = None,
    backups: Annotated[int | None, typer.Option(help="Of each channel, besides its primary.", show_default="1")] = None,
    channels: Annotated[
        int | None, typer.Option(help="Logs that destinations are spread over.", show_default="1")
    ] = None,
    gateways: Annotated[int, typer.Option(help="For mobile clients; not there yet.")] = 0,
    transport: Annotated[
        TransportChoice, typer.Option(help="How nodes talk to each other; relay is not there yet.")
    ] = TransportChoice.MULTICAST,
    base_port: Annotated[
        int | None,
        typer.Option(
            help="Moves all ports: clients from here on, bus +20, link +40, witness +60, HTTP +100, internal +120.",
            show_default=str(BASE_PORT),
        ),
    ] = None,
    together: Annotated[
        bool | None,
        typer.Option(
            "--together",
            help="A Client Manager and a Message Manager share a process: less work for each message, fewer processes.",
            show_default=False,
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Send a trickle of demonstration traffic, run Spark on it, and tell of both.")
    ] = False,
    console: Annotated[
        bool, typer.Option("--console/--no-console", help="The web console; not there yet.", show_default=False)
    ] = False,
) -> None:
    """Run a whole cluster on this machine, each manager its own process; Ctrl-C stops it, twice kills it.

    Prints one line that begins with `ready` and has the URL for clients once it serves. Everything binds to the
    loopback interface. What is not given is as the directory has it, or the default of a new cluster.
    """
    if gateways:
        raise Misuse("gateways are not there yet; leave --gateways out")
    if transport is TransportChoice.RELAY:
        raise Misuse("the relay transport is not there yet; leave --transport out to use multicast")
    if console:
        raise Misuse("the console is not there yet; leave --console out")
    lock = take_directory(directory)
    try:
        wish = Wish(
            client_managers=client_managers, backups=backups, channels=channels, base_port=base_port, together=together
        )
        path, is_new = open_local_cluster(directory, wish, default=LocalShape())
        file = read_cluster_file(path)
        say(f"{'a new cluster' if is_new else 'the cluster'} in {directory}: {describe_shape(file)}")
        say("all nodes bind to 127.0.0.1, so only this machine reaches them: there are no users and passwords yet")
        asyncio.run(_run(path, file, has_demo=demo))
    finally:
        os.close(lock)


def say(sentence: str) -> None:
    """Tells the user how it goes; standard output is for what programs read."""
    print(f"alphorn: {sentence}", file=sys.stderr, flush=True)


def describe_shape(file: ClusterFile) -> str:
    """The nodes of a cluster in a few words."""
    shape = shape_of(msgspec.structs.replace(file, channels=tuple(it for it in file.channels if not it.removed)))
    replicas = f"a primary and {_count(shape.backups, 'backup')}{' each' * (shape.channels > 1)}"
    return f"{_count(shape.client_managers, 'Client Manager')}, {_count(shape.channels, 'channel')} with {replicas}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


class _Events:
    """What may end a cluster: signals, of which the second kills, and nodes that are given up."""

    def __init__(self) -> None:
        self.is_told = False  # to stop
        self.is_killed = False
        self.down: list[str] = []  # sentences about nodes that were given up
        self._changed = asyncio.Event()

    def listen(self, supervisor: Supervisor) -> None:
        """Takes signals from here on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, supervisor)

    def on_given_up(self, sentence: str) -> None:
        """A node stays down."""
        self.down.append(sentence)
        self._changed.set()

    async def until_down(self, nodes: int) -> None:
        """Waits until so many nodes are given up, or until told to stop."""
        while not self.is_told and len(self.down) < nodes:
            self._changed.clear()
            await self._changed.wait()

    def _on_signal(self, supervisor: Supervisor) -> None:
        if self.is_told:
            say("killing all nodes")
            self.is_killed = True
            supervisor.kill()
        else:
            say("stopping all nodes in good order; Ctrl-C again kills them")
            self.is_told = True
            self._changed.set()


async def _run(path: Path, file: ClusterFile, *, has_demo: bool) -> None:
    events = _Events()
    supervisor = Supervisor(path, file, say=say, on_given_up=events.on_given_up)
    await supervisor.until_free()
    check_ports(file)
    events.listen(supervisor)
    try:
        await supervisor.start()
        if await _serves(file, events):
            print(f"ready {url_of(file)}", flush=True)
            say(f"try: alphorn send queue:orders hello --url {url_of(file)}")
            if tunnel := tunnel_url_of(file):
                say(f"for clients whose way leads through HTTP: {tunnel}")
            async with Tasks() as tasks:
                if file.message_servers:
                    tasks.start(tell_happenings(url_of(file), say), name="what happens")
                if has_demo:
                    tasks.start(run_traffic(url_of(file), say), name="demonstration traffic")
                    tasks.start(run_pipeline(url_of(file), path.parent / "spark", say), name="demonstration pipeline")
                await events.until_down(len(supervisor.processes))  # It serves on while any node is left.
    finally:
        await supervisor.stop()
    if events.is_killed:
        raise Unavailable("all nodes were killed; nothing confirmed is lost, and the next `alphorn up` continues")
    if not events.is_told:
        raise Unavailable(events.down[-1])
    say("stopped; the data is kept, the next `alphorn up` continues")


async def _serves(file: ClusterFile, events: _Events) -> bool:
    """Waits until the cluster serves; False when told to stop, or when a node is given up before."""
    serving = asyncio.ensure_future(until_serving(file, deadline_s=SERVING_S))
    ended = asyncio.ensure_future(events.until_down(1))
    try:
        await asyncio.wait((serving, ended), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            return False
        serving.result()
        return True
    finally:
        serving.cancel()
        ended.cancel()
        await asyncio.wait((serving, ended))
