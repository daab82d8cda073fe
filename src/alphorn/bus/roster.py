"""What the sequencer knows of its members: who was heard when, who stored how much; and what follows from it.

It proposes system entries, at most one of a kind at a time: joins and departures, smaller and larger in-sync sets,
voters that lost their disks and voters that are whole again, collection. Whether an in-sync set may become the rule
is decided here, by one condition: enough of its members hold everything that is, or may be, committed.
"""

import msgspec

from alphorn.bus.config import CONFIGURED_NUMBER_MAX, Role
from alphorn.bus.entries import (
    Collected,
    InSyncChanged,
    Member,
    MemberJoined,
    MemberLeft,
    SystemEntry,
    VoterAdded,
    VoterRemoved,
)
from alphorn.bus.frames import Frame, Join, Status, Welcome
from alphorn.bus.group_state import GroupState
from alphorn.bus.station import Station

_LOST_MAX = 64  # runs on lost or old disks that are remembered: of a group, a few at most
_DISK_STEP = 1 << 12  # starts by which a member on another disk is ahead of the one before, which may be found again
_INCARNATION_MAX = (1 << 32) - 1


class Standing:
    """What was last heard of one member, in the current epoch."""

    __slots__ = (
        "accepted",
        "checkpoint",
        "delivered",
        "heard_at",
        "is_synchronised",
        "lags_since",
        "origin",
        "stored",
        "stored_at",
    )

    def __init__(self, origin: bytes, now: float) -> None:
        self.origin = origin
        self.heard_at = now
        self.accepted = 0
        self.stored = 0
        self.stored_at = now  # when `stored` last grew
        self.lags_since = 0.0  # since when there was something it had not stored; 0 while there is nothing
        self.checkpoint = 0
        self.delivered = 0
        self.is_synchronised = False


