"""One member of a group: composes the roles it plays and obeys the contract of machine.py.

    every member     follower, receiver, intake, sender, membership, catch_up, synchroniser
    role DATA        data_server, repair        role COMMIT      commit_server
    role CHECKPOINT  checkpoint_server          role SEQUENCER   takeover, then sequencer

This file decides nothing: it hands each frame to the roles it concerns and ends each turn in one fixed order.
"""

import random
from collections.abc import Callable, Iterable
from typing import Any

from alphorn.bus import frames as f
from alphorn.bus.acknowledge import Acknowledger
from alphorn.bus.catch_up import CatchUp, CatchUpServer
from alphorn.bus.checkpoint_server import CheckpointServer
from alphorn.bus.commit_server import CommitServer
from alphorn.bus.config import Budget, GroupConfig, MemberConfig, Role, Timing
from alphorn.bus.data_server import DataServer
from alphorn.bus.entries import Assignment, InSyncChanged, MemberLeft, SystemEntry, describe_epoch
from alphorn.bus.follower import Follower
from alphorn.bus.frames import Data, Frame
from alphorn.bus.intake import Intake
from alphorn.bus.lacking import lacking
from alphorn.bus.machine import (
    ChangeInterval,
    ChangeVoters,
    CheckpointInstalled,
    CheckpointRefused,
    CheckpointWritten,
    Durable,
    Goodbye,
    Input,
    InstallCheckpoint,
    Order,
    Output,
    Received,
    SynchronisedChanged,
)
from alphorn.bus.membership import Membership
from alphorn.bus.nack import Requests
from alphorn.bus.receiver import Receiver
from alphorn.bus.release import Release
from alphorn.bus.repair import Repairer
from alphorn.bus.restore import restore
from alphorn.bus.sender import Sender
from alphorn.bus.sequencer import Sequencer
from alphorn.bus.storage import Storage
from alphorn.bus.synchroniser import Synchroniser
from alphorn.bus.takeover import Takeover
from alphorn.model.errors import PeerViolation


