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

WIDTH = 160  # where there is no terminal to ask


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(status)


def status(*, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Show a cluster's nodes with their roles, its channels, and its destinations with their depths."""
    with connected(url) as connection:
        found = connection.status()
    if as_json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for title, first in COLUMNS.items():
        if title == "moves" and not found.get(title):
            continue  # only while something is on its way
        console.print(table_of(title, first, found.get(title, [])))


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
    return f"[green]{text}[/]" if (column, text) == ("role", "primary") else text.replace("[", "\\[")
