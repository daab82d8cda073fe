"""The other message server: what the two tell each other when they meet, and from then on.

Each says what it has of all lanes (`Meet`), then is told who is reached, what it lacks of the ring, the last events and
all claims, and that this was all (`Synchronised`). A server that has started takes nobody in before it knows what the
other one does, or has been alone for a while.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from alphorn.message_server.claims import Claims
from alphorn.message_server.exchange import Exchange
from alphorn.message_server.machine import Log, Output, Part, TellPeer
from alphorn.message_server.presence import Presence
from alphorn.message_server.roster import Process, Roster, taken
from alphorn.message_server.settings import Settings
from alphorn.model import internal
from alphorn.model.errors import PeerViolation

EVENTS_MAX = 5  # in one frame: the largest fit


class Meeting:
    """The link to the other message server."""

    def __init__(
        self,
        settings: Settings,
        roster: Roster,
        exchange: Exchange,
        claims: Claims,
        presence: Presence,
        *,
        now: float,
        say: Callable[[Output], None],
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._exchange = exchange
        self._claims = claims
        self._presence = presence
        self._say = say
        self._is_linked = False
        self.has_met = False  # on this link: it has said who it is
        self.peer_run = b""  # that was met last
        self._is_synchronised = False  # on this link: it has said all
        self._heard_at = self._said_at = now
        self._serves_at = now + settings.timing.alone_s if settings.peer else now
        self._serves = self._knows = False
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            internal.Meet: self._on_meet,
            internal.Here: self._on_here,
            internal.Away: self._on_away,
            internal.Carry: lambda frame, now: exchange.carry(frame),
            internal.CarryBack: lambda frame, now: exchange.carry_back(frame),
            internal.Lost: self._on_lost,
            internal.Hold: lambda frame, now: exchange.hold(frame, now),
            internal.Held: lambda frame, now: exchange.held(frame.position),
            internal.Known: self._on_known,
            internal.Assigned: self._on_assigned,
            internal.Synchronised: self._on_synchronised,
            internal.Beat: lambda frame, now: None,
        }

    def serves(self, now: float) -> bool:
        """Whether processes may join."""
        if not self._serves:
            self._serves = self._is_synchronised or (now >= self._serves_at and not self.has_met)
            self._serves_at = max(now, self._serves_at)
        return self._serves

    def knows(self, now: float) -> bool:
        """Whether this server has heard what is claimed: from the other one, or from processes that come again."""
        if not self._knows:
            self._knows = self.serves(now) and now >= self._serves_at + self._settings.timing.alone_s
        return self._knows

    def tell(self, frame: internal.PeerFrame) -> None:
        """Says this to the other server, if it is there."""
        if self.has_met:
            self._say(TellPeer(frame))

    def begin(self, now: float) -> None:
        """There is a link; an older one is over."""
        self.part(now)
        self._is_linked, self._heard_at = True, now
        me = self._settings
        self._say(TellPeer(internal.Meet(internal.VERSION, me.name, me.run, self._exchange.ring.lanes())))

    def hear(self, frame: internal.AnyPeerFrame, now: float) -> None:
        """The other server said something."""
        if not self._is_linked:
            return
        self._heard_at = now
        if self.has_met == isinstance(frame, internal.Meet):
            self._end(PeerViolation("a message server says who it is, once and first"), now)
        else:
            self._handlers[type(frame)](frame, now)

    def part(self, now: float) -> None:
        """The link is gone: whom the other server reaches is away, as far as is known here."""
        self._is_linked = self._is_synchronised = False
        if not self.has_met:
            return
        self.has_met = False
        self._exchange.part()
        for process in list(self._roster):
            if process.is_at_peer:
                process.is_at_peer = False
                self._presence.depart(process, now)
        self._say(Log("warning", "peer_lost", f"peer={self._settings.peer}"))

    def look(self, now: float) -> None:
        """Hears whether the other server is there, and says that this one is."""
        timing = self._settings.timing
        if not self._is_linked:
            return
        if now - self._heard_at > timing.silent_s:
            self._end(f"nothing was heard of {self._settings.peer} for {timing.silent_s:.0f} seconds", now)
        elif now - self._said_at >= timing.beat_s:
            self._said_at = now
            self._say(TellPeer(internal.Beat()))

    def _end(self, reason: object, now: float) -> None:
        self._say(Part(str(reason)))
        self.part(now)

    # --- what the other server says ---

    def _on_meet(self, frame: internal.Meet, now: float) -> None:
        if frame.server != self._settings.peer or frame.version != internal.VERSION:
            self._end(f"{frame.server} of version {frame.version} is not the message server that is expected", now)
            return
        self.has_met, self.peer_run = True, frame.run
        self._tell_rows(internal.Here, [process.row for process in self._roster.here])
        away = [process.row for process in self._roster if not process.is_reachable]
        self._tell_rows(lambda rows: internal.Away(rows, False), away)
        self._exchange.meet(frame.lanes)
        # What happened is said after the ring: what is in both is new to the other one when it comes in the ring.
        events = self._exchange.recent.last(self._settings.limits.events)
        for start in range(0, len(events), EVENTS_MAX):
            self.tell(internal.Known(events[start : start + EVENTS_MAX], []))
        names = self._roster.ended()
        for start in range(0, len(names), internal.ROWS_MAX):
            self.tell(internal.Known([], names[start : start + internal.ROWS_MAX]))
        claims = self._claims.every()
        for start in range(0, len(claims), internal.ROWS_MAX):
            self.tell(internal.Assigned(claims[start : start + internal.ROWS_MAX]))
        self.tell(internal.Synchronised(self.knows(now)))
        self._say(Log("info", "peer_met", f"peer={frame.server}"))

    def _tell_rows(self, make: Callable[[list[internal.Row]], internal.PeerFrame], rows: list[internal.Row]) -> None:
        for start in range(0, len(rows), internal.ROWS_MAX):
            self.tell(make(rows[start : start + internal.ROWS_MAX]))

    def _on_here(self, frame: internal.Here, now: float) -> None:
        for row in frame.rows:
            process = self._roster.of_run(row.run)
            if process is None:
                holder = self._roster.of_name(row.name)
                if holder is not None and not self._yields(holder, row, now):
                    continue
                process = self._roster.add(row)
            elif process.row.name != row.name:
                continue  # one of them was not let in by whoever knows both
            if process.connection is None:  # of who is here itself the other server may say what was before
                self._presence.recover(process, row, now)
            else:
                process.row = replace(process.row, turn=max(row.turn, process.row.turn))
            process.is_at_peer = True

    def _yields(self, holder: Process, row: internal.Row, now: float) -> bool:
        """Whether who has a name here gives it up to another run that has it there: both servers decide alike."""
        if holder.is_reachable and holder.run < row.run:
            return False
        self._presence.dismiss(holder, str(taken(row)))
        self._presence.end(holder, now, why="away")
        return True

    def _on_away(self, frame: internal.Away, now: float) -> None:
        for row in frame.rows:
            process = self._roster.of_run(row.run)
            if process is None:
                if frame.have_ended:
                    self._roster.remember(row.name, now)
                elif self._roster.of_name(row.name) is None:  # it may come back, and then here
                    self._presence.depart(self._roster.add(row), now)
                continue
            process.is_at_peer = False
            process.row = replace(process.row, turn=max(row.turn, process.row.turn))
            if frame.have_ended and process.connection is None:
                self._presence.end_quietly(process, now)
            else:
                self._presence.depart(process, now)

    def _on_lost(self, frame: internal.Lost, now: float) -> None:
        for record in frame.records:
            self._exchange.ring.skip(record, was_kept=True)

    def _on_known(self, frame: internal.Known, now: float) -> None:
        for event in frame.events:
            self._exchange.recent.add(event)
        for name in frame.names:
            if self._roster.of_name(name) is None:
                self._roster.remember(name, now)

    def _on_assigned(self, frame: internal.Assigned, now: float) -> None:
        for key, run, is_done in frame.claims:
            process = self._roster.of_run(run)
            if is_done:
                self._presence.finish(run, key)
            elif process is not None and not process.is_down:
                self._claims.claim(run, key)

    def _on_synchronised(self, frame: internal.Synchronised, now: float) -> None:
        self._is_synchronised = True
        self._knows = self._knows or frame.knows_claims
