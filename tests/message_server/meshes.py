"""Two message servers and a few work processes on lines that can be cut, in virtual time.

Everything that is said is encoded and decoded, and counted. Lines carry at once, and in order; what was said on a line
that is cut is lost with it.
"""

from collections import deque

import alphorn.message_server.machine as ms
import alphorn.message_server.process_machine as pm
from alphorn.message_server.core import MessageServer
from alphorn.message_server.settings import Limits, Settings, Timing
from alphorn.message_server.work_process import Settings as ProcessSettings
from alphorn.message_server.work_process import WorkProcess
from alphorn.model import internal
from alphorn.model.events import MISSED, Event

STEP_S = 0.05
NODES = {"mm1": "message_manager", "cm1": "client_manager"}


class Worker:
    """A work process and what its program hears. It takes what it is given, unless told to wait."""

    def __init__(self, mesh: "Mesh", name: str, label: str, kind: str, secret: bytes, wants: tuple[str, ...]) -> None:
        self.name = label  # of its lines; another run of the same name has another one
        self.run = run = internal.run_of(secret)
        row = internal.Row(name, run, kind, pid=len(mesh.workers) + 1, wants=list(wants))
        self.half = WorkProcess(ProcessSettings(row=row, secret=secret, servers=tuple(mesh.servers)), now=mesh.now)
        self.takes = True
        self.given: list[tuple[str, bytes]] = []
        self.told: list[Event] = []
        self.missed: list[int] = []
        self.outcomes: dict[int, str] = {}
        self.reasons: dict[int, str] = {}
        self.refused: list[tuple[str, str, str]] = []
        self.won: list[bytes] = []
        self.standing: dict[str, bytes] = {}
        self.recent: list[list[Event]] = []
        self._untaken: deque[pm.Taken] = deque()
        self._mesh = mesh
        self._handle = 0

    def tell(self, to: str, body: bytes, timeout_s: float = 10.0) -> int:
        """Says something; the handle under which its outcome is found."""
        self._handle += 1
        self.half.receive(pm.SendMessage(self._handle, to, body, timeout_s), self._mesh.now)
        return self._handle

    def do(self, item: pm.Input) -> None:
        """Its program wants something."""
        self.half.receive(item, self._mesh.now)

    def take(self) -> None:
        """Takes what it was given."""
        while self._untaken:
            self.do(self._untaken.popleft())

    def hear(self, output: pm.Output) -> None:
        """What the half has for the program."""
        match output:
            case pm.Given(sender, run, number, body):
                self.given.append((sender, body))
                self._untaken.append(pm.Taken(run, number))
            case pm.Told(run, number, event) if event.kind == MISSED:
                count = event.details["count"]
                assert isinstance(count, int)
                self.missed.append(count)
            case pm.Told(run, number, event):
                self.told.append(event)
                self._untaken.append(pm.Taken(run, number))
            case pm.Outcome(handle, error, reason):
                assert handle not in self.outcomes, "an answer comes once"
                self.outcomes[handle], self.reasons[handle] = error or "acknowledged", reason
            case pm.Turned(server, error, reason) if error:
                self.refused.append((server, error, reason))
            case pm.Won(key):
                self.won.append(key)
            case pm.Standing(server, data):
                self.standing[server] = data
            case pm.Recent(_, events):
                self.recent.append(events)
        if self.takes:
            self.take()


