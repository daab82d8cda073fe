"""Batches come in: fragments are put together, and whole batches go where they are waited for.

A batch may be awaited by the data server (to be reported, stored, or stored again after damage), by a candidate that
looks for it, or by the receiver, which finds it in the holdings. What is behind this member is not taken.
"""

from alphorn.bus.data_server import DataServer
from alphorn.bus.follower import Follower
from alphorn.bus.frames import Data, Frame
from alphorn.bus.holdings import Batch
from alphorn.bus.nack import Requests
from alphorn.bus.receiver import Receiver
from alphorn.bus.sender import Sender
from alphorn.bus.station import Station
from alphorn.bus.takeover import Takeover
from alphorn.model.ids import counter_of, origin_of


class Intake:
    """The one way by which batches enter a member."""

    __slots__ = ("_data", "_follower", "_receiver", "_requests", "_sender", "_station", "_takeover")

    def __init__(
        self,
        station: Station,
        *,
        follower: Follower,
        requests: Requests,
        data: DataServer,
        receiver: Receiver,
        sender: Sender,
        takeover: Takeover,
    ) -> None:
        self._station = station
        self._follower = follower
        self._requests = requests
        self._data = data
        self._receiver = receiver
        self._sender = sender
        self._takeover = takeover

    def on_data(self, frame: Frame, body: Data, now: float) -> None:
        """One fragment, from its sender or as a repair."""
        station = self._station
        sequence = station.ledger.find(body.id) or body.sequence
        if body.sequence and self._data.is_missing(body.sequence):
            sequence = body.sequence
        is_numbered = counter_of(body.id) <= station.ledger.state.senders.get(origin_of(body.id), 0)
        if is_numbered and sequence <= self._receiver.released and not self._data.is_missing(sequence):
            self._requests.satisfied(sequence)  # its batch was here by the time somebody sent it
            return
        if not sequence and self._follower.is_disk_behind:
            return  # it would be reported and asked about for as long as this member does not hear its number
        whole = station.holdings.add(body, is_needed=sequence == self._receiver.delivered + 1)
        if whole is not None:
            self.on_whole(body.id, whole, sequence, now)

    def on_whole(self, batch: bytes, whole: Batch, sequence: int, now: float) -> None:
        """A batch is complete here; its number is 0 where none is known."""
        station = self._station
        self._requests.satisfied(batch)
        if sequence:
            self._requests.satisfied(sequence)
        if station.is_data_server:
            if sequence and sequence <= self._receiver.released and self._data.is_missing(sequence):
                assignment = station.ledger.get(sequence)
                if assignment is not None and assignment.id == batch:
                    self._data.store_late(sequence, bytes(whole.payload), whole.digest)
                station.holdings.drop(batch)
                return
            self._data.on_batch(batch, whole, sequence, now)
        self._takeover.on_batch(now)

    def take_own(self, now: float) -> None:
        """This member's own batches do not come back by the network."""
        if not self._sender.whole:
            return
        if self._station.is_data_server:
            for batch in self._sender.whole:
                whole = self._station.holdings.get(batch)
                if whole is not None:
                    self._data.on_batch(batch, whole, 0, now)
        self._sender.whole.clear()
