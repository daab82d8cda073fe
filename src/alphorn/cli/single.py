"""`alphorn single`: the whole server in one process."""

import os
from pathlib import Path
from typing import Annotated

import typer

from alphorn.cli.up import directory_of, say
from alphorn.io.cluster_file import read_cluster_file
from alphorn.io.local_cluster import (
    BASE_PORT,
    LocalShape,
    Wish,
    check_ports,
    open_local_cluster,
    shape_of,
    take_directory,
    url_of,
)
from alphorn.io.probe import until_serving
from alphorn.model.errors import Misuse
from alphorn.node.main import run_process

SERVING_S = 120.0
DIRECTORY = Path("alphorn-single")
SHAPE = LocalShape(client_managers=1, backups=0, channels=1, together=True)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(single)


def single(
    *,
    directory: Annotated[
        Path,
        typer.Option(
            "--dir",
            parser=directory_of,
            metavar="DIR",
            help="Where everything is kept; the next start there continues.",
        ),
    ] = DIRECTORY,
    port: Annotated[
        int | None,
        typer.Option(
            help="For clients; the server also uses those 20, 40, 120 and, for HTTP, 100 above it.",
            show_default=str(BASE_PORT),
        ),
    ] = None,
) -> None:
    """Run the whole server in this one process, with one copy of everything; Ctrl-C stops it.

    Prints one line that begins with `ready` and has the URL for clients once it serves. Clients see no difference to a
    cluster, but the machine's disk is the only copy.
    """
    lock = take_directory(directory)
    try:
        path, is_new = open_local_cluster(directory, Wish(base_port=port), default=SHAPE, port_option="--port")
        file = read_cluster_file(path)
        if (shape := shape_of(file)).backups or shape.channels > 1 or shape.client_managers > 1:
            raise Misuse(f"{directory} holds a cluster of several nodes; run it with `alphorn up --dir {directory}`")
        check_ports(file)
        say(f"{'a new server' if is_new else 'the server'} in {directory}, in this one process (pid {os.getpid()})")
        say("it binds to 127.0.0.1, so only this machine reaches it: there are no users and passwords yet")

        async def on_started() -> None:
            await until_serving(file, deadline_s=SERVING_S)
            print(f"ready {url_of(file)}", flush=True)
            say(f"try: alphorn send queue:orders hello --url {url_of(file)}")

        run_process(file, [node.name for node in file.nodes], found=True, on_started=on_started)
        say("stopped; the data is kept, the next `alphorn single` continues")
    finally:
        os.close(lock)
