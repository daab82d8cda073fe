"""Message servers and work processes with their programs, on one network."""

import random
from collections.abc import Callable

from alphorn.message_server.settings import Limits, Settings
from alphorn.model.events import Event
from alphorn.model.internal import PROGRAM
from alphorn.testing.model_channels import Tell
from alphorn.testing.network import SimulatedNetwork
from alphorn.testing.node import UNIX_START_S
from alphorn.testing.schedule import Schedule
from alphorn.testing.servers.facts import Facts
from alphorn.testing.servers.plan import ServersPlan
from alphorn.testing.servers.program import KINDS, Program
from alphorn.testing.servers.server import Server
from alphorn.testing.servers.worker import Worker
from alphorn.testing.streams import SimulatedStreams

NODE_KIND = "client_manager"
PATIENCE_S = (0.1, 20.0)  # of streams: some outlast the silence that both sides bear
NOTICES_MAX = 3  # processes that notice the same thing
NOTICE_S = (0.0, 0.0, 0.05, 0.5, 8.0)  # mean time until a process notices
UNREAD_BYTES_MAX = 4 << 20  # as in the shell: above that a connection is clogged
UNREAD_BYTES = 100_000  # the same, where servers keep little
NARROW = Limits(ring_bytes=(1 << 20) + 100_000, ring_entries=60, reader_bytes=5_000)
SKEW_S = 5.0  # of their clocks


class ServersCluster:
    """All of it, from one plan."""

    def __init__(
        self, plan: ServersPlan, stream: random.Random, *, record: Callable[[bytes], None], tell: Tell
    ) -> None:
        self.plan = plan
        self.stream = stream
        self.tell = tell
        self.schedule = Schedule(stream)
        self.network = SimulatedNetwork(self.schedule, stream, lambda index, data: None)
        self.streams = SimulatedStreams(
            self.schedule, self.network, stream, record=record, said=[], patience_s=PATIENCE_S
        )
        self.kinds = {
            **{f"n{number + 1}": NODE_KIND for number in range(plan.nodes)},
            **{f"p{number + 1}": PROGRAM for number in range(plan.programs)},
        }
        self.nodes = {name: kind for name, kind in self.kinds.items() if kind != PROGRAM}
        self.limits = NARROW if plan.is_narrow else Limits()
        self.facts = Facts(self.schedule, frozenset(self.kinds))
        names = [f"s{number + 1}" for number in range(plan.servers)]
        self.servers = [self._make_server(name, names) for name in names]
        if plan.servers > 1:
            first, second = self.servers
            first.peer, second.peer, second.is_second = second, first, True
        self.workers = [self._make_worker(name, name) for name in self.kinds]
        self.programs = [worker.program for worker in self.workers]
        self._count = 0  # of what has happened
        self._rivals = 0
        self.is_calm = False  # what happens is noticed at once

    def start(self) -> None:
        """Starts what is down."""
        processes: list[Server | Worker] = [*self.servers, *self.workers]
        for process in processes:
            if not process.is_up:
                process.start()

    def add_rival(self, name: str) -> Worker:
        """One more process that has the name of another."""
        self._rivals += 1
        worker = self._make_worker(f"{name}'{self._rivals}", name)
        self.workers.append(worker)
        worker.program.is_calm = False
        worker.start()
        return worker

    def happen(self, reporters: list[Worker], kind: str = "") -> Event:
        """Something happens, and these processes notice it."""
        self._count += 1
        kind = kind or self.stream.choice(KINDS)
        details: dict[str, int | float | str] = {"destination": f"queue:{self._count}"}
        for worker in reporters:
            mean_s = self.stream.choice(NOTICE_S)
            later_s = 0.0 if self.is_calm else self.stream.expovariate(1.0) * mean_s
            time = UNIX_START_S + self.schedule.now + self.stream.uniform(-SKEW_S, SKEW_S)
            event = Event(kind=kind, node="", channel="orders", time=time, number=self._count, details=details)
            if later_s:
                self.schedule.after(later_s, self._notice, worker, event)
            else:
                self._report(worker, event)
        return event

    def _notice(self, worker: Worker, event: Event) -> None:
        if not self.is_calm:
            self._report(worker, event)

    @staticmethod
    def _report(worker: Worker, event: Event) -> None:
        if worker.is_up and worker.is_running and not worker.is_leaving:
            worker.program.report(event)

    def _make_server(self, name: str, names: list[str]) -> Server:
        peer = next((other for other in names if other != name), "")
        return Server(
            name,
            self.network.add_member(),
            self.streams,
            self.tell,
            facts=self.facts,
            stream=random.Random(f"{self.plan.seed}/{name}"),
            settings=lambda run: Settings(name=name, run=run, peer=peer, nodes=self.nodes, limits=self.limits),
            unread_max=UNREAD_BYTES if self.plan.is_narrow else UNREAD_BYTES_MAX,
        )

    def _make_worker(self, name: str, row_name: str) -> Worker:
        worker = Worker(
            name,
            self.network.add_member(),
            self.streams,
            self.tell,
            row_name=row_name,
            kind=self.kinds[row_name],
            servers=self.servers,
            facts=self.facts,
            stream=random.Random(f"{self.plan.seed}/{name}"),
        )
        Program(
            worker,
            self.facts,
            random.Random(f"{self.plan.seed}/{name}/program"),
            names=list(self.kinds),
            pace_s=self.plan.think_s,
        )
        return worker
