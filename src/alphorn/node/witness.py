"""Runs a witness: a commit server of each channel, in a process that does nothing else.

Two machines with a Message Manager each need a third vote, and whoever gives it should die with neither of them.
"""

import asyncio

from alphorn.io.cluster_file import ClusterFile
from alphorn.node.reader import make_witness, start_all


class WitnessNode:
    """One witness."""

    def __init__(self, file: ClusterFile, name: str, *, founding: bool, beside: object = ()) -> None:
        self._me = file.node(name)
        used = [number for number, channel in enumerate(file.channels) if not channel.removed]
        self._members = [make_witness(self, file, self._me, number, founding=founding) for number in used]

    async def start(self) -> None:
        """Takes part in every channel's group."""
        self.stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await start_all(self._members)

    async def stop(self) -> None:
        """Leaves the groups in good order."""
        for member in self._members:
            await member.stop()

    def publish_log(self, lines: list[str]) -> None:
        """Nowhere: it orders nothing. They are in its log file."""

    def meet(self, half: object) -> None:
        """It has nothing to tell of its own."""

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return {"channels": [member.describe() for member in self._members]}

    def die_at(self, step: str, count: int) -> None:
        """For tests; it takes no such step."""

    def halt(self, reason: str) -> None:
        """It cannot go on."""
        if not self.stopped.done():
            self.stopped.set_result(reason)
