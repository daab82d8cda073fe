"""Sends this member's batches: numbers them per sender, cuts them into frames, and keeps them until they are committed.

Nothing is sent twice unless somebody asks: a data server that missed a batch learns of it from the sender's status and
fetches it. A window bounds what is under way; the sequencer tells each sender its share.
"""

from collections import deque

from alphorn.bus.entries import Assignment, digest_of
from alphorn.bus.frames import fragment_batch
from alphorn.bus.machine import CONTROL_GROUP, DATA_GROUP, Ordered, Refused, WindowChanged
from alphorn.bus.station import Station
from alphorn.model.ids import Kind, counter_of, make_id

LITTLE_BYTES = 4 << 10  # a sequencer's own batch that takes less travels with its number, in one datagram


class _Pending:
    __slots__ = ("handle", "payload")

    def __init__(self, handle: int, payload: bytes) -> None:
        self.handle = handle
        self.payload = payload


class Sender:
    """Batches of this member that are not committed yet."""

    __slots__ = (
        "_in_flight",
        "_in_flight_bytes",
        "_is_open",
        "_share_bytes",
        "_station",
        "_waiting",
        "_waiting_bytes",
        "began_at",
        "sent",
        "sent_at",
        "whole",
    )

    def __init__(self, station: Station) -> None:
        self._station = station
        self._waiting: deque[_Pending] = deque()
        self._waiting_bytes = 0
        self._in_flight: dict[int, _Pending] = {}
        self._in_flight_bytes = 0
        self._share_bytes = station.budget.window_bytes // 4
        self._is_open = True
        self.sent = 0  # counter of the newest batch sent
        self.began_at = 0  # the number through which the log was known here when the first was
        self.sent_at = 0.0
        self.whole: list[bytes] = []  # batches sent this turn, for this member's own data server

    @property
    def settled(self) -> int:
        """All batches through this one are known to be in the log."""
        return next(iter(self._in_flight)) - 1 if self._in_flight else self.sent

    @property
    def is_pending(self) -> bool:
        """Whether anything sent is not committed yet."""
        return bool(self._in_flight)

    def order(self, payload: bytes, handle: int) -> None:
        """Takes a batch; it is sent as soon as the window and membership allow."""
        budget = self._station.budget
        if len(payload) > budget.batch_bytes_max:
            reason = (
                f"a batch of {len(payload)} bytes is over the limit of {budget.batch_bytes_max}; send smaller batches"
            )
            self._station.outbox.append(Refused(handle, reason))
            return
        self._waiting.append(_Pending(handle, payload))
        self._waiting_bytes += len(payload)

    def set_share(self, share_bytes: int) -> None:
        """The sequencer's word on how much may be under way."""
        self._share_bytes = share_bytes

    def flush(self, now: float, *, may_send: bool) -> None:
        """Sends what fits the window."""
        if self._waiting and may_send:
            self._send_waiting(now)
        self._tell_window()

    def _send_waiting(self, now: float) -> None:
        budget = self._station.budget
        while self._waiting and len(self._in_flight) < budget.window_batches:
            pending = self._waiting[0]
            if self._in_flight and self._in_flight_bytes + len(pending.payload) > self._share_bytes:
                return
            self._waiting.popleft()
            self._waiting_bytes -= len(pending.payload)
            self._send(pending, now)

    def _send(self, pending: _Pending, now: float) -> None:
        station = self._station
        if not self.sent:
            self.began_at = station.ledger.committed
        self.sent += 1
        self.sent_at = now
        self._in_flight[self.sent] = pending
        self._in_flight_bytes += len(pending.payload)
        batch = make_id(station.origin, Kind.BATCH, self.sent)
        digest, timestamp = digest_of(pending.payload), station.ledger.committed
        station.holdings.put_own(batch, pending.payload, timestamp, digest)
        self.whole.append(batch)
        limit = station.budget.datagram_bytes
        # Everybody else needs both before there is something to do, and is woken once.
        is_little = len(pending.payload) <= min(LITTLE_BYTES, limit // 2)
        to = CONTROL_GROUP if is_little and station.sequencer == station.number else DATA_GROUP
        for data in fragment_batch(batch, pending.payload, digest=digest, timestamp=timestamp, limit=limit):
            station.send(to, data)

    def on_committed(self, sequence: int, assignment: Assignment) -> None:
        """A number became final; if the batch is this member's, its owner is told."""
        if assignment.id[:10] != self._station.origin or assignment.system:
            return
        pending = self._in_flight.pop(counter_of(assignment.id), None)
        if pending is not None:
            self._in_flight_bytes -= len(pending.payload)
            self._station.outbox.append(Ordered(pending.handle, sequence))

    def on_state(self) -> None:
        """The group's state was taken over from a checkpoint: numbers it covers were committed unseen."""
        counter = self._station.ledger.state.senders.get(self._station.origin, 0)
        for sent in [sent for sent in self._in_flight if sent <= counter]:
            pending = self._in_flight.pop(sent)
            self._in_flight_bytes -= len(pending.payload)
            self._station.outbox.append(Ordered(pending.handle, 0))

    def lose(self, reason: str) -> None:
        """The group has forgotten this run: what was under way cannot be resolved any more.

        Batches are counted from one again, so this member goes on under another name: the log has those of the old one.
        """
        for pending in self._in_flight.values():
            self._station.outbox.append(Refused(pending.handle, reason, True))
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self.sent = 0
        self._station.take_new_start()

    def drop(self, reason: str) -> None:
        """What has not been sent never will be: whoever wanted it may have gone on without it."""
        for pending in self._waiting:
            self._station.outbox.append(Refused(pending.handle, reason, True))
        self._waiting.clear()
        self._waiting_bytes = 0

    def _tell_window(self) -> None:
        is_open = self._waiting_bytes < self._station.budget.window_bytes
        if is_open != self._is_open:
            self._is_open = is_open
            self._station.outbox.append(WindowChanged(is_open))

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "sent": self.sent,
            "in_flight": len(self._in_flight),
            "in_flight_bytes": self._in_flight_bytes,
            "waiting": len(self._waiting),
            "share_bytes": self._share_bytes,
        }
