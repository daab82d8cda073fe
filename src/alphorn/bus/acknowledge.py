"""Tells the sequencer what is durable here: one frame for both roles, cumulative, said again when it may be lost.

Nothing is acknowledged under an epoch before the fence of that epoch is on this disk, nor while the ledger is being
replaced by a checkpoint.
"""

from alphorn.bus.commit_server import CommitServer
from alphorn.bus.data_server import DataServer
from alphorn.bus.frames import CommitAcknowledge
from alphorn.bus.station import Station
from alphorn.bus.synchroniser import Synchroniser


class Acknowledger:
    """This member's word to its sequencer."""

    __slots__ = ("_commit", "_data", "_said", "_station", "_synchroniser")

    def __init__(self, station: Station, commit: CommitServer, data: DataServer, synchroniser: Synchroniser) -> None:
        self._station = station
        self._commit = commit
        self._data = data
        self._synchroniser = synchroniser
        self._said = (0, 0, 0)

    def acknowledged(self) -> tuple[int, int]:
        """Accepted and stored, in the log of the epoch this member follows."""
        station = self._station
        if station.durable_epoch != station.epoch or not self._synchroniser.is_settled:
            return 0, 0
        accepted = self._commit.accepted if station.is_commit_server else 0
        stored = self._data.stored if station.is_data_server else 0
        return accepted, stored

    def repeat(self) -> None:
        """The sequencer seems not to have heard."""
        self._said = (0, 0, 0)

    def flush(self) -> None:
        """Says what has changed."""
        station = self._station
        if not station.sequencer or not station.keeps_log:
            return
        accepted, stored = self.acknowledged()
        said = (station.epoch, accepted, stored)
        if said != self._said and (accepted or stored):
            self._said = said
            station.send_member(station.sequencer, CommitAcknowledge(accepted, stored))
