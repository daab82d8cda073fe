"""Lines that tell a person what happens in a cluster, beside the program that runs it."""

import asyncio
from collections.abc import Callable

from alphorn.aio import join_cluster
from alphorn.model.errors import Error
from alphorn.model.events import EVERYTHING, MISSED, Event
from alphorn.model.process_conversation import COMMAND

NAME = f"{COMMAND}up"
JOIN_S = 10.0  # so long joining may take before it is tried again,
PAUSE_S = 2.0  # after a while

# Of what people want to see beside a cluster; for all else there is `alphorn events`.
_SENTENCES = {
    "node_up": "{node} has joined",
    "node_down": "{node} is away",
    "node_suspected": "{node} is silent, and may be down",
    "primary_changed": "{node} is primary of {channel} now",
    "channel_lost": "{channel} has no primary; what is on it waits for its Message Managers",
    "backup_synchronised": "{node} follows {channel} closely",
    "backup_lagging": "{node} has fallen behind on {channel}",
    "destination_moved": "{destination} has moved to {channel}",
    "disk_low": "the disk of {node} has no room for messages; producers wait",
    "disk_ok": "the disk of {node} has room for messages again",
    MISSED: "{count} events went by untold",
}


def sentence_of(event: Event) -> str:
    """What a person is told of an event; empty for nothing."""
    if event.kind.startswith("node_") and event.node.startswith(COMMAND):
        return ""
    if event.kind == "node_down" and event.details.get("reason") == "left":
        return f"{event.node} has left"
    template = _SENTENCES.get(event.kind, "")
    try:
        return template.format(**event.as_dict())
    except KeyError:  # of another version, with other details
        return ""


async def tell_happenings(url: str, say: Callable[[str], None]) -> None:
    """Says what happens, until it is cancelled. Without a message server it says nothing, and waits for one."""

    def tell(event: Event) -> None:
        if sentence := sentence_of(event):
            say(sentence)

    while True:
        try:
            async with join_cluster(url, name=NAME, connect_timeout=JOIN_S) as process:
                process.events.on(EVERYTHING, tell)
                await asyncio.get_running_loop().create_future()
        except Error:
            await asyncio.sleep(PAUSE_S)
