"""How a member becomes sequencer: it asks a majority of commit servers, adopts what may be committed, and begins.

States:  IDLE -> PREPARING (asks for promises) -> RESOLVING (looks for the batches of open numbers) -> the epoch begins.

Rank only decides who asks first; a promise from a majority decides who may. Of the promised logs the one with the
highest last epoch, and the longest of those, is adopted: whatever could have been committed is in it. Voters are
counted by the newest configuration in that log. An open number whose batch nobody has must be cut off, with all after
it, but only when so many in-sync data servers lack it that it cannot have been committed; until then the candidate
waits for the others.
"""

import enum

from alphorn.bus.commit_server import CommitServer
from alphorn.bus.config import Role
from alphorn.bus.entries import describe_epoch, epoch_counter, make_epoch
from alphorn.bus.follower import Follower
from alphorn.bus.frames import Absent, Fetch, Frame, NewEpoch, Prepare, Promise, Status
from alphorn.bus.group_state import GroupState
from alphorn.bus.machine import Stop
from alphorn.bus.receiver import Receiver
from alphorn.bus.repair import Repairer
from alphorn.bus.sequencer import Sequencer
from alphorn.bus.station import Station
from alphorn.bus.storage import DAMAGED
from alphorn.model.ids import origin_of

_NEVER = float("inf")


class State(enum.Enum):
    """Where a candidacy stands."""

    IDLE = "idle"
    PREPARING = "preparing"
    RESOLVING = "resolving"


