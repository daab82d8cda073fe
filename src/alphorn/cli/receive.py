"""`alphorn receive`, `browse` and `tail`: messages out of a cluster, onto standard output."""

import contextlib
import datetime
import select
import sys
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer

from alphorn import Consumer, Pattern
from alphorn.cli.talking import (
    JsonOption,
    SelectorOption,
    UrlOption,
    connected,
    destination_of,
    find_destination,
    source_of,
    write_message,
)
from alphorn.cli.waiting import explaining, within
from alphorn.client.url import DEFAULT_URL
from alphorn.model.destinations import DestinationKind, parse_destination
from alphorn.model.errors import Misuse, Unavailable

AT_ONCE = 1_000  # messages taken in one call
WAIT_S = 5.0
OPEN_S_MIN = 2.0  # to begin at all, where nothing else is waited for
LOOK_S = 0.5  # how often a follower looks up, so that Ctrl-C is heard and a reader that went away is noticed
NUMBER_DIGITS = 18  # of the largest sequence number that is taken

DestinationArgument = Annotated[
    str,
    typer.Argument(
        metavar="DEST",
        help="As queue:orders or topic:prices; a bare name is a queue. Many: 'glob:prices.*', 'regex:topic:a|b'.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(receive)
    app.command()(browse)
    app.command()(tail)


def receive(
    destination: DestinationArgument,
    *,
    count: Annotated[int, typer.Option(min=1, help="Take so many.")] = 1,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait, for the cluster and for each next message.")
    ] = WAIT_S,
    selector: SelectorOption = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Take messages and print them; the exit code is 0 when as many came as were asked for.

    A message is acknowledged after it was written to standard output, so none is lost on the way. With --json the bytes
    of a body, streamed or not, are in body_base64.
    """
    target = source_of(destination)
    prefetch = min(count, AT_ONCE)
    with connected(url) as connection:
        session = connection.session(ack="client")
        consumer = _open(target, timeout, lambda: session.consumer(target, selector=selector, prefetch=prefetch))
        taken = _take(consumer, count, timeout, as_json=as_json)
        session.close()
    if taken < count:
        raise Unavailable(
            f"{taken} of {count} messages came from {target}, and then none for {timeout:g} s; "
            "wait longer with --timeout, or ask for fewer"
        )


def _open(target: str | Pattern, timeout: float, open_consumer: Callable[[], Consumer]) -> Consumer:
    with explaining(f"{target} does not answer yet"):
        return within(max(timeout, OPEN_S_MIN), open_consumer, f"{target} did not answer")


def _take(consumer: Consumer, count: int, timeout: float, *, as_json: bool) -> int:
    taken = 0
    while taken < count:
        messages = consumer.receive_many(min(count - taken, AT_ONCE), timeout)
        if not messages:
            break
        for message in messages:
            write_message(message, as_json=as_json, is_taken=True)
        sys.stdout.buffer.flush()
        messages[-1].acknowledge()
        taken += len(messages)
    return taken


def browse(
    destination: Annotated[str, typer.Argument(metavar="QUEUE", help="As queue:orders, or its bare name.")],
    *,
    count: Annotated[int, typer.Option(min=0, help="Show at most so many; 0 shows all.")] = 0,
    selector: SelectorOption = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Print the messages of a queue, and leave them there; one that does not exist is an error, and is not created."""
    target = destination_of(destination)
    if not target.startswith("queue:"):
        raise Misuse(f"{target} is no queue; only queues are browsed, a topic is followed with `alphorn tail`")
    with connected(url) as connection:
        with explaining(f"{target} does not answer yet"):
            if not parse_destination(target).is_reserved:  # what belongs to the system is there when it is asked for
                find_destination(connection, target)
            browser = connection.session().browser(target, selector=selector)
        for shown, message in enumerate(browser, 1):
            write_message(message, as_json=as_json)
            if shown == count:
                break
        sys.stdout.buffer.flush()


def tail(
    destination: Annotated[
        str, typer.Argument(metavar="TOPIC", help="As topic:prices, or its bare name; many at once: 'glob:prices.*'.")
    ],
    *,
    count: Annotated[int, typer.Option(min=0, help="End after so many; 0 goes on until Ctrl-C.")] = 0,
    start: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="new, earliest, a sequence number, or a time as 2026-01-31T08:00 (with Z or +02:00, else of this "
            "machine); what is retained is replayed.",
        ),
    ] = "new",
    selector: SelectorOption = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Follow a topic: print each message as it is published, until Ctrl-C.

    Ctrl-C is its ordinary end, with exit code 0; with --count it ends before as many came as were asked for.
    """
    target = source_of(destination, kind="topic")
    if isinstance(target, Pattern) and target.kind is None:
        target = msgspec.structs.replace(target, kind=DestinationKind.TOPIC)
    kind = target.kind if isinstance(target, Pattern) else parse_destination(target).kind
    if kind is not DestinationKind.TOPIC:
        raise Misuse(f"{target} is no topic; take its messages with `alphorn receive`, or look with `alphorn browse`")
    where = parse_start(start)
    with connected(url) as connection:
        with explaining(f"{target} does not answer yet"):
            consumer = connection.session().consumer(target, selector=selector, start=where)
        with contextlib.nullcontext() if count else contextlib.suppress(KeyboardInterrupt):
            _follow(consumer, count, as_json=as_json)


def _follow(consumer: Consumer, count: int, *, as_json: bool) -> None:
    shown = 0
    while not count or shown < count:
        wanted = min(count - shown, AT_ONCE) if count else AT_ONCE
        messages = consumer.receive_many(wanted, LOOK_S)
        for message in messages:
            write_message(message, as_json=as_json)
            shown += 1
        sys.stdout.buffer.flush()
        if not messages:
            check_reader()


def check_reader() -> None:
    """Raises `BrokenPipeError` where nobody reads standard output any more, which else only the next message shows."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    if any(event & select.POLLERR for _, event in output.poll(0)):
        raise BrokenPipeError


def parse_start(text: str) -> str | int | datetime.datetime:
    """Where a follower begins; raises `Misuse`."""
    if text in ("new", "earliest"):
        return text
    if text.isascii() and text.isdigit():
        if len(text) > NUMBER_DIGITS:
            raise Misuse(f"--start has a number of {len(text)} digits, and no sequence number has so many; check it")
        return int(text)
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        raise Misuse(
            f"--start {text!r} is no place in a topic; write new, earliest, a sequence number or a time like "
            "2026-01-31T08:00"
        ) from None
