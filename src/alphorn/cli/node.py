"""`alphorn node`: one node of a real cluster, or several in one process."""

import os
from pathlib import Path
from typing import Annotated

import typer

from alphorn.cli.up import say
from alphorn.io.cluster_file import read_cluster_file
from alphorn.io.node_directory import NodeDirectory
from alphorn.node.main import run_process


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(node)


def node(
    *,
    config: Annotated[Path, typer.Option(help="The cluster file; the same on all machines.")],
    name: Annotated[list[str], typer.Option(help="The node to run; given again, the process runs several.")],
    found: Annotated[
        bool,
        typer.Option("--found", help="The very first start of the cluster. Has no effect on a node that ran before."),
    ] = False,
) -> None:
    """Run one node of a real cluster; SIGTERM or Ctrl-C stops it in good order.

    Its log is log.jsonl in the node's folder, unless the cluster file says otherwise.

    The exit code is 0 after a stop in good order, else 1.
    """
    file = read_cluster_file(config)
    for one in name:
        file.node(one)

    async def on_started() -> None:
        for one in name:
            say(f"{one} runs, pid {os.getpid()}; log: {NodeDirectory(Path(file.directory), one).log}")

    run_process(file, name, found=found, on_started=on_started)
