"""The sequencer: gives batches their numbers and decides when a number is final.

Theory of operation. A member becomes sequencer of an epoch only through takeover.py; `begin` then appends `EpochBegun`,
and from there on this epoch's log only grows. A batch gets the next number once `report_quorum` data servers named it,
each sender's batches in the order it sent them, each once. A number n is committed when
  - the epoch's first number and n are durable on a majority of commit servers, by the newest voters in the log, and
  - for batches, n is durable on `copies` of the in-sync data servers.
A change of the in-sync set counts from the moment a majority of commit servers has it; until then both rules must be
met, so whichever of them a successor finds in the log, it holds for everything committed. A sequencer that does not
hear a majority steps down; one that hears of a higher epoch asks for a new one.
"""

from collections import deque

from alphorn.bus.config import Role
from alphorn.bus.entries import (
    Assignment,
    CheckpointMark,
    EpochBegun,
    InSyncChanged,
    IntervalChanged,
    SystemEntry,
    VoterAdded,
    VoterRemoved,
    describe_epoch,
    epoch_counter,
)
from alphorn.bus.follower import Follower
from alphorn.bus.frames import (
    CheckpointReport,
    Commit,
    CommitAcknowledge,
    CommitSubmit,
    DataReport,
    Frame,
    Heartbeat,
    Held,
    Join,
    NewEpoch,
)
from alphorn.bus.group_state import GroupState
from alphorn.bus.roster import Roster, nth_largest
from alphorn.bus.station import Station
from alphorn.model.ids import counter_of, origin_of

_NEVER = float("inf")
_CARE_S = 0.05  # between two looks at who is away, joined or caught up


class _Report:
    """A batch that waits for its number."""

    __slots__ = ("held", "reporters")

    def __init__(self, held: Held) -> None:
        self.held = held
        self.reporters: set[int] = set()


