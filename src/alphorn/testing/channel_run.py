"""One seed of a cluster of several channels from start to verdict, with destinations moved between them under faults.

As with one channel (cluster_run.py): what the checkers of the log promise holds for each channel by itself, what those
of messages promise holds for the whole, wherever a destination is by then.
"""

import msgspec

from alphorn.testing.channel_cluster import ChannelCluster
from alphorn.testing.checkers import CheckerSet
from alphorn.testing.checkers.facts import Facts
from alphorn.testing.checkers.messages import (
    AcknowledgedIsConsumed,
    ConfirmedIsStored,
    EnginesAgree,
    MessageChecker,
    NothingIsLocked,
    OrderIsKept,
    ReceivedWasSent,
    RedeliveredIsMarked,
)
from alphorn.testing.cluster_plan import STREAM_FAULTS, ClusterPlan, make_cluster_plan
from alphorn.testing.faults import FAULTS, Nemesis
from alphorn.testing.plan import CALM_START_S
from alphorn.testing.run import POLL_S, Result, judged
from alphorn.testing.timeline import Timeline
from alphorn.testing.watch import Violation
from alphorn.testing.workload import Outcome

CHANNELS = 2
MOVES = 12  # how often the move stands among the faults to draw from


def make_channel_plan(seed: int) -> ClusterPlan:
    """Draws the plan of a seed."""
    plan = make_cluster_plan(seed)
    faults = (*plan.faults, *["move"] * MOVES)
    return msgspec.structs.replace(plan, channels=CHANNELS, faults=faults, liveness_s=60.0)


def run_channels(seed: int, *, timeline: Timeline | None = None) -> Result:
    """Runs one seed. Every failure, of a checker or of a machine, is in the result."""
    return ChannelRun(make_channel_plan(seed), timeline=timeline).finish()


class ChannelRun:
    """A cluster with a nemesis and checkers for each channel, and checkers of messages for all."""

    __slots__ = ("checkers", "cluster", "facts", "message_checkers", "nemeses", "plan", "result")

    def __init__(self, plan: ClusterPlan, *, timeline: Timeline | None = None) -> None:
        self.plan = plan
        self.result = Result(seed=plan.seed, kind="channels")
        self.cluster = cluster = ChannelCluster(plan, is_tracing=timeline is not None)
        if timeline is not None:
            timeline.attach(cluster.simulation)
        self.facts = [Facts(channel.simulation) for channel in cluster.channels]
        pairs = list(zip(self.facts, cluster.channels, strict=True))
        self.checkers = [CheckerSet(facts, channel.workload) for facts, channel in pairs]
        whole = (ConfirmedIsStored, ReceivedWasSent, RedeliveredIsMarked, OrderIsKept, AcknowledgedIsConsumed)
        self.message_checkers: list[MessageChecker] = [make(cluster) for make in whole]
        for channel in cluster.channels:
            self.message_checkers += [EnginesAgree(channel), NothingIsLocked(channel)]
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

    def finish(self) -> Result:
        """Runs to the end and gives the verdict."""
        with judged(self.result):
            self._run_safety()
            self._run_liveness()
            for checkers in self.checkers:
                checkers.finish()
            for checker in self.message_checkers:
                checker.finish()
            self._check_homes()
        self._sum_up()
        return self.result

    def _run_safety(self) -> None:
        for channel in self.cluster.channels:
            for node in channel.simulation.servers():
                node.start(founding=True)
        for room in self.cluster.client_managers:
            room.node.start()
        for client in self.cluster.clients:
            client.start()
        simulation = self.cluster.simulation
        simulation.run_until(CALM_START_S)
        for nemesis in self.nemeses:
            nemesis.start()
        simulation.run_until(CALM_START_S + self.plan.safety_s)

    def _run_liveness(self) -> None:
        simulation = self.cluster.simulation
        for nemesis, checkers in zip(self.nemeses, self.checkers, strict=True):
            nemesis.stop()
            checkers.heal()
        healed_at = simulation.now
        simulation.tell_fault("heal", "everything")
        for client in self.cluster.clients:
            client.is_calm = True
        silent = list(self.cluster.clients)
        while missing := self._find_missing(len(silent)):
            if simulation.now >= healed_at + self.plan.liveness_s:
                raise Violation("progress after healing", f"after {self.plan.liveness_s:.0f} s {missing}")
            simulation.run_until(simulation.now + POLL_S)
            silent = [client for client in silent if not client.send_last()]
            for channel in self.cluster.channels:
                for node in channel.simulation.nodes:
                    if not node.is_up:
                        node.start_again()
        self.result.healed_s = simulation.now - healed_at

    def _find_missing(self, silent: int) -> str:
        for channel in self.cluster.channels:
            for node in channel.simulation.nodes:
                if not node.is_up:
                    return f"{node.name} of {channel.name} is down: {node.last_words}"
                if not node.is_synchronised:
                    return f"{node.name} of {channel.name} is not synchronised"
        return self.cluster.find_unfinished() or (f"{silent} clients cannot send" if silent else "")

    def _check_homes(self) -> None:
        for name, homes in self.cluster.homes().items():
            if len(homes) != 1:
                raise Violation("a destination is in one place", f"{name} is on the channels {homes}")

    def _sum_up(self) -> None:
        result, cluster = self.result, self.cluster
        simulations = [channel.simulation for channel in cluster.channels]
        result.trace_hash = "".join(simulation.trace_hash for simulation in simulations)
        result.virtual_s = cluster.simulation.now
        result.events = cluster.simulation.schedule.events
        result.datagrams = sum(simulation.network.datagrams for simulation in simulations)
        result.committed = sum(len(facts.committed) for facts in self.facts)
        result.ordered = sum(channel.workload.count(Outcome.ORDERED) for channel in cluster.channels)
        result.unknown = sum(channel.workload.count(Outcome.UNKNOWN) for channel in cluster.channels)
        result.refused = sum(channel.workload.count(Outcome.REFUSED) for channel in cluster.channels)
        result.messages = len(cluster.book.confirmed())
        result.receipts = sum(map(len, cluster.book.receipts.values()))
        counts: dict[str, int] = {"moved": cluster.moves["done"]}
        for nemesis in self.nemeses:
            for fault, count in nemesis.counts.items():
                counts[fault] = counts.get(fault, 0) + count
        result.faults = dict(sorted(counts.items()))


def _of_the_log(faults: tuple[str, ...]) -> tuple[str, ...]:
    """Those that concern one group alone."""
    return tuple(fault for fault in faults if fault in FAULTS and fault not in STREAM_FAULTS)