class Endpoint:
    """A member of one group. `reads=False` is for a witness: it votes, and wants no batches.

    `history=False` begins at the newest number instead of the first; only for members that keep no log.
    """

    def __init__(
        self,
        *,
        config: GroupConfig,
        me: MemberConfig,
        storage: Storage,
        host: bytes,
        port: int,
        unix_s: float,
        founding: bool,
        random: random.Random,
        timing: Timing,
        budget: Budget,
        now: float,
        reads: bool = True,
        history: bool = True,
        is_tracing: bool = False,
    ) -> None:
        restored = restore(
            config=config,
            me=me,
            storage=storage,
            host=host,
            port=port,
            unix_s=unix_s,
            founding=founding,
            reads=reads,
            timing=timing,
            budget=budget,
            random=random,
            is_tracing=is_tracing,
        )
        self._station = station = restored.station
        self._now = now
        self._history = history
        self._is_ready = False
        self._is_synchronised = False
        self._followed = (0, 0)
        self._more = False
        self._prune_at = now
        self.violations = 0
        ledger = station.ledger
        self._requests = Requests(station)
        self._repairer = Repairer(station, now)
        self._follower = Follower(station, durable=ledger.last, now=now)
        begin = restored.delivered
        self._receiver = Receiver(station, self._follower, self._requests, self._repairer, delivered=begin)
        self._sender = Sender(station)
        self._data = DataServer(station, self._requests, stored=min(station.meta.stored, ledger.last))
        self._commit = CommitServer(station, self._follower, is_returning=restored.is_returning, now=now)
        self._checkpoints = CheckpointServer(station)
        self._sequencer = Sequencer(station, self._follower, now)
        self._takeover = Takeover(
            station, self._follower, self._receiver, self._commit, self._sequencer, self._repairer, now
        )
        self._catch_up = CatchUp(station, self._follower, self._receiver, self._data.holes)
        self._intake = Intake(
            station,
            follower=self._follower,
            requests=self._requests,
            data=self._data,
            receiver=self._receiver,
            sender=self._sender,
            takeover=self._takeover,
        )
        self._synchroniser = Synchroniser(
            station,
            follower=self._follower,
            receiver=self._receiver,
            sender=self._sender,
            data=self._data,
            commit=self._commit,
            catch_up=self._catch_up,
            on_whole=self._intake.on_whole,
        )
        self._release = Release(self._station, self._follower, self._receiver, self._data)
        self._acknowledger = Acknowledger(station, self._commit, self._data, self._synchroniser)
        self._catch_up_server = CatchUpServer(station, self._repairer, self._data.holes)
        self._membership = Membership(station, self._sender, self._status, now=now)
        ledger.on_committed = self._on_committed
        self._follower.on_cut = self._on_cut
        self._follower.on_appended = self._on_appended
        self._follower.on_told = self._data.mend
        self._handlers = self._make_handlers()
        self._start(restored.checkpoint)

    def _start(self, checkpoint: int) -> None:
        """Writes the new incarnation; says nothing before it is durable."""
        station = self._station
        station.ledger.commit(min(station.meta.committed, station.ledger.last))
        if station.is_data_server:
            self._data.restore(station.ledger.last, self._now)
        if checkpoint:
            self._receiver.hold(checkpoint)
            station.outbox.append(InstallCheckpoint(checkpoint))
        station.remember()
        station.journal.then(self._speak)

    def _speak(self) -> None:
        self._is_ready = True

    @property
    def origin(self) -> bytes:
        """This run of this member, as all its frames name it."""
        return self._station.origin

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The data servers that have all that is committed, as the log says."""
        return self._station.ledger.state.in_sync

    def can_wait(self, datagram: bytes | memoryview) -> bool:
        """Whether it is soon enough to hear this together with what comes next."""
        return self._station.can_wait(datagram)

    # --- the five verbs ---

    def receive(self, item: Input, now: float) -> None:
        """Takes in one thing that happened."""
        self._now = now = max(now, self._now)
        if type(item) is Received:
            self._on_datagram(item.data, now)
            return
        match item:
            case Durable():
                self._station.journal.on_durable(item.token)
            case Order():
                self._sender.order(item.payload, item.handle)
            case CheckpointWritten():
                self._checkpoints.on_written(item.sequence, now)
            case CheckpointInstalled():
                if self._receiver.on_installed(item.sequence):
                    self._checkpoints.on_written(item.sequence, now)
            case CheckpointRefused():
                self._receiver.on_refused(item.sequence)
            case ChangeVoters():
                self._sequencer.change_voters(item.number, add=item.add, now=now)
            case ChangeInterval():
                self._sequencer.change_interval(item.interval, item.lifetime)
            case Goodbye():
                self._sequencer.stop("the node stops")
                self._takeover.retire()
                self._membership.on_goodbye()

    def on_time(self, now: float) -> None:
        """Does what is due."""
        self._now = now = max(now, self._now)
        if not self._is_ready:
            return
        self._commit.on_time(now)
        self._follower.heal(now)
        self._sequencer.on_time(now)
        if self._sequencer.wants_epoch:
            self._takeover.seen(self._sequencer.wants_epoch)
            self._sequencer.wants_epoch = 0
            self._takeover.ask(now)
        self._takeover.on_time(now)
        self._membership.on_time(now)
        self._data.on_time(now)
        self._checkpoints.on_time(now)
        self._follower.on_time(now)
        self._requests.on_time(now)
        self._catch_up.on_time(now)

    def next_deadline(self) -> float:
        """When `on_time` wants to be called."""
        if not self._is_ready:
            return float("inf")
        if self._more:
            return self._now
        return min(
            self._commit.next_deadline(),
            self._sequencer.next_deadline(),
            self._takeover.next_deadline(),
            self._membership.next_deadline(),
            self._data.next_deadline(),
            self._checkpoints.next_deadline(),
            self._follower.next_deadline(),
            self._requests.next_deadline(),
            self._catch_up.next_deadline(),
        )

    def take_outputs(self) -> Iterable[Output]:
        """Ends the turn and gives everything to do."""
        self._end_turn(self._now)
        outputs, self._station.outbox = self._station.outbox, []
        return outputs

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        station = self._station
        return {
            "name": station.name,
            "number": station.number,
            "tag": station.tag,
            "rank": station.rank,
            "roles": [role.name.lower() for role in Role if role and role in station.roles and role.name],
            "epoch": describe_epoch(station.epoch),
            "sequencer": station.sequencer,
            "synchronised": self._is_synchronised,
            "violations": self.violations,
            "state": station.ledger.state.describe(),
            "ledger": station.ledger.describe(),
            "holdings": station.holdings.describe(),
            "journal": station.journal.describe(),
            "follower": self._follower.describe(),
            "receiver": self._receiver.describe(),
            "sender": self._sender.describe(),
            "data_server": self._data.describe(),
            "commit_server": self._commit.describe(),
            "checkpoint_server": self._checkpoints.describe(),
            "sequencer_role": self._sequencer.describe(),
            "takeover": self._takeover.describe(),
            "requests": self._requests.describe(),
            "repairs": self._repairer.describe(),
            "catch_up": self._catch_up.describe(),
            "membership": self._membership.describe(),
        }

    # --- frames ---

    def _on_datagram(self, data: bytes | memoryview, now: float) -> None:
        if not self._is_ready:
            return
        try:
            decoded = f.decode_all(data)
        except PeerViolation:
            self.violations += 1
            return
        for frame in decoded:
            if frame.group == self._station.config.group and frame.origin != self._station.origin:
                self._on_frame(frame, now)

    def _on_frame(self, frame: Frame, now: float) -> None:
        if frame.epoch > self._station.epoch:
            self._takeover.seen(frame.epoch)
            self._sequencer.hear_epoch(frame, now)
        self._handlers[type(frame.body)](frame, frame.body, now)
        if self._sequencer.is_active and self._sequencer.is_overtaken:
            self._sequencer.stop("another sequencer is heard of")

    def _make_handlers(self) -> dict[type, Callable[[Frame, Any, float], None]]:
        """Who hears what. Roles this member does not play are left out of the conversation."""
        station = self._station
        is_data, is_commit = station.is_data_server, station.is_commit_server
        follower, sequencer, nobody = self._follower, self._sequencer, _nobody

        def while_active(act: Callable[[Frame, Any, float], None]) -> Callable[[Frame, Any, float], None]:
            return lambda frame, body, now: act(frame, body, now) if sequencer.is_active else None

        return {
            Data: self._intake.on_data if is_data or station.reads else nobody,
            f.DataReport: while_active(sequencer.on_report),
            f.CommitSubmit: follower.on_submit,
            f.CommitAcknowledge: while_active(sequencer.on_acknowledge),
            f.Commit: follower.on_commit,
            f.Heartbeat: self._on_heartbeat,
            f.Status: self._on_status,
            f.AssignmentQuery: self._commit.on_query if is_commit else nobody,
            f.AssignmentAnswer: follower.on_answer,
            f.Fetch: self._on_fetch,
            f.Absent: self._takeover.on_absent,
            f.RangeFetch: self._catch_up_server.on_range_fetch if is_data else nobody,
            f.Range: self._on_range,
            f.CheckpointOffer: self._catch_up.on_offer,
            f.CheckpointFetch: self._catch_up_server.on_checkpoint_fetch if is_data else nobody,
            f.CheckpointChunk: self._catch_up.on_chunk,
            f.CheckpointReport: while_active(sequencer.on_checkpoint_report),
            f.Prepare: self._commit.on_prepare if is_commit else nobody,
            f.Promise: self._takeover.on_promise,
            f.NewEpoch: self._on_new_epoch,
            f.Join: while_active(sequencer.on_join),
            f.Welcome: self._on_welcome,
            f.Leave: self._on_leave,
        }

    def _on_heartbeat(self, frame: Frame, body: f.Heartbeat, now: float) -> None:
        self._follower.on_heartbeat(frame, body, now)
        if frame.epoch == self._station.epoch:
            self._sender.set_share(body.window_bytes)
            if body.committed < body.assigned:
                self._acknowledger.repeat()

    def _on_status(self, frame: Frame, body: f.Status, now: float) -> None:
        station = self._station
        if frame.number:
            station.addresses[frame.number] = body.address
        self._takeover.on_status(frame, body, now)
        self._follower.on_delivered(body.delivered, now)
        if station.is_data_server and station.ledger.state.is_sender(frame.origin):
            self._data.on_sent(frame.origin, body.sent, now)
        if self._sequencer.is_active:
            self._sequencer.roster.on_status(frame, body, self._sequencer.epoch, now)

    def _on_leave(self, frame: Frame, body: f.Leave, now: float) -> None:
        self._sequencer.on_leave(body.origin)
        if self._follower.on_leave(frame.number, body.origin):
            self._takeover.hurry(now)

    def _on_fetch(self, frame: Frame, body: f.Fetch, now: float) -> None:
        self._requests.overheard(body, now)
        self._repairer.on_fetch(frame, body, now)

    def _on_new_epoch(self, frame: Frame, body: f.NewEpoch, now: float) -> None:
        if self._follower.on_new_epoch(frame, now):
            self._station.addresses[frame.number] = body.address

    def _on_welcome(self, frame: Frame, body: f.Welcome, now: float) -> None:
        if body.nonce != self._station.nonce:
            return
        is_new = self._membership.on_welcome(frame, body, now)
        if body.refusal:
            return
        self._follower.on_welcome(frame.epoch, body.assigned)
        self._follower.known_committed = max(self._follower.known_committed, body.sequence)
        if not body.number:
            return
        self._commit.on_welcome()
        if is_new and not self._history and not self._station.keeps_log and not self._receiver.delivered:
            state = self._catch_up.decode_state(body.state)
            if state is not None:
                self._synchroniser.go_on_from(state)

    def _on_range(self, frame: Frame, body: f.Range, now: float) -> None:
        if self._catch_up.expects(frame, body):
            self._synchroniser.on_range(body, now)
            self._more = self._receiver.advance(now)
            self._catch_up.ask_next(now)

    # --- the log moves ---

    def _on_appended(self, first: int) -> None:
        if self._station.is_commit_server:
            self._commit.on_appended(first)
        if self._station.is_data_server:
            self._data.on_appended(first, self._now)

    def _on_cut(self, after: int) -> None:
        if self._station.is_data_server:
            self._data.on_cut(after)

    def _on_committed(self, sequence: int, assignment: Assignment, entry: SystemEntry | None) -> None:
        station = self._station
        self._receiver.on_committed(sequence, assignment, entry)
        if entry is None:
            self._sender.on_committed(sequence, assignment)
            return
        if isinstance(entry, MemberLeft) and entry.origin == station.origin and not self._membership.is_leaving:
            self._membership.join_again(self._now)
        self._commit.on_committed(sequence, entry)
        is_in_sync = isinstance(entry, InSyncChanged) and station.number in entry.numbers
        if is_in_sync and station.is_barred and not station.is_commit_server and self._membership.is_joined:
            station.lift_bar()

    @property
    def lacking(self) -> str:
        """What this member waits for that only others can give, for people; nothing where it lacks nothing."""
        return lacking(self._station, self._membership, self._takeover)

    # --- the end of a turn ---

    def _end_turn(self, now: float) -> None:
        station = self._station
        if self._is_ready:
            self._notice_sequencer(now)
            while True:
                self._hear_local(now)
                # Asked in every turn, even with nothing to send: it notices when the group has forgotten this run.
                self._sender.flush(now, may_send=self._membership.may_send(now))
                self._intake.take_own(now)
                self._data.flush(now)
                self._hear_local(now)
                self._sequencer.flush(now)
                self._acknowledger.flush()
                if not station.local:
                    break
            self._more = self._receiver.advance(now)
            for sequence in self._repairer.damaged:
                self._data.on_damaged(sequence, now)
            self._repairer.damaged.clear()
            self._catch_up.plan(now)
            self._synchroniser.install()
            if self._receiver.is_held and self._sequencer.is_active:
                self._sequencer.stop("its upper layer must take over a checkpoint first")
            self._release.let_go()
            if self._is_synchronised and now >= self._prune_at:
                self._prune_at = now + 1.0
                self._receiver.prune()
            self._tell_synchronised()
            is_missable = self._sender.is_pending and not self._sequencer.numbers_own
            self._membership.on_under_way(self._sender.sent_at if is_missable else None)
        is_urgent = station.write_meta(stored=self._data.stored_log)
        if station.journal.has_writes:
            station.journal.put_into(station.outbox, is_urgent=is_urgent)

    def _notice_sequencer(self, now: float) -> None:
        """A new sequencer hears everything again that the old one may have kept to itself."""
        followed = (self._station.epoch, self._station.sequencer)
        if followed != self._followed and followed[1]:
            if self._station.is_data_server:
                self._data.report_all()
            self._checkpoints.report_again(now)
        self._followed = followed

    def _hear_local(self, now: float) -> None:
        station = self._station
        while station.local:
            heard, station.local = station.local, []
            for frame in heard:
                self._on_frame(frame, now)

    def _tell_synchronised(self) -> None:
        station, ledger, slack = self._station, self._station.ledger, self._station.budget.nack_numbers_max
        is_close = self._follower.known_committed - self._receiver.delivered <= slack and not self._receiver.is_held
        if station.is_data_server:
            is_close = is_close and ledger.committed - self._data.stored_log <= slack
        if station.keeps_log:
            is_close = is_close and ledger.confirmed_epoch == station.epoch
        is_led = bool(station.sequencer) and self._membership.is_joined
        is_synchronised = is_close and is_led and not self._catch_up.is_active
        if is_synchronised != self._is_synchronised:
            self._is_synchronised = is_synchronised
            station.outbox.append(SynchronisedChanged(is_synchronised))

    def _status(self) -> f.Status:
        return f.Status(
            self._receiver.delivered,
            *self._acknowledger.acknowledged(),
            self._checkpoints.sequence,
            self._sender.sent,
            self._is_synchronised,
            self._station.address,
        )


def _nobody(frame: Frame, body: Any, now: float) -> None:
    """A frame that concerns roles this member does not play."""
