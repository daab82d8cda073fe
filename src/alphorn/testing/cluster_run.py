"""One seed of a message cluster from start to verdict: load and faults, healing, and then all must be consumed.

As with a group alone (run.py), the *safety phase* demands only that no checker objects. After healing every client
sends a last message everywhere, and within the time of the *liveness phase* all clients are connected, all messages are
acknowledged, and all replicas are equal and empty.
"""

from alphorn.testing.checkers import CheckerSet
from alphorn.testing.checkers.facts import Facts
from alphorn.testing.checkers.messages import make_message_checkers
from alphorn.testing.cluster_plan import ClusterPlan, make_cluster_plan
from alphorn.testing.faults import Nemesis
from alphorn.testing.plan import CALM_START_S
from alphorn.testing.run import POLL_S, Result, judged
from alphorn.testing.simulated_cluster import SimulatedCluster
from alphorn.testing.timeline import Timeline
from alphorn.testing.transfers import Told
from alphorn.testing.watch import Violation
from alphorn.testing.workload import Outcome

FUND_S = 1.0  # until the accounts of tellers have their units


def run_cluster(seed: int, *, timeline: Timeline | None = None) -> Result:
    """Runs one seed. Every failure, of a checker or of a machine, is in the result."""
    return ClusterRun(make_cluster_plan(seed), timeline=timeline).finish()


class ClusterRun:
    """A cluster with its nemesis and its checkers: those of the log, and those of messages."""

    __slots__ = ("checkers", "cluster", "facts", "message_checkers", "nemesis", "plan", "result")

    def __init__(self, plan: ClusterPlan, *, timeline: Timeline | None = None) -> None:
        self.plan = plan
        self.result = Result(seed=plan.seed, kind="cluster")
        self.cluster = SimulatedCluster(plan, is_tracing=timeline is not None)
        if timeline is not None:
            timeline.attach(self.cluster.simulation)
        self.facts = Facts(self.cluster.simulation)
        self.checkers = CheckerSet(self.facts, self.cluster.workload)
        self.message_checkers = make_message_checkers(self.cluster)
        self.nemesis = Nemesis(
            self.facts,
            self.cluster.workload,
            enabled=plan.faults,
            pace_s=plan.pace_s,
            faults=self.cluster.faults(),
        )

    def finish(self) -> Result:
        """Runs to the end and gives the verdict."""
        with judged(self.result):
            self._run_safety()
            self._run_liveness()
            self.checkers.finish()
            for checker in self.message_checkers:
                checker.finish()
            self.cluster.check_transfers()
        self._sum_up()
        return self.result

    def _run_safety(self) -> None:
        simulation = self.cluster.simulation
        simulation.found()
        for client in self.cluster.programs:
            client.start()
        simulation.run_until(CALM_START_S)
        self._fund()
        self.nemesis.start()
        simulation.run_until(CALM_START_S + self.plan.safety_s)

    def _fund(self) -> None:
        """The first teller puts all units into accounts, before anything goes wrong."""
        simulation, tellers = self.cluster.simulation, self.cluster.tellers
        if not tellers:
            return
        for teller in tellers:
            teller.is_calm = True
        if not tellers[0].fund(self.plan.units):
            raise Violation("progress at the start", "the accounts cannot be funded")
        simulation.run_until(simulation.now + FUND_S)
        if self.cluster.transfers.counts[Told.DONE] != 1:
            raise Violation("progress at the start", "the accounts were not funded")
        for teller in tellers:
            teller.is_calm = False

    def _run_liveness(self) -> None:
        simulation = self.cluster.simulation
        self.nemesis.stop()
        self.checkers.heal()
        healed_at = simulation.now
        simulation.tell_fault("heal", "everything")
        for client in self.cluster.programs:
            client.is_calm = True
        silent = list(self.cluster.clients)
        while missing := self._find_missing(len(silent)):
            if simulation.now >= healed_at + self.plan.liveness_s:
                raise Violation("progress after healing", f"after {self.plan.liveness_s:.0f} s {missing}")
            simulation.run_until(simulation.now + POLL_S)
            silent = [client for client in silent if not client.send_last()]
            for node in simulation.nodes:
                if not node.is_up:
                    node.start_again()
        self.result.healed_s = simulation.now - healed_at

    def _find_missing(self, silent: int) -> str:
        for node in self.cluster.simulation.nodes:
            if not node.is_up:
                return f"{node.name} is down: {node.last_words}"
            if not node.is_synchronised:
                return f"{node.name} is not synchronised"
        return self.cluster.find_unfinished() or (f"{silent} clients cannot send" if silent else "")

    def _sum_up(self) -> None:
        simulation, result, workload = self.cluster.simulation, self.result, self.cluster.workload
        result.trace_hash = simulation.trace_hash
        result.virtual_s = simulation.now
        result.events = simulation.schedule.events
        result.datagrams = simulation.network.datagrams
        result.committed = len(self.facts.committed)
        result.ordered = workload.count(Outcome.ORDERED)
        result.unknown = workload.count(Outcome.UNKNOWN)
        result.refused = workload.count(Outcome.REFUSED)
        result.transactions = self.cluster.transfers.counts[Told.DONE]
        result.messages = len(self.cluster.book.confirmed())
        result.receipts = sum(map(len, self.cluster.book.receipts.values()))
        result.faults = dict(sorted(self.nemesis.counts.items()))
