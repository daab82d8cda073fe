"""Rows of the cluster's state for people: a table where the terminal is wide enough for it, else a block for each row.

Nothing is ever cropped: a number without its last digits is a wrong number. Every table has its own few columns, and
whatever else a row knows is for programs (`--json`), but for the reason why something is blocked, which stands below.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

RATES = ("in_per_s", "out_per_s")  # columns that are there only where somebody asked for them,
OPTIONAL = (*RATES, "queued")  # or where there is what they are about
COLUMNS = {
    "nodes": ("name", "role", "channel", "lag", "clients", "queued", "store", "address", "pid"),
    "channels": ("name", "primary", "epoch", "sequence", "copies", "copies_wanted", "destinations", "closed"),
    "destinations": ("name", "channel", "depth", "held", "consumers", "subscriptions", *RATES),
    "readers": ("name", "channel", "sequence", "lag"),
    "moves": ("name", "from", "to", "stage"),
    "dead messages": ("died", "destination", "reason", "deliveries", "id"),
}

GAPS = (2, 1)  # between columns; the narrower one where only that fits
PLAIN = ("pid", "epoch")  # numbers that are names, and have no thousands
COLOURS = {"primary": "green", "unreachable": "red"}  # by role
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

Row = dict[str, Any]


def open_console() -> Console:
    """Standard output, which wraps nothing by itself and colours only what is told to be."""
    return Console(highlight=False, soft_wrap=True, markup=False)


def show_rows(console: Console, title: str, rows: Sequence[Row]) -> None:
    """Prints the rows of one of `COLUMNS`; where there is no terminal always as a table, however wide."""
    columns = [name for name in COLUMNS[title] if name not in OPTIONAL or any(name in row for row in rows)]
    cells = [[_text(column, row.get(column)) for column in columns] for row in rows]
    widths = [max(map(cell_len, texts)) for texts in zip(columns, *cells, strict=True)]
    numbers = [any(_is_number(row.get(column)) for row in rows) for column in columns]
    spaces = [sum(widths) + gap * (len(widths) - 1) for gap in GAPS]
    gap = next((gap for gap, space in zip(GAPS, spaces, strict=True) if not is_limited() or space <= console.width), 0)
    if not rows:
        console.print(Text.assemble((title, "bold"), ": none"))
    elif gap:
        console.print(Text(title, "bold"))
        for place, texts in enumerate([columns, *cells]):
            line = Text(" " * gap, "" if place else "dim").join(map(_aligned, columns, texts, widths, numbers))
            line.rstrip()
            console.print(line)
    else:
        _show_blocks(console, title, columns, cells)
    for sentence in _blocked(rows):
        console.print(Text(sentence, "red"))
    console.print()


def is_limited() -> bool:
    """Whether standard output is a terminal, which has a width."""
    return sys.stdout.isatty()


def _show_blocks(console: Console, title: str, columns: list[str], cells: list[list[str]]) -> None:
    for place, texts in enumerate(cells):
        console.print(Text("" if place else title, "bold"))
        for column, text in zip(columns, texts, strict=True):
            if text:
                console.print(Text.assemble(f"{column}: ", (text, _style(column, text))))


def _aligned(column: str, text: str, width: int, is_number: bool) -> Text:
    space = " " * (width - cell_len(text))
    styled = (text, _style(column, text))
    return Text.assemble(space, styled) if is_number else Text.assemble(styled, space)


def _style(column: str, text: str) -> str:
    return COLOURS.get(text, "") if column == "role" else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(column: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and column == "store":
        return _size(value)
    if isinstance(value, int) and column not in PLAIN:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def _size(count: float) -> str:
    """Bytes in the unit that leaves the fewest digits."""
    unit = 0
    while count >= 1024 and unit < len(UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {UNITS[unit]}" if count >= 10 or not unit else f"{count:.1f} {UNITS[unit]}"


def _blocked(rows: Sequence[Row]) -> Iterator[str]:
    """Why something takes nothing, and whom that makes wait; what has the same reason, as a full disk, once."""
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("blocked"):
            reasons.setdefault(row["blocked"], []).append(row)
    for reason, blocked in reasons.items():
        waiting = sum(row.get("blocked_producers", 0) for row in blocked)
        who = f"; {waiting:,} producer{'s wait' if waiting != 1 else ' waits'}" if waiting else ""
        others = len(blocked) - 1
        what = f"and {others:,} other{'s' * (others != 1)} are" if others else "is"
        yield f"{blocked[0].get('name')} {what} blocked: {reason}{who}"
