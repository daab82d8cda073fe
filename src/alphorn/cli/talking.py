"""What the commands that talk to a cluster share: the URL, the destination's name, and a message as text or JSON."""

import base64
import contextlib
import json
import math
import shutil
import sys
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

import typer

from alphorn import Connection, Message, connect
from alphorn.cli.waiting import Link, ending, explaining
from alphorn.client.packing import check_text
from alphorn.client.url import URL_VARIABLE
from alphorn.model.destinations import parse_destination, split_channel
from alphorn.model.errors import Error, InvalidDestination, Misuse, Unavailable
from alphorn.model.patterns import Pattern, is_pattern, parse_pattern
from alphorn.model.system import SYSTEM

FIELDS = (
    "id destination properties priority timestamp expiration delivery_count redelivered correlation_id reply_to type "
    "key sequence content_type size"
).split()

ADDED = ("depth", "held", "consumers", "subscriptions", "messages")  # of what is on several channels
PIECE_BYTES = 3 << 18  # of a streamed body in base64, which takes three bytes at a time

UrlOption = Annotated[
    str, typer.Option("--url", envvar=URL_VARIABLE, help="The cluster, as alphorn://host:port,host2:port.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output.")]
SelectorOption = Annotated[
    str | None, typer.Option(help="Only messages that this selects, as in \"region = 'eu' AND amount > 10\".")
]


@contextlib.contextmanager
def connected(url: str, waits_for: str = "") -> Iterator[Connection]:
    """A connection, which ends with the `with`; inside of it who waits long is told what for, where that is given.

    That the cluster is not reached any more is told in any case.
    """
    check_text("the URL", url)
    with (
        ending(connect(url, on_event=Link().on_event)) as connection,
        explaining(waits_for) if waits_for else contextlib.nullcontext(),
    ):
        yield connection


def destination_of(text: str, *, kind: str = "queue") -> str:
    """The destination's whole name; a bare one is of this kind. Raises `InvalidDestination`."""
    if not text:
        raise Misuse("the destination has no name; write one like queue:orders or topic:prices")
    return str(parse_destination(text if ":" in text else f"{kind}:{text}"))


def channel_of(text: str) -> str:
    """A channel's name, which the cluster knows or not."""
    check_text("the channel's name", text)
    return text


def source_of(text: str, *, kind: str = "queue") -> str | Pattern:
    """What to receive from: a destination, or a pattern like glob:topic:prices.* of many."""
    return parse_pattern(text) if is_pattern(text) else destination_of(text, kind=kind)


def find_destination(connection: Connection, target: str) -> dict[str, Any]:
    """What the cluster knows of a destination; raises `InvalidDestination` where there is none, and creates none.

    What belongs to the system is on every channel, and their figures are added.
    """
    found, wanted = connection.status(), parse_destination(target)
    plain, channel = split_channel(wanted)
    rows = [
        row for row in found.get("destinations", []) if row["name"] == str(plain) and channel in ("", row["channel"])
    ]
    if (lost := found["lost"]) and (wanted in SYSTEM or not rows):
        what = f"what there is of {target}" if rows else f"whether there is {target}"
        raise Unavailable(f"{what} cannot be told: {lost[0]} has no primary now; try again soon")
    if not rows:
        raise InvalidDestination(f"there is no {target}; `alphorn destinations list` shows what there is")
    if wanted not in SYSTEM:
        return dict(rows[0])  # one that moves may be told twice
    sums = {name: sum(row[name] for row in rows) for name in ADDED}
    return dict(rows[0]) | sums | {"channel": ", ".join(row["channel"] for row in rows)}


def write_message(message: Message, *, as_json: bool, is_taken: bool = False) -> None:
    """Writes one message to standard output: a line of JSON, or the body alone and the end of the line.

    A body that was streamed is written as it comes, and nothing after it: it may be a file. As JSON it is told by its
    size, or written too where the message is taken from the cluster (`is_taken`).
    """
    output = sys.stdout.buffer
    if message.size is None or (as_json and not is_taken):
        output.write((json_of(message) if as_json else text_of(message.body)) + b"\n")
        return
    with message.open() as body:
        if as_json:
            _write_json(message, body, output)
        else:
            shutil.copyfileobj(body, output)


def _write_json(message: Message, body: BinaryIO, output: BinaryIO) -> None:
    """The object of `json_of` for a streamed body, of which only a piece is in memory."""
    output.write(b'{"body_base64": "')
    try:
        while piece := body.read(PIECE_BYTES):
            output.write(base64.b64encode(piece))
    except Error:
        output.write(b"\n")  # why it is cut off stands on a line of its own
        raise
    output.write(b'", ' + _encoded(_fields_of(message))[1:] + b"\n")


def text_of(body: object) -> bytes:
    """The body as a person reads it: texts and bytes as they are, everything else as JSON."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if isinstance(body, str):
        return body.encode(errors="surrogateescape")
    return to_json(body).encode(errors="replace")


def json_of(message: Message) -> bytes:
    """One object. Bytes are in `body_base64`, any other body is in `body`; times are seconds since 1970.

    Of a streamed body there is only the `size`.
    """
    body = message.body
    if isinstance(body, bytes | bytearray | memoryview):
        said: dict[str, object] = {"body_base64": base64.b64encode(body).decode()}
    else:
        said = {"body": body}
    return _encoded(said | _fields_of(message))


def to_json(value: object, *, indent: int | None = None) -> str:
    """JSON that every program reads: numbers that it does not have, such as NaN, are texts, and bytes are base64."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain, indent=indent)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=_plain, indent=indent)


def _finite(value: object) -> object:
    match value:
        case dict():
            return {key: _finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _fields_of(message: Message) -> dict[str, object]:
    return {field: getattr(message, field) for field in FIELDS}


def _encoded(said: dict[str, object]) -> bytes:
    return to_json(said).encode(errors="replace")


def _plain(value: object) -> object:
    """Bytes within a body or a property."""
    return base64.b64encode(value).decode() if isinstance(value, bytes | bytearray | memoryview) else str(value)
