"""`alphorn move`: a destination goes to another channel while it is used."""

import json
from typing import Annotated

import typer

from alphorn.cli.talking import JsonOption, UrlOption, channel_of, connected, destination_of
from alphorn.client.url import DEFAULT_URL


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(move)


def move(
    destination: Annotated[str, typer.Argument(metavar="DEST", help="As in queue:orders; a bare name is a queue.")],
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="As in channel-2; `alphorn status` names them.")],
    *,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Move a destination to another channel while it is used; returns when it is there.

    Nothing is lost, repeated or overtaken. A move goes on by itself whatever node dies, or when this command ends.
    """
    name = destination_of(destination)
    with connected(url, f"{name} is not on {channel} yet") as connection:
        connection.destinations.move(name, channel_of(channel))
    print(json.dumps({"destination": name, "channel": channel}) if as_json else f"{name} is on {channel}")
