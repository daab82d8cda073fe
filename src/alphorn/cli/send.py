"""`alphorn send`: one message, or many with the same body."""

import contextlib
import io
import json
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from alphorn import Producer
from alphorn.cli.talking import JsonOption, UrlOption, connected, destination_of
from alphorn.cli.waiting import Pace, explaining
from alphorn.client.packing import MESSAGE_BYTES_MAX
from alphorn.client.url import DEFAULT_URL
from alphorn.model.errors import MessageTooLarge, Misuse

BODY_BYTES_MAX = MESSAGE_BYTES_MAX
BATCH = 1_000  # messages handed over in one call
UNCONFIRMED = "does not confirm yet"
FULL = "takes no more at the moment, and `alphorn status` tells why"  # consumers are slow, or it has no primary
PROGRESS_FROM = 10_000  # messages; fewer are sent before a bar would be read


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(send)


def send(
    destination: Annotated[
        str, typer.Argument(metavar="DEST", help="As queue:orders or topic:prices; a bare name is a queue.")
    ],
    body: Annotated[
        str | None, typer.Argument(metavar="BODY", help="The text to send; without it standard input is sent.")
    ] = None,
    *,
    count: Annotated[int, typer.Option(min=1, help="Send it so many times.")] = 1,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="K=V", help="May be given again. Numbers, true and false are typed; '\"7\"' is text."
        ),
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=9, help="9 is the most urgent.")] = 4,
    ttl: Annotated[float | None, typer.Option(min=0, help="Seconds after which it expires.")] = None,
    delay: Annotated[float | None, typer.Option(min=0, help="Seconds before it is delivered.")] = None,
    key: Annotated[str | None, typer.Option(help="Of its group, or of the value that it replaces.")] = None,
    kind: Annotated[str | None, typer.Option("--type", help="What it is, for who receives it.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="What it answers, or is to be answered with.")] = None,
    reply_to: Annotated[str | None, typer.Option(help="Where answers go, as queue:answers.")] = None,
    file: Annotated[
        str | None, typer.Option(help="Send this file's bytes, however many they are; - is standard input.")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Send messages; the exit code is 0 once all of them are safe in the cluster.

    A text stays a text; standard input is sent as text where it is UTF-8, else as bytes; a file always as bytes, and as
    a stream where it has more than 3 MB.
    """
    if body is not None and file is not None:
        raise Misuse("there are two bodies, an argument and --file; give one")
    fields = {"ttl": ttl, "delay": delay, "key": key, "type": kind, "correlation_id": correlation_id}
    fields |= {"reply_to": destination_of(reply_to) if reply_to is not None else None}
    settings: dict[str, Any] = {"properties": parse_properties(properties or []), "priority": priority}
    settings |= {name: value for name, value in fields.items() if value is not None}
    if file is not None:
        with open_file(file) as source:
            _send(destination, begin(source, count), count, settings, url, as_json)
        return
    _send(destination, body if body is not None else read_input(), count, settings, url, as_json)


def _send(
    destination: str, body: "str | bytes | Begun", count: int, settings: dict[str, Any], url: str, as_json: bool
) -> None:
    target = destination_of(destination)
    with connected(url) as connection:
        began = time.monotonic()
        with explaining(f"{target} does not answer yet"):
            producer = connection.session().producer(target)

        def what() -> str:
            return f"{target} {FULL if producer.is_blocked() else UNCONFIRMED}"

        with explaining(what) as pace:
            ids = _send_all(producer, body, count, settings, pace)
        seconds = time.monotonic() - began
    if as_json:
        print(json.dumps({"destination": target, "sent": count, "seconds": round(seconds, 6), "id": ids}))
    elif ids is not None:
        print(ids)
    else:
        print(f"sent {count:,} messages to {target} in {seconds:.2f} s, {count / max(seconds, 1e-9):,.0f} a second")


def _send_all(
    producer: Producer, body: "str | bytes | Begun", count: int, settings: dict[str, Any], pace: Pace
) -> str | None:
    """Sends and waits until everything is committed; gives the id of a single message."""
    if isinstance(body, Begun):
        body.pace = pace
        with showing_bytes(body.size) as body.on_read:
            return str(producer.send_stream(body, **settings).result())
    if count == 1:
        receipt = producer.send(body, **settings)
        producer.flush()
        return str(receipt.result())
    for size in shown(batches(count), count):
        producer.send_many([body] * size, **settings)
        pace.steps += 1
    producer.flush()
    return None


def batches(count: int) -> Iterator[int]:
    """The sizes of the calls that send so many messages."""
    whole, rest = divmod(count, BATCH)
    for _ in range(whole):
        yield BATCH
    if rest:
        yield rest


def shown(sizes: Iterator[int], total: int) -> Iterator[int]:
    """The same sizes, with a progress bar on a terminal when there is much to do."""
    console = Console(stderr=True)
    if total <= PROGRESS_FROM or not console.is_terminal:
        yield from sizes
        return
    columns = (TextColumn("sending"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("sending", total=total)
        for size in sizes:
            yield size
            progress.advance(task, size)


@contextlib.contextmanager
def showing_bytes(total: int | None) -> Iterator[Callable[[int], None]]:
    """What to call with each number of bytes that were read, for a progress bar on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda count: None
        return
    columns = (TextColumn("sending"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("sending", total=total)
        yield lambda count: progress.advance(task, count)


def parse_properties(pairs: list[str]) -> dict[str, Any]:
    """`k=v` pairs; what reads as a number, true, false or a quoted text in JSON is that, everything else is text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise Misuse(f"the property {pair!r} has no name or no value; write it as --property name=value")
        try:
            typed = json.loads(value)
        except ValueError:
            typed = value
        is_typed = isinstance(typed, str | int | bool) or (isinstance(typed, float) and math.isfinite(typed))
        found[key] = typed if is_typed else value
    return found


class Begun:
    """A stream of which something was read already; it tells who wants to know how far it has come."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest
        self.size = size_of(rest)
        self.pace = Pace()
        self.on_read: Callable[[int], None] = lambda count: None

    def read(self, size: int) -> bytes:
        """The next bytes, as they come."""
        self.pace.is_ours = True
        data = self._read(size)
        self.pace.is_ours = False
        self.pace.steps += 1
        self.on_read(len(data))
        return data

    def _read(self, size: int) -> bytes:
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        return read_some(self._rest, size, is_waiting=False)


def size_of(source: BinaryIO) -> int | None:
    """How many bytes a file has; None for what is no file, such as a pipe."""
    try:
        found = os.fstat(source.fileno())
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


@contextlib.contextmanager
def open_file(name: str) -> Iterator[BinaryIO]:
    """A file to read, or standard input; raises `Misuse`."""
    if not name:
        raise Misuse("--file names no file; give its path, or - for standard input")
    if name == "-":
        yield _standard_input()
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(Path(name).open("rb"))
        except OSError as error:
            raise Misuse(f"the file {name} cannot be read: {error.strerror}; check the path") from None
        yield file


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise Misuse("standard input is closed; give the body as an argument, or a file with --file")
    return sys.stdin.buffer


def _called(source: BinaryIO) -> str:
    name = getattr(source, "name", 0)
    return f"the file {name}" if isinstance(name, str) else "standard input"


def read_some(source: BinaryIO, size: int, *, is_waiting: bool) -> bytes:
    """So many bytes, or (not waiting) as many as there are; raises `Misuse`."""
    try:
        if isinstance(source, io.BufferedReader) and not is_waiting:
            return source.read1(size)
        return source.read(size)
    except OSError as error:
        raise Misuse(f"{_called(source)} cannot be read: {error.strerror}; check what it is, and its disk") from None


def begin(source: BinaryIO, count: int) -> bytes | Begun:
    """All of it where one plain message holds that; otherwise a stream, which can be sent once."""
    head = read_some(source, BODY_BYTES_MAX + 1, is_waiting=True)
    if len(head) <= BODY_BYTES_MAX:
        return head
    if count > 1:
        raise Misuse("so much is sent as a stream, and once; leave out --count")
    return Begun(head, source)


def read_input() -> str | bytes:
    """Standard input, as text where it is UTF-8."""
    source = _standard_input()
    if source.isatty():
        print("alphorn: type the message, Ctrl-D ends it", file=sys.stderr)
    data = read_some(source, BODY_BYTES_MAX + 1, is_waiting=True)
    if len(data) > BODY_BYTES_MAX:
        raise MessageTooLarge("standard input has more than 3 MB; send it as a stream, with --file -")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
