"""`alphorn inspect`: a store directory or a frame capture, decoded for people or for programs."""

import datetime
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from alphorn.bus.entries import describe_epoch
from alphorn.bus.frames import decode_all
from alphorn.io.capture import Captured, read_capture
from alphorn.io.inspect_store import OK, Row, inspect_store, is_faulty
from alphorn.model.errors import Misuse, PeerViolation
from alphorn.model.ids import describe_id, describe_origin
from alphorn.testing.frame_text import describe_body

ROWS_MAX = 20  # of one kind, unless all are asked for
NO_FRAME = "unreadable"


class FrameRow(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of a capture."""

    at: str  # UTC
    direction: str  # sent or received
    address: str
    origin: str = ""  # the run of the member that sent it
    epoch: str = ""
    frame: str
    details: str


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(inspect)


def inspect(
    path: Annotated[Path, typer.Argument(help="A store, a node's folder, or a capture file.", show_default=False)],
    *,
    every: Annotated[bool, typer.Option("--all", help=f"Print every row, not the first {ROWS_MAX} of a kind.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every row as one JSON object per line.")] = False,
) -> None:
    """Decode a store or a frame capture; exit code 1 when a record of the store is damaged or missing."""
    if not path.exists():
        raise Misuse(f"{path} does not exist; name a store's directory or a capture file")
    if path.is_dir():
        if not _inspect_store(path, every=every, as_json=as_json):
            raise typer.Exit(1)
    else:
        _inspect_capture(path, every=every, as_json=as_json)


def _inspect_store(path: Path, *, every: bool, as_json: bool) -> bool:
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    faults: list[Row] = []
    rows = _watched(inspect_store(path), faults)
    if as_json:
        for row in rows:
            _print_json(row)
    else:
        for table, of_table in itertools.groupby(rows, key=lambda row: row.table):
            _print_table(table, of_table, counts, sizes, every=every)
        Console().print(_summary(counts, sizes))
    return not faults


def _watched(rows: Iterator[Row], faults: list[Row]) -> Iterator[Row]:
    for row in rows:
        if is_faulty(row):
            faults.append(row)
        yield row


def _print_table(
    name: str,
    rows: Iterator[Row],
    counts: Counter[tuple[str, str]],
    sizes: Counter[tuple[str, str]],
    *,
    every: bool,
) -> None:
    """The first rows of a table, and every one that is not well."""
    table = Table("key", "verdict", "details", title=name, title_justify="left")
    for place, row in enumerate(rows):
        counts[name, row.verdict] += 1
        sizes[name, row.verdict] += row.size
        if every or place < ROWS_MAX or row.verdict != OK:
            table.add_row(row.key, row.verdict if row.verdict == OK else f"[red]{row.verdict}[/]", row.details)
    Console(highlight=False).print(table)


def _summary(counts: Counter[tuple[str, str]], sizes: Counter[tuple[str, str]]) -> Table:
    table = Table("table", "verdict", "records", "bytes", title="summary", title_justify="left")
    for (name, verdict), count in counts.items():
        size = sizes[name, verdict]
        table.add_row(name, verdict, str(count), str(size) if size else "")
    return table


def _inspect_capture(path: Path, *, every: bool, as_json: bool) -> None:
    counts: Counter[str] = Counter()
    table = Table("at", "direction", "address", "origin", "epoch", "frame", "details")
    for record in read_capture(path):
        for row in _frame_rows(record):
            counts[row.frame] += 1
            if as_json:
                _print_json(row)
            elif every or counts[row.frame] <= ROWS_MAX:
                table.add_row(*msgspec.structs.astuple(row))
    if not as_json:
        Console(highlight=False).print(table)
        summary = Table("frame", "count", title="summary", title_justify="left")
        for name, count in counts.most_common():
            summary.add_row(name, str(count))
        Console().print(summary)


def _frame_rows(record: Captured) -> Iterator[FrameRow]:
    at = datetime.datetime.fromtimestamp(record.unix_ns / 1e9, tz=datetime.UTC).isoformat(timespec="microseconds")
    direction = record.direction.name.lower()
    try:
        frames = decode_all(record.data)
    except PeerViolation as violation:
        yield FrameRow(at=at, direction=direction, address=record.address, frame=NO_FRAME, details=str(violation))
        return
    for frame in frames:
        yield FrameRow(
            at=at,
            direction=direction,
            address=record.address,
            origin=describe_origin(frame.origin),
            epoch=describe_epoch(frame.epoch),
            frame=frame.name,
            details=describe_body(frame.body, describe_id),
        )


def _print_json(row: Row | FrameRow) -> None:
    sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
