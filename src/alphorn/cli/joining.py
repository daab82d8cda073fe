"""What the commands share that join a cluster for a while: nobody is told that they come and go."""

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

from alphorn.client.packing import check_text
from alphorn.cluster import WorkProcess, join
from alphorn.model.process_conversation import COMMAND


@contextlib.contextmanager
def joined(url: str, command: str) -> Iterator[WorkProcess]:
    """A work process for this command, which leaves at the end; what others tell it is lost."""
    check_text("the URL", url)
    with join(
        url, name=f"{COMMAND}{command}:{socket.gethostname()[:64]}:{os.getpid()}:{os.urandom(4).hex()}"
    ) as process:
        process.on_message(_ignore)
        yield process


def _ignore(message: Any) -> None:
    """Nobody has anything to say to a command."""
