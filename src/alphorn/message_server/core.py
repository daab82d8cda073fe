"""A message server: who is there, what they say to each other, and what happens in the cluster.

There are two of them, both with a connection to every work process and a link between them; neither needs the other.
A process speaks through one and hears both, so what one cannot give to a process the other can. All of it lives in
memory: what was acknowledged is with its receiver, or with both servers.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from alphorn.message_server.claims import Claims
from alphorn.message_server.exchange import Exchange
from alphorn.message_server.machine import Closed, Input, Met, Opened, Output, Parted, PeerSaid, Said
from alphorn.message_server.mail_turn import MailTurn
from alphorn.message_server.roster import NEVER, Process, Roster, taken
from alphorn.message_server.settings import Settings
from alphorn.model import internal
from alphorn.model.errors import Error, PeerViolation, Unavailable
from alphorn.model.events import Event

Handler = Callable[[Process, Any, float], None]


class MessageServer:
    """One message server. A machine: values and time in, values out."""

    def __init__(self, settings: Settings, *, now: float, wall: Callable[[float], float]) -> None:
        self._settings = settings
        self._wall = wall  # Unix time
        self._mail = MailTurn()
        self._roster = Roster(settings.nodes)
        self._exchange = Exchange(self._roster, settings.limits, self._mail)
        self._claims = Claims(settings.limits.claims)
        self._strangers: dict[int, tuple[str, float]] = {}  # connections that have not joined → ticket, since when
        self._early: list[tuple[int, internal.Join]] = []  # that came before this server knows what the other does
        self._serves_at = now if not settings.peer else now + settings.timing.alone_s
        self._peer_run = b""  # of the peer that has introduced itself
        self._peer_heard_at = self._peer_said_at = now
        self._is_linked = False
        self._number = 0  # of this server's own events
        self._look_at = now
        self._handlers: dict[type, Handler] = {
            internal.Want: self._on_want,
            internal.Speak: self._on_speak,
            internal.Say: self._on_say,
            internal.Report: self._on_report,
            internal.Confirm: self._on_confirm,
            internal.Claim: self._on_claim,
            internal.Finish: self._on_finish,
            internal.Recent: self._on_recent,
            internal.Look: self._on_look,
            internal.Ping: self._on_ping,
            internal.Leave: self._on_leave,
        }
        self._peer_handlers: dict[type, Callable[[Any, float], None]] = {
            internal.Meet: self._on_meet,
            internal.Here: self._on_here,
            internal.Away: self._on_away,
            internal.Hold: lambda frame, now: self._exchange.hold(frame),
            internal.Held: lambda frame, now: self._exchange.held(frame.items),
            internal.Release: lambda frame, now: self._exchange.release(frame.items),
            internal.Known: self._on_known_events,
            internal.Synchronised: self._on_synchronised,
            internal.Beat: lambda frame, now: None,
        }

    # --- the machine ---

    def receive(self, item: Input, now: float) -> None:
        """Takes in one thing that happened; raises `PeerViolation` for what no correct process says."""
        match item:
            case Said(connection, frame):
                self._hear(connection, frame, now)
            case PeerSaid(frame):
                self._peer_heard_at = now
                self._peer_handlers[type(frame)](frame, now)
            case Opened(connection, ticket):
                self._strangers[connection] = ticket, now
            case Closed(connection):
                self._strangers.pop(connection, None)
                process = self._roster.of_connection(connection)
                if process is not None:
                    self._lose(process, now)
            case Met():
                self._is_linked, self._peer_heard_at = True, now
                me = self._settings
                self._mail.tell_peer(internal.Meet(internal.VERSION, me.name, me.run))
            case Parted():
                self._part(now)
            case _:
                raise AssertionError(f"a message server does not know the input {item!r}")

    def on_time(self, now: float) -> None:
        """Does what is due."""
        if self._early and now >= self._serves_at:
            self._admit_early(now)
        if now < self._look_at:
            return
        timing = self._settings.timing
        self._look_at = now + timing.beat_s / 4
        for process in list(self._roster):
            if process.connection is not None:
                self._listen_to(process, now)
            elif not process.is_at_peer:
                self._wait_for(process, now)
        for connection, (_, since) in list(self._strangers.items()):
            if now - since > timing.silent_s:
                self._refuse(connection, PeerViolation("an internal connection begins with a join, within seconds"))
        if self._is_linked:
            self._listen_to_peer(now)

    def next_deadline(self) -> float:
        """When `on_time` wants to be called."""
        return min(self._look_at, self._serves_at) if self._early else self._look_at

    def take_outputs(self) -> list[Output]:
        """Everything to do since the last call, in order."""
        return self._mail.take()

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        return {
            "name": self._settings.name,
            "role": self.role,
            "connections": sum(process.connection is not None for process in self._roster),
            "speakers": sum(process.speaks_here for process in self._roster),
            "peer": self._settings.peer if self._peer_run else "",
            "queued": sum(len(process.mailbox) for process in self._roster),
            "queued_bytes": self._exchange.bytes,
            "claims": len(self._claims),
            "exchange": self._exchange.describe(),
            "processes": {
                process.row.name: {
                    "kind": process.row.kind,
                    "here": process.connection is not None,
                    "at_peer": process.is_at_peer,
                    "waiting": len(process.mailbox),
                    "missed": process.missed,
                }
                for process in self._roster
            },
        }

    @property
    def role(self) -> str:
        """Primary is the one that processes speak through."""
        there = sum(process.connection is not None for process in self._roster)
        return "primary" if 2 * sum(process.speaks_here for process in self._roster) > there else "backup"

    # --- joining ---

    def _hear(self, connection: int, frame: internal.AnyProcessFrame, now: float) -> None:
        process = self._roster.of_connection(connection)
        if process is not None:
            process.heard_at, process.is_suspected = now, False
            if isinstance(frame, internal.Join):
                raise PeerViolation("a process joins once on a connection")
            self._handlers[type(frame)](process, frame, now)
        elif connection in self._strangers:
            if not isinstance(frame, internal.Join):
                self._refuse(connection, PeerViolation("an internal connection begins with a join"))
            elif now < self._serves_at:
                self._early.append((connection, frame))
            else:
                self._join(connection, frame, now)

    def _admit_early(self, now: float) -> None:
        early, self._early = self._early, []
        self._serves_at = min(self._serves_at, now)
        for connection, frame in early:
            if connection in self._strangers:
                self._join(connection, frame, now)

    def _join(self, connection: int, frame: internal.Join, now: float) -> None:
        ticket, _ = self._strangers.pop(connection)
        row = frame.row
        try:
            if frame.version != internal.VERSION:
                reason = f"version {frame.version} of internal connections is not spoken here"
                raise PeerViolation(f"{reason}; version {internal.VERSION} is")
            self._roster.check_name(row, ticket)
            self._make_way(row, now)
        except Error as error:
            self._refuse(connection, error)
            return
        process = self._roster.of_run(row.run)
        is_known = process is not None
        if process is None:
            process, is_known = self._add(row)
        older = self._roster.connect(process, connection)
        if older is not None:
            self._mail.hang(older, "its process has come on another connection")
        was_away, process.row = not process.is_at_peer and process.away_since != NEVER, row
        process.heard_at = process.said_at = now
        me = self._settings
        self._mail.tell(connection, internal.Joined(me.name, me.run, is_known))
        there = [other.row for other in self._roster if other is not process and other.is_reachable]
        self._mail.tell(connection, internal.Arrived([row, *there]))
        if self._peer_run:
            self._mail.tell_peer(internal.Here([row]))
        self._arrive(process, is_new=not is_known or was_away)
        self._exchange.on_connected(process)
        self._mail.log("info", "process_joined", f"name={row.name} kind={row.kind} pid={row.pid}")

    def _make_way(self, row: internal.Row, now: float) -> None:
        """The name is this run's, unless another one has it that is there."""
        holder = self._roster.of_name(row.name)
        if holder is None or holder.run == row.run:
            if holder is None and len(self._roster) >= self._settings.limits.processes:
                raise Unavailable(f"{len(self._roster)} processes are there already; end one first")
            return
        if holder.is_reachable and not holder.is_suspected:
            raise taken(holder)
        if holder.connection is not None:
            self._dismiss(holder, f"another run of {row.name} has come, and this one was silent")
        self._end(holder, now, heir=row)

    def _add(self, row: internal.Row) -> tuple[Process, bool]:
        """A process that was not known, or has been away for too long."""
        process = self._roster.add(row)
        was_kept = self._exchange.on_known(process)
        return process, was_kept

    def _arrive(self, process: Process, *, is_new: bool) -> None:
        """It is reachable."""
        was_down, process.is_down = process.is_down, False
        process.away_since = NEVER
        row = process.row
        if not is_new:
            return
        for other in self._roster:
            if other.connection is not None and other is not process:
                self._mail.tell(other.connection, internal.Arrived([row]))
        if row.turn == 1 or was_down:
            self._happen("node_up", row, {"kind": row.kind})

    # --- leaving ---

    def _lose(self, process: Process, now: float) -> None:
        """Its connection here is gone; the peer may have one."""
        self._roster.disconnect(process)
        if self._peer_run:
            self._mail.tell_peer(internal.Away([process.row], False))
        self._depart(process, now)
        if process.is_at_peer:
            self._exchange.on_at_peer(process)

    def _depart(self, process: Process, now: float) -> None:
        if process.is_reachable or process.away_since != NEVER:
            return
        process.away_since = now
        self._tell_all(internal.Departed([process.run]))

    def _end(
        self, process: Process, now: float, *, heir: internal.Row | None = None, why: str = "away", lapsed: bool = False
    ) -> None:
        """It is over: nothing is kept for it."""
        self._roster.disconnect(process)
        process.is_at_peer = False
        self._depart(process, now)
        if not process.is_down:
            process.is_down = True
            self._happen("node_down", process.row, {"kind": process.row.kind, "reason": why})
        self._roster.remove(process)
        successor = self._add(heir)[0] if heir is not None else None
        self._exchange.on_ended(process, heir=successor, has_lapsed=lapsed)
        self._free_claims(process)
        if self._peer_run:
            self._mail.tell_peer(internal.Away([process.row], True))

    def _free_claims(self, process: Process) -> None:
        for run, key in self._claims.free(process.run):
            other = self._roster.of_run(run)
            if other is not None and other.connection is not None:
                self._mail.tell(other.connection, internal.Free(key))

    def _dismiss(self, process: Process, reason: str) -> None:
        """Closes its connection and says why."""
        connection = process.connection
        if connection is not None:
            self._mail.tell(connection, internal.Refused(Unavailable.__name__, reason))
            self._roster.disconnect(process)
            self._mail.hang(connection, reason)

    def _refuse(self, connection: int, error: Error) -> None:
        self._strangers.pop(connection, None)
        self._mail.tell(connection, internal.Refused(type(error).__name__, str(error)))
        self._mail.hang(connection, str(error))
        self._mail.log("warning", "process_refused", f"reason={error}")

    def _tell_all(self, frame: internal.ServerFrame) -> None:
        for process in self._roster:
            if process.connection is not None:
                self._mail.tell(process.connection, frame)

    # --- time ---

    def _listen_to(self, process: Process, now: float) -> None:
        timing, silent_s = self._settings.timing, now - process.heard_at
        if silent_s > timing.silent_s:
            self._dismiss(process, f"nothing was heard of {process.row.name} for {timing.silent_s:.0f} seconds")
            self._lose(process, now)
        elif silent_s > timing.suspect_s and not process.is_suspected:
            process.is_suspected = True
            if not process.is_at_peer:
                self._happen("node_suspected", process.row, {"kind": process.row.kind})
        if process.connection is not None and now - process.said_at >= timing.beat_s:
            process.said_at = now
            self._mail.tell(process.connection, internal.Pong())

    def _wait_for(self, process: Process, now: float) -> None:
        away_s, timing = now - process.away_since, self._settings.timing
        if away_s > timing.down_s and not process.is_down:
            process.is_down = True
            self._happen("node_down", process.row, {"kind": process.row.kind, "reason": "away"})
            self._exchange.on_down(process)
            self._free_claims(process)
        if away_s > timing.keep_s:
            self._end(process, now, lapsed=True)

    def _listen_to_peer(self, now: float) -> None:
        timing = self._settings.timing
        if now - self._peer_heard_at > timing.silent_s:
            self._mail.part(f"nothing was heard of {self._settings.peer} for {timing.silent_s:.0f} seconds")
            self._part(now)
        elif now - self._peer_said_at >= timing.beat_s:
            self._peer_said_at = now
            self._mail.tell_peer(internal.Beat())

    # --- what processes say ---

    def _on_want(self, process: Process, frame: internal.Want, now: float) -> None:
        process.row = msgspec.structs.replace(process.row, wants=frame.kinds)
        if self._peer_run:
            self._mail.tell_peer(internal.Here([process.row]))

    def _on_speak(self, process: Process, frame: internal.Speak, now: float) -> None:
        process.speaks_here = frame.is_here

    def _on_say(self, process: Process, frame: internal.Say, now: float) -> None:
        if len(frame.body) > internal.MESSAGE_BYTES_MAX:
            raise PeerViolation(f"a message of {len(frame.body)} bytes; {internal.MESSAGE_BYTES_MAX} are allowed")
        self._exchange.say(process, frame.number, frame.to, frame.body)

    def _on_report(self, process: Process, frame: internal.Report, now: float) -> None:
        self._exchange.report(process.row.name, process.run, frame.number, frame.event)

    def _on_confirm(self, process: Process, frame: internal.Confirm, now: float) -> None:
        self._exchange.confirm(process, frame.heard)

    def _on_claim(self, process: Process, frame: internal.Claim, now: float) -> None:
        is_yours = self._claims.claim(process.run, frame.key)
        assert process.connection is not None
        self._mail.tell(process.connection, internal.Claimed(frame.key, is_yours))

    def _on_finish(self, process: Process, frame: internal.Finish, now: float) -> None:
        self._claims.finish(process.run, frame.key)

    def _on_recent(self, process: Process, frame: internal.Recent, now: float) -> None:
        assert process.connection is not None
        events = self._exchange.recent.last(frame.maximum)
        self._mail.tell(process.connection, internal.Happened(frame.request, events))

    def _on_look(self, process: Process, frame: internal.Look, now: float) -> None:
        assert process.connection is not None
        data = msgspec.json.encode(self.describe())
        self._mail.tell(process.connection, internal.Stands(frame.request, data))

    def _on_ping(self, process: Process, frame: internal.Ping, now: float) -> None:
        """That it was heard is all."""

    def _on_leave(self, process: Process, frame: internal.Leave, now: float) -> None:
        connection = process.connection
        assert connection is not None
        self._end(process, now, why="left")
        self._mail.hang(connection, "it has left")

    # --- the peer ---

    def _on_meet(self, frame: internal.Meet, now: float) -> None:
        if frame.server != self._settings.peer or frame.version != internal.VERSION:
            self._mail.part(f"{frame.server} of version {frame.version} is not the message server that is expected")
            self._part(now)
            return
        self._peer_run = frame.run
        self._mail.tell_peer(internal.Here([it.row for it in self._roster if it.connection is not None]))
        away = [it.row for it in self._roster if not it.is_reachable]
        if away:
            self._mail.tell_peer(internal.Away(away, False))
        self._mail.tell_peer(internal.Known(self._exchange.recent.last(self._settings.limits.events)))
        self._exchange.on_peer(is_there=True)
        self._mail.tell_peer(internal.Synchronised())
        self._mail.log("info", "peer_met", f"peer={frame.server}")

    def _on_here(self, frame: internal.Here, now: float) -> None:
        for row in frame.rows:
            process = self._roster.of_run(row.run)
            if process is None:
                holder = self._roster.of_name(row.name)
                if holder is not None and not self._yields(holder, row, now):
                    continue
                if holder is not None:
                    self._end(holder, now, heir=row)
                    process = self._roster.of_run(row.run)
                    assert process is not None
                else:
                    process, _ = self._add(row)
                is_new = True
            else:
                is_new = not process.is_reachable
            process.row, process.is_at_peer = row, True
            self._arrive(process, is_new=is_new)
            self._exchange.on_at_peer(process)

    def _yields(self, holder: Process, row: internal.Row, now: float) -> bool:
        """Whether who has a name here gives it up to another run that has it there: both servers decide alike."""
        if holder.is_reachable and holder.run < row.run:
            return False
        self._dismiss(holder, str(taken(Process(row))))
        return True

    def _on_away(self, frame: internal.Away, now: float) -> None:
        for row in frame.rows:
            process = self._roster.of_run(row.run)
            if process is None:
                if not frame.have_ended and self._roster.of_name(row.name) is None:
                    process, _ = self._add(row)  # it may come back, and then here
                    self._depart(process, now)
                continue
            process.is_at_peer = False
            if frame.have_ended and process.connection is None:
                self._end_quietly(process, now)
            else:
                self._depart(process, now)

    def _end_quietly(self, process: Process, now: float) -> None:
        """The peer knows that it has ended, and has said so to everybody; here it is no news."""
        self._depart(process, now)
        self._roster.remove(process)
        self._exchange.on_ended(process)
        self._free_claims(process)

    def _on_known_events(self, frame: internal.Known, now: float) -> None:
        for event in frame.events:
            self._exchange.recent.add(event)

    def _on_synchronised(self, frame: internal.Synchronised, now: float) -> None:
        self._serves_at = min(self._serves_at, now)
        self._admit_early(now)

    def _part(self, now: float) -> None:
        self._is_linked = False
        if not self._peer_run:
            return
        self._peer_run = b""
        for process in list(self._roster):
            if process.is_at_peer:
                process.is_at_peer = False
                self._depart(process, now)
        self._exchange.on_peer(is_there=False)
        self._mail.log("warning", "peer_lost", f"peer={self._settings.peer}")

    # --- events ---

    def _happen(self, kind: str, row: internal.Row, details: dict[str, int | float | str]) -> None:
        """Something that this server notices by itself; the other one names it alike."""
        self._number += 1
        event = Event(
            kind=kind,
            node=row.name,
            time=self._wall(self._look_at),
            number=row.turn,
            run=row.run,
            details=details,
        )
        self._exchange.report(self._settings.name, self._settings.run, self._number, event)
