"""`alphorn dlq`: lists dead messages, sends them back to where they died, and lets go of them."""

import datetime
from typing import Annotated, Any

import typer

from alphorn import Connection, Message
from alphorn.cli.tables import open_console, show_rows
from alphorn.cli.talking import (
    JsonOption,
    UrlOption,
    connected,
    destination_of,
    to_json,
)
from alphorn.client.url import DEFAULT_URL
from alphorn.model.destinations import DEAD_MESSAGES, parse_destination, split_channel
from alphorn.model.errors import InvalidDestination, Misuse, Unavailable
from alphorn.model.status_pages import check_complete

SHOWN = 100
SILENCE = "the cluster does not answer yet"

QueueArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="QUEUE",
        help="A dead letter queue that a policy names; without it queue:_DMQ, the system's own of every channel.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(no_args_is_help=True, help="List, redrive and purge dead messages.")
    group.command("list")(list_dead)
    group.command()(redrive)
    group.command()(purge)
    app.add_typer(group, name="dlq")


def list_dead(
    queue: QueueArgument = None,
    *,
    count: Annotated[int, typer.Option(min=0, help="Show at most so many; 0 shows all.")] = SHOWN,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """List dead messages: where, when and why each died; the bodies are shown by `alphorn browse`.

    With --json each is one object on a line of its own. While a channel has no primary, those of the others are listed,
    and the exit code is 1.
    """
    rows: list[dict[str, Any]] = []
    with connected(url, SILENCE) as connection:
        targets, lost = _queues_of(connection, queue)
        for target in targets:
            for message in connection.session().browser(target):
                if count and len(rows) == count:
                    break
                rows.append(_row(target, message))
    if as_json:
        for row in rows:
            print(to_json(row))
    else:
        show_rows(open_console(), "dead messages", [row | {"died": _moment(row["died"])} for row in rows])
    check_complete(lost)


def redrive(queue: QueueArgument = None, *, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Send dead messages back to where they died, and tell how many.

    Where that is gone they stay; all others are sent back, and the exit code is 1. So it is while a channel has no
    primary.
    """
    counts: dict[str, int] = {}
    refusals: list[InvalidDestination] = []
    with connected(url, SILENCE) as connection:
        targets, lost = _queues_of(connection, queue)
        for target in targets:
            try:
                counts[target] = connection.destinations.redrive(target)
            except InvalidDestination as error:
                refusals.append(error)
    if counts or not (refusals or lost):
        _tell(counts, "sent back where they died", as_json=as_json)
    if refusals:
        raise InvalidDestination("; ".join(map(str, refusals)))
    check_complete(lost)


def purge(
    queue: Annotated[
        str,
        typer.Argument(
            metavar="QUEUE",
            help="As queue:_DMQ for that of every channel, queue:_DMQ@channel-2, or one that a policy names.",
        ),
    ],
    *,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Let go of all messages in a dead letter queue, for ever, and tell how many.

    While a channel has no primary, those of the others are let go, and the exit code is 1.
    """
    with connected(url, SILENCE) as connection:
        targets, lost = _queues_of(connection, queue)
        counts = {target: connection.destinations.purge(target) for target in targets}
    _tell(counts, "let go of", as_json=as_json)
    check_complete(lost)


def _tell(counts: dict[str, int], what: str, *, as_json: bool) -> None:
    if as_json:
        print(to_json({"queues": list(counts), "messages": sum(counts.values()), "counts": counts}))
    elif not counts:
        print("there are no dead messages")
    else:
        for queue, count in counts.items():
            print(f"{queue}: {count:,} message{' was' if count == 1 else 's were'} {what}")


def _queues_of(connection: Connection, queue: str | None) -> tuple[list[str], list[str]]:
    """The dead letter queues that are meant, and the channels where there may be more but nobody can be asked.

    Raises `Misuse` for a queue that people send to.
    """
    found = connection.status()
    rows, lost = found.get("destinations", []), found["lost"]
    system = f"queue:{DEAD_MESSAGES}"
    target = system if queue is None else destination_of(queue)
    if target == system:
        return [f"{system}@{row['channel']}" for row in rows if row["name"] == system], lost
    if str(split_channel(parse_destination(target))[0]) == system:
        return [target], []
    named = {f"queue:{row['policy']['dead_letter']}" for row in rows if row.get("policy", {}).get("dead_letter")}
    parts = [row["name"] for row in rows if row["name"] in (target, f"{target}@{row['channel']}")]
    if named.intersection(parts):
        return parts, lost
    if lost:
        raise Unavailable(f"what {target} is for cannot be told: {lost[0]} has no primary now; try again soon")
    raise Misuse(f"{target} is no dead letter queue; name queue:_DMQ, or one that is dead_letter in a policy")


def _row(target: str, message: Message) -> dict[str, Any]:
    history = message.history
    return {
        "died": history["time"] / 1000 if "time" in history else None,
        "destination": history.get("destination"),
        "reason": history.get("reason"),
        "deliveries": history.get("deliveries"),
        "id": message.id,
        "queue": target,
    }


def _moment(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
