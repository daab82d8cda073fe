"""One seed of a message cluster from start to verdict: load and faults, healing, and then all must be consumed.

As with a group alone (run.py), the *safety phase* demands only that no checker objects. After healing every client
sends a last message everywhere, and within the time of the *liveness phase* all clients are connected, all messages are
acknowledged, and all replicas are equal and empty.

What the checkers of the log promise holds for each channel by itself, what those of messages promise holds for the
whole, on whichever channel a destination is by then.
"""

from collections import Counter

from alphorn.testing.checkers import CheckerSet
from alphorn.testing.checkers.facts import Facts
from alphorn.testing.checkers.messages import MESSAGE_CHECKERS, EnginesAgree, MessageChecker, make_message_checkers
from alphorn.testing.checkers.retained import RetainedIsRead
from alphorn.testing.checkers.staged import StagedIsSeenOnce
from alphorn.testing.cluster_plan import DRAIN, ClusterPlan, make_channel_plan, make_cluster_plan
from alphorn.testing.dead_letters import NAME, DeadLetters
from alphorn.testing.faults import FAULTS, Nemesis
from alphorn.testing.hanging import HANG, Hanging
from alphorn.testing.leaving_staged import leave_staged
from alphorn.testing.move_faults import HardLeaving, LateMoves
from alphorn.testing.plan import CALM_START_S
from alphorn.testing.run import POLL_S, Result, judged
from alphorn.testing.simulated_cluster import SimulatedCluster
from alphorn.testing.strangers import Strangers
from alphorn.testing.timeline import Timeline
from alphorn.testing.transfers import Told
from alphorn.testing.watch import Violation
from alphorn.testing.workload import Outcome

FUND_S = 1.0  # until the accounts of tellers have their units


def run_cluster(seed: int, *, timeline: Timeline | None = None) -> Result:
    """Runs one seed on one channel. Every failure, of a checker or of a machine, is in the result."""
    return ClusterRun(make_cluster_plan(seed), timeline=timeline).finish()


def run_channels(seed: int, *, timeline: Timeline | None = None) -> Result:
    """Runs one seed on several channels, with destinations moved between them. Failures are in the result."""
    return ClusterRun(make_channel_plan(seed), timeline=timeline).finish()


