"""`alphorn tell`: a word to one work process of a cluster, a node or a program that has joined."""

import time
from typing import Annotated

import typer

from alphorn.cli.joining import joined
from alphorn.cli.talking import JsonOption, UrlOption, to_json
from alphorn.cli.waiting import explaining
from alphorn.client.packing import check_text
from alphorn.client.url import DEFAULT_URL

WAIT_S = 10.0


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(tell)


def tell(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node of the cluster, or a program that has joined.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say, 1 MiB at most.")],
    *,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until it has the text.")] = WAIT_S,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Tell a node, or a program that has joined, something, and wait until it has that. Nodes write it to their log."""
    check_text("the text", text)
    with joined(url, "tell") as process, explaining(f"{node} has not said that it has the text"):
        began = time.monotonic()
        process.tell(node, text, timeout)
        seconds = time.monotonic() - began
    print(to_json({"node": node, "seconds": round(seconds, 6)}) if as_json else f"{node} has it")
