"""Follows the sequencer: takes submits and commits into the ledger, keeps them on disk, and asks for what was lost.

Every member has one. A member that keeps no log (a plain client) takes only what is committed. Answers from commit
servers are facts and never open assignments, because only the sequencer of an epoch may extend that epoch's log.
"""

from collections.abc import Callable

from alphorn.bus.entries import Assignment, digest_of, epoch_number
from alphorn.bus.frames import AssignmentAnswer, AssignmentQuery, Commit, CommitSubmit, Frame, Heartbeat
from alphorn.bus.machine import DropAfter, PutAssignments
from alphorn.bus.station import Station

_AHEAD_MAX = 4096
_DISK_BEHIND = 4  # times as many numbers as a sequencer may have open: so far a member goes on while its disk hangs
_NEVER = float("inf")


class Follower:
    """The ledger's only writer, besides the sequencer on its own member."""

    __slots__ = (
        "_ahead",
        "_attempts",
        "_heal_at",
        "_pending",
        "_query_at",
        "_station",
        "_welcomed",
        "any_heard_at",
        "collected",
        "durable",
        "heard_at",
        "known_assigned",
        "known_committed",
        "on_appended",
        "on_cut",
        "on_told",
        "queries",
    )

    def __init__(self, station: Station, *, durable: int, now: float) -> None:
        self._station = station
        self._heal_at = now if station.impaired_until > station.ledger.last else _NEVER
        self.durable = durable  # assignments through this number are on this member's disk
        self.known_committed = station.meta.committed  # heard of; the ledger may be behind
        self.known_assigned = 0
        self.collected = station.ledger.base  # what the sequencer says is forgotten
        self.heard_at = now  # when a sequencer of the current epoch last spoke
        self.any_heard_at = now  # when one of any epoch did, be it behind the fence
        self.on_appended: Callable[[int], None] = lambda first: None
        self.on_cut: Callable[[int], None] = lambda after: None
        self.on_told: Callable[[int, list[Assignment]], None] = lambda previous, assignments: None
        self.queries = 0
        self._ahead: dict[int, Assignment] = {}
        self._welcomed = (-1, 0)
        self._pending: list[list[int]] = []
        self._query_at = _NEVER
        self._attempts = 0

    @property
    def is_disk_behind(self) -> bool:
        """Whether so much is on its way to this member's disk that it takes no more before some of it is there.

        A disk may hang for as long as it likes while the group goes on without it. What is not taken meanwhile is as
        good as lost on the way: it is asked for when there is room.
        """
        station = self._station
        unwritten = station.ledger.last - self.durable
        return station.keeps_log and unwritten >= _DISK_BEHIND * station.budget.open_numbers_max

    def on_submit(self, frame: Frame, body: CommitSubmit, now: float) -> None:
        """Assignments of the sequencer's epoch, open ones too."""
        if not self._hears(frame, now):
            return
        self.known_committed = max(self.known_committed, body.committed)
        self.known_assigned = max(self.known_assigned, body.previous + len(body.assignments))
        if not self._station.keeps_log:
            self._take_facts(body.previous, body.assignments[: max(0, body.committed - body.previous)])
        elif not self.is_disk_behind and self._station.ledger.matches(body.previous, body.previous_epoch):
            self._take_open(frame.epoch, body)
        self._plan_query(now)

    def on_answer(self, frame: Frame, body: AssignmentAnswer, now: float) -> None:
        """Committed assignments, from a commit server."""
        self._take_facts(body.previous, body.assignments)
        self._plan_query(now)

    def on_commit(self, frame: Frame, body: Commit, now: float) -> None:
        """The sequencer says what is final."""
        if not self._hears(frame, now):
            return
        ledger = self._station.ledger
        self.known_committed = max(self.known_committed, body.committed)
        if frame.epoch == ledger.confirmed_epoch and body.committed <= ledger.confirmed:
            ledger.commit(body.committed)
        else:
            self._take_facts(body.first - 1, body.assignments)
        self._plan_query(now)

    def on_heartbeat(self, frame: Frame, body: Heartbeat, now: float) -> None:
        """The sequencer tells how far it is, so that the loss of its last frame shows."""
        if not self._hears(frame, now):
            return
        ledger = self._station.ledger
        self.known_committed = max(self.known_committed, body.committed)
        self.known_assigned = body.assigned
        self.collected = max(self.collected, body.collected)
        if frame.epoch == ledger.confirmed_epoch:
            ledger.commit(min(body.committed, ledger.confirmed))
        self._plan_query(now)

    def take_range(self, first: int, assignments: list[Assignment]) -> None:
        """Committed assignments that a catch-up brought."""
        self._take_facts(first - 1, assignments)

    def adopt(self, previous: int, assignments: list[Assignment]) -> None:
        """Takes over a better log, as a candidate of this member."""
        cut, first = self._station.ledger.merge(previous, assignments)
        if cut is not None:
            self._forget(cut)
        if first:
            self._keep(first)

    def on_new_epoch(self, frame: Frame, now: float) -> bool:
        """A sequencer announces itself; True when it is to be followed."""
        return self._hears(frame, now)

    def write_tail(self, first: int) -> None:
        """Keeps the ledger from `first` on; used by the sequencer of this member for what it appends itself."""
        self._keep(first)

    def cut_tail(self, after: int) -> None:
        """Cuts the ledger's open tail, on disk too; used by a candidate of this member."""
        self._station.ledger.cut(after)
        self._forget(after)

    def restart(self) -> None:
        """The ledger was reset to a state that a peer gave."""
        ledger = self._station.ledger
        self.durable = ledger.last
        self._pending.clear()
        self._ahead = {sequence: a for sequence, a in self._ahead.items() if sequence > ledger.last}
        self.known_committed = max(self.known_committed, ledger.committed)
        self._learn_epoch(ledger.state.epoch)

    def _learn_epoch(self, epoch: int) -> None:
        """Something of this epoch is committed: older sequencers are deposed, one on this member before all.

        It would otherwise go on numbering, and its log would have an older epoch after a later one.
        """
        if epoch > self._station.epoch:
            self._station.raise_fence(epoch)

    def _hears(self, frame: Frame, now: float) -> bool:
        if epoch_number(frame.epoch) != frame.number:
            return False
        self.any_heard_at = now
        if not self._station.follow(frame.epoch, frame.number):
            return False
        self.heard_at = now
        return True

    def _take_open(self, epoch: int, body: CommitSubmit) -> None:
        ledger = self._station.ledger
        self.adopt(body.previous, body.assignments)
        ledger.confirm(epoch, body.previous + len(body.assignments))
        ledger.commit(min(body.committed, ledger.confirmed))
        self.on_told(body.previous, body.assignments)

    def _take_facts(self, previous: int, assignments: list[Assignment]) -> None:
        """Committed assignments; what does not join on is kept for later, within bounds."""
        ledger = self._station.ledger
        through = previous + len(assignments)
        self.on_told(previous, assignments)
        if assignments:
            self.known_committed = max(self.known_committed, through)
            self._learn_epoch(assignments[-1].epoch)
        if self.is_disk_behind:
            return
        if previous > ledger.committed:
            for sequence, assignment in enumerate(assignments, previous + 1):
                if len(self._ahead) < _AHEAD_MAX:
                    self._ahead[sequence] = assignment
            return
        while ledger.committed < through:
            self.adopt(previous, assignments)
            ledger.commit(through)
            previous, assignments = through, []
            while through + 1 in self._ahead:
                through += 1
                assignments.append(self._ahead.pop(through))
        if self._ahead:
            self._ahead = {sequence: a for sequence, a in self._ahead.items() if sequence > ledger.committed}

    def _keep(self, first: int) -> None:
        station = self._station
        if station.keeps_log:
            ledger = station.ledger
            self._drop_void(first)
            station.journal.write(PutAssignments(first, ledger.slice(first - 1, ledger.last)))
            mark = [ledger.last]
            self._pending.append(mark)
            station.journal.then(lambda: self._settle(mark))
        self.on_appended(first)

    def _settle(self, mark: list[int]) -> None:
        # A reset of the ledger forgets what was under way, and what is written after it may end at the same number.
        if any(mark is pending for pending in self._pending):
            self._pending = [pending for pending in self._pending if pending is not mark]
            self.durable = max(self.durable, mark[0])

    def _drop_void(self, first: int) -> None:
        """What comes in place of numbers behind a damaged record may show that these are void, and all after them."""
        station, ledger = self._station, self._station.ledger
        for sequence in range(first, min(ledger.last + 1, station.impaired_until) + 1):
            if self._is_void(sequence):
                station.trace("void", f"after={sequence - 1}")
                station.impaired_until = 0
                station.journal.write(DropAfter(sequence - 1))
                return

    def _is_void(self, sequence: int) -> bool:
        """Whether the disk tells that this number was something else; by its batch where only that can be read."""
        station, known = self._station, self._station.ledger.get(sequence)
        stored, entry = station.storage.assignment(sequence), station.storage.entry(sequence)
        if isinstance(stored, Assignment):
            return stored.epoch < station.ledger.last_epoch if known is None else stored.epoch != known.epoch
        if known is None or not isinstance(entry, bytes | memoryview):
            return False
        return bool(known.system) or digest_of(entry) != known.digest

    def _forget(self, after: int) -> None:
        self._station.trace("cut", f"after={after}")
        # What this member accepted behind there and cannot read is void too, and gone from its disk.
        self._station.impaired_until = 0
        if self._station.keeps_log:
            self._station.journal.write(DropAfter(after))
            self.durable = min(self.durable, after)
            for mark in self._pending:
                mark[0] = min(mark[0], after)
        self.on_cut(after)

    @property
    def _is_behind(self) -> bool:
        station = self._station
        ledger = station.ledger
        if self.is_disk_behind:
            return False
        if ledger.committed < self.known_committed:
            return True
        if not station.keeps_log or not station.sequencer or station.sequencer == station.number:
            return False
        return ledger.confirmed_epoch != station.epoch or ledger.confirmed < self.known_assigned

    def _plan_query(self, now: float) -> None:
        if not self._is_behind:
            self._query_at, self._attempts = _NEVER, 0
        elif self._query_at == _NEVER:
            self._query_at = now + self._station.timing.nack_s * self._station.random.uniform(0.5, 1.5)

    def heal(self, now: float) -> None:
        """After a damaged record: others' facts fill it, and the disk still has what followed.

        What this member accepted and cannot read any more is known to be in the sequencer's log, or void, once it has
        all that the sequencer of a later moment had assigned.
        """
        station, ledger = self._station, self._station.ledger
        if now < self._heal_at:
            return
        self._reload()
        epoch, assigned = self._welcomed
        is_current = epoch == station.epoch == ledger.confirmed_epoch and ledger.confirmed >= assigned
        if is_current or ledger.last >= station.impaired_until:
            station.trace("healed", f"at={ledger.last}")
            station.impaired_until = 0
            station.journal.write(DropAfter(ledger.last))
            self._heal_at = _NEVER
            return
        self._heal_at = now + 2 * station.timing.nack_repeat_s
        voters = [number for number in ledger.state.voters if number != station.number]
        if voters:
            station.send_member(station.random.choice(voters), AssignmentQuery(ledger.committed, ledger.last + 1))

    def _reload(self) -> None:
        """Takes back what the disk has after the ledger's end; what an older epoch left there is void."""
        station, ledger = self._station, self._station.ledger
        first = ledger.last + 1
        while ledger.last < station.impaired_until:
            assignment = station.storage.assignment(ledger.last + 1)
            if not isinstance(assignment, Assignment):
                break
            if assignment.epoch < ledger.last_epoch:
                station.impaired_until = ledger.last
                break
            ledger.append(assignment)
        if ledger.last >= first:
            self.durable = ledger.last
            self.on_appended(first)

    def on_welcome(self, epoch: int, assigned: int) -> None:
        """The sequencer knows this run, and had assigned this much when it said so."""
        self._welcomed = (epoch, assigned)

    def on_delivered(self, delivered: int, now: float) -> None:
        """Another member was given this much, so it is committed."""
        if delivered > self.known_committed:
            self.known_committed = delivered
            self._plan_query(now)

    def on_leave(self, number: int, origin: bytes) -> bool:
        """A run said goodbye; True when it is the sequencer that this member follows.

        A late copy may be of an earlier run of the member that is sequencer now, and says nothing of this one.
        """
        station = self._station
        member = station.ledger.state.members.get(number)
        if number != station.sequencer or number == station.number or member is None or member.origin != origin:
            return False
        station.sequencer = 0
        self.heard_at = self.any_heard_at = -station.timing.suspect_s
        return True

    def next_deadline(self) -> float:
        """When it wants to ask."""
        return min(self._query_at, self._heal_at)

    def on_time(self, now: float) -> None:
        """Asks what the numbers mean: the sequencer, or every other time any commit server."""
        if now < self._query_at:
            return
        station, ledger = self._station, self._station.ledger
        if not self._is_behind or ledger.committed < self.collected:
            self._query_at, self._attempts = _NEVER, 0
            return
        self._attempts += 1
        self.queries += 1
        repeat = station.timing.nack_repeat_s * 2 ** min(self._attempts - 1, 4)
        self._query_at = now + repeat * station.random.uniform(0.8, 1.2)
        target = self._whom()
        if target:
            station.trace("query", f"after={ledger.committed} of={target}")
            station.send_member(
                target, AssignmentQuery(ledger.committed, max(self.known_assigned, self.known_committed))
            )

    def _whom(self) -> int:
        station = self._station
        voters = [number for number in station.ledger.state.voters if number not in (station.number, station.sequencer)]
        wants_open = station.is_commit_server or station.is_data_server
        if station.sequencer and (not voters or self._attempts % 2 == (1 if wants_open else 0)):
            return station.sequencer
        return station.random.choice(voters) if voters else 0

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "durable": self.durable,
            "unwritten": self._station.ledger.last - self.durable if self._station.keeps_log else 0,
            "known_committed": self.known_committed,
            "queries": self.queries,
        }
