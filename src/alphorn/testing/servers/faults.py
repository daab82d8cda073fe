"""What goes wrong between and in message servers and work processes."""

from alphorn.model.internal import OTHERS
from alphorn.testing.model_channels import Process
from alphorn.testing.servers.cluster import ServersCluster
from alphorn.testing.servers.server import Server
from alphorn.testing.servers.worker import Worker

DOWN_S = (0.05, 6.0)  # some longer than it takes to be called down
CUT_S = (0.3, 12.0)
PAUSE_S = (0.3, 12.0)  # some longer than anybody bears silence
SULK_S = (0.5, 8.0)
RIVAL_S = (0.5, 10.0)
SLOW_S = (0.5, 4.0)
DELAYS_S = (0.005, 0.05, 0.3)  # mean, while the network is slow
FLOOD = (50, 400)
FLOOD_BYTES = (12, 200, 3000)
SERVER_FRAMES = tuple(
    [f"hears {name}" for name in "Join Home Say SayAll Report Confirm Took Claim Finish Leave".split()]
    + [f"hears {name}" for name in "Meet Here Away Carry CarryBack Hold Held Assigned Synchronised".split()]
    + [f"says {name}" for name in "Joined Arrived Relay RelayAll Notify Confirmed Taken Claimed Free".split()]
    + [f"says {name}" for name in "Meet Here Carry CarryBack Hold Held Assigned Synchronised".split()]
)
PROCESS_FRAMES = tuple(
    [f"hears {name}" for name in "Joined Arrived Relay RelayAll Notify Confirmed Taken Claimed".split()]
    + [f"says {name}" for name in "Join Home Say SayAll Report Confirm Took Claim Finish".split()]
)


