"""One seed from start to verdict: found the group, faults and load, heal, then everything must work again.

The *safety phase* demands nothing but that no checker objects. Then everything is healed, and the *liveness phase*
demands that within its time every member follows the log, and that new batches of every member are committed and
delivered to all. Then, without load, every member must let go of all batches it held in memory. In the end batches are
torn on their way (torn_batches.py), and must be delivered all the same.
"""

import contextlib
import traceback
from collections.abc import Iterator

import msgspec

from alphorn.bus.config import Role
from alphorn.testing.checkers import CheckerSet
from alphorn.testing.checkers.bounds import WithinBounds, find_holding
from alphorn.testing.checkers.facts import Facts
from alphorn.testing.faults import Nemesis
from alphorn.testing.node import SimulatedNode
from alphorn.testing.plan import CALM_START_S, Plan, make_plan
from alphorn.testing.simulator import Simulation
from alphorn.testing.surroundings import MachineFactory
from alphorn.testing.timeline import Timeline
from alphorn.testing.torn_batches import TornBatches
from alphorn.testing.watch import Violation
from alphorn.testing.workload import Batch, Outcome, Workload

POLL_S = 0.25
LAST_BATCHES = 3  # of each member, after healing
LAST_BATCH_BYTES = 100
LET_GO_S = 10.0  # above the time after which members that fell silent are taken out of the log


class Result(msgspec.Struct, kw_only=True):
    """What a run of one seed came to."""

    seed: int
    kind: str = "log"
    failure: str = ""  # one sentence; empty when all is well
    checker: str = ""
    details: str = ""  # a traceback, where a machine raised
    trace_hash: str = ""
    virtual_s: float = 0.0
    healed_s: float = 0.0  # how long after healing everything worked
    events: int = 0
    datagrams: int = 0
    committed: int = 0
    ordered: int = 0
    unknown: int = 0
    refused: int = 0
    epochs: int = 0
    messages: int = 0  # confirmed to programs of a cluster
    receipts: int = 0  # messages handed to programs, each time counted
    transactions: int = 0  # that programs know to be committed
    faults: dict[str, int] = msgspec.field(default_factory=dict)


def run_seed(seed: int, *, machine: MachineFactory | None = None, timeline: Timeline | None = None) -> Result:
    """Runs one seed. Every failure, of a checker or of a machine, is in the result."""
    return Run(make_plan(seed), machine=machine, timeline=timeline).finish()


@contextlib.contextmanager
def judged(result: Result) -> Iterator[None]:
    """What goes wrong within is the run's verdict: a broken promise, or a machine that raises."""
    try:
        yield
    except Violation as violation:
        result.failure, result.checker = str(violation), violation.checker
    except Exception as error:
        result.failure = f"a machine raised {type(error).__name__}: {error}"
        result.checker = "machines do not raise"
        result.details = traceback.format_exc()