class ClusterRun:
    """A cluster with a nemesis and checkers of the log for each channel, and checkers of messages for all."""

    __slots__ = ("checkers", "cluster", "facts", "hanging", "message_checkers", "nemeses", "plan", "result")

    def __init__(self, plan: ClusterPlan, *, timeline: Timeline | None = None) -> None:
        self.plan = plan
        self.hanging: Hanging | None = None
        self.result = Result(seed=plan.seed, kind="cluster" if plan.channels == 1 else "channels")
        self.cluster = cluster = SimulatedCluster(plan, is_tracing=timeline is not None)
        if timeline is not None:
            timeline.attach(cluster.simulation)
        self.facts = [Facts(channel.simulation) for channel in cluster.channels]
        pairs = list(zip(self.facts, cluster.channels, strict=True))
        self.checkers = [CheckerSet(facts, channel.workload) for facts, channel in pairs]
        self.message_checkers = _make_message_checkers(cluster)
        self.nemeses = [
            Nemesis(
                facts,
                channel.workload,
                enabled=plan.faults if channel.number == 0 else _of_the_log(plan.faults),
                pace_s=plan.pace_s,
                faults=cluster.faults(),
            )
            for facts, channel in pairs
        ]
        if plan.leaves_hard:
            for channel, nemesis in zip(cluster.channels, self.nemeses, strict=True):
                HardLeaving(cluster, channel, nemesis)

    def finish(self) -> Result:
        """Runs to the end and gives the verdict."""
        with judged(self.result):
            self._run_safety()
            self._run_liveness()
            for checkers in self.checkers:
                checkers.finish()
            for checker in self.message_checkers:
                checker.finish()
            self.cluster.check_transfers()
            self._check_homes()
            self._receive_dead()
        self._sum_up()
        return self.result

    def _run_safety(self) -> None:
        simulation = self.cluster.simulation
        self.cluster.found()
        simulation.run_until(CALM_START_S)
        self._fund()
        for nemesis in self.nemeses:
            nemesis.start()
        if self.plan.leaves_hard:
            LateMoves(self.cluster, self.nemeses[0]).start()
        if self.plan.has_strangers:
            Strangers(self.cluster, self.nemeses[0]).start()
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
        for nemesis, checkers in zip(self.nemeses, self.checkers, strict=True):
            nemesis.stop()
            checkers.heal()
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
            self.cluster.start_again()
        self.result.healed_s = simulation.now - healed_at
        if DRAIN in self.plan.faults:
            self._do_last_acts()
        if self.plan.channels > 1:
            leave_staged(self.cluster.jobs)
            self._wait_for_drains()
        if self.plan.hangs:
            self._hang()

    def _hang(self) -> None:
        """A Client Manager hangs when all is well, and all is well again."""
        self.hanging = Hanging(self.cluster)
        simulation = self.cluster.simulation
        deadline = simulation.now + self.plan.liveness_s
        self.hanging.begin()
        while missing := self._find_missing(0) or ("" if self.hanging.is_over else "a Client Manager hangs"):
            if simulation.now >= deadline:
                raise Violation("progress after healing", f"after {self.plan.liveness_s:.0f} s {missing}")
            simulation.run_until(simulation.now + POLL_S)
            self.cluster.start_again()  # who shares a member with a Message Manager, and missed too much, has ended

    def _do_last_acts(self) -> None:
        """Whatever was drained and opened before, all is moved once more, and all but the first channel drained."""
        for act in self.cluster.last_acts():
            act()
            self._wait_for_drains()
            self.cluster.drains.check(self.cluster.engines())

    def _wait_for_drains(self) -> None:
        simulation, drains = self.cluster.simulation, self.cluster.drains
        deadline = simulation.now + self.plan.liveness_s
        while missing := drains.find_unanswered() or self._find_missing(0):
            if simulation.now >= deadline:
                raise Violation("what is asked of channels ends", f"after {self.plan.liveness_s:.0f} s {missing}")
            simulation.run_until(simulation.now + POLL_S)

    def _find_missing(self, silent: int) -> str:
        for channel in self.cluster.channels:
            if absent := channel.find_absent():
                return absent
        return self.cluster.find_unfinished() or (f"{silent} clients cannot send" if silent else "")

    def _check_homes(self) -> None:
        for name, homes in self.cluster.homes().items():
            if len(homes) != 1:
                raise Violation("a destination is in one place", f"{name} is on the channels {homes}")

    def _receive_dead(self) -> None:
        """Last of all, because what is received is with its consumer then."""
        simulation, cluster = self.cluster.simulation, self.cluster
        dead = DeadLetters(cluster.clients[0].core)
        deadline = simulation.now + self.plan.liveness_s
        while missing := dead.find_missing(cluster.engines()):
            if simulation.now >= deadline:
                raise Violation(NAME, f"after {self.plan.liveness_s:.0f} s {missing}")
            simulation.run_until(simulation.now + POLL_S)

    def _sum_up(self) -> None:
        result, cluster = self.result, self.cluster
        simulations = [channel.simulation for channel in cluster.channels]
        workloads = [channel.workload for channel in cluster.channels]
        result.trace_hash = "".join(simulation.trace_hash for simulation in simulations)
        result.virtual_s = cluster.simulation.now
        result.events = cluster.simulation.schedule.events
        result.datagrams = sum(simulation.network.datagrams for simulation in simulations)
        result.committed = sum(len(facts.committed) for facts in self.facts)
        result.ordered = sum(workload.count(Outcome.ORDERED) for workload in workloads)
        result.unknown = sum(workload.count(Outcome.UNKNOWN) for workload in workloads)
        result.refused = sum(workload.count(Outcome.REFUSED) for workload in workloads)
        result.transactions = cluster.transfers.counts[Told.DONE]
        result.messages = len(cluster.book.confirmed())
        result.receipts = sum(map(len, cluster.book.receipts.values()))
        moves = {
            "moved": cluster.moves["done"],
            "late-arrival": cluster.moves["late"],
            "leaving-staged": cluster.staging_book.wanted,
        }
        faults = Counter(moves if self.plan.channels > 1 else {})
        faults[HANG] = self.hanging.times if self.hanging is not None else 0
        for nemesis in self.nemeses:
            faults.update(nemesis.counts)
        result.faults = dict(sorted(faults.items()))


def _make_message_checkers(cluster: SimulatedCluster) -> list[MessageChecker]:
    """Those of a cluster; where it has several channels, the replicas of each are compared, and limits are not."""
    if len(cluster.channels) == 1:
        return make_message_checkers(cluster)
    whole = [make(cluster) for make in MESSAGE_CHECKERS if make is not EnginesAgree]
    return [StagedIsSeenOnce(cluster), RetainedIsRead(cluster), *whole, *map(EnginesAgree, cluster.channels)]


def _of_the_log(faults: tuple[str, ...]) -> tuple[str, ...]:
    """Those that concern one group alone."""
    return tuple(fault for fault in faults if fault in FAULTS)
