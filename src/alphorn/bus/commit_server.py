"""A commit server: promises epochs, accepts assignments, and tells what numbers mean. It needs no data, only numbers.

Theory of operation. A promise for epoch e says: nothing of an older epoch will be accepted here again. It is said only
after it is durable. An acceptance says: this number of epoch e is on this disk. Any two majorities share a member, so a
candidate that hears promises from a majority hears of everything that could have been committed before.

A commit server that lost its disk, or whose disk came back older than it was, has forgotten promises. It must not vote
until the log removed it and added it again (`Station.is_barred`); one that has just restarted waits for the sequencer's
word on that as long as there is one to be heard (`is_returning`).
"""

from alphorn.bus.entries import MemberJoined, SystemEntry, VoterAdded, decode_system, describe_epoch
from alphorn.bus.follower import Follower
from alphorn.bus.frames import AssignmentAnswer, AssignmentQuery, CommitSubmit, Frame, Prepare, Promise
from alphorn.bus.station import Station

_ANSWER_MAX = 512


class CommitServer:
    """Promises and answers; accepting is the follower's, on the ledger they share."""

    __slots__ = ("_follower", "_promises_max", "_returning_until", "_station", "is_returning", "promises")

    def __init__(self, station: Station, follower: Follower, *, is_returning: bool, now: float) -> None:
        self._station = station
        self._follower = follower
        self.is_returning = is_returning
        self._returning_until = now + 3 * station.timing.suspect_s
        self._promises_max = 2 * station.budget.open_numbers_max
        self.promises = 0

    @property
    def accepted(self) -> int:
        """Durable here, in the log of the epoch this member follows; 0 while it may not vote."""
        ledger = self._station.ledger
        if not self.may_vote or ledger.confirmed_epoch != self._station.epoch:
            return 0
        return min(self._follower.durable, ledger.confirmed)

    @property
    def may_vote(self) -> bool:
        """Whether it may give its word. Who counts it decides by the newest voters in the log, not this member."""
        return self._station.is_whole and not self.is_returning

    def on_welcome(self) -> None:
        """The sequencer knows this run and has nothing against its disk."""
        self.is_returning = False

    def on_appended(self, first: int) -> None:
        """A lost disk forgot promises. They bind nobody once the log removed this voter; added again, it may vote.

        It must do so while the entry that adds it is still open, because that may need its own acceptance. An addition
        from before its disk was lost says nothing: only one after the removal that this disk itself has seen counts.
        """
        station, ledger = self._station, self._station.ledger
        removed = station.meta.removed
        if not station.is_barred or not removed:
            return
        for sequence in range(max(first, removed + 1), ledger.last + 1):
            assignment = ledger.get(sequence)
            entry = decode_system(assignment.system) if assignment is not None and assignment.system else None
            if isinstance(entry, VoterAdded) and entry.number == station.number:
                station.lift_bar()
                return

    def on_committed(self, sequence: int, entry: SystemEntry) -> None:
        """The log knows this run: if it is no voter there, whatever its disk forgot binds nobody any more."""
        if isinstance(entry, MemberJoined):
            self.on_state()

    def on_state(self) -> None:
        """The same from the group's state, which a checkpoint may have brought: it was past the entries themselves.

        A run is known by its nonce: under a wrong clock two runs, with a lost disk between them, may share an origin.
        """
        station, state = self._station, self._station.ledger.state
        member = state.members.get(station.number)
        if member is None or (member.origin, member.nonce) != (station.origin, station.nonce):
            return
        station.count_starts(member.incarnation)
        if not station.is_barred:
            return
        if not member.is_voter:
            station.remember(removed=state.sequence)
        elif station.meta.removed:
            station.lift_bar()

    def on_time(self, now: float) -> None:
        """Without a sequencer there is nobody to ask; a restart of the whole group must be able to vote."""
        if self.is_returning and now >= self._returning_until:
            if now - self._follower.heard_at >= self._station.timing.suspect_s:
                self.is_returning = False
            else:
                self._returning_until = now + self._station.timing.suspect_s

    def next_deadline(self) -> float:
        """When returning ends."""
        return self._returning_until if self.is_returning else float("inf")

    def on_prepare(self, frame: Frame, body: Prepare, now: float) -> None:
        """A candidate asks. A live sequencer is not deserted for it."""
        station = self._station
        if not self.may_vote:
            return
        recently = now - self._follower.heard_at < station.timing.suspect_s * 0.75
        if station.sequencer and station.sequencer != frame.number and recently:
            return
        if self._is_better(body) and now - self._follower.heard_at < 2 * station.timing.suspect_s:
            return
        if frame.epoch < station.epoch or (frame.epoch == station.epoch and station.sequencer):
            self._refuse(frame)
            return
        if frame.epoch > station.epoch:
            station.raise_fence(frame.epoch)
            station.trace("promise", f"epoch={describe_epoch(frame.epoch)}")
            if frame.number != station.number:
                self._follower.any_heard_at = now  # gives the candidate time before this member asks itself
        # Saying it again after a lost answer is the same promise: the fence is not raised twice.
        station.journal.then(lambda: self._promise(frame, body))

    def _is_better(self, body: Prepare) -> bool:
        """Whether this member holds more than the candidate and can be sequencer itself: it is given time to ask."""
        return self._station.may_sequence and body.committed < self._station.ledger.committed

    def _promise(self, frame: Frame, body: Prepare) -> None:
        station, ledger = self._station, self._station.ledger
        if station.epoch != frame.epoch or not self.may_vote:
            return
        self.promises += 1
        previous = max(body.committed, ledger.base)
        assignments = ledger.slice(previous, min(ledger.last, previous + self._promises_max))
        answer = Promise(
            True,
            frame.epoch,
            station.epoch,
            station.incarnation,
            previous,
            ledger.epoch_at(previous) or 0,
            ledger.committed,
            ledger.last,
            ledger.last_epoch,
            assignments,
        )
        station.send_member(frame.number, answer)

    def _refuse(self, frame: Frame) -> None:
        station, ledger = self._station, self._station.ledger
        station.send_member(
            frame.number,
            Promise(False, frame.epoch, station.epoch, station.incarnation, 0, 0, ledger.committed, 0, 0, []),
        )

    def on_query(self, frame: Frame, body: AssignmentQuery, now: float) -> None:
        """Tells what is committed here; the sequencer tells its open numbers too, and the epoch they stand in."""
        station, ledger = self._station, self._station.ledger
        if body.previous < ledger.base or not frame.number:
            return
        epoch = ledger.epoch_at(body.previous) or 0  # who asks has `previous` committed and needs no proof of it
        limit = body.previous + _ANSWER_MAX
        if station.sequencer == station.number:
            assignments = ledger.slice(body.previous, min(ledger.last, limit))
            station.send_member(frame.number, CommitSubmit(body.previous, epoch, ledger.committed, assignments))
        elif assignments := ledger.slice(body.previous, min(ledger.committed, limit)):
            station.send_member(frame.number, AssignmentAnswer(body.previous, assignments))

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "accepted": self.accepted,
            "may_vote": self.may_vote,
            "returning": self.is_returning,
            "whole": self._station.is_whole,
            "promised": describe_epoch(self._station.epoch),
        }