class Takeover:
    """One member's candidacy."""

    __slots__ = (
        "_began_at",
        "_claimed",
        "_commit_server",
        "_denied",
        "_due",
        "_follower",
        "_is_retired",
        "_peers",
        "_promises",
        "_receiver",
        "_repairer",
        "_seen",
        "_sequencer",
        "_sought",
        "_station",
        "_until",
        "epochs",
        "state",
    )

    def __init__(
        self,
        station: Station,
        follower: Follower,
        receiver: Receiver,
        commit_server: CommitServer,
        sequencer: Sequencer,
        repairer: Repairer,
        now: float,
    ) -> None:
        self._station = station
        self._follower = follower
        self._receiver = receiver
        self._commit_server = commit_server
        self._sequencer = sequencer
        self._repairer = repairer
        self._peers: dict[int, tuple[float, int]] = {}  # candidates: when heard, how much stored
        self._promises: dict[int, Promise] = {}
        self._denied: dict[bytes, set[int]] = {}
        self._seen = station.epoch  # the highest epoch that anybody spoke of
        self._claimed = -1  # an epoch that was asked for and has not begun
        self._is_retired = False
        self._sought = 0  # the first open number whose batch was missing when it last looked
        self._until = _NEVER
        self._began_at = now
        self._due = now + station.timing.suspect_s
        self.state = State.IDLE
        self.epochs = 0

    @property
    def may_ask(self) -> bool:
        """Whether this member can be sequencer at all; not while its upper layer has no state, or its disk hangs."""
        station = self._station
        is_able = self._has_state and not self._follower.is_disk_behind
        return station.may_sequence and self._commit_server.may_vote and station.is_voter and is_able

    @property
    def sought(self) -> int:
        """An open number without whose batch, which nobody has given yet, this member cannot begin; 0 for none."""
        return self._sought if not self._station.sequencer else 0

    @property
    def _has_state(self) -> bool:
        """Whether the upper layer has taken over the checkpoint it needs, and the log goes on from there."""
        return not self._receiver.is_held and self._receiver.delivered >= self._station.ledger.base

    def on_status(self, frame: Frame, body: Status, now: float) -> None:
        """Candidates tell each other how much they hold, so that the up-to-date one of best rank asks first."""
        member = self._station.ledger.state.members.get(frame.number)
        if member is not None and member.has(Role.SEQUENCER):
            self._peers[frame.number] = (now, body.delivered)

    def retire(self) -> None:
        """The node stops: it does not stand again."""
        self.state, self._is_retired = State.IDLE, True

    def hurry(self, now: float) -> None:
        """The sequencer said goodbye: nobody has to wait until it is missed."""
        self._due = min(self._due, now)

    def seen(self, epoch: int) -> None:
        """Somebody speaks of this epoch."""
        self._seen = max(self._seen, epoch)

    # --- when ---

    def next_deadline(self) -> float:
        """When it wants to look again."""
        if not self._station.may_sequence or self._sequencer.is_active or self._is_retired:
            return _NEVER
        return self._due

    def on_time(self, now: float) -> None:
        """Asks when the sequencer is silent and it is this member's turn; asks again while it is a candidate."""
        if self._sequencer.is_active or now < self._due or self._is_retired:
            return
        if self.state is State.IDLE:
            self._consider(now)
        elif self._is_outdone or now >= self._until:
            self._give_up(now)
        elif self.state is State.PREPARING:
            self._prepare(now)
        else:
            self._resolve(now)

    def _consider(self, now: float) -> None:
        timing = self._station.timing
        # A sequencer behind this member's fence is not followed, but it is alive, and will ask for a higher epoch.
        silent_since = self._follower.any_heard_at + timing.suspect_s
        place = self._place(now)
        turn = silent_since + timing.rank_delay_s * (place + self._station.random.uniform(0, 0.5))
        if now < turn:
            self._due = turn
        elif now < (patient_until := self._patient_until(place)):
            self._due = min(patient_until, now + timing.status_s)
        elif self.may_ask and self._is_synchronised():
            self.ask(now)
        else:
            self._due = now + timing.suspect_s

    def _patient_until(self, place: int) -> float:
        """Where nobody has led this run yet, the whole group starts: who goes first may only be a little later."""
        timing = self._station.timing
        is_led = bool(self._station.ledger.confirmed_epoch)
        return self._began_at + timing.start_s + timing.rank_delay_s * place if place and not is_led else -_NEVER

    def _is_synchronised(self) -> bool:
        station = self._station
        return self._follower.collected <= station.ledger.committed

    def _place(self, now: float) -> int:
        """How many candidates go first: those that hold more of the log, then those of better rank.

        Before there is a log nobody holds more of it, and one that was never heard is still to start.
        """
        station = self._station
        fresh = now - 4 * station.timing.status_s
        sign = 1 if station.config.lowest_rank_first else -1
        mine = (-station.ledger.committed, sign * station.rank, station.number)
        unheard = (-_NEVER if station.ledger.last else now, 0)
        place = 0
        for number, member in station.ledger.state.members.items():
            heard_at, delivered = self._peers.get(number, unheard)
            if number == station.number or not member.has(Role.SEQUENCER) or heard_at < fresh:
                continue
            if (-delivered, sign * member.rank, number) < mine:
                place += 1
        return place

    # --- asking ---

    @property
    def _is_outdone(self) -> bool:
        """Whether somebody speaks of a higher epoch than the one asked for."""
        return self._station.epoch != self._claimed or self._seen > self._claimed

    def ask(self, now: float) -> None:
        """Claims a new epoch above all it has heard of."""
        station = self._station
        self._sequencer.stop("a new epoch is asked for")
        self.state, self._promises, self._denied = State.PREPARING, {}, {}
        self._until = now + 4 * station.timing.prepare_s
        if self._is_outdone:
            # Asking again for an epoch nobody has answered to would only drive the numbers up.
            self._claimed = make_epoch(epoch_counter(max(self._seen, station.epoch)) + 1, station.number)
            self.epochs += 1
            station.raise_fence(self._claimed)
        station.trace("ask", f"epoch={describe_epoch(station.epoch)}")
        self._prepare(now)

    def _prepare(self, now: float) -> None:
        station = self._station
        self._due = now + station.timing.prepare_s * station.random.uniform(0.8, 1.2)
        epoch, committed = station.epoch, station.ledger.committed

        def say() -> None:
            # The claim is on this member's own disk first: after a crash it never claims the same epoch again.
            if station.epoch == epoch and self.state is State.PREPARING:
                station.tell(Prepare(committed, station.incarnation), self_too=True)

        station.journal.then(say)

    def _give_up(self, now: float) -> None:
        self._station.trace("give-up", self.state.value)
        if self.state is State.RESOLVING:
            self._claimed = -1  # the epoch was announced, and nobody promises it a second time
            self._stop_alone(now)
        self.state = State.IDLE
        self._due = now + self._station.timing.suspect_s * self._station.random.uniform(0.5, 1.5)

    def _stop_alone(self, now: float) -> None:
        """What the only disk cannot read its sender might still have had; it had its time."""
        station, ledger = self._station, self._station.ledger
        unread = (n for n in range(ledger.committed + 1, ledger.last + 1) if station.storage.entry(n) is DAMAGED)
        if station.is_alone and now >= self._until and (number := next(unread, 0)):
            station.outbox.append(Stop(station.lost(f"the batch of number {number}")))

    def on_promise(self, frame: Frame, body: Promise, now: float) -> None:
        """A commit server's answer."""
        self.seen(body.promised)
        if self.state is not State.PREPARING or body.epoch != self._station.epoch:
            return
        if not body.is_granted:
            self._give_up(now)
            return
        self._promises[frame.number] = body
        self._count(now)

    def _count(self, now: float) -> None:
        station, ledger = self._station, self._station.ledger
        best = max(self._promises.values(), key=lambda promise: (promise.last_epoch, promise.last))
        is_mine = (best.last_epoch, best.last) == (ledger.last_epoch, ledger.last)
        if not is_mine and (best.previous > ledger.committed or best.previous + len(best.assignments) < best.last):
            self._come_closer(best)
            return
        tip = ledger.state.copy(station.config)
        log = ledger.slice(ledger.committed, ledger.last) if is_mine else best.assignments
        skip = 0 if is_mine else ledger.committed - best.previous
        for assignment in log[skip:]:
            tip.fold(tip.sequence + 1, assignment)
        granted = sum(number in self._promises for number in tip.voters)
        if granted >= tip.majority:
            self._adopt(best, is_mine=is_mine, now=now)

    def _come_closer(self, best: Promise) -> None:
        """Too far behind to adopt the best log: takes what of it is committed, and asks again from there."""
        self._follower.collected = max(self._follower.collected, best.previous)
        self._follower.known_committed = max(self._follower.known_committed, best.committed)
        self._follower.take_range(best.previous + 1, best.assignments[: max(0, best.committed - best.previous)])
        self._promises = {}

    def _adopt(self, best: Promise, *, is_mine: bool, now: float) -> None:
        station, ledger = self._station, self._station.ledger
        self.state = State.RESOLVING
        self._until = now + station.timing.stall_s
        if not is_mine:
            self._follower.adopt(best.previous, best.assignments)
        ledger.commit(max(promise.committed for promise in self._promises.values()))
        station.trace("adopt", f"last={ledger.last} committed={ledger.committed} promises={sorted(self._promises)}")
        self._resolve(now)

    # --- the batches of open numbers ---

    def on_absent(self, frame: Frame, body: Absent, now: float) -> None:
        """A data server does not have these."""
        if self.state is State.RESOLVING and frame.epoch == self._station.epoch:
            for batch in body.ids:
                self._denied.setdefault(batch, set()).add(frame.number)
            self._resolve(now, is_due=False)

    def on_batch(self, now: float) -> None:
        """A batch became whole here."""
        if self.state is State.RESOLVING:
            self._resolve(now, is_due=False)

    def _resolve(self, now: float, *, is_due: bool = True) -> None:
        station, ledger = self._station, self._station.ledger
        if self._is_outdone or not self._has_state:
            self._give_up(now)
            return
        missing: list[bytes] = []
        tip = ledger.state.copy(station.config)
        for sequence in range(ledger.committed + 1, ledger.last + 1):
            assignment = ledger.get(sequence)
            assert assignment is not None
            tip.fold(sequence, assignment)
            if assignment.system or self._repairer.payload_of(sequence) is not None:
                continue
            missing.append(assignment.id)
        for batch in missing:
            if self._cannot_be_committed(batch, tip):
                self._follower.cut_tail(ledger.find(batch) - 1)
                station.trace("abandon", f"after={ledger.last}")
                missing = missing[: missing.index(batch)]
                break
        if missing:
            if is_due:
                self._look_for(missing, tip, now)
        else:
            self.state, self._claimed, self._sought = State.IDLE, -1, 0
            self._sequencer.begin(station.epoch, now)

    def _cannot_be_committed(self, batch: bytes, tip: GroupState) -> bool:
        """Committed means on `copies` in-sync servers; so many lack it that fewer than that can have it."""
        denied = self._denied.setdefault(batch, set())
        if self._station.is_data_server and self._repairer.lacks(batch):
            denied.add(self._station.number)
        return len(denied & set(tip.in_sync)) > len(tip.in_sync) - tip.copies

    def _look_for(self, missing: list[bytes], tip: GroupState, now: float) -> None:
        station = self._station
        self._due = now + station.timing.nack_repeat_s
        self._sought = station.ledger.find(missing[0])
        station.tell(NewEpoch(station.ledger.last, station.ledger.last_epoch, station.address))
        senders = {tip.number_of(origin_of(batch)) for batch in missing}
        servers = {number for number, member in tip.members.items() if member.has(Role.DATA)}
        for number in sorted((senders | servers) - {0, station.number}):
            wanted = missing[: station.budget.nack_numbers_max]
            numbers = [station.ledger.find(batch) for batch in wanted]
            digests = [assignment.digest for n in numbers if (assignment := station.ledger.get(n)) is not None]
            # Whoever knows that one of these numbers is final denies nothing, whatever this member takes it for.
            ids = [(batch, 0, 0) for batch in wanted]
            station.send_member(number, Fetch(number, [(n, n) for n in numbers], ids, digests))

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"state": self.state.value, "promises": sorted(self._promises), "asked": self.epochs}
