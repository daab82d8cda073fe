"""A work process in the simulator: the real client half, with what its shell does in io/work_process.py."""

import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import alphorn.message_server.process_machine as pm
from alphorn.message_server.work_process import Settings, WorkProcess
from alphorn.model import internal
from alphorn.testing.model_channels import Process, StepReached, Tell
from alphorn.testing.servers.facts import Facts, ProcessRun
from alphorn.testing.servers.server import MORTEM_S_MAX, Observed, Server
from alphorn.testing.streams import SimulatedStreams, StreamEnd

if TYPE_CHECKING:
    from alphorn.testing.servers.program import Program

RECONNECT_S = (0.05, 1.0)  # as in the shell
NOTICE_S = 0.0005  # until a process notices that a connection is over which it has closed
PAUSED_S = 0.02  # a process that stands still connects to nobody
GOODBYE_S = 0.001  # until the last words are written


class Worker(Process):
    """One work process of a name; several may be after the same one. Each start is a run of its own."""

    def __init__(
        self,
        name: str,
        place: int,
        streams: SimulatedStreams,
        tell: Tell,
        *,
        row_name: str,
        kind: str,
        servers: Sequence[Server],
        facts: Facts,
        stream: random.Random,
    ) -> None:
        super().__init__(name, place, streams, tell)
        self.row_name = row_name
        self.kind = kind
        self.servers = servers
        self.facts = facts
        self._stream = stream
        self.is_leaving = False
        self.program: Program

    def start(self) -> None:
        """Begins, as another run."""
        self.run += 1
        self.dies_at = ""
        self.is_leaving = False
        secret = self._stream.randbytes(internal.SECRET_BYTES)
        run = internal.run_of(secret)
        wants = self.program.draw_wants()
        self.facts_run: ProcessRun = self.facts.process_began(self.row_name, run, frozenset(wants))
        row = internal.Row(self.row_name, run, self.kind, self.run, "", wants=list(wants))
        names = tuple(server.name for server in self.servers)
        self.machine = WorkProcess(Settings(row=row, servers=names, secret=secret), now=self.schedule.now)
        self._ends: dict[str, StreamEnd] = {}
        self._unread: list[tuple[StreamEnd, int]] = []  # what came while it was paused
        self._began = dict.fromkeys(names, 0.0)
        self._wait_s = dict.fromkeys(names, RECONNECT_S[0])
        self.begin(Observed(self.machine, self._on_hearing, self._on_heard), self._perform)
        self.tell(self.name, f"starts as {run[:3].hex()}")
        self.program.begin()
        for server in self.servers:
            self._connect(self.run, server)

    def on_crashed(self) -> None:
        """See `Process`."""
        self.facts.process_ended(self.facts_run)

    def freeze(self, seconds: float) -> None:
        """See `Process`."""
        if self.is_up and self.is_running:
            self.facts_run.stood.append((self.schedule.now, self.schedule.now + seconds))
        super().freeze(seconds)

    def _thaw(self, run: int) -> None:
        if run == self.run:
            for end, size in self._unread:
                end.read(size)
            self._unread.clear()
        super()._thaw(run)

    def leave(self) -> None:
        """Ends in good order."""
        if self.is_up and self.is_running and not self.is_leaving:
            self.tell(self.name, "leaves")
            self.is_leaving = True
            self.facts_run.leaves_at = self.schedule.now
            self.receive(pm.Quit())
            self.schedule.after(GOODBYE_S, self._part, self.run)

    def _part(self, run: int) -> None:
        if run == self.run and self.is_up:
            for end in self._ends.values():
                end.close()
            self.is_up = self.is_running = False
            self.turns = None
            self.facts.process_ended(self.facts_run)

    # --- connections ---

    def _connect(self, run: int, server: Server) -> None:
        def done(end: StreamEnd | None) -> None:
            if run != self.run or not self.is_up:
                if end is not None:
                    end.close()
            elif end is None or not self.is_running:
                if end is not None:
                    end.close()
                self._connect_later(run, server)
            else:
                self._on_open(run, server, end)

        if run != self.run or not self.is_up or self.is_leaving:
            return
        if not self.is_running:
            self.schedule.after(PAUSED_S, self._connect, run, server)
        else:
            self.streams.connect((self.place, self.name), (server.place, server.name), server.accept, done)

    def _connect_later(self, run: int, server: Server) -> None:
        wait_s = self._wait_s[server.name]
        self._wait_s[server.name] = min(2 * wait_s, RECONNECT_S[1])
        self.schedule.after(wait_s * self._stream.uniform(0.5, 1.5), self._connect, run, server)

    def _on_open(self, run: int, server: Server, end: StreamEnd) -> None:
        self._ends[server.name] = end
        self._began[server.name] = self.schedule.now
        end.on_frame = lambda data: self._on_frame(run, server.name, end, data)
        end.on_closed = lambda reason: self._on_closed(run, server, end)
        self.receive(pm.Connected(server.name))

    def _on_frame(self, run: int, server: str, end: StreamEnd, data: bytes) -> None:
        if run == self.run and self._ends.get(server) is end:
            if self.is_running:
                end.read(len(data))
            else:
                self._unread.append((end, len(data)))
            self.receive(pm.Heard(server, internal.decode_server(data[internal.LENGTH_BYTES :])))

    def _on_closed(self, run: int, server: Server, end: StreamEnd) -> None:
        if run != self.run or not self.is_up:
            return
        if self._ends.get(server.name) is end:
            del self._ends[server.name]
        self.receive(pm.Disconnected(server.name))
        if self.schedule.now - self._began[server.name] > RECONNECT_S[1]:
            self._wait_s[server.name] = RECONNECT_S[0]
        self._connect_later(run, server)

    # --- the machine ---

    def _on_hearing(self, item: pm.Input) -> None:
        match item:
            case pm.Heard():
                self.facts.process_heard(self.facts_run)
            case pm.Disconnected(server):
                self.facts.process_left(self.facts_run, server)
            case pm.WantEvents(kinds):
                self.facts.wants(self.facts_run, frozenset(kinds))

    def _on_heard(self, item: pm.Input) -> None:
        if isinstance(item, pm.Heard) and self.dies_at == f"hears {type(item.frame).__name__}":
            self.dies_at = ""
            raise StepReached(f"hears {type(item.frame).__name__}")

    def _perform(self, output: pm.Output) -> None:
        match output:
            case pm.Send(server, frame):
                end = self._ends.get(server)
                if end is not None:
                    self.facts.process_sent(self.facts_run, frame)
                    end.send(internal.encode(frame))
                    self._on_said(frame)
            case pm.Cut(server, _):
                self.facts.process_left(self.facts_run, server)
                end = self._ends.pop(server, None)
                if end is not None:
                    end.close()
                    to = next(each for each in self.servers if each.name == server)
                    self.schedule.after(NOTICE_S, self._on_closed, self.run, to, end)
            case pm.Turned(server, error, reason):
                if error:
                    self.facts.process_left(self.facts_run, server)
                    self.tell(self.name, f"refused by {server}: {error}: {reason}")
                elif server in self._ends:
                    self.facts.process_joined(self.facts_run, server)
                self.program.hear(output)
            case _:
                self.program.hear(output)

    def _on_said(self, frame: internal.ProcessFrame) -> None:
        if self.dies_at == f"says {type(frame).__name__}":
            self.dies_at = ""
            later_s = self._stream.uniform(0.0, MORTEM_S_MAX)
            self.schedule.after(later_s, partial(self._die, self.run, type(frame).__name__))

    def _die(self, run: int, frame: str) -> None:
        if run == self.run:
            self.crash(f"dies when it says {frame}")