class Run:
    """A simulation with its load, its nemesis and its checkers."""

    __slots__ = ("checkers", "facts", "nemesis", "plan", "result", "simulation", "workload")

    def __init__(self, plan: Plan, *, machine: MachineFactory | None = None, timeline: Timeline | None = None) -> None:
        self.plan = plan
        self.result = Result(seed=plan.seed)
        self.simulation = Simulation(
            plan.seed,
            plan.config,
            timing=plan.timing,
            budget=plan.budget,
            machine=machine,
            turn_s=plan.turn_s,
            keeps=plan.keeps,
            install_s_max=plan.install_s_max,
            checkpoint_s_max=plan.checkpoint_s_max,
            datagrams=plan.datagrams,
            is_tracing=timeline is not None,
        )
        for number in range(plan.clients):
            self.simulation.add_client(f"C{number + 1}")
        if timeline is not None:
            timeline.attach(self.simulation)
        self.facts = Facts(self.simulation)
        self.workload = Workload(
            self.simulation, think_s=plan.think_s, size_max=plan.size_max, outstanding_max=plan.outstanding_max
        )
        self.checkers = CheckerSet(self.facts, self.workload)
        self.nemesis = Nemesis(self.facts, self.workload, enabled=plan.faults, pace_s=plan.pace_s)

    def finish(self) -> Result:
        """Runs to the end and gives the verdict."""
        with judged(self.result):
            self._run_safety()
            self._run_liveness()
            self._run_quiet()
            self.checkers.judge_repairs()  # before more is sent, which would allow more of them
            self._run_torn()
            self.checkers.finish()
        self._sum_up()
        return self.result

    def _run_safety(self) -> None:
        self.simulation.found()
        self.simulation.run_until(CALM_START_S)
        for node in self.simulation.nodes:
            if node.is_client or Role.DATA in node.me.roles:
                self.workload.add_sender(node)
        self.nemesis.start()
        self.simulation.run_until(CALM_START_S + self.plan.safety_s)

    def _run_liveness(self) -> None:
        simulation = self.simulation
        self.nemesis.stop()
        self.workload.stop()
        self.checkers.heal()
        healed_at = simulation.now
        simulation.tell_fault("heal", "everything")
        end = healed_at + self.plan.liveness_s
        last: dict[int, list[Batch]] = {}
        while missing := self._find_missing(last):
            if simulation.now >= end:
                raise Violation("progress after healing", f"after {self.plan.liveness_s:.0f} s {missing}")
            simulation.run_until(simulation.now + POLL_S)
            for node in self._members():
                self._order_last(node, last)
                if not node.is_up:
                    node.start_again()  # a machine may stop itself, to be started again
        self.result.healed_s = simulation.now - healed_at

    def _run_quiet(self) -> None:
        simulation = self.simulation
        end = simulation.now + LET_GO_S
        while holding := find_holding(self._members()):
            if simulation.now >= end:
                raise Violation(WithinBounds.name, f"{LET_GO_S:.0f} s after the last batch {holding}")
            simulation.run_until(simulation.now + POLL_S)

    def _run_torn(self) -> None:
        simulation = self.simulation
        end = simulation.now + self.plan.liveness_s
        while simulation.now < end and any(node.disk.is_busy for node in self._members()):
            simulation.run_until(simulation.now + POLL_S)  # an fsync that began before all was healed may still hang
        torn = TornBatches(self.facts, self.workload, seed=self.plan.seed)
        for server in simulation.servers():
            batch = None
            while missing := self._find_torn(torn.client, server, batch):
                if simulation.now >= end:
                    raise Violation("progress after healing", f"after {self.plan.liveness_s:.0f} s {missing}")
                is_trying = batch is not None and batch.outcome in (Outcome.OPEN, Outcome.ORDERED)
                if not is_trying and torn.client.is_synchronised and torn.client.is_window_open:
                    batch = torn.tear(server)
                    self.result.faults["torn-batch"] = self.result.faults.get("torn-batch", 0) + 1
                simulation.run_until(simulation.now + POLL_S)
                for node in self._members():
                    if not node.is_up:
                        node.start_again()

    def _find_torn(self, client: SimulatedNode, server: SimulatedNode, batch: Batch | None) -> str:
        if Role.DATA not in server.me.roles:
            return ""
        if batch is None or batch.outcome is not Outcome.ORDERED:
            return f"a batch of {client.name} that {server.name} has missed in part is not committed"
        late = [node for node in self._members() if not node.is_witness and node.replica.applied < batch.sequence]
        return f"{late[0].name} was given {late[0].replica.applied} of {batch.sequence}" if late else ""

    def _members(self) -> list[SimulatedNode]:
        return [node for node in self.simulation.nodes if not node.has_left]

    def _order_last(self, node: SimulatedNode, last: dict[int, list[Batch]]) -> None:
        batches = last.setdefault(node.index, [])
        is_trying = any(batch.outcome in (Outcome.OPEN, Outcome.ORDERED) for batch in batches)
        if node.is_witness:
            return
        if not is_trying and node.is_up and node.is_synchronised and node.is_window_open:
            last[node.index] = [self.workload.order(node, LAST_BATCH_BYTES) for _ in range(LAST_BATCHES)]

    def _find_missing(self, last: dict[int, list[Batch]]) -> str:
        members = self._members()
        for node in members:
            if not node.is_up:
                return f"{node.name} is down: {node.last_words}"
            if not node.is_synchronised:
                return f"{node.name} is not synchronised"
            if node.is_witness:
                continue
            batches = last.get(node.index, [])
            ordered = [batch for batch in batches if batch.outcome is Outcome.ORDERED]
            if len(ordered) < LAST_BATCHES:
                return f"{len(ordered)} of {len(batches)} batches of {node.name} are committed"
        newest = max(batch.sequence for batches in last.values() for batch in batches)
        for node in members:
            if not node.is_witness and node.replica.applied < newest:
                return f"{node.name} was given {node.replica.applied} of {newest}"
        return ""

    def _sum_up(self) -> None:
        simulation, result = self.simulation, self.result
        result.trace_hash = simulation.trace_hash
        result.virtual_s = simulation.now
        result.events = simulation.schedule.events
        result.datagrams = simulation.network.datagrams
        result.committed = len(self.facts.committed)
        result.ordered = self.workload.count(Outcome.ORDERED)
        result.unknown = self.workload.count(Outcome.UNKNOWN)
        result.refused = self.workload.count(Outcome.REFUSED)
        result.faults = dict(sorted({**self.nemesis.counts, **result.faults}.items()))
