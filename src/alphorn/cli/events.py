"""`alphorn events`: what has happened in a cluster, and what happens from now on, with what operators hang on it."""

import contextlib
import datetime
import queue
import sys
from typing import Annotated

import typer

from alphorn.cli.hooks import Hook, hook_command, hook_url
from alphorn.cli.joining import joined
from alphorn.cli.receive import LOOK_S, check_reader
from alphorn.cli.talking import JsonOption, UrlOption, to_json
from alphorn.client.url import DEFAULT_URL
from alphorn.cluster import Event, WorkProcess
from alphorn.model.events import EVERYTHING, KINDS, MISSED

REMEMBERED = 1_000  # that a cluster has at most
WAITING_MAX = 100  # that came and were not shown; what comes then waits in the cluster


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(events)


def events(
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show those that come, until Ctrl-C.")] = False,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only events of this kind, such as node_down; may be repeated."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=REMEMBERED, help="Without -f: so many of the last ones.")] = 50,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec", metavar="COMMAND", help="Run this for each event, with the event as JSON on its standard input."
        ),
    ] = None,
    post: Annotated[
        str | None, typer.Option("--post", metavar="URL", help="Post each event to this URL, as JSON.")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show the last events of a cluster, or with -f those that come: nodes up and down, takeovers, full disks.

    A command that --exec names runs without a shell, one event after the other; fields of the event are in its
    environment too, as ALPHORN_EVENT_KIND, ALPHORN_EVENT_NODE and so on. What fails is told, and the next event comes.
    """
    wanted = list(dict.fromkeys(kinds or [EVERYTHING]))
    for kind in wanted:
        KINDS.check(kind)
    hooks: list[Hook] = [] if command is None else [hook_command(command, is_output_ours=as_json)]
    hooks += [] if post is None else [hook_url(post)]
    with (
        contextlib.suppress(KeyboardInterrupt) if follow else contextlib.nullcontext(),
        joined(url, "events") as process,
    ):
        if follow:
            _follow(process, wanted, hooks, as_json=as_json)
        found = process.events.recent(REMEMBERED)
        for event in [event for event in found if {event.kind, EVERYTHING} & set(wanted)][-count:]:
            _show(event, hooks, as_json=as_json)


def _follow(process: WorkProcess, kinds: list[str], hooks: list[Hook], *, as_json: bool) -> None:
    """Ends by Ctrl-C, or when nobody reads standard output any more."""
    came: queue.Queue[Event] = queue.Queue(WAITING_MAX)
    for kind in kinds if EVERYTHING in kinds else dict.fromkeys([*kinds, MISSED]):
        process.events.on(kind, came.put)
    is_alone = False
    while True:
        try:
            event = came.get(timeout=LOOK_S)
        except queue.Empty:
            check_reader()
            is_alone = _tell_loneliness(process, is_alone=is_alone)
            continue
        _show(event, hooks, as_json=as_json)


def _tell_loneliness(process: WorkProcess, *, is_alone: bool) -> bool:
    if not process.servers() and not is_alone:
        _complain("no message server is reached any more; trying again, Ctrl-C gives up")
    elif process.servers() and is_alone:
        _complain("message servers are reached again")
    return not process.servers()


def _show(event: Event, hooks: list[Hook], *, as_json: bool) -> None:
    print(to_json(event.as_dict()) if as_json else line_of(event), flush=True)
    for hook in hooks:
        if fault := hook(event):
            _complain(f"{fault}, for {event.kind} of {event.node or event.channel}; going on")


def line_of(event: Event) -> str:
    """An event as a person reads it: when, what, to whom, and the rest."""
    when = datetime.datetime.fromtimestamp(event.time).astimezone().isoformat(" ", "seconds")[:19]
    known = {"channel": event.channel, "epoch": event.epoch} if event.channel else {}
    rest = " ".join(f"{name}={value}" for name, value in (known | event.details).items())
    text = f"{when}  {event.kind:<20} {event.node}  {rest}".rstrip()
    return "".join(character if character.isprintable() else "?" for character in text)


def _complain(sentence: str) -> None:
    print(f"alphorn: {sentence}", file=sys.stderr, flush=True)
