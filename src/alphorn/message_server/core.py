"""A message server: who is there, what they say to each other, and what happens in the cluster.

There are two of them, both with a connection to every work process and a link between them; neither needs the other.
Each process has one of them as its home, and each server reaches through the other whom it does not reach itself. All
of it lives in memory: what was acknowledged is with its receiver, or with both servers.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from alphorn.message_server.claims import Claims
from alphorn.message_server.exchange import Exchange
from alphorn.message_server.machine import (
    Clogged,
    Closed,
    Hang,
    Input,
    Log,
    Met,
    Opened,
    Output,
    Part,
    Parted,
    PeerSaid,
    Said,
    Tell,
    TellPeer,
)
from alphorn.message_server.meeting import Meeting
from alphorn.message_server.presence import Presence
from alphorn.message_server.roster import Process, Roster, taken
from alphorn.message_server.settings import Settings
from alphorn.model import internal
from alphorn.model.errors import AccessDenied, Blocked, Error, PeerViolation, Unavailable
from alphorn.model.events import PRESENCE
from alphorn.model.process_conversation import COMMAND

Handler = Callable[[Process, Any, float], None]


class MessageServer:
    """One message server. A machine: values and time in, values out."""

    def __init__(self, settings: Settings, *, now: float, wall: Callable[[float], float]) -> None:
        self._settings = settings
        self._outputs: list[Output] = []
        say = self._say
        self._roster = Roster(settings.nodes, settings.limits.names)
        self._exchange = Exchange(self._roster, settings, say)
        self._claims = Claims(settings.limits.claims)
        self._presence = Presence(settings, self._roster, self._exchange, self._claims, wall, say)
        self._meeting = Meeting(settings, self._roster, self._exchange, self._claims, self._presence, now=now, say=say)
        self._presence.tell_peer = self._meeting.tell
        self._strangers: dict[int, tuple[str, float]] = {}  # connections that have not joined → ticket, since when
        self._early: list[tuple[int, internal.Join]] = []  # that came before this server knows what the other does
        self._early_claims: dict[tuple[bytes, bytes], None] = {}  # run, key; until it knows what is claimed
        self._look_at = now
        self._handlers: dict[type, Handler] = {
            internal.Want: self._on_want,
            internal.Home: self._on_home,
            internal.Say: lambda process, frame, now: self._exchange.say(process, frame),
            internal.Confirm: self._on_confirm,
            internal.SayAll: self._on_say_all,
            internal.Report: self._on_report,
            internal.Took: lambda process, frame, now: self._exchange.took(process, frame.position),
            internal.Find: self._on_find,
            internal.Claim: self._on_claim,
            internal.Withdraw: self._on_withdraw,
            internal.Finish: self._on_finish,
            internal.Recent: self._on_recent,
            internal.Look: self._on_look,
            internal.Ping: lambda process, frame, now: None,
            internal.Leave: self._on_leave,
        }

    # --- the machine ---

    def receive(self, item: Input, now: float) -> None:
        """Takes in one thing that happened. Who says what no correct process says is refused, and nobody else."""
        match item:
            case Said(connection, frame):
                self._hear(connection, frame, now)
            case PeerSaid(frame):
                self._meeting.hear(frame, now)
                self._admit_early(now)
            case Opened(connection, ticket):
                self._strangers[connection] = ticket, now
            case Closed(connection):
                self._strangers.pop(connection, None)
                process = self._roster.of_connection(connection)
                if process is not None:
                    self._presence.lose(process, now)
            case Clogged(connection):
                self._on_clogged(connection, now)
            case Met():
                self._forget_link()
                self._meeting.begin(now)
            case Parted():
                self._forget_link()
                self._meeting.part(now)
            case _:
                raise AssertionError(f"a message server does not know the input {item!r}")

    def on_time(self, now: float) -> None:
        """Does what is due."""
        self._admit_early(now)
        if now < self._look_at:
            return
        timing = self._settings.timing
        self._look_at = now + timing.beat_s / 4
        self._exchange.ring.expire(now)
        self._answer_early_claims(now)
        self._presence.look(now)
        self._meeting.look(now)
        for connection, (_, since) in list(self._strangers.items()):
            if now - since > timing.silent_s:
                self._refuse(connection, PeerViolation("an internal connection begins with a join, within seconds"))

    def next_deadline(self) -> float:
        """When `on_time` wants to be called."""
        return self._look_at

    def take_outputs(self) -> list[Output]:
        """Everything to do since the last call, in order."""
        self._presence.finish_turn()
        self._exchange.finish_turn()
        outputs, self._outputs = self._outputs, []
        return outputs

    def describe(self) -> dict[str, object]:
        """The one printable state."""
        exchange = self._exchange
        return {
            "name": self._settings.name,
            "role": self.role,
            "connections": len(self._roster.here),
            "speakers": exchange.readers,
            "peer": self._settings.peer if self._meeting.has_met else "",
            "queued": len(exchange.ring),
            "queued_bytes": exchange.ring.bytes,
            "claims": len(self._claims),
            "exchange": {
                "relayed": exchange.relayed,
                "not_passed_on": exchange.dropped,
                "dropped_from_ring": exchange.ring.dropped,
                "events": len(exchange.recent),
                "repeated_events": exchange.recent.repeated,
            },
            "processes": {
                process.row.name: {
                    "kind": process.row.kind,
                    "here": process.connection is not None,
                    "at_peer": process.is_at_peer,
                    "home": process.cursor is not None,
                    "waiting": exchange.ring.end - 1 - process.cursor.through if process.cursor is not None else 0,
                }
                for process in self._roster
            },
        }

    @property
    def role(self) -> str:
        """Primary is the one that processes speak through."""
        return "primary" if 2 * self._exchange.readers > len(self._roster.here) else "backup"

    def _forget_link(self) -> None:
        """What was to be said on the earlier link is not said on the next one, which may lead to another run."""
        self._outputs = [output for output in self._outputs if not isinstance(output, TellPeer | Part)]

    def _say(self, output: Output) -> None:
        self._outputs.append(output)

    # --- joining ---

    def _hear(self, connection: int, frame: internal.AnyProcessFrame, now: float) -> None:
        process = self._roster.of_connection(connection)
        if process is not None:
            process.heard_at, process.is_suspected = now, False
            try:
                if isinstance(frame, internal.Join):
                    raise PeerViolation("a process joins once on a connection")
                self._handlers[type(frame)](process, frame, now)
            except PeerViolation as error:
                self._refuse(connection, error)
                self._presence.lose(process, now)
        elif connection in self._strangers:
            if not isinstance(frame, internal.Join):
                self._refuse(connection, PeerViolation("an internal connection begins with a join"))
            elif self._meeting.serves(now):
                self._join(connection, frame, now)
            elif all(early != connection for early, _ in self._early):
                self._early.append((connection, frame))

    def _admit_early(self, now: float) -> None:
        if self._early and self._meeting.serves(now):
            early, self._early = self._early, []
            for connection, frame in early:
                if connection in self._strangers:
                    self._join(connection, frame, now)

    def _answer_early_claims(self, now: float) -> None:
        if self._early_claims and self._meeting.knows(now):
            early, self._early_claims = self._early_claims, {}
            for run, key in early:
                process = self._roster.of_run(run)
                if process is not None and process.connection is not None:
                    self._on_claim(process, internal.Claim(key), now)

    def _join(self, connection: int, frame: internal.Join, now: float) -> None:
        ticket, _ = self._strangers[connection]
        row = frame.row
        try:
            if frame.version != internal.VERSION:
                reason = f"version {frame.version} of internal connections is not spoken here"
                raise PeerViolation(f"{reason}; version {internal.VERSION} is")
            self._roster.check_name(row, ticket)
            self._check_run(row, frame.secret)
            self._make_way(row, now)
        except Error as error:
            self._refuse(connection, error)
            return
        del self._strangers[connection]
        process = self._roster.of_run(row.run)
        is_known = process is not None
        if process is None:
            process = self._roster.add(row)
        elif process.connection is not None:  # an older connection is over, and nothing it said counts any more
            self._say(Hang(process.connection, "its process has come on another connection"))
            self._presence.unplug(process)
        self._presence.recognise(process, row)
        self._roster.connect(process, connection, now)
        me = self._settings
        self._say(Tell(connection, internal.Joined(me.name, me.run, self._exchange.ring.lanes())))
        self._presence.welcome(process, is_known=is_known, now=now)
        self._say(Log("info", "process_joined", f"name={row.name} kind={row.kind} pid={row.pid}"))

    def _check_run(self, row: internal.Row, secret: bytes) -> None:
        """Everybody knows the runs of the others: who names one of them would be taken for that one."""
        known = self._roster.of_run(row.run)
        if internal.run_of(secret) != row.run or (known is not None and known.row.name != row.name):
            raise AccessDenied(f"{row.name} names the run of another process as its own; begin with a new run")

    def _make_way(self, row: internal.Row, now: float) -> None:
        """The name is this run's, unless another one has it that is there."""
        holder = self._roster.of_name(row.name)
        if holder is not None and holder.run != row.run:
            if holder.is_reachable and not holder.is_suspected:
                raise taken(holder.row)
            self._presence.dismiss(holder, f"another run of {row.name} has come, and this one was silent")
            self._presence.end(holder, now, why="away")
        there = self._presence.make_room(now)
        if self._roster.of_run(row.run) is None and there >= self._settings.limits.processes:
            raise Unavailable(f"{there} processes are there already; end one first")

    def _refuse(self, connection: int, error: Error) -> None:
        self._strangers.pop(connection, None)
        self._say(Tell(connection, internal.Refused(type(error).__name__, str(error))))
        self._say(Hang(connection, str(error)))
        self._say(Log("warning", "process_refused", f"reason={error}"))

    def _on_clogged(self, connection: int, now: float) -> None:
        process = self._roster.of_connection(connection)
        if process is not None:  # and has not heard so already in this turn
            self._refuse(connection, Blocked("it does not read what it is sent; it may join again when it does"))
            self._presence.lose(process, now)

    # --- what processes say ---

    def _on_want(self, process: Process, frame: internal.Want, now: float) -> None:
        process.row = msgspec.structs.replace(process.row, wants=frame.kinds)
        self._exchange.want(process)
        self._meeting.tell(internal.Here([process.row]))

    def _on_home(self, process: Process, frame: internal.Home, now: float) -> None:
        if frame.is_here:
            self._exchange.come_home(process, frame)
        else:
            self._exchange.leave_home(process)

    def _on_confirm(self, process: Process, frame: internal.Confirm, now: float) -> None:
        for sender, through in frame.heard:
            self._exchange.confirm(process.run, sender, through)

    def _on_say_all(self, process: Process, frame: internal.SayAll, now: float) -> None:
        self._exchange.say_all(process, frame.number, frame.body, None, now)

    def _on_report(self, process: Process, frame: internal.Report, now: float) -> None:
        if frame.event.kind in PRESENCE:  # told beforehand, it would keep what is true from being told
            raise PeerViolation(f"message servers see themselves who comes and goes; report no {frame.event.kind}")
        self._exchange.say_all(process, frame.number, b"", frame.event, now)

    def _on_find(self, process: Process, frame: internal.Find, now: float) -> None:
        there = ", ".join([name for name in self._roster.names() if not name.startswith(COMMAND)][:20])
        reason = f"no process is named {frame.name!r}; there are {there}"
        self._answer(process, internal.Found(frame.name, self._roster.is_known(frame.name), reason))

    def _on_claim(self, process: Process, frame: internal.Claim, now: float) -> None:
        if not frame.is_begun and not self._meeting.knows(now):
            self._early_claims[process.run, frame.key] = None
            return
        is_yours = self._claims.claim(process.run, frame.key)
        self._answer(process, internal.Claimed(frame.key, is_yours))
        if is_yours:
            self._meeting.tell(internal.Assigned([(frame.key, process.run, False)]))

    def _on_withdraw(self, process: Process, frame: internal.Withdraw, now: float) -> None:
        self._presence.tell_free((run, frame.key) for run in self._claims.withdraw(process.run, frame.key))

    def _on_finish(self, process: Process, frame: internal.Finish, now: float) -> None:
        self._presence.finish(process.run, frame.key)
        self._meeting.tell(internal.Assigned([(frame.key, process.run, True)]))

    def _on_recent(self, process: Process, frame: internal.Recent, now: float) -> None:
        self._answer(process, internal.Happened(frame.request, self._exchange.recent.last(frame.maximum)))

    def _on_look(self, process: Process, frame: internal.Look, now: float) -> None:
        self._answer(process, internal.Stands(frame.request, msgspec.json.encode(self.describe())))

    def _on_leave(self, process: Process, frame: internal.Leave, now: float) -> None:
        if process.connection is not None:
            self._say(Hang(process.connection, "it has left"))
        self._exchange.tell_confirmed()  # before senders hear that it has ended
        self._presence.end(process, now, why="left")

    def _answer(self, process: Process, frame: internal.ServerFrame) -> None:
        assert process.connection is not None
        self._say(Tell(process.connection, frame))
