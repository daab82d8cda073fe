"""How a simulated upper layer takes over a checkpoint: it loads the state, fetches what that needs, and says so.

Entries that are missing or damaged are fetched from the disk of a server that runs, over a link of the upper layer's
own that always works. Where a server that runs has a newer checkpoint and none has the entry, the one being installed
is of no use, and it is refused; while none of both is to be had, it is tried again later. A checkpoint counts as
installed once everything it needs is durable.
"""

from typing import TYPE_CHECKING

from alphorn.bus.entries import digest_of
from alphorn.bus.machine import CheckpointInstalled, CheckpointRefused, Persist, PutEntry, Retain, Write
from alphorn.bus.storage import CheckpointInfo
from alphorn.testing.watch import Violation

if TYPE_CHECKING:
    from alphorn.testing.node import SimulatedNode

UPPER_TOKEN = -1  # marks hand-overs of the upper layer, which no machine waits for
RETRY_S = 0.005


class SimulatedInstalling:
    """The upper layer of one member, as far as it takes over checkpoints and keeps what they need."""

    __slots__ = ("_node", "_sequence", "install_s", "refused")

    def __init__(self, node: "SimulatedNode") -> None:
        self._node = node
        self._sequence = 0  # of the checkpoint under way; another takes its place
        self.install_s = 0.0
        self.refused = 0

    @property
    def is_busy(self) -> bool:
        """Whether the upper layer has no state yet that belongs to a checkpoint it was given."""
        return bool(self._sequence)

    def reset(self) -> None:
        """The process begins anew."""
        self._sequence = 0

    def begin(self, sequence: int) -> None:
        """Installs the checkpoint on this member's disk, instead of one that is not finished yet."""
        node = self._node
        info = node.disk.checkpoint()
        if isinstance(info, CheckpointInfo) and info.sequence > sequence:  # replaced before it was durable
            node.around.schedule.after(0.0, self._refuse, node.run, sequence)
            return
        node.replica.load(self._read(sequence), sequence)
        self._sequence = sequence
        node.around.schedule.after(node.around.draw_install_s() + self.install_s, self._finish, node.run, sequence)

    def mend(self) -> None:
        """Fetches again what the state needs and the disk cannot read."""
        writes = [self._fetch(number) for number in self._missing()]
        puts: list[Write] = [write for write in writes if write is not None]
        if puts:
            self._node.persist(Persist(UPPER_TOKEN, puts))

    def _finish(self, run: int, sequence: int) -> None:
        node = self._node
        if (run, sequence) != (node.run, self._sequence) or not node.is_up:
            return
        if node.is_running:
            self.mend()
            if self._missing() and self._is_useless(sequence):
                self.refused += 1
                node.feed(CheckpointRefused(sequence))
                return
        if not node.is_running or self._missing() or self._undurable():
            node.around.schedule.after(RETRY_S, self._finish, run, sequence)
            return
        self._sequence = 0
        node.persist(Persist(UPPER_TOKEN, [Retain(sequence, node.replica.needs())]))
        for callback in node.around.watch.installed:
            callback(node, sequence)
        node.feed(CheckpointInstalled(sequence))

    def _refuse(self, run: int, sequence: int) -> None:
        if run == self._node.run and self._node.is_up:
            self._node.feed(CheckpointRefused(sequence))

    def _read(self, sequence: int) -> bytes:
        node, disk = self._node, self._node.disk
        info = disk.checkpoint()
        if not isinstance(info, CheckpointInfo) or info.sequence != sequence:
            raise Violation("checkpoint", f"{node.name} installs {sequence}, and its disk has {info}")
        chunks = [disk.checkpoint_chunk(info.sequence, place) for place in range(info.chunks)]
        whole = b"".join(chunk for chunk in chunks if isinstance(chunk, bytes))
        if digest_of(whole) != info.digest or bool(whole) != node.around.config.makes_checkpoints:
            raise Violation("checkpoint", f"{node.name} installs {sequence}, whose chunks are not all there")
        return whole

    def _missing(self) -> list[int]:
        return [number for number in self._needed() if not isinstance(self._node.disk.entry(number), bytes)]

    def _undurable(self) -> list[int]:
        return [number for number in self._needed() if not self._node.disk.durable.is_intact(number)]

    def _needed(self) -> list[int]:
        if not self._node.keeps_entries:
            return []
        return [number for first, last in self._node.replica.needs() for number in range(first, last + 1)]

    def _fetch(self, number: int) -> PutEntry | None:
        for peer in self._node.around.servers():
            # What a peer has not applied may be something that was never committed.
            may_serve = peer.is_running and number <= peer.replica.applied
            payload = peer.disk.entry(number) if may_serve else None
            if isinstance(payload, bytes):
                return PutEntry(number, payload, digest_of(payload))
        return None

    def _is_useless(self, sequence: int) -> bool:
        infos = [peer.disk.checkpoint() for peer in self._node.around.servers() if peer.is_running]
        return any(isinstance(info, CheckpointInfo) and info.sequence > sequence for info in infos)