class Sequencer:
    """Active for one epoch at a time; idle otherwise."""

    __slots__ = (
        "_active_senders",
        "_beaten_at",
        "_begun_at",
        "_care_at",
        "_counted",
        "_follower",
        "_heartbeat_at",
        "_higher",
        "_higher_at",
        "_left",
        "_numbers_at_once",
        "_open_voters",
        "_progress_at",
        "_reports",
        "_rules",
        "_station",
        "_submitted",
        "_tip",
        "_written",
        "commits",
        "epoch",
        "is_active",
        "roster",
        "start",
        "wants_epoch",
    )

    def __init__(self, station: Station, follower: Follower, now: float) -> None:
        self._station = station
        self._follower = follower
        self._numbers_at_once = not station.config.needs_reports
        self.roster = Roster(station, now)
        self.is_active = False
        self.epoch = 0
        self.start = 0  # number of this epoch's first entry
        self.wants_epoch = 0  # an epoch at least this high should be asked for
        self.commits = 0
        self._tip: GroupState = station.ledger.state
        self._submitted = 0
        self._written = 0  # the ledger through this number is handed to this member's disk
        self._counted = 0  # how far the ledger went when it was last counted what is durable where
        self._left: deque[bytes] = deque(maxlen=64)
        self._higher = 0
        self._higher_at = 0.0  # since when a voter is known to follow a higher epoch
        self._reports: dict[bytes, dict[int, _Report]] = {}
        self._rules: list[tuple[int, tuple[int, ...], int]] = []
        self._open_voters = 0
        self._active_senders: dict[bytes, float] = {}
        self._begun_at = self._progress_at = now
        self._heartbeat_at = self._care_at = _NEVER
        self._beaten_at = now

    @property
    def numbers_own(self) -> bool:
        """Whether a batch of this member has its number as soon as it is sent: who missed the batch hears of that."""
        return self.is_active and self._numbers_at_once

    # --- beginning and end ---

    def begin(self, epoch: int, now: float) -> None:
        """A majority promised this epoch, and the ledger holds the log to go on from."""
        station, ledger = self._station, self._station.ledger
        assert epoch == station.epoch
        self.epoch, self.is_active, self.wants_epoch = epoch, True, 0
        self._higher, self._higher_at = 0, 0.0
        self.roster = Roster(station, now)
        self.roster.left.update(self._left)
        self._begun_at = self._progress_at = now
        self._reports, self._active_senders = {}, {}
        self._tip = ledger.state.copy(station.config)
        self._rules = [(0, ledger.state.in_sync, ledger.state.copies)]
        self._open_voters = 0
        for sequence, assignment in enumerate(ledger.slice(ledger.committed, ledger.last), ledger.committed + 1):
            self._fold(sequence, assignment)
        station.sequencer = station.number
        self._submitted, self._written, self._counted = ledger.committed, ledger.last, 0
        self.start = ledger.last + 1
        station.trace("begin", f"epoch={describe_epoch(epoch)} first={self.start}")
        station.tell(NewEpoch(ledger.last, ledger.last_epoch, station.address))
        ledger.confirm(epoch, ledger.last)
        self._propose(EpochBegun(epoch, station.number))
        self._heartbeat_at = self._care_at = now
        self._beaten_at = now - station.timing.heartbeat_s

    def stop(self, reason: str) -> None:
        """Not sequencer any more; what is open is left to the next."""
        if not self.is_active:
            return
        self._station.trace("step-down", reason)
        self.is_active = False
        ledger = self._station.ledger
        while ledger.last > max(self._written, ledger.committed) and ledger.last_epoch == self.epoch:
            ledger.cut(ledger.last - 1)  # nobody has heard of these, and no disk has them
        self._heartbeat_at = self._care_at = _NEVER
        self._reports, self._rules = {}, []
        if self._station.sequencer == self._station.number:
            self._station.sequencer = 0

    @property
    def is_overtaken(self) -> bool:
        """Whether this member knows of a later epoch, or the ledger holds numbers that this sequencer did not give."""
        return self.epoch != self._station.epoch or self._tip.sequence != self._station.ledger.last

    # --- what members say ---

    def on_report(self, frame: Frame, body: DataReport, now: float) -> None:
        """A data server holds these batches and asks for their numbers."""
        self.roster.hear(frame, now)
        for held in body.held:
            origin, counter = origin_of(held.id), counter_of(held.id)
            if counter <= self._tip.senders.get(origin, 0) or not self._tip.is_sender(origin):
                continue
            reports = self._reports.setdefault(origin, {})
            report = reports.get(counter)
            if report is None:
                report = reports[counter] = _Report(held)
            report.reporters.add(frame.number)
            self._active_senders[origin] = now

    def on_acknowledge(self, frame: Frame, body: CommitAcknowledge, now: float) -> None:
        """Commit and data servers tell what is durable; words of another epoch count only as a sign of life."""
        standing = self.roster.hear(frame, now)
        if standing is not None and frame.epoch == self.epoch:
            self.roster.acknowledge(standing, body.accepted, body.stored, now)

    def on_checkpoint_report(self, frame: Frame, body: CheckpointReport, now: float) -> None:
        """A checkpoint is durable somewhere."""
        standing = self.roster.hear(frame, now)
        if standing is not None:
            standing.checkpoint = max(standing.checkpoint, body.sequence)

    def on_join(self, frame: Frame, body: Join, now: float) -> None:
        """A run asks to be a member."""
        for entry in self.roster.on_join(body, self._tip, has_open_voters=self._has_open_voters, now=now):
            self._propose(entry)

    def on_leave(self, origin: bytes) -> None:
        """A member says goodbye; a later sequencer remembers it too: the one that left may have been the sequencer."""
        self._left.append(origin)
        self.roster.left.add(origin)
        if self.is_active:
            self._care_at = 0.0

    def hear_epoch(self, frame: Frame, now: float) -> None:
        """A server has promised a higher epoch and will not listen to this one: one above it must be asked for."""
        member = self._tip.members.get(frame.number)
        if self.is_active and member is not None and member.roles:
            self._higher_at = self._higher_at or now
            self._higher = max(self._higher, frame.epoch)

    def change_voters(self, number: int, *, add: bool, now: float) -> bool:
        """An administrator's wish; refused while another change is open, or where it could stop the group."""
        member = self._tip.members.get(number)
        if not self.is_active or self._has_open_voters or member is None or member.is_voter == add:
            return False
        others = [self._tip.members[voter] for voter in self._tip.voters if voter != number]
        if not add and not any(voter.has(Role.SEQUENCER) for voter in others):
            return False  # somebody must be left to ask for the next epoch
        if add and not self.roster.may_vote(self._tip, number, now):
            return False
        if self._station.ledger.committed < self.start:
            return False
        self._propose(VoterAdded(number) if add else VoterRemoved(number, True))
        return True

    def change_interval(self, interval: int, lifetime: int) -> bool:
        """An administrator's wish, agreed through the log like everything else."""
        if self.is_active:
            self._propose(IntervalChanged(interval, lifetime))
        return self.is_active

    @property
    def _has_open_voters(self) -> bool:
        ledger = self._station.ledger
        return self._open_voters > ledger.committed or ledger.committed < self.start

    # --- one turn ---

    def flush(self, now: float) -> None:
        """Numbers what is ready, submits it, and commits what is durable."""
        if self.is_active and self.is_overtaken:
            self.stop("the log went on without this sequencer")
        if self.is_active and self._follower.is_disk_behind:
            self.stop("its disk hangs")
        if not self.is_active:
            return
        self._number_ready()
        self._submit_new()
        self._commit(now)

    def _number_ready(self) -> None:
        station, ledger, tip = self._station, self._station.ledger, self._tip
        quorum = min(station.config.report_quorum, len(tip.in_sync))
        for origin in list(self._reports):
            reports = self._reports[origin]
            if origin not in tip.senders:
                reports.clear()  # numbering one would make the group remember a sender that never leaves
            while ledger.last - ledger.committed < station.budget.open_numbers_max:
                report = reports.get(tip.senders.get(origin, 0) + 1)
                if report is None or len(report.reporters) < quorum:
                    break
                held = report.held
                self._append(Assignment(self.epoch, held.id, held.timestamp, held.digest, held.size))
                del reports[counter_of(held.id)]
            if not reports:
                del self._reports[origin]
        if ledger.last - tip.mark >= tip.interval and ledger.last > self.start:
            self._propose(CheckpointMark())

    def _propose(self, entry: SystemEntry) -> None:
        self._station.trace("propose", f"{type(entry).__name__} at={self._station.ledger.last + 1}")
        self._append(self._station.system(entry, self.epoch))

    def _append(self, assignment: Assignment) -> None:
        if self.is_overtaken:
            return  # this turn's end stops it
        self._fold(self._station.ledger.append(assignment), assignment)

    def _fold(self, sequence: int, assignment: Assignment) -> None:
        entry = self._tip.fold(sequence, assignment)
        if isinstance(entry, InSyncChanged):
            self._rules.append((sequence, entry.numbers, entry.copies))
        elif isinstance(entry, VoterAdded | VoterRemoved):
            self._open_voters = sequence

    def _submit_new(self) -> None:
        station, ledger = self._station, self._station.ledger
        if ledger.last > self._written:
            ledger.confirm(self.epoch, ledger.last)
            first, self._written = self._written + 1, ledger.last
            self._follower.write_tail(first)
            if station.config.stable_before_submit:
                epoch, through = self.epoch, ledger.last
                station.journal.then(lambda: self._submit(epoch, through))
        if not station.config.stable_before_submit:
            self._submit(self.epoch, ledger.last)

    def _submit(self, epoch: int, through: int) -> None:
        """One frame names many numbers, as many as a datagram takes."""
        station, ledger = self._station, self._station.ledger
        if epoch != self.epoch or not self.is_active:
            return
        while self._submitted < through:
            previous = self._submitted
            assignments = self._packed(previous, through)
            self._submitted += len(assignments)
            previous_epoch = ledger.epoch_at(previous) or 0
            station.tell(CommitSubmit(previous, previous_epoch, ledger.committed, assignments))

    def _packed(self, after: int, through: int) -> list[Assignment]:
        room = self._station.budget.datagram_bytes - 200
        packed: list[Assignment] = []
        for assignment in self._station.ledger.slice(after, min(through, after + room // 48)):
            room -= 64 + len(assignment.system)
            if room < 0 and packed:
                break
            packed.append(assignment)
        return packed

    def _commit(self, now: float) -> None:
        station, ledger, tip = self._station, self._station.ledger, self._tip
        if ledger.committed == ledger.last or not (self.roster.has_news or ledger.last > self._counted):
            return
        self.roster.has_news, self._counted = False, ledger.last
        voters = tip.voters
        quorum = min(max(tip.majority, station.config.acknowledge_quorum), len(voters))
        accepted = nth_largest([self.roster.accepted(number) for number in voters], quorum)
        if accepted < self.start:
            return
        while len(self._rules) > 1 and self._rules[1][0] <= accepted:
            self._rules.pop(0)
        stored = min(
            nth_largest([self.roster.stored(n) for n in numbers], copies) for _, numbers, copies in self._rules
        )
        through = max(min(accepted, stored), ledger.committed)
        while through < accepted:  # system entries need no data server
            following = ledger.get(through + 1)
            if following is None or not following.system:
                break
            through += 1
        first = ledger.committed + 1
        if through >= first:
            self._progress_at = now
            ledger.commit(through)
            if self._is_awaited(first, through):
                self._tell_committed(first, through)
            self.roster.welcome_joined()
            # While commits follow one another, the next one shows the loss of the one before.
            self._heartbeat_at = min(
                self._beaten_at + station.timing.heartbeat_s, now + station.timing.heartbeat_busy_s
            )

    def _is_awaited(self, first: int, through: int) -> bool:
        """Whether some other member waits to hear that these are committed.

        For batches those that only keep the log do not: they have done what the group needs before, and hear of it with
        the next submit, or by the heartbeat that follows when there is none.
        """
        own = self._station.number
        return any(
            number != own and member.is_live and (not member.roles or member.has(Role.READER))
            for number, member in self._tip.members.items()
        ) or any(assignment.system for assignment in self._station.ledger.slice(first - 1, through))

    def _tell_committed(self, first: int, through: int) -> None:
        while first <= through:
            assignments = self._packed(first - 1, through)
            self.commits += 1
            first += len(assignments)
            # Each frame says only how far it reaches itself; more would look like a loss of the frames after it.
            self._station.tell(Commit(first - 1, first - len(assignments), assignments))

    # --- time ---

    def next_deadline(self) -> float:
        """Heartbeats, and care for the group."""
        return min(self._heartbeat_at, self._care_at) if self.is_active else _NEVER

    def on_time(self, now: float) -> None:
        """Speaks at least this often, and looks after its members."""
        if not self.is_active:
            return
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self._station.timing.heartbeat_s
            self._beat(now)
        if now >= self._care_at:
            self._care_at = now + _CARE_S
            self._care(now)

    def _beat(self, now: float) -> None:
        station, ledger = self._station, self._station.ledger
        self._beaten_at = now
        share = self.share_bytes(now)
        station.tell(Heartbeat(ledger.committed, self._submitted, ledger.state.collected, share), self_too=True)

    def share_bytes(self, now: float) -> int:
        """Each active sender's part of the window."""
        self._active_senders = {origin: at for origin, at in self._active_senders.items() if now - at < 1.0}
        share = self._station.budget.window_bytes // max(1, len(self._active_senders))
        return max(share, 2 * self._station.budget.datagram_bytes)

    def _care(self, now: float) -> None:
        station, ledger, timing = self._station, self._station.ledger, self._station.timing
        voters = self._tip.voters
        heard = sum(n == station.number or self.roster.silence(n, now) <= timing.lease_s for n in voters)
        if heard < self._tip.majority:
            self.stop("no majority is heard")
            return
        own = ledger.state.members.get(station.number)
        if own is not None and not own.is_voter and ledger.committed >= self.start:
            self.stop("it is no commit server any more")
            return
        is_deserted = self._higher_at and now - self._higher_at > timing.lease_s
        is_stalled = ledger.last > ledger.committed and now - self._progress_at > timing.stall_s
        if ledger.last == ledger.committed:
            self._progress_at = now
        if is_stalled or is_deserted:
            self.wants_epoch = max(self._higher, self.epoch)
            return
        if ledger.committed < self.start:
            self._change_in_sync(now)
            return
        for entry in self.roster.departures(self._tip, now):
            self._propose(entry)
        self._change_in_sync(now)
        if not self._has_open_voters and (change := self.roster.voter_change(self._tip, now)) is not None:
            self._propose(change)
        if (collected := self.roster.collection(self._tip, now)) is not None:
            self._propose(collected)

    def _change_in_sync(self, now: float) -> None:
        if len(self._rules) == 1 and (rule := self.roster.in_sync_change(self._tip, now)) is not None:
            self._propose(rule)

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "active": self.is_active,
            "epoch": describe_epoch(self.epoch),
            "counter": epoch_counter(self.epoch),
            "open": self._station.ledger.last - self._station.ledger.committed if self.is_active else 0,
            "unnumbered": sum(len(reports) for reports in self._reports.values()),
            "commits": self.commits,
        }
