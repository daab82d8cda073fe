"""`alphorn status`: the nodes, channels and destinations of a cluster, and who reads its log.

A destination counts the messages that ever came (`messages`) and those that wait (`depth`), so two looks tell rates.
"""

import re
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.text import Text

from alphorn.cli.tables import open_console, show_rows
from alphorn.cli.talking import JsonOption, UrlOption, connected, to_json
from alphorn.client.url import DEFAULT_URL

TABLES = ("nodes", "channels", "destinations", "readers", "moves")
SHOWN_MAX = 1_000  # destinations in a table
RATES_S_MIN = 0.1
RATES_S_MAX = 86_400.0

Rows = list[dict[str, Any]]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(status)


def status(
    *,
    rates: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=RATES_S_MIN,
            max=RATES_S_MAX,
            help="Look twice, so long apart, and tell messages a second.",
        ),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show a cluster's nodes with their roles, its channels, and its destinations with their depths.

    Of many destinations the first 1,000 are shown; with --json all are told, and all that is known of each.
    """
    most = None if as_json else SHOWN_MAX
    with connected(url, "the cluster does not answer yet") as connection:
        found, at = connection.status(destinations_max=most), time.monotonic()
        if rates is not None:
            time.sleep(rates)
            before = found
            found = connection.status(destinations_max=most)
            add_rates(before["destinations"], found["destinations"], time.monotonic() - at)
    if as_json:
        print(to_json(found, indent=2))
        return
    found["nodes"] = sorted(map(_node_for_people, found.get("nodes", [])), key=_place)
    found.get("destinations", []).sort(key=lambda row: str(row["name"]))
    console = open_console()
    for title in TABLES:
        if title == "moves" and not found.get(title):
            continue  # only while something is on its way
        show_rows(console, title, found.get(title, []))
        if title == "destinations" and (more := _more(found)):
            console.print(f"and {more:,} more: alphorn destinations list\n")
    for sentence in _worries(found):
        console.print(Text(sentence, "red"))


def add_rates(before: Rows, rows: Rows, seconds: float) -> None:
    """Adds to each row how many messages came in a second and, of a queue, how many left it, for whatever reason.

    What was not there before has no rate, and neither has what was purged by a deletion and is there anew.
    """
    known = {(row["name"], row["channel"]): row for row in before}
    for row in rows:
        was = known.get((row["name"], row["channel"]))
        if was is None or row["messages"] < was["messages"]:
            continue
        came = row["messages"] - was["messages"]
        row["in_per_s"] = round(came / seconds, 1)
        if row["name"].startswith("queue:"):
            row["out_per_s"] = round(max(0, came - row["depth"] + was["depth"]) / seconds, 1)


def _node_for_people(node: dict[str, Any]) -> dict[str, Any]:
    """A node's row in few columns: who has no role is what it is, and only Message Managers are behind or store."""
    is_replica = node.get("kind") == "message_manager"
    kind = str(node.get("kind", "")).replace("_", " ")
    role = node.get("role") or kind
    if node.get("kind") == "message_server" and role in ("active", "standby"):
        role = f"{kind}, {role}"
    return node | {
        "role": role,
        "lag": node.get("lag") if is_replica else None,
        "clients": node.get("connections"),
        "store": node.get("store_bytes"),
    }


def _worries(found: dict[str, Any]) -> Iterator[str]:
    """What somebody should see to."""
    for channel in found.get("channels", []):
        there, wanted = channel.get("copies", 0), channel.get("copies_wanted", 0)
        if there < wanted:
            copies = f"{there} cop{'ies' if there != 1 else 'y'}"
            yield f"{channel['name']} has {copies} of what is committed, and {wanted} are wanted; see to its backups"
    for channel in found["lost"]:
        yield f"{channel} has no primary now, and its destinations are not known"


def _place(node: dict[str, Any]) -> list[tuple[int, str]]:
    """Where a node stands in its table, whoever was heard first: by its name, in which numbers count as such."""
    parts = re.findall(r"\d+|\D+", node.get("name", ""))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _more(found: dict[str, Any]) -> int:
    """How many destinations the channels have beyond those that are shown."""
    shown = len(found.get("destinations", []))
    there = sum(channel.get("destinations", 0) for channel in found.get("channels", []))
    return max(0, there - shown) if shown >= SHOWN_MAX else 0
