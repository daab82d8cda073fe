"""The nemesis: draws faults from the enabled classes, injects them one after another, and takes them back in time.

A fault is a function that does something to the simulation and says what, or says nothing because it cannot be done
now. Its name in `FAULTS` is its class. Limits of the fault model, beyond which no log can keep its promise, are where
the faults are: `disk_faults` never destroys the last copy of anything.
"""

from collections.abc import Callable, Mapping
from random import Random

from alphorn.testing import disk_faults, network_faults, node_faults, partial_faults, restart_faults
from alphorn.testing.checkers.facts import Facts
from alphorn.testing.late_copies import LateCopies, repeat_late
from alphorn.testing.node import NodeState, SimulatedNode
from alphorn.testing.ruin import Ruin
from alphorn.testing.simulator import Simulation
from alphorn.testing.workload import Workload

Fault = Callable[["Nemesis"], str]

FAULTS: dict[str, Fault] = {
    "loss": network_faults.lose,
    "duplication": network_faults.duplicate,
    "delay": network_faults.delay,
    "bit-flip": network_faults.flip,
    "clog": network_faults.clog,
    "isolate": network_faults.isolate,
    "halves": network_faults.halve,
    "one-way": network_faults.cut_one_way,
    "ring": network_faults.ring,
    "bridge": network_faults.bridge,
    "swap": network_faults.swap,
    "deaf-to-group": partial_faults.deafen,
    "deaf-to-kinds": partial_faults.lose_kinds,
    "usurp": partial_faults.usurp,
    "late-copy": repeat_late,
    "crash": node_faults.crash,
    "crash-all": node_faults.crash_all,
    "crash-sequencer": node_faults.crash_sequencer,
    "crash-at-commit": node_faults.crash_at_commit,
    "crash-at-checkpoint": restart_faults.crash_at_checkpoint,
    "restless": restart_faults.restart_often,
    "stale-tail": restart_faults.leave_tail,
    "pause": node_faults.pause,
    "slow-node": node_faults.slow,
    "clock-jump": node_faults.jump_clock,
    "client": node_faults.change_clients,
    "voters": node_faults.change_voters,
    "interval": node_faults.change_interval,
    "slow-disk": disk_faults.slow,
    "hung-disk": disk_faults.hang,
    "fsync-error": disk_faults.fail_sync,
    "full-disk": disk_faults.fill,
    "damage": disk_faults.damage,
    "lost-disk": disk_faults.lose,
    "old-disk": disk_faults.restore_old,
    "found-disk": disk_faults.find,
}

CALM_POLL_S = 0.1

# How often a class stands among those to draw from. What needs several things to coincide comes to nothing mostly.
WEIGHTS = {"usurp": 4, "stale-tail": 4, "late-copy": 3, "crash-at-checkpoint": 3, "late-client-manager": 6}


class Nemesis:
    """Injects faults from `start` to `stop`."""

    __slots__ = (
        "_enabled",
        "_faults",
        "_is_running",
        "_pace_s",
        "clients",
        "counts",
        "facts",
        "is_calm",
        "late",
        "quiet_until",
        "ruin",
        "simulation",
        "stream",
        "workload",
    )

    def __init__(
        self,
        facts: Facts,
        workload: Workload,
        *,
        enabled: tuple[str, ...],
        pace_s: float,
        faults: Mapping[str, Fault] = FAULTS,
    ) -> None:
        self.facts = facts
        self.simulation: Simulation = facts.simulation
        self.workload = workload
        self.stream: Random = facts.simulation.streams.faults
        self.ruin = Ruin(facts)
        self.late = LateCopies(facts.simulation)
        self.counts: dict[str, int] = {}
        self.clients = 0  # how many came later
        self.is_calm = False  # a fault that bears no other is under way
        self.quiet_until = 0.0  # a fault that others would mostly spoil is under way
        self._enabled = [name for name in enabled for _ in range(WEIGHTS.get(name, 1))]
        self._faults = faults
        self._pace_s = pace_s
        self._is_running = False

    def start(self) -> None:
        """Begins to inject, after a while."""
        self._is_running = True
        self.simulation.schedule.after(self.draw_s(), self._inject)

    def stop(self) -> None:
        """Injects nothing more and takes back everything: links whole, disks well, every member running."""
        self._is_running = False
        self.simulation.network.heal()
        for node in self.simulation.nodes:
            node.disk.repair()
            node.nap_s = 0.0
            node.resume()
            if node.state is NodeState.DOWN and not node.has_left:
                node.start_again()

    def inject(self, fault: str) -> str:
        """Injects one fault of this class now; says what it did, or nothing."""
        details = self._faults[fault](self)
        if details:
            self.counts[fault] = self.counts.get(fault, 0) + 1
            self.simulation.tell_fault(fault, details)
        return details

    def after(self, delay_s: float, action: Callable[..., None], *arguments: object) -> None:
        """Goes on with a fault later, or takes it back, unless everything is healed by then.

        While a fault is under way that bears no other, all others wait: it began with everything well.
        """
        self.simulation.schedule.after(delay_s, self._if_not_calm, action, arguments)

    def after_in_calm(self, delay_s: float, action: Callable[..., None], *arguments: object) -> None:
        """The same for the fault that bears no other."""
        self.simulation.schedule.after(delay_s, self._if_running, action, arguments)

    def draw_s(self, mean_s: float | None = None) -> float:
        """A random stretch of time."""
        return self.stream.expovariate(1.0) * (self._pace_s if mean_s is None else mean_s)

    def draw_node(self, *, is_up: bool = True) -> SimulatedNode | None:
        """Any member that runs, or that does not."""
        nodes = [node for node in self.simulation.nodes if node.is_up == is_up and not node.has_left]
        return self.stream.choice(nodes) if nodes else None

    def crash(self, node: SimulatedNode, reason: str) -> None:
        """Ends a process as a power cut does."""
        keeps_prefix, tears = self.stream.random() < 0.5, self.stream.random() < 0.3
        node.end(reason, keeps_prefix=keeps_prefix, tears=tears and self.ruin.may_tear(node))

    def restart(self, node: SimulatedNode) -> None:
        """Starts a process again, if it is down and meant to run."""
        if node.state is NodeState.DOWN and not node.has_left:
            node.start_again()

    def _if_not_calm(self, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if self.is_calm:
            self.simulation.schedule.after(CALM_POLL_S, self._if_not_calm, action, arguments)
        else:
            self._if_running(action, arguments)

    def _if_running(self, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if self._is_running:
            action(*arguments)

    def _inject(self) -> None:
        if not self._is_running:
            return
        if not self.is_calm and self.simulation.now >= self.quiet_until:
            self.inject(self.stream.choice(self._enabled))
            self._restart_forgotten()
        self.simulation.schedule.after(self.draw_s(), self._inject)

    def _restart_forgotten(self) -> None:
        """Starts what a failed disk or its own machine ended, some time later."""
        for node in self.simulation.nodes:
            if node.state is NodeState.DOWN and not node.has_left and self.stream.random() < 0.2:
                self.restart(node)
