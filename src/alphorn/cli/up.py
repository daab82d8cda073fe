"""`alphorn up`: a whole cluster on this machine, each node a process of its own."""

import asyncio
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

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


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(up)


def up(
    *,
    directory: Annotated[
        Path, typer.Option("--dir", help="Where everything is kept; the next `up` there continues.")
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
            help="Moves all ports: clients from here on, bus +20, link +40, witness +60.",
            show_default=str(BASE_PORT),
        ),
    ] = None,
    console: Annotated[
        bool, typer.Option("--console/--no-console", help="The web console; not there yet.", show_default=False)
    ] = False,
) -> None:
    """Run a whole cluster on this machine, each node its own process; Ctrl-C stops it, twice kills it.

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
        wish = Wish(client_managers=client_managers, backups=backups, channels=channels, base_port=base_port)
        path, is_new = open_local_cluster(directory, wish, default=LocalShape())
        file = read_cluster_file(path)
        say(f"{'a new cluster' if is_new else 'the cluster'} in {directory}: {describe_shape(file)}")
        say("all nodes bind to 127.0.0.1, so only this machine reaches them: there are no users and passwords yet")
        asyncio.run(_run(path, file))
    finally:
        os.close(lock)


def say(sentence: str) -> None:
    """Tells the user how it goes; standard output is for what programs read."""
    print(f"alphorn: {sentence}", file=sys.stderr, flush=True)


def describe_shape(file: ClusterFile) -> str:
    """The nodes of a cluster in a few words."""
    shape = shape_of(file)
    replicas = f"a primary and {_count(shape.backups, 'backup')}{' each' * (shape.channels > 1)}"
    return f"{_count(shape.client_managers, 'Client Manager')}, {_count(shape.channels, 'channel')} with {replicas}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


class _Signals:
    """The first asks for a stop in good order, the second ends everything at once."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.stop = asyncio.Event()
        self.has_killed = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self.stop.is_set():
            say("killing all nodes")
            self.has_killed = True
            self._supervisor.kill()
        else:
            say("stopping all nodes in good order; Ctrl-C again kills them")
            self.stop.set()


async def _run(path: Path, file: ClusterFile) -> None:
    down: list[str] = []  # sentences about nodes that were given up
    changed = asyncio.Event()

    def on_given_up(sentence: str) -> None:
        down.append(sentence)
        changed.set()

    supervisor = Supervisor(path, file, say=say, on_given_up=on_given_up)
    await supervisor.until_free()
    check_ports(file)
    signals = _Signals(supervisor)
    tasks = Tasks()
    try:
        await supervisor.start()
        told = tasks.start(signals.stop.wait(), name="stop")
        lost = tasks.start(changed.wait(), name="node given up")
        serving = asyncio.ensure_future(until_serving(file, deadline_s=SERVING_S))
        await asyncio.wait((told, lost, serving), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            serving.cancel()
            await asyncio.wait((serving,))
        else:
            serving.result()
            print(f"ready {url_of(file)}", flush=True)
            say(f"try: alphorn send queue:orders hello --url {url_of(file)}")
        while not told.done() and not _is_over(file, down, serving):
            changed.clear()
            lost = tasks.start(changed.wait(), name="node given up")
            await asyncio.wait((told, lost), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await supervisor.stop()
        await tasks.close()
    if signals.has_killed:
        raise Unavailable("all nodes were killed; nothing confirmed is lost, and the next `alphorn up` continues")
    if not signals.stop.is_set():
        raise Unavailable(down[-1])
    say("stopped; the data is kept, the next `alphorn up` continues")


def _is_over(file: ClusterFile, down: list[str], serving: "asyncio.Future[None]") -> bool:
    """A cluster that serves goes on while any node is left; one that does not yet serve needs all of them."""
    return len(down) >= (len(file.nodes) if not serving.cancelled() else 1)