class ServersNemesis:
    """Injects faults, each for a while, until all is healed."""

    def __init__(self, cluster: ServersCluster) -> None:
        self._cluster = cluster
        self._stream = cluster.stream
        self._is_over = False
        self.counts: dict[str, int] = {}

    def start(self) -> None:
        """Begins."""
        self._later()

    def heal(self) -> None:
        """Everything is whole again, and nothing else goes wrong."""
        self._is_over = True
        cluster = self._cluster
        cluster.network.heal()
        cluster.is_calm = True
        for process in [*cluster.servers, *cluster.workers]:
            process.dies_at = ""
        for program in (worker.program for worker in cluster.workers):
            program.sulks_until = program.taking_s = 0.0
            program.is_calm = True
        for name in cluster.kinds:
            rivals = [worker for worker in cluster.workers if worker.row_name == name]
            stays = self._stream.choice([worker for worker in rivals if worker.is_up] or rivals)
            for worker in rivals:
                if worker is not stays:
                    worker.crash("ends")
                    cluster.workers.remove(worker)
        cluster.tell("--", "HEALED")

    def _later(self) -> None:
        self._cluster.schedule.after(self._stream.expovariate(1.0) * self._cluster.plan.pace_s, self._disturb)

    def _disturb(self) -> None:
        if self._is_over:
            return
        fault = self._stream.choice(self._cluster.plan.faults)
        details = self._inject(fault)
        if details:
            self._cluster.tell("--", f"FAULT    {fault}: {details}")
            self.counts[fault] = self.counts.get(fault, 0) + 1
        self._later()

    def _inject(self, fault: str) -> str:
        stream, cluster = self._stream, self._cluster
        server, worker = stream.choice(cluster.servers), stream.choice(cluster.workers)
        match fault:
            case "kill-server":
                return self._kill(server)
            case "kill-server-at-frame":
                return self._kill_at(server, stream.choice(SERVER_FRAMES))
            case "kill-both-servers":
                return " ".join(filter(None, [self._kill(each) for each in cluster.servers]))
            case "pause-server":
                return self._pause(server)
            case "cut-servers":
                return self._cut([(each, other) for each in cluster.servers for other in cluster.servers])
            case "cut-one-way":
                pairs = [(server, worker), (worker, server)]
                return self._cut([stream.choice(pairs)])
            case "cut-process":
                servers = cluster.servers if stream.random() < 0.3 else [server]
                return self._cut([pair for each in servers for pair in ((worker, each), (each, worker))])
            case "break-streams":
                count = cluster.streams.break_some(stream.choice((0.1, 0.3, 1.0)))
                return f"{count} streams" if count else ""
            case "slow-network":
                return self._slow_down()
            case "kill-process":
                return self._kill(worker)
            case "kill-process-at-frame":
                return self._kill_at(worker, stream.choice(PROCESS_FRAMES))
            case "leave":
                return self._leave(worker)
            case "same-name":
                return self._add_rival(worker)
            case "pause-process":
                return self._pause(worker)
            case "slow-owner":
                worker.program.sulks_until = cluster.schedule.now + stream.uniform(*SULK_S)
                return f"{worker.name} takes nothing until {worker.program.sulks_until:.1f}"
            case "flood":
                return self._flood(worker)
            case _:
                return self._flood_with_events(worker)

    # --- processes ---

    def _kill(self, process: Server | Worker) -> str:
        if not process.is_up:
            return ""
        process.crash("is killed")
        self._start_again(process)
        return process.name

    def _kill_at(self, process: Server | Worker, frame: str) -> str:
        if not process.is_up:
            return ""
        process.dies_at = frame
        self._start_again(process)
        return f"{process.name} when it {frame}"

    def _start_again(self, process: Server | Worker) -> None:
        """Some time after it died."""
        later_s = self._stream.uniform(*DOWN_S)
        if process.is_up and not self._is_over:
            self._cluster.schedule.after(later_s, self._start_again, process)
        elif not process.is_up:
            self._cluster.schedule.after(later_s, self._start, process)

    def _start(self, process: Server | Worker) -> None:
        if not process.is_up and (isinstance(process, Server) or process in self._cluster.workers):
            process.start()

    def _pause(self, process: Process) -> str:
        if not process.is_up or not process.is_running:
            return ""
        process.freeze(self._stream.uniform(*PAUSE_S))
        return process.name

    def _leave(self, worker: Worker) -> str:
        if not worker.is_up or not worker.is_running:
            return ""
        worker.leave()
        self._cluster.schedule.after(self._stream.uniform(*DOWN_S), self._start, worker)
        return worker.name

    def _add_rival(self, worker: Worker) -> str:
        if any(other is not worker and other.row_name == worker.row_name for other in self._cluster.workers):
            return ""
        rival = self._cluster.add_rival(worker.row_name)
        self._cluster.schedule.after(self._stream.uniform(*RIVAL_S), self._end_one, worker, rival)
        return f"{rival.name} and {worker.name}"

    def _end_one(self, worker: Worker, rival: Worker) -> None:
        if self._is_over:
            return
        cluster = self._cluster
        ended = worker if rival.is_up and self._stream.random() < 0.5 else rival
        cluster.workers.remove(ended)
        ended.crash("ends")

    def _flood(self, worker: Worker) -> str:
        if not worker.is_up or not worker.is_running or worker.is_leaving:
            return ""
        count, size = self._stream.randint(*FLOOD), self._stream.choice(FLOOD_BYTES)
        others = [name for name in self._cluster.kinds if name != worker.row_name]
        to = self._stream.choice((OTHERS, self._stream.choice(others)))
        for _ in range(count):
            worker.program.say(to, self._stream.choice((2.0, 10.0)), size)
        return f"{count} messages of {size} bytes from {worker.name} to {to or 'all others'}"

    def _flood_with_events(self, worker: Worker) -> str:
        count = self._stream.randint(*FLOOD)
        up = [each for each in self._cluster.workers if each.is_up]
        if worker not in up:
            return ""
        for _ in range(count):
            self._cluster.happen([worker, *self._stream.sample(up, self._stream.randint(0, 1))])
        return f"{count} events from {worker.name}"

    # --- the network ---

    def _cut(self, pairs: list[tuple[Process, Process]]) -> str:
        places = [(source.place, target.place) for source, target in pairs if source is not target]
        if not places:
            return ""
        self._cluster.network.cut(places)
        seconds = self._stream.uniform(*CUT_S)
        self._cluster.schedule.after(seconds, self._mend, places)
        text = " ".join(f"{source.name}→{target.name}" for source, target in pairs if source is not target)
        return f"{text} for {seconds:.1f} s"

    def _mend(self, places: list[tuple[int, int]]) -> None:
        if not self._is_over:
            self._cluster.network.mend(places)

    def _slow_down(self) -> str:
        network, mean_s = self._cluster.network, self._stream.choice(DELAYS_S)
        links = [link for row in network.links for link in row if self._stream.random() < 0.5]
        for link in links:
            link.delay_mean = mean_s
        self._cluster.schedule.after(self._stream.uniform(*SLOW_S), self._speed_up)
        return f"{len(links)} links of {mean_s} s"

    def _speed_up(self) -> None:
        for row in self._cluster.network.links:
            for link in row:
                link.delay_mean = 0.0005
