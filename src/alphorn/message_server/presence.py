"""Who is there, who is silent, and who has been away for how long; what others are told of it.

A process that was lost is away. It is called down after a while, and known for an hour; what it claimed is free when it
is down. It has ended when it says so, when another run takes its name, or when it is forgotten.
"""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from alphorn.message_server.claims import Claims
from alphorn.message_server.exchange import Exchange
from alphorn.message_server.machine import Hang, Output, Tell
from alphorn.message_server.roster import NEVER, Process, Roster
from alphorn.message_server.settings import Settings
from alphorn.model import internal
from alphorn.model.errors import Unavailable
from alphorn.model.events import Event


class Presence:
    """Comings and goings, as far as this server knows them."""

    def __init__(
        self,
        settings: Settings,
        roster: Roster,
        exchange: Exchange,
        claims: Claims,
        wall: Callable[[float], float],
        say: Callable[[Output], None],
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._exchange = exchange
        self._claims = claims
        self._wall = wall  # Unix time
        self._say = say
        self._arrived: dict[bytes, internal.Row] = {}  # in this turn
        self.tell_peer: Callable[[internal.PeerFrame], None] = lambda frame: None

    # --- coming ---

    def welcome(self, process: Process, *, is_known: bool, now: float) -> None:
        """It has a connection here: it hears who is there, and the others hear of it."""
        others = [other.row for other in self._roster if other is not process and other.is_reachable]
        rows = [process.row, *others]
        assert process.connection is not None
        for start in range(0, len(rows), internal.ROWS_MAX):
            self._say(Tell(process.connection, internal.Arrived(rows[start : start + internal.ROWS_MAX])))
        self.tell_peer(internal.Here([process.row]))
        was_down = process.is_down
        self.arrive(process)
        if was_down or (not is_known and process.row.turn == 1):
            self._happen("node_up", process, {"kind": process.row.kind}, now)

    def recognise(self, process: Process, row: internal.Row) -> None:
        """It is there, and may not know that it was called down. What is told of it from now on has other names."""
        turn = min(max(row.turn, process.row.turn + process.is_down), internal.TURN_MAX)
        process.row = replace(row, turn=turn)

    def recover(self, process: Process, row: internal.Row, now: float) -> None:
        """The other server has a connection to it, and has not called it down as this one may have."""
        was_down = process.is_down
        self.recognise(process, row)
        if not process.is_at_peer:
            self.arrive(process)
        if was_down:
            self.tell_peer(internal.Away([process.row], False))  # the other one is to know its turn
            self._happen("node_up", process, {"kind": row.kind}, now)

    def arrive(self, process: Process) -> None:
        """It is reached from here, or on another way than before: what was on its way to it may be lost."""
        process.is_down, process.away_since = False, NEVER
        self._arrived[process.run] = process.row

    # --- going ---

    def unplug(self, process: Process) -> None:
        """It has no connection here any more, or not the one it had."""
        self._roster.disconnect(process)
        self._exchange.leave_home(process)

    def lose(self, process: Process, now: float) -> None:
        """Its connection here is gone; the other server may have one."""
        self.unplug(process)
        self.tell_peer(internal.Away([process.row], False))
        if process.is_at_peer:
            self.arrive(process)
        self.depart(process, now)

    def depart(self, process: Process, now: float) -> None:
        """It may be reached no more."""
        if not process.is_reachable and process.away_since == NEVER:
            process.away_since = now
            self._tell_gone(process, has_ended=False)

    def dismiss(self, process: Process, reason: str) -> None:
        """Closes its connection here and says why."""
        if process.connection is not None:
            self._say(Tell(process.connection, internal.Refused(Unavailable.__name__, reason)))
            self._say(Hang(process.connection, reason))
            self.unplug(process)

    def end(self, process: Process, now: float, *, why: str) -> None:
        """It is over. The other server hears it, unless it is who said so."""
        if not process.is_down:
            self._go_down(process, why, now)
        self.tell_peer(internal.Away([process.row], True))
        self.end_quietly(process, now)

    def end_quietly(self, process: Process, now: float) -> None:
        """It is over, and that is no news."""
        self._exchange.leave_home(process)
        self._roster.remove(process, now)
        self._tell_gone(process, has_ended=True)
        self._free_claims(process)

    def make_room(self, now: float) -> int:
        """So many processes are there. Of very many that are away, who has been for longest is forgotten."""
        away = [process for process in self._roster if not process.is_reachable]
        if len(away) >= self._settings.limits.processes:
            self.end(min(away, key=lambda process: process.away_since), now, why="away")
        return len(self._roster) - len(away)

    # --- time ---

    def look(self, now: float) -> None:
        """Listens to those that are here, and waits for those that are away."""
        timing = self._settings.timing
        for process in list(self._roster):
            if process.connection is not None:
                self._listen_to(process, now)
            elif not process.is_at_peer:
                away_s = now - process.away_since
                if away_s > timing.down_s and not process.is_down:
                    self._go_down(process, "away", now)
                if away_s > timing.known_s:
                    self.end(process, now, why="away")
        self._roster.forget(now - timing.known_s)

    def finish_turn(self) -> None:
        """Says who has come in this turn."""
        if self._arrived:
            rows, self._arrived = list(self._arrived.values()), {}
            for start in range(0, len(rows), internal.ROWS_MAX):
                frame = internal.Arrived(rows[start : start + internal.ROWS_MAX])
                self._tell_all(frame)

    def _listen_to(self, process: Process, now: float) -> None:
        timing, silent_s = self._settings.timing, now - process.heard_at
        if silent_s > timing.silent_s:
            self.dismiss(process, f"nothing was heard of {process.row.name} for {timing.silent_s:.0f} seconds")
            self.lose(process, now)
            return
        if silent_s > timing.suspect_s and not process.is_suspected:
            process.is_suspected = True
            if not process.is_at_peer:
                self._happen("node_suspected", process, {"kind": process.row.kind}, now)
        if now - process.said_at >= timing.beat_s:
            process.said_at = now
            self._exchange.tell_passed(process)
            assert process.connection is not None
            self._say(Tell(process.connection, internal.Pong()))

    # --- parts ---

    def _go_down(self, process: Process, why: str, now: float) -> None:
        process.is_down = True
        self._happen("node_down", process, {"kind": process.row.kind, "reason": why}, now)
        self._free_claims(process)

    def _free_claims(self, process: Process) -> None:
        self.tell_free(self._claims.free(process.run))

    def finish(self, run: bytes, key: bytes) -> None:
        """Something is done. Who was to do it, and may still ask other servers for it, is to do it no more."""
        other = self._roster.of_run(self._claims.finish(run, key))
        if other is not None and other.connection is not None:
            self._say(Tell(other.connection, internal.Claimed(key, False)))

    def tell_free(self, free: Iterable[tuple[bytes, bytes]]) -> None:
        """Says to processes that something is free that they wanted to do."""
        for run, key in free:
            other = self._roster.of_run(run)
            if other is not None and other.connection is not None:
                self._say(Tell(other.connection, internal.Free(key)))

    def _tell_gone(self, process: Process, *, has_ended: bool) -> None:
        self._arrived.pop(process.run, None)
        self._tell_all(internal.Departed([process.run], has_ended))

    def _tell_all(self, frame: internal.ServerFrame) -> None:
        for process in self._roster.here:
            assert process.connection is not None
            self._say(Tell(process.connection, frame))

    def _happen(self, kind: str, process: Process, details: dict[str, int | float | str], now: float) -> None:
        """Something that this server notices by itself; the other one names it alike."""
        row = process.row
        self._exchange.happen(
            Event(kind=kind, node=row.name, time=self._wall(now), number=row.turn, run=row.run, details=details), now
        )
