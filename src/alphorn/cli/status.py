"""`alphorn status`: the nodes, channels and destinations of a cluster, and who reads its log."""

import json
import sys
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from alphorn.cli.talking import JsonOption, UrlOption, connected
from alphorn.client.url import DEFAULT_URL

COLUMNS = {
    "nodes": ("name", "kind", "role", "channel", "epoch", "lag", "address", "pid"),
    "channels": ("name",),
    "destinations": ("name", "channel", "depth", "consumers"),
    "readers": ("name", "channel", "sequence", "lag"),
    "moves": ("name", "from", "to", "stage"),
}

COLOURS = {"primary": "green", "unreachable": "red"}  # by role
WIDTH = 160  # where there is no terminal to ask
SHOWN_MAX = 1_000  # destinations in a table


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(status)


def status(*, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Show a cluster's nodes with their roles, its channels, and its destinations with their depths.

    Of many destinations the first 1,000 are shown; with --json all are told.
    """
    with connected(url) as connection:
        found = connection.status(destinations_max=None if as_json else SHOWN_MAX)
    if as_json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for title, first in COLUMNS.items():
        if title == "moves" and not found.get(title):
            continue  # only while something is on its way
        console.print(table_of(title, first, found.get(title, [])))
        if title == "destinations" and (more := _more(found)):
            console.print(f"and {more:,} more: alphorn destinations list\n")


def _more(found: dict[str, Any]) -> int:
    """How many destinations the channels have beyond those that are shown."""
    shown = len(found.get("destinations", []))
    there = sum(channel.get("destinations", 0) for channel in found.get("channels", []))
    return max(0, there - shown) if shown >= SHOWN_MAX else 0


def table_of(title: str, first: tuple[str, ...], rows: list[dict[str, Any]]) -> Table:
    """A table of these rows: the columns that are always there, then whatever else the rows tell in one word."""
    more = {key: None for row in rows for key, value in row.items() if not isinstance(value, dict | list)}
    columns = [*first, *(key for key in more if key not in first)]
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), no_wrap=column in first[:3], overflow="fold")
    for row in rows:
        table.add_row(*(_cell(column, row.get(column)) for column in columns))
    return table


def _cell(column: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and column not in ("pid", "epoch"):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    text = str(value).replace("_", " ") if column == "kind" else str(value)
    colour = COLOURS.get(text) if column == "role" else None
    return f"[{colour}]{text}[/]" if colour else text.replace("[", "\\[")
