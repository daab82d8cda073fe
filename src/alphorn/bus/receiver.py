"""Delivers committed numbers to the upper layer: in order, once, without a gap.

System entries become events at their place in the order. What a number needs and this member has not is asked for
(nack.py) while little is missing, and caught up by unicast (catch_up.py) when much is. Batches are let go here, once
they are delivered and, on a data server, durable.
"""

from alphorn.bus.entries import (
    Assignment,
    CheckpointMark,
    Collected,
    EpochBegun,
    MemberJoined,
    MemberLeft,
    SystemEntry,
    VoterAdded,
    VoterRemoved,
)
from alphorn.bus.follower import Follower
from alphorn.bus.machine import (
    Deliver,
    MemberChanged,
    Output,
    PrimaryChanged,
    PutGroupState,
    Stop,
    TakeCheckpoint,
)
from alphorn.bus.nack import Requests
from alphorn.bus.repair import Repairer
from alphorn.bus.station import Station
from alphorn.bus.storage import DAMAGED
from alphorn.model.ids import counter_of, origin_of

_TURN_MAX = 256  # numbers delivered in one turn, so that a long replay does not starve heartbeats


class Receiver:
    """The delivery side of every member."""

    __slots__ = (
        "_events",
        "_follower",
        "_repairer",
        "_requests",
        "_station",
        "collected",
        "delivered",
        "installing",
        "is_refused",
        "is_waiting",
        "released",
        "spared",
    )

    def __init__(
        self, station: Station, follower: Follower, requests: Requests, repairer: Repairer, *, delivered: int
    ) -> None:
        self._station = station
        self._follower = follower
        self._requests = requests
        self._repairer = repairer
        self.delivered = delivered
        self.released = delivered
        self.spared = delivered  # batches through this number are let go, be they delivered or not
        self.collected = 0  # newest collection this member has passed; the owner performs it
        self.installing = 0  # the checkpoint that the upper layer is taking over; nothing is delivered meanwhile
        self.is_refused = False  # whether it cannot, and wants a newer one
        self.is_waiting = False  # whether the next number's batch is missing
        self._events: dict[int, list[Output]] = {}

    @property
    def is_held(self) -> bool:
        """Whether the upper layer has no state yet to go on from."""
        return bool(self.installing)

    def hold(self, checkpoint: int) -> None:
        """Nothing is delivered until the upper layer has this checkpoint, which replaces one not yet installed."""
        self.installing, self.is_refused = checkpoint, False

    def on_installed(self, checkpoint: int) -> bool:
        """Goes on, if this is the checkpoint awaited; one that was replaced meanwhile is not."""
        is_awaited = self.is_held and checkpoint == self.installing
        if is_awaited:
            self.installing, self.is_refused = 0, False
        return is_awaited

    def on_refused(self, checkpoint: int) -> None:
        """The upper layer cannot take this checkpoint over."""
        self.is_refused = self.is_refused or checkpoint == self.installing

    def on_committed(self, sequence: int, assignment: Assignment, entry: SystemEntry | None) -> None:
        """A number became final: its event waits for its turn. The group's state is exactly that after it."""
        if entry is None:
            return
        station = self._station
        state = station.ledger.state
        events: list[Output] = []
        match entry:
            case EpochBegun():
                # A member that starts again hears of its own past epochs, and leads in none of them.
                is_self = entry.number == station.number == station.sequencer and entry.epoch == station.epoch
                events.append(
                    PrimaryChanged(sequence, entry.epoch, entry.number, is_self, tuple(state.members.values()))
                )
            case MemberJoined():
                if state.left is not None:  # its earlier run
                    events.append(MemberChanged(sequence, "failed", state.left))
                events.append(MemberChanged(sequence, "joined", state.members[entry.member.number]))
            case MemberLeft():
                if state.left is not None:
                    events.append(MemberChanged(sequence, "failed" if entry.failed else "left", state.left))
            case VoterAdded() | VoterRemoved() if entry.number in state.members:
                event = "voter_added" if isinstance(entry, VoterAdded) else "voter_removed"
                events.append(MemberChanged(sequence, event, state.members[entry.number]))
            case CheckpointMark():
                snapshot = state.encode()
                if station.keeps_log:
                    station.journal.write(PutGroupState(sequence, snapshot))
                if station.is_checkpoint_server and station.reads:
                    events.append(TakeCheckpoint(sequence, assignment.epoch, snapshot))
            case Collected():
                self.collected = max(self.collected, entry.through)
        if events and sequence > self.delivered:
            self._events[sequence] = events

    def advance(self, now: float) -> bool:
        """Delivers what can be delivered; True when more is ready than one turn should do."""
        if self.is_held:
            return False
        station, ledger = self._station, self._station.ledger
        end = min(ledger.committed, self.delivered + _TURN_MAX)
        self.is_waiting = False
        while self.delivered < end:
            sequence = self.delivered + 1
            assignment = ledger.get(sequence)
            if assignment is None:
                if sequence > ledger.base:
                    self._repairer.damaged.append(sequence)
                    self._stop_alone(f"the meaning of number {sequence}")
                self.is_waiting = True
                return False
            if assignment.system:
                station.outbox.extend(self._events.pop(sequence, ()))
            elif station.reads:
                payload = self._repairer.payload_of(sequence)
                if payload is None:
                    self._miss(sequence, now)
                    return False
                station.outbox.append(Deliver(sequence, assignment, payload))
            self.delivered = sequence
        return ledger.committed > self.delivered

    def _miss(self, sequence: int, now: float) -> None:
        """Asks for the next number and for those after it that are missing too, as far as the bound goes."""
        self.is_waiting = True
        station, ledger = self._station, self._station.ledger
        if station.storage.entry(sequence) is DAMAGED:
            self._stop_alone(f"the batch of number {sequence}")
        end = min(ledger.committed, sequence + station.budget.nack_numbers_max)
        for number in range(sequence, end + 1):
            assignment = ledger.get(number)
            if assignment is not None and not assignment.system and assignment.id not in station.holdings:
                self._requests.want_sequence(number, now)

    def _stop_alone(self, what: str) -> None:
        """The log cannot go on past what its only disk cannot read: nobody could ever help."""
        if self._station.is_alone:
            self._station.outbox.append(Stop(self._station.lost(what)))

    def release(self, through: int) -> None:
        """Lets batches go that are delivered and, where this member stores them, durable."""
        ledger, holdings = self._station.ledger, self._station.holdings
        while self.released < through:
            self.released += 1
            assignment = ledger.get(self.released)
            if assignment is not None:
                holdings.drop(assignment.id)

    def release_stored(self, stored: int) -> None:
        """Lets go of what is final and durable here before it is delivered, while that must wait or memory is tight.

        It is read back when its turn comes.
        """
        ledger, holdings = self._station.ledger, self._station.holdings
        self.spared = max(self.spared, self.released)
        end = min(stored, ledger.committed)
        if end <= self.spared or not (self.is_held or holdings.is_tight):
            return
        for sequence in range(self.spared + 1, end + 1):
            assignment = ledger.get(sequence)
            if assignment is not None:
                holdings.drop(assignment.id)
        self.spared = end

    def release_settled(self, settled: set[int]) -> None:
        """Lets go of durable batches one by one, so that one missing number does not hold on to all after it.

        They need not be delivered where memory is tight: what is committed and durable can be read back.
        """
        ledger, holdings = self._station.ledger, self._station.holdings
        line = ledger.committed if holdings.is_tight else self.delivered
        for sequence in [sequence for sequence in settled if sequence <= line]:
            assignment = ledger.get(sequence)
            if assignment is not None and sequence > self.released:
                holdings.drop(assignment.id)
            settled.discard(sequence)

    def prune(self) -> None:
        """Lets go of batches nobody will ask this member for: their numbers are behind it, or their sender left."""
        ledger, holdings = self._station.ledger, self._station.holdings
        for batch in holdings.ids():
            origin = origin_of(batch)
            sequence = ledger.find(batch)
            is_behind = counter_of(batch) <= ledger.state.senders.get(origin, 0) and sequence <= self.released
            is_orphan = not sequence and not ledger.state.is_sender(origin) and origin != self._station.origin
            if is_behind or is_orphan:
                holdings.drop(batch)

    def reset(self, through: int) -> None:
        """Goes on after a checkpoint."""
        self.delivered = self.released = self.spared = through
        self._events = {sequence: events for sequence, events in self._events.items() if sequence > through}
        self._requests.forget_sequences_through(through)

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"delivered": self.delivered, "waiting": self.is_waiting, "installing": self.installing}
