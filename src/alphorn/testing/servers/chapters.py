"""What is tried when all is well: one thing goes wrong at a time, so that what follows can be foretold exactly."""

from collections.abc import Callable
from functools import partial

from alphorn.model.internal import OTHERS
from alphorn.testing.servers.cluster import ServersCluster
from alphorn.testing.servers.facts import NEVER, PRESENCE_KINDS, Occurrence, ProcessRun, Saying, key_of
from alphorn.testing.servers.program import ONCE, UNKNOWN
from alphorn.testing.servers.server import Server
from alphorn.testing.servers.worker import Worker
from alphorn.testing.watch import Violation

POLL_S = 0.25
SETTLE_S = 60.0
SOON_S = 3.0
CALM_S = 2.0  # in which everybody finds its home
AWAY_S = (2.0, 50.0)
AWAY_FOR_LONG_S = (75.0, 100.0)
TIMEOUT_S = 30.0
ROUNDS = 3
SAYINGS = 800
BETWEEN_S = 0.0005


class Chapters:
    """Runs one after the other; raises `Violation` where something does not come about."""

    def __init__(self, cluster: ServersCluster) -> None:
        self._cluster = cluster
        self._stream = cluster.stream

    def run(self, chapter: str) -> None:
        """Runs one, to its end."""
        self._cluster.tell("--", f"CHAPTER  {chapter}")
        chapters: dict[str, Callable[[], None]] = {
            "away": lambda: self._be_away(self._stream.uniform(*AWAY_S)),
            "away-for-long": lambda: self._be_away(self._stream.uniform(*AWAY_FOR_LONG_S)),
            "connections-break": self._break_connections,
            "no-server": self._lose_all_servers,
            "next-run": self._tell_the_next_run,
            "server-dies": self._lose_a_server,
            "servers-in-turn": self._lose_servers_in_turn,
            "function-taken-over": self._lose_a_runner,
        }
        chapters[chapter]()
        self.settle()

    # --- all is well ---

    def settle(self) -> None:
        """Waits until everybody has joined and nothing is left to do."""
        self._wait_until(self._find_unsettled, SETTLE_S, "progress after healing")

    def speak(self) -> None:
        """Everybody says something to everybody, and something happens; all is given and acknowledged soon."""
        self._run_for(CALM_S)
        sayings, occurrences = [], []
        for _ in range(ROUNDS):
            sayings += self._say_all(self._cluster.workers)
            occurrences += self._happen(self._cluster.workers)
            self._run_for(self._stream.uniform(0.0, 0.3))
        self._expect(sayings, occurrences)
        for saying in sayings:
            if saying.is_for_all and len(self._cluster.servers) > 1 and saying.frames != 1:
                raise Violation("what is for all is one frame", f"{saying} was sent in {saying.frames} frames")
        self._say_to_nobody()

    def _say_all(self, speakers: list[Worker]) -> list[Saying]:
        sayings = []
        for worker in speakers:
            for other in self._cluster.workers:
                if other is not worker:
                    sayings.append(worker.program.say(other.row_name, TIMEOUT_S, 20))
            sayings.append(worker.program.say(OTHERS, TIMEOUT_S, 20))
        return sayings

    def _say_to_nobody(self) -> None:
        program = self._stream.choice(self._cluster.workers).program
        saying = program.say(UNKNOWN, TIMEOUT_S, 20)
        self._run_for(SOON_S)
        if saying.error != "Misuse":
            raise Violation("an unknown name is refused at once", f"{saying}: {saying.error or 'no answer'}")

    def _happen(self, workers: list[Worker], kind: str = "") -> list[Occurrence]:
        event = self._cluster.happen(self._stream.sample(workers, 1), kind)
        found = self._cluster.facts.occurrences.get(event.name)
        return [] if found is None else [found]

    def _expect(self, sayings: list[Saying], occurrences: list[Occurrence]) -> None:
        """All of it is acknowledged, and given to whom it is for."""
        self._wait_until(lambda: self._find_missing(sayings, occurrences), SOON_S, "what is told is given soon")
        for saying in sayings:
            if saying.error:
                raise Violation("what is told is given soon", f"{saying} fails with {saying.error}")

    def _find_missing(self, sayings: list[Saying], occurrences: list[Occurrence]) -> str:
        runs = [worker.facts_run for worker in self._cluster.workers]
        for saying in sayings:
            if saying.answered_at == float("inf"):
                return f"{saying} is not answered"
            for run in runs:
                is_wanted = run is not saying.sender if saying.is_for_all else run.name == saying.to
                if is_wanted and run not in saying.given and not saying.error:
                    return f"{saying} is not given to {run}"
        for occurrence in occurrences:
            for run in runs:
                has_it = run in occurrence.given or run in occurrence.reporters
                if not has_it and run.has_wanted(occurrence.event.kind, occurrence.at - SOON_S):
                    return f"{run} is not told of {occurrence}"
        return ""

    def _find_unsettled(self) -> str:
        cluster = self._cluster
        names = {server.name for server in cluster.servers}
        for process in [*cluster.servers, *cluster.workers]:
            if process.is_up and not process.is_running:
                return f"{process.name} stands still"
        for server in cluster.servers:
            state = server.machine.describe()
            if cluster.plan.servers > 1 and not state["peer"]:
                return f"{server.name} has no peer"
            if state["connections"] != len(cluster.workers):
                return f"{server.name} has {state['connections']} connections, of {len(cluster.workers)}"
        for worker in cluster.workers:
            run, state = worker.facts_run, worker.machine.describe()
            if set(run.joined) != names:
                return f"{worker.name} has joined {sorted(run.joined)}"
            others = {row.name for row in worker.machine.others}
            if others != set(cluster.kinds) - {worker.row_name}:
                return f"{worker.name} knows {sorted(others)}"
            if unfinished := worker.program.find_unfinished():
                return unfinished
            if state["outbox"]:
                return f"{worker.name} has {state['outbox']} messages in its outbox"
        for competition in cluster.facts.competitions.values():
            if competition.completed_at == NEVER and any(process.is_alive for process in competition.competitors):
                return f"{competition.key[:3].hex()} has not run, of {len(competition.competitors)} competitors"
        return ""

    # --- chapters ---

    def _lose_servers_in_turn(self) -> None:
        """Each server dies as soon as the other one is back, while somebody is away, who gets all the same."""
        if len(self._cluster.servers) > 1:
            self._be_away(self._stream.uniform(5.0, 15.0), self._start_in_turn)

    def _start_in_turn(self) -> None:
        cluster = self._cluster
        for server in self._stream.sample(cluster.servers, 2):
            server.crash("is killed")
            self._run_for(self._stream.uniform(0.0, 3.0))
            server.start()
            self._wait_until(partial(self._find_absent, server), SETTLE_S, "progress after healing")

    def _find_absent(self, server: Server) -> str:
        joined = server.machine.describe()["connections"]
        return "" if joined == len(self._cluster.workers) - 1 else f"{joined} have joined {server.name}"

    def _be_away(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """A process reaches no server for so long; then it gets all, or is told how much not."""
        cluster = self._cluster
        away = self._stream.choice(cluster.workers)
        rest = [worker for worker in cluster.workers if worker is not away]
        places = [(away.place, server.place) for server in cluster.servers]
        places += [(target, source) for source, target in places]
        cluster.network.cut(places)
        cluster.streams.break_all(away.name)
        run = away.facts_run
        before = list(run.missed)
        start = cluster.schedule.now
        while cluster.schedule.now < start + seconds:
            self._run_for(self._stream.uniform(0.5, seconds / 4))
            for worker in rest:
                worker.program.say(OTHERS, TIMEOUT_S, 20)
            self._happen(rest)
        meanwhile()
        cluster.tell("--", f"{away.name} comes back")
        cluster.network.mend(places)
        self.settle()
        self._run_for(1.0)
        lacking = [thing for thing in self._find_said(run, start) if run not in thing.given]
        counts = run.missed[len(before) :]
        more = PRESENCE_KINDS if run.may_get("node_up") else 0  # what was told of this process itself
        if len(counts) > 1 or not len(lacking) <= sum(counts) <= len(lacking) + more:
            raise Violation(
                "nothing is missed that is not counted",
                f"{run} was away for {seconds:.0f} s, lacks {len(lacking)} and is told of {counts}",
            )

    def _find_said(self, run: ProcessRun, start: float) -> list[Saying | Occurrence]:
        """What was said to all since then, and happened, that this run is to have."""
        facts = self._cluster.facts
        found: list[Saying | Occurrence] = [
            saying for saying in facts.sayings if saying.is_for_all and saying.sender is not run and saying.at >= start
        ]
        found += [
            occurrence
            for occurrence in facts.occurrences.values()
            if occurrence.at >= start and run not in occurrence.reporters
            if run.has_wanted(occurrence.event.kind, start)
        ]
        return found

    def _lose_all_servers(self) -> None:
        """Without a server everything fails at once; when one is back all have joined by themselves."""
        cluster = self._cluster
        for server in cluster.servers:
            server.crash("is killed")
        self._run_for(2.5)
        sayings = self._say_all(cluster.workers)
        self._run_for(2.0)
        for saying in sayings:
            if saying.error != "Unavailable":
                raise Violation("no server, no answer but Unavailable", f"{saying}: {saying.error or 'no answer'}")
        self._stream.choice(cluster.servers).start()
        self._run_for(self._stream.choice((0.0, 0.5, 4.0)))
        cluster.start()
        self.settle()
        self.speak()

    def _lose_a_server(self) -> None:
        """A server dies while everybody speaks; nobody notices more than a delay."""
        cluster = self._cluster
        if len(cluster.servers) == 1:
            return
        sayings = self._say_all(cluster.workers)
        self._run_for(self._stream.uniform(0.0, 0.01))
        server = self._stream.choice(cluster.servers)
        server.crash("is killed")
        sayings += self._say_all(cluster.workers)
        occurrences = self._happen(cluster.workers)
        self._expect(sayings, occurrences)
        self._run_for(self._stream.uniform(0.0, 5.0))
        server.start()
        self.settle()

    def _break_connections(self) -> None:
        """Who is told things all the time loses its connections, and some of it; all of it comes, in order."""
        cluster = self._cluster
        listener = self._stream.choice(cluster.workers)
        rest = [worker for worker in cluster.workers if worker is not listener]
        sayings = []
        for count in range(SAYINGS):
            if count == SAYINGS // 4:
                cluster.streams.break_all(listener.name)
            sayings.append(self._stream.choice(rest).program.say(listener.row_name, TIMEOUT_S, 20))
            self._run_for(BETWEEN_S)
        self._expect(sayings, [])

    def _tell_the_next_run(self) -> None:
        """What is told to a process that is away is given to the run that comes next."""
        cluster = self._cluster
        away = self._stream.choice(cluster.workers)
        rest = [worker for worker in cluster.workers if worker is not away]
        away.crash("is killed")
        self._run_for(self._stream.uniform(1.0, 10.0))
        sayings = [worker.program.say(away.row_name, TIMEOUT_S, 20) for _ in range(ROUNDS) for worker in rest]
        self._run_for(self._stream.uniform(0.0, 10.0))
        away.start()
        self._expect(sayings, [])

    def _lose_a_runner(self) -> None:
        """A process dies that runs a function; another one runs it, and only one."""
        cluster = self._cluster
        occurrences = self._happen(cluster.workers, ONCE)
        for _ in range(20):
            self._run_for(0.01)
            competition = cluster.facts.competitions.get(key_of(occurrences[0].event)) if occurrences else None
            if competition is not None and competition.runner is not None:
                break
        else:
            return
        runner = competition.runner
        assert runner is not None
        others = [process for process in competition.competitors if process is not runner]
        for worker in cluster.workers:
            if worker.facts_run is runner:
                worker.crash("is killed")
                self._run_for(15.0)
                worker.start()
        if others and competition.completed_at == float("inf"):
            raise Violation(
                "a function runs once in the cluster", f"nobody has run what {runner} left, of {others} that wanted to"
            )

    # --- time ---

    def _run_for(self, seconds: float) -> None:
        self._cluster.schedule.run_until(self._cluster.schedule.now + seconds)

    def _wait_until(self, find: Callable[[], str], seconds: float, checker: str) -> None:
        schedule = self._cluster.schedule
        start = schedule.now
        while missing := find():
            if schedule.now >= start + seconds:
                raise Violation(checker, f"after {seconds:.0f} s {missing}")
            schedule.run_until(schedule.now + POLL_S)
