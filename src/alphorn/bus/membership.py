"""A member's own part in the group: it joins at each start, tells where it stands, and says goodbye.

Who is a member, in which run, with which tag and rank, is in the log (`MemberJoined`, `MemberLeft`); so every member
sees the same changes at the same place. A run that was silent too long is reported as failed and joins again when it
hears so.
"""

from collections.abc import Callable

from alphorn.bus.config import CONFIGURED_NUMBER_MAX
from alphorn.bus.frames import Frame, Join, Leave, Status, Welcome
from alphorn.bus.machine import Stop
from alphorn.bus.sender import Sender
from alphorn.bus.station import Station

Standing = Callable[[], Status]


class Membership:
    """Joins until the log says so, and reports at intervals, more often while batches are under way."""

    __slots__ = (
        "_awake_at",
        "_heard_of",
        "_is_known",
        "_join_at",
        "_sender",
        "_soon_at",
        "_standing",
        "_station",
        "_status_at",
        "_told",
        "_told_at",
        "_welcome_at",
        "is_leaving",
        "is_welcome",
    )

    def __init__(
        self,
        station: Station,
        sender: Sender,
        standing: Standing,
        *,
        now: float,
    ) -> None:
        self._station = station
        self._sender = sender
        self._standing = standing
        self._awake_at = now
        self._is_known = False  # whether the log has known this run as live since it was last given up
        self._heard_of = 0  # a committed number that the sequencer told of
        self._join_at = now
        self._status_at = now + station.random.uniform(0, station.timing.status_s)
        self._soon_at = float("inf")  # before that, while batches are under way
        self._told = (0, 0)  # by a sequencer, to this run
        self._told_at = now
        self._welcome_at = 0
        self.is_welcome = False  # whether the sequencer answered this run
        self.is_leaving = False

    @property
    def is_joined(self) -> bool:
        """Whether the log knows this run as live."""
        station = self._station
        member = station.ledger.state.members.get(station.number)
        return (
            member is not None and member.is_live and (member.origin, member.nonce) == (station.origin, station.nonce)
        )

    @property
    def is_past_welcome(self) -> bool:
        """Whether this member knows the log as far as it was when the sequencer welcomed this run."""
        return self.is_welcome and self._station.ledger.committed >= self._welcome_at

    def may_send(self, now: float) -> bool:
        """Whether this run's batches may be sent now. What is over is refused in the order in which it was taken."""
        is_over = not self._station.budget.departed_senders_max and self._may_be_given_up(now)
        may_send = self._is_admitted(now)
        if is_over:
            self._sender.drop("the group has given this member up, or may have; the batch is not ordered")
        return may_send

    def _is_admitted(self, now: float) -> bool:
        """Once the sequencer has welcomed this run and this member has come past that.

        A start time taken from an old disk image under a clock that went back may be that of an earlier run. The log
        knows what that run sent; this one then takes a new start, before it has sent anything under the old name.
        And so does a run that the group has forgotten, as soon as it notices: it is not admitted under that name again.
        """
        station, sender = self._station, self._sender
        counter = station.ledger.state.senders.get(station.origin)
        is_forgotten = counter is None and sender.sent > 0
        if not is_forgotten and not self.is_past_welcome:
            return False
        if counter is None or not sender.settled <= counter <= sender.sent:
            station.trace("new-start")
            sender.lose("the group has forgotten this member's run; whether the batch was ordered is unknown")
            self.join_again(now)
            return False
        return self.is_joined

    def _may_be_given_up(self, now: float) -> bool:
        """Whether the group has given this run up, or it stood still for so long that this is to be expected.

        One that is no member yet is given up by nobody, and what it was asked to send is as old.
        """
        stood_still_s, self._awake_at = now - self._awake_at, now
        was_known, self._is_known = self._is_known, self.is_joined
        return stood_still_s > self._station.timing.evict_s or (was_known and not self._is_known)

    @property
    def _unused(self) -> int:
        """The log through which this member knew it, or knew of it, when it had sent nothing under its name."""
        sender = self._sender
        return sender.began_at if sender.sent else max(self._station.ledger.committed, self._heard_of)

    def on_welcome(self, frame: Frame, body: Welcome, now: float) -> bool:
        """The sequencer's answer; True when it brings a number this member did not have."""
        station = self._station
        self._told = max(self._told, (frame.epoch, body.assigned))
        if body.refusal:
            station.outbox.append(Stop(body.refusal))
            return False
        if not body.number:
            if body.sequence > self._heard_of:
                self._heard_of = body.sequence
                self._join_at = now
            return False
        self.is_welcome = True
        self._welcome_at = body.sequence
        self._join_at = now + station.timing.join_s
        is_new = station.number != body.number
        if is_new and station.number <= CONFIGURED_NUMBER_MAX and station.number:
            return False
        station.number = body.number
        return is_new

    def on_goodbye(self) -> None:
        """The node stops in good order."""
        self.is_leaving = True
        self._station.tell(Leave(self._station.origin), self_too=True)

    def on_under_way(self, sent_at: float | None) -> None:
        """Batches are under way that nobody may have heard of: tells how many, so that a lost one is missed.

        Less and less often while they wait, and not where they have arrived meanwhile; `sent_at` is None where none is.
        """
        if sent_at is None:
            self._soon_at = float("inf")
            return
        wait = max(2 * self._station.timing.heartbeat_busy_s, self._told_at - sent_at)
        self._soon_at = min(self._soon_at, max(sent_at, self._told_at) + wait)

    def next_deadline(self) -> float:
        """When it wants to speak."""
        if self.is_leaving:
            return float("inf")
        return min(self._status_at, self._soon_at, self._join_at)

    def on_time(self, now: float) -> None:
        """Asks to join while it has not, and reports."""
        station = self._station
        if self.is_leaving:
            return
        if now >= self._join_at:
            if self.is_joined and self.is_welcome:
                self._join_at = float("inf")
            else:
                self._join_at = now + station.timing.join_s * station.random.uniform(0.8, 1.2)
                self._join()
        if now >= min(self._status_at, self._soon_at):
            self._soon_at = float("inf")
            self._status_at = now + station.timing.status_s * station.random.uniform(0.8, 1.2)
            self._told_at = now
            if not self.is_joined and self._join_at == float("inf"):
                self.join_again(now)  # it was reported as failed, and came past that in a checkpoint
            if station.number:
                station.tell(self._standing(), self_too=True)

    def _join(self) -> None:
        station = self._station
        is_configured = 0 < station.number <= CONFIGURED_NUMBER_MAX
        station.tell(
            Join(
                station.as_member(),
                station.is_barred,
                station.config.digest() if is_configured else b"",
                # What cannot be read was accepted all the same: a damaged disk is no older one.
                max(station.ledger.last, station.impaired_until) if is_configured else 0,
                station.epoch,
                self._unused,
                self._told,
            ),
            self_too=True,
        )

    def join_again(self, now: float) -> None:
        """The log says this run is gone, and it is not."""
        self.is_welcome = False
        self._join_at = now

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"joined": self.is_joined, "number": self._station.number}
