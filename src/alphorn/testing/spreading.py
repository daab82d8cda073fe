"""Names whose destinations are on different channels, as new destinations are placed."""

from itertools import count

from alphorn.client_manager.directory import Directory
from alphorn.model.destinations import parse_destination


def spread(prefix: str, number: int, channels: int) -> list[str]:
    """So many names that begin with this; each is on the channel after that of the one before."""
    directory = Directory(channels)
    found: list[str] = []
    for place in count():
        if len(found) == number:
            break
        name = f"{prefix} {place}"
        if directory.channel_for(parse_destination(name)) == len(found) % channels:
            found.append(name)
    return found
