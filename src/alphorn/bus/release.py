"""Letting go: of batches in memory once they are delivered and durable, of the log once it may be forgotten."""

from alphorn.bus.data_server import DataServer
from alphorn.bus.follower import Follower
from alphorn.bus.machine import DropThrough
from alphorn.bus.receiver import Receiver
from alphorn.bus.station import Station


class Release:
    """What a member does at the end of each turn to stay small."""

    __slots__ = ("_data", "_follower", "_receiver", "_station")

    def __init__(self, station: Station, follower: Follower, receiver: Receiver, data: DataServer) -> None:
        self._station = station
        self._follower = follower
        self._receiver = receiver
        self._data = data

    def let_go(self) -> None:
        """Forgets what is delivered and durable, and what the log says may be forgotten."""
        station, ledger, receiver = self._station, self._station.ledger, self._receiver
        is_data = station.is_data_server
        done = min(receiver.delivered, self._data.stored_log) if is_data else receiver.delivered
        receiver.release(done)
        receiver.release_stored(self._data.stored_log if is_data else 0)
        if self._data.settled:
            receiver.release_settled(self._data.settled)
        line = min(receiver.collected, receiver.delivered)
        if line > ledger.base:
            ledger.collect(line)
            self._data.on_collected(line)
            if station.keeps_log:
                station.journal.write(DropThrough(line, station.is_checkpoint_server))
        ledger.trim(stored=self._follower.durable if station.keeps_log else ledger.last, needed=receiver.spared)
