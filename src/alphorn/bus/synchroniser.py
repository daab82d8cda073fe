"""Applies what catch-up brings: ranges of committed entries, or a checkpoint to go on from.

A checkpoint replaces the ledger only where this member's own log does not reach it; what was open here then conflicts
with something committed. Nothing is acknowledged until that replacement is durable.
"""

from collections.abc import Callable

from alphorn.bus.catch_up import CatchUp
from alphorn.bus.commit_server import CommitServer
from alphorn.bus.data_server import DataServer
from alphorn.bus.follower import Follower
from alphorn.bus.frames import Range
from alphorn.bus.group_state import GroupState
from alphorn.bus.holdings import Batch
from alphorn.bus.machine import DropAfter, DropThrough, InstallCheckpoint, PutAssignments, PutGroupState
from alphorn.bus.receiver import Receiver
from alphorn.bus.sender import Sender
from alphorn.bus.station import Station


class Synchroniser:
    """Moves a member forward by more than single frames."""

    __slots__ = (
        "_catch_up",
        "_commit",
        "_data",
        "_follower",
        "_on_whole",
        "_receiver",
        "_resetting",
        "_sender",
        "_station",
    )

    def __init__(
        self,
        station: Station,
        *,
        follower: Follower,
        receiver: Receiver,
        sender: Sender,
        data: DataServer,
        commit: CommitServer,
        catch_up: CatchUp,
        on_whole: Callable[[bytes, Batch, int, float], None],
    ) -> None:
        self._station = station
        self._follower = follower
        self._receiver = receiver
        self._sender = sender
        self._data = data
        self._commit = commit
        self._catch_up = catch_up
        self._on_whole = on_whole
        self._resetting = 0  # replacements of the ledger that are not durable yet

    @property
    def is_settled(self) -> bool:
        """Whether the ledger is on disk as it is in memory, apart from what is being appended."""
        return not self._resetting

    def on_range(self, body: Range, now: float) -> None:
        """Committed entries from a peer."""
        station, ledger = self._station, self._station.ledger
        for sequence, entry in enumerate(body.entries, body.first):
            assignment = entry.assignment
            if ledger.base < sequence <= ledger.committed and ledger.get(sequence) is None:
                station.journal.write(PutAssignments(sequence, [assignment]))  # it was damaged on this disk
                if station.is_data_server:
                    self._data.store_late(sequence, entry.payload, assignment.digest, system=bool(assignment.system))
            if assignment.system or sequence <= self._receiver.delivered or not station.reads:
                continue
            whole = station.holdings.put(
                assignment.id,
                entry.payload,
                assignment.timestamp,
                assignment.digest,
                is_needed=sequence == self._receiver.delivered + 1,
            )
            if whole is not None and sequence <= ledger.last:
                self._on_whole(assignment.id, whole, sequence, now)
        self._catch_up.on_range(body)

    def install(self) -> None:
        """A checkpoint has arrived whole: the ledger and then the upper layer go on from it."""
        offer = self._catch_up.sealed
        if offer is None:
            return
        station, ledger = self._station, self._station.ledger
        state = self._catch_up.decode_state(offer.state)
        if state is None or state.sequence != offer.sequence or offer.sequence <= self._receiver.delivered:
            self._catch_up.installed()
            return
        if offer.sequence <= ledger.last and ledger.epoch_at(offer.sequence) == offer.epoch:
            ledger.commit(offer.sequence)
        elif offer.sequence > ledger.committed:
            self.go_on_from(state)
        self._receiver.reset(offer.sequence)
        if station.reads:
            self._receiver.hold(offer.sequence)
            station.journal.then(lambda: station.outbox.append(InstallCheckpoint(offer.sequence)))
        self._catch_up.installed()

    def go_on_from(self, state: GroupState) -> None:
        """Replaces the ledger by a state that is known to be committed; whatever was open here conflicts with it."""
        station, ledger = self._station, self._station.ledger
        station.trace("reset", f"at={state.sequence}")
        if station.is_checkpoint_server:
            # What is final is not in conflict with anything; the state to come may refer to it.
            station.journal.write(DropThrough(ledger.committed, is_retaining=True))
        ledger.reset(state)
        if station.keeps_log:
            station.journal.write(DropAfter(0), PutGroupState(state.sequence, state.encode()))
            self._resetting += 1
            station.journal.then(self._settle)
        self._follower.restart()
        self._data.reset(state.sequence)
        self._receiver.reset(state.sequence)
        self._receiver.prune()
        self._sender.on_state()
        self._commit.on_state()

    def _settle(self) -> None:
        self._resetting -= 1