class Mesh:
    """All of it."""

    def __init__(self, servers: int = 2, *, limits: Limits | None = None, timing: Timing | None = None) -> None:
        self.now = 0.0
        self.limits, self.timing = limits or Limits(), timing or Timing()
        self.names = [f"ms{number + 1}" for number in range(servers)]
        self.servers: dict[str, MessageServer] = dict.fromkeys(self.names)  # type: ignore[arg-type]
        self.workers: list[Worker] = []
        self.said: list[tuple[str, str, object]] = []  # speaker, listener, frame
        self.cut: set[frozenset[str]] = set()
        self._lines: dict[tuple[str, str], int] = {}  # worker and server → connection
        self._linked = False
        self._connection = 0
        self._runs = 0
        for name in self.names:
            self.start(name)

    # --- who is there ---

    def start(self, name: str) -> None:
        """A server starts, with nothing."""
        peer = next((other for other in self.names if other != name), "")
        settings = Settings(
            name=name, run=self._draw_run(), peer=peer, nodes=NODES, limits=self.limits, timing=self.timing
        )
        self.servers[name] = MessageServer(settings, now=self.now, wall=lambda now: now)

    def kill(self, name: str) -> None:
        """A server is gone, with all that it had."""
        del self.servers[name]
        for worker in self.workers:
            self._break(worker, name)
        self._unlink()

    def add(self, name: str, *, label: str = "", wants: tuple[str, ...] = (), kind: str = internal.PROGRAM) -> Worker:
        """A work process starts."""
        worker = Worker(self, name, label or name, kind, self._draw_run(), wants)
        self.workers.append(worker)
        return worker

    def end(self, worker: Worker) -> None:
        """A work process is gone, without a word."""
        self.workers.remove(worker)
        for name in self.names:
            self._break(worker, name, is_alive=False)

    def join(self, *names: str, wants: tuple[str, ...] = ()) -> list[Worker]:
        """Work processes that have joined everywhere."""
        workers = [self.add(name, wants=wants) for name in names]
        self.run(3.0)
        return workers

    def cut_off(self, one: str, other: str) -> None:
        """Cuts the line between two; what was on its way is lost."""
        self.cut.add(frozenset((one, other)))
        for worker in self.workers:
            if worker.name in (one, other):
                self._break(worker, one if worker.name == other else other)
        if {one, other} <= set(self.names):
            self._unlink()

    def mend(self) -> None:
        """All lines are whole."""
        self.cut.clear()

    # --- time ---

    def run(self, seconds: float) -> None:
        """Time passes, and everything that is said is heard."""
        until = self.now + seconds
        while self.now < until - 1e-9:
            self._connect_all()
            self.flush()
            self.now += STEP_S
            for machine in [*self.servers.values(), *(worker.half for worker in self.workers)]:
                machine.on_time(self.now)
        self.flush()

    def flush(self) -> None:
        """Everything that is to be said is said and heard."""
        is_moving = True
        while is_moving:
            is_moving = False
            for worker in list(self.workers):
                for process_output in worker.half.take_outputs():
                    is_moving = True
                    self._perform_process(worker, process_output)
            for name, server in list(self.servers.items()):
                for output in server.take_outputs():
                    is_moving = True
                    self._perform_server(name, output)

    def frames(self, kind: type, *, speaker: str = "", listener: str = "") -> list[object]:
        """What was said of this kind."""
        return [
            frame
            for by, to, frame in self.said
            if isinstance(frame, kind) and speaker in ("", by) and listener in ("", to)
        ]

    # --- lines ---

    def _draw_run(self) -> bytes:
        self._runs += 1
        return self._runs.to_bytes(internal.RUN_BYTES, "big")

    def _connect_all(self) -> None:
        for worker in self.workers:
            for name in self.servers:
                if (worker.name, name) not in self._lines and frozenset((worker.name, name)) not in self.cut:
                    self._connection += 1
                    self._lines[worker.name, name] = self._connection
                    self.servers[name].receive(ms.Opened(self._connection), self.now)
                    worker.do(pm.Connected(name))
        if len(self.servers) > 1 and not self._linked and frozenset(self.names) not in self.cut:
            self._linked = True
            for server in self.servers.values():
                server.receive(ms.Met(), self.now)

    def _break(self, worker: Worker, name: str, *, is_alive: bool = True) -> None:
        connection = self._lines.pop((worker.name, name), None)
        if connection is not None:
            if name in self.servers:
                self.servers[name].receive(ms.Closed(connection), self.now)
            if is_alive:
                worker.do(pm.Disconnected(name))

    def _unlink(self) -> None:
        if self._linked:
            self._linked = False
            for server in self.servers.values():
                server.receive(ms.Parted(), self.now)

    def _perform_process(self, worker: Worker, output: pm.Output) -> None:
        match output:
            case pm.Send(server, frame):
                connection = self._lines.get((worker.name, server))
                if connection is not None:
                    heard = internal.decode_heard(internal.encode(frame)[internal.LENGTH_BYTES :])
                    assert isinstance(heard, internal.AnyProcessFrame)
                    self.said.append((worker.name, server, heard))
                    self.servers[server].receive(ms.Said(connection, heard), self.now)
            case pm.Cut(server, _):
                self._break(worker, server)
            case _:
                worker.hear(output)

    def _perform_server(self, name: str, output: ms.Output) -> None:
        match output:
            case ms.Tell(connection, frame):
                worker = self._find(name, connection)
                if worker is not None:
                    heard = internal.decode_server(internal.encode(frame)[internal.LENGTH_BYTES :])
                    self.said.append((name, worker.name, heard))
                    worker.do(pm.Heard(name, heard))
            case ms.TellPeer(frame):
                if self._linked:
                    peer = next(other for other in self.names if other != name)
                    told = internal.decode_heard(internal.encode(frame)[internal.LENGTH_BYTES :])
                    assert isinstance(told, internal.AnyPeerFrame)
                    self.said.append((name, peer, told))
                    self.servers[peer].receive(ms.PeerSaid(told), self.now)
            case ms.Hang(connection, _):
                worker = self._find(name, connection)
                if worker is not None:
                    self._break(worker, name)
            case ms.Part(_):
                self._unlink()

    def _find(self, server: str, connection: int) -> Worker | None:
        found = [who for who, number in self._lines.items() if number == connection and who[1] == server]
        return next((worker for worker in self.workers for who in found if worker.name == who[0]), None)
