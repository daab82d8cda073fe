"""`alphorn channel`: drains a channel, so that it can be removed, and opens it again."""

import json
from typing import Annotated

import typer

from alphorn.cli.talking import JsonOption, UrlOption, channel_of, connected
from alphorn.client.url import DEFAULT_URL
from alphorn.model.destinations import DEAD_MESSAGES

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="As in channel-2; `alphorn status` names them.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(help="Drain a channel, so that it can be removed, or open it again.", no_args_is_help=True)
    group.command()(drain)
    group.command(name="open")(open_again)
    app.add_typer(group, name="channel")


def drain(name: NameArgument, *, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Move everything off a channel while it is used, and let nothing new onto it.

    Temporary destinations stay until their connections end. The first channel has what belongs to the system and stays.
    """
    with connected(url, f"{name} is not drained yet") as connection:
        moved = connection.destinations.drain(channel_of(name))
        rows = [row for row in connection.status()["destinations"] if row["channel"] == name]
    found = [row["name"] for row in rows]
    dead = sum(row["depth"] for row in rows if row["name"] == f"queue:{DEAD_MESSAGES}")
    if as_json:
        print(json.dumps({"channel": name, "moved": moved, "left": found, "dead": dead}))
        return
    print(f"{moved} destinations were moved off {name}")
    if found:
        print(f"still there, of the system or temporary: {', '.join(found)}")
    if dead:
        messages = "message is" if dead == 1 else "messages are"
        print(
            f"{dead:,} dead {messages} gone when {name} is removed; see queue:{DEAD_MESSAGES}@{name} with alphorn dlq"
        )


def open_again(name: NameArgument, *, as_json: JsonOption = False, url: UrlOption = DEFAULT_URL) -> None:
    """Let new destinations onto a channel again that was drained."""
    with connected(url, f"{name} does not confirm yet") as connection:
        connection.destinations.open(channel_of(name))
    print(json.dumps({"channel": name}) if as_json else f"{name} takes new destinations again")