class Roster:
    """The sequencer's memory of its members; begins empty with each epoch."""

    __slots__ = (
        "_adopted",
        "_departed",
        "_joining",
        "_lost",
        "_predecessor",
        "_station",
        "begun_at",
        "has_news",
        "left",
        "standings",
    )

    def __init__(self, station: Station, now: float) -> None:
        self._station = station
        self._adopted = station.ledger.last  # what precedes this epoch: any of it may have been committed before
        self._departed: set[int] = set()  # members that said goodbye, until another run of them is heard
        self._predecessor = station.ledger.state.primary
        self.begun_at = now
        self.has_news = False  # whether more is durable somewhere than when the sequencer last counted
        self.standings: dict[int, Standing] = {}
        self.left: set[bytes] = set()
        self._joining: dict[int, Member] = {}  # runs whose join is open, as they asked
        # Runs, by number and nonce, that seem to have a lost or old disk, and how far the log went when it was noticed.
        self._lost: dict[tuple[int, int], int] = {}

    def of(self, number: int) -> Standing | None:
        """What is known of a member."""
        return self.standings.get(number)

    def hear(self, frame: Frame, now: float) -> Standing | None:
        """Any frame is a sign of life; a new run of a member starts from nothing."""
        return self._hear_run(frame.number, frame.origin, now) if frame.number else None

    def _hear_run(self, number: int, origin: bytes, now: float) -> Standing:
        standing = self.standings.get(number)
        if standing is None or standing.origin != origin:
            standing = self.standings[number] = Standing(origin, now)
            self._departed.discard(number)
        standing.heard_at = now
        return standing

    def acknowledge(self, standing: Standing, accepted: int, stored: int, now: float) -> None:
        """What a member of the current epoch says is durable."""
        if accepted > standing.accepted:
            standing.accepted = accepted
            self.has_news = True
        if stored > standing.stored:
            standing.stored, standing.stored_at = stored, now
            self.has_news = True

    def on_status(self, frame: Frame, body: Status, epoch: int, now: float) -> None:
        """A member's own report."""
        standing = self.hear(frame, now)
        if standing is not None:
            standing.is_synchronised = body.is_synchronised
            standing.delivered = body.delivered
            standing.checkpoint = max(standing.checkpoint, body.checkpoint)
            if frame.epoch == epoch:
                self.acknowledge(standing, body.accepted, body.stored, now)

    def silence(self, number: int, now: float) -> float:
        """How long nothing was heard of a member."""
        standing = self.standings.get(number)
        return now - (standing.heard_at if standing is not None else self.begun_at)

    def stored(self, number: int) -> int:
        """How far a data server is durable."""
        standing = self.standings.get(number)
        return standing.stored if standing is not None else 0

    def accepted(self, number: int) -> int:
        """How far a commit server is durable."""
        standing = self.standings.get(number)
        return standing.accepted if standing is not None else 0

    def delivered(self, number: int) -> int:
        """How far a member has heard the log."""
        standing = self.standings.get(number)
        return standing.delivered if standing is not None else 0

    def on_join(self, body: Join, tip: GroupState, *, has_open_voters: bool, now: float) -> list[SystemEntry]:
        """A run asks to be a member. Answers what is settled already; gives what must be proposed otherwise."""
        station, asked = self._station, body.member
        is_configured = 0 < asked.number <= CONFIGURED_NUMBER_MAX
        if is_configured and asked.number not in tip.members:
            return []
        if is_configured and body.config != station.config.digest():
            self._refuse(asked, f"the configuration of {asked.name} differs from the group's; copy it and restart")
            return []
        number = asked.number if is_configured else tip.number_of(asked.origin) or tip.free_number()
        committed = station.ledger.state.members.get(number)
        if committed is not None and committed.is_live and _is_same_run(committed, asked):
            self._hear_run(number, asked.origin, now)
            self._welcome(number, asked)
            return []
        if tip.may_be_forgotten(asked.origin, body.unused):
            # It goes on under another name once it knows the log through there; a late copy of its word is void.
            self._answer(asked, station.ledger.state.forgotten)
            return []
        if is_configured:
            # Heard, though not yet a member: a damaged disk needs to know how far the log goes to be whole again.
            self._answer(asked)
            if body.promised > station.epoch:
                # It follows a later epoch, under which it may have cut off what it accepted in this one: whether its
                # disk is old is for that one's sequencer to judge.
                return []
        known = tip.members.get(number)
        if not number or (known is not None and known.is_live and _is_same_run(known, asked)):
            return []
        entries: list[SystemEntry] = []
        incarnation = asked.incarnation if known is None else max(asked.incarnation, known.incarnation)
        if is_configured and known is not None and (body.is_blank or self._is_old(body, known)):
            if body.told < (station.epoch, self._note_lost(number, asked.nonce)):
                # It may be a late word of an earlier run, whose answers all came before the run that the log knows now
                # was admitted. One that is there hears this answer, and asks again at once.
                self._answer(asked, station.ledger.committed)
                return []
            if asked.origin != known.origin and self._is_here(known, now):
                return []  # two at once; a disk that is lost asks again, when the other run is silent
            station.trace("disk-lost", f"member={number}")
            # At once, whatever its vote must wait for: what it said was durable is not any more.
            self._forget(number)
            if known.is_voter:
                if has_open_voters or len(tip.voters) == 1:
                    return []
                entries.append(VoterRemoved(number, False))
            incarnation = min(incarnation + _DISK_STEP, _INCARNATION_MAX)
        self._lost = {run: line for run, line in self._lost.items() if run[0] != number}
        self._hear_run(number, asked.origin, now)
        self._joining[number] = asked
        member = msgspec.structs.replace(asked, number=number, incarnation=incarnation)
        return [*entries, MemberJoined(member)]

    def welcome_joined(self) -> None:
        """Answers those whose join has been committed since they asked."""
        members = self._station.ledger.state.members
        for number, asked in list(self._joining.items()):
            member = members.get(number)
            if member is not None and member.is_live and _is_same_run(member, asked):
                del self._joining[number]
                self._welcome(number, asked)

    def _is_old(self, body: Join, known: Member) -> bool:
        """Whether this disk is older than what its member already said: a restored image, or a lost one found again.

        The same process, back after it was taken for gone or under a new start, has the disk it always had. A disk that
        takes the place of another counts many starts more (`_DISK_STEP`), and is told so by the log when its member has
        joined; so the one that was left has fewer, whichever it is, and is known by that.
        """
        if body.member.nonce == known.nonce:
            return False
        if body.member.incarnation <= known.incarnation or (known.number, body.member.nonce) in self._lost:
            return True
        standing = self.standings.get(known.number)
        return standing is not None and standing.origin != body.member.origin and body.accepted < standing.accepted

    def _note_lost(self, number: int, nonce: int) -> int:
        """It is so until its vote is removed, whatever it has caught up with until then: it may have forgotten more.

        Gives how far the log went when it was noted: a run that was told at least that much is there now.
        """
        if (number, nonce) not in self._lost and len(self._lost) >= _LOST_MAX:
            del self._lost[next(iter(self._lost))]
        return self._lost.setdefault((number, nonce), self._station.ledger.last)

    def _is_here(self, known: Member, now: float) -> bool:
        """Whether the run that the log knows spoke a moment ago."""
        standing = self.standings.get(known.number)
        if standing is None or standing.origin != known.origin:
            return False
        return now - standing.heard_at < self._station.timing.suspect_s

    def _forget(self, number: int) -> None:
        standing = self.standings.get(number)
        if standing is not None:
            standing.accepted = standing.stored = standing.checkpoint = 0
            standing.is_synchronised = False

    def _welcome(self, number: int, asked: Member) -> None:
        ledger = self._station.ledger
        epoch, state = ledger.epoch_at(ledger.committed) or 0, ledger.state.encode()
        welcome = Welcome(number, ledger.committed, epoch, state, ledger.last, nonce=asked.nonce)
        self._station.send(asked.address, welcome)

    def _answer(self, asked: Member, sequence: int = 0) -> None:
        """It was heard, and is no member yet."""
        self._station.send(asked.address, Welcome(0, sequence, 0, b"", self._station.ledger.last, nonce=asked.nonce))

    def _refuse(self, asked: Member, reason: str) -> None:
        self._station.send(asked.address, Welcome(0, 0, 0, b"", 0, reason, asked.nonce))

    def departures(self, tip: GroupState, now: float) -> list[SystemEntry]:
        """Members that said goodbye or were silent too long."""
        gone: list[SystemEntry] = []
        for number, member in tip.members.items():
            if not member.is_live or number == self._station.number:
                continue
            has_left = member.origin in self.left
            if has_left or self.silence(number, now) > self._station.timing.evict_s:
                gone.append(MemberLeft(number, member.origin, not has_left))
            if has_left:
                self._departed.add(number)
        self.left.clear()
        return gone

    def voter_change(self, tip: GroupState, now: float) -> SystemEntry | None:
        """A commit server that was removed for its disk, and has caught up, is added again."""
        for number, member in sorted(tip.members.items()):
            if not member.is_voter and member.has(Role.COMMIT) and self.may_vote(tip, number, now):
                return VoterAdded(number)
        return None

    def may_vote(self, tip: GroupState, number: int, now: float) -> bool:
        """Whether a member can be added to the voters: its run follows the log closely.

        Only while the larger set has a majority that keeps up: a voter more must never stop the group.
        """
        timing, committed = self._station.timing, self._station.ledger.committed
        healthy = [n for n in tip.voters if self.silence(n, now) <= timing.away_s and self.accepted(n) >= committed]
        if len(healthy) + 1 < (len(tip.voters) + 1) // 2 + 1:
            return False
        member, standing = tip.members[number], self.standings.get(number)
        if not member.is_live or standing is None or now - standing.heard_at > timing.away_s:
            return False
        return standing.origin == member.origin and standing.is_synchronised

    def in_sync_change(self, tip: GroupState, now: float) -> InSyncChanged | None:
        """A smaller set when members are away or stuck, a larger one when others have caught up."""
        timing, committed = self._station.timing, self._station.ledger.committed
        waits = self._station.ledger.last > committed
        keep = []
        for number in tip.in_sync:
            stuck_s = self._stuck_for(number, now)
            is_stuck = waits and self.stored(number) <= committed and stuck_s > timing.away_s
            if not self._is_away(number, now) and not is_stuck:
                keep.append(number)
        if len(keep) < len(tip.in_sync):
            return self._rule(keep, tip)
        for number, member in sorted(tip.members.items()):
            standing = self.standings.get(number)
            if number in tip.in_sync or not member.has(Role.DATA) or not member.is_live or standing is None:
                continue
            if standing.origin != member.origin or not standing.is_synchronised:
                continue
            if now - standing.heard_at <= timing.away_s and standing.stored >= committed - 64:
                return self._rule([*tip.in_sync, number], tip)
        return None

    def _is_away(self, number: int, now: float) -> bool:
        """Whether a data server said goodbye, or is silent for too long, as the sequencer before was."""
        is_replaced = number == self._predecessor != self._station.number and number not in self.standings
        return is_replaced or number in self._departed or self.silence(number, now) > self._station.timing.away_s

    def _stuck_for(self, number: int, now: float) -> float:
        """How long a data server has had something to store and got no further."""
        standing = self.standings.get(number)
        if standing is None:
            return 0.0
        if standing.stored >= self._station.ledger.last:
            standing.lags_since = 0.0
            return 0.0
        standing.lags_since = standing.lags_since or now
        return now - max(standing.lags_since, standing.stored_at)

    def _rule(self, numbers: list[int], tip: GroupState) -> InSyncChanged | None:
        """The set as a rule, where enough of its members hold all that is committed, or may be unbeknown to this epoch.

        A successor that finds this rule in the log concludes from its members' denials what was never committed.
        """
        config = self._station.config
        copies = min(config.copies, len(numbers))
        if copies < config.copies_min:
            return None
        line = max(self._station.ledger.committed, self._adopted)
        holders = sum(self.stored(number) >= line for number in numbers)
        rule = InSyncChanged(tuple(sorted(numbers)), copies)
        is_news = (rule.numbers, rule.copies) != (tip.in_sync, tip.copies)
        return rule if is_news and holders >= copies else None

    def collection(self, tip: GroupState, now: float) -> Collected | None:
        """Through the newest mark that checkpoints cover; never past what a live member still needs.

        Age counts only where nobody makes checkpoints: others could not go on without the state, however old it is. And
        only those count who are in sync: one that is away may never bring its checkpoint back.
        """
        state = self._station.ledger.state
        live = [n for n, m in tip.members.items() if m.is_live and self.silence(n, now) <= self._station.timing.evict_s]
        data = [self.stored(n) for n in live if tip.members[n].has(Role.DATA)]
        votes = [self.accepted(n) for n in live if tip.members[n].is_voter]
        # Who keeps no log cannot go on from a checkpoint: what it has not heard yet is kept for it while it lives.
        heard = [self.delivered(n) for n in live if not tip.members[n].has(Role.DATA)]
        servers = [n for n, member in tip.members.items() if member.has(Role.CHECKPOINT)]
        standings = [self.standings[n] for n in live if n in servers and n in tip.in_sync and n in self.standings]
        reported = [standing.checkpoint for standing in standings]
        needed = min(tip.copies, len(servers))
        covered = nth_largest(reported, needed) if needed else state.aged_through(state.sequence)
        target = min(covered, state.mark)
        line = min([target, *data, *votes, *heard])
        is_worth_it = line == target or line >= tip.collected + tip.interval
        return Collected(line) if line > tip.collected and is_worth_it else None


def _is_same_run(known: Member, asked: Member) -> bool:
    return (known.origin, known.nonce) == (asked.origin, asked.nonce)


def nth_largest(numbers: list[int], n: int) -> int:
    """The largest number that at least `n` of these reach; 0 when there are fewer."""
    return sorted(numbers, reverse=True)[n - 1] if len(numbers) >= n else 0
