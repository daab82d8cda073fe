"""Checkers of quantity: memory and queues stay within the budget, and healing causes no storm of repairs."""

from alphorn.bus.config import Budget
from alphorn.bus.frames import REPAIR_TYPE
from alphorn.bus.machine import CONTROL_GROUP, DATA_GROUP
from alphorn.testing.checkers.facts import TYPE_PLACE, Facts
from alphorn.testing.node import SimulatedNode
from alphorn.testing.watch import Violation
from alphorn.testing.workload import Workload

SAMPLE_S = 0.5
SYSTEM_OPEN_MAX = 64  # system entries open beside the batches: joins, departures, marks
AT_ONCE_MAX = 4096 + 1024  # numbers that a member takes in by one frame, with those it had heard of before
REPAIR_BYTES_FREE = 64_000  # repairs to the group after healing that need no reason
REPAIR_SHARE_MAX = 1.0  # of the payload ordered after healing
HELD_BATCHES_MAX = 64  # in memory of a member that was given everything


class WithinBounds:
    """No machine holds more than its budget allows, at every sample."""

    __slots__ = ("_facts",)
    name = "memory and queues are within bounds"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        facts.simulation.schedule.after(SAMPLE_S, self._sample)

    def _sample(self) -> None:
        simulation = self._facts.simulation
        limits = limits_of(simulation.budget)
        for node in simulation.up():
            if node.machine is not None:
                self._look(node, node.machine.describe(), limits)
        simulation.schedule.after(SAMPLE_S, self._sample)

    def _look(self, node: SimulatedNode, described: dict[str, object], limits: dict[tuple[str, str], int]) -> None:
        for (part, key), limit in limits.items():
            figures = described.get(part)
            value = figures.get(key) if isinstance(figures, dict) else None
            if isinstance(value, int) and value > limit:
                raise Violation(self.name, f"{node.name} has {part}.{key} {value}, above {limit}")


class NoRepairStorm:
    """After healing, what is repaired by multicast is bounded; the rest is caught up by unicast."""

    __slots__ = ("_facts", "_payload_at_heal", "_repaired", "_workload", "is_healed")
    name = "no rebroadcast storm after healing"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._workload = workload
        self._repaired = 0
        self._payload_at_heal = 0
        self.is_healed = False
        facts.simulation.watch.sent.append(self._on_sent)

    def heal(self) -> None:
        """From here on repairs are counted."""
        self.is_healed = True
        self._payload_at_heal = self._payload()

    def _payload(self) -> int:
        return sum(batch.size for batch in self._workload.batches.values())

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        if self.is_healed and data[TYPE_PLACE] == REPAIR_TYPE and to in (DATA_GROUP, CONTROL_GROUP):
            self._repaired += len(data)

    def finish(self) -> None:
        """Compares what was repaired with what was sent anew."""
        allowed = REPAIR_BYTES_FREE + REPAIR_SHARE_MAX * (self._payload() - self._payload_at_heal)
        if self._repaired > allowed:
            raise Violation(
                self.name, f"{self._repaired} bytes of repairs went to the group; {allowed:.0f} are allowed"
            )


def find_holding(nodes: list[SimulatedNode]) -> str:
    """A member that holds batches in memory, in words; nothing if none does."""
    for node in nodes:
        held = node.machine.describe().get("holdings") if node.machine is not None else None
        if isinstance(held, dict) and held["batches"] + held["partial"] > HELD_BATCHES_MAX:
            return f"{node.name} holds {held['batches']} batches and parts of {held['partial']} in memory"
    return ""


def limits_of(budget: Budget) -> dict[tuple[str, str], int]:
    """The bound of each figure that the machine prints under this part and name."""
    return {
        ("holdings", "bytes"): budget.held_bytes_max + budget.window_bytes + budget.batch_bytes_max,
        ("follower", "unwritten"): 4 * budget.open_numbers_max + AT_ONCE_MAX,
        ("sequencer_role", "open"): budget.open_numbers_max + SYSTEM_OPEN_MAX,
        ("sender", "in_flight"): budget.window_batches,
        ("requests", "open"): 4 * budget.nack_numbers_max,
    }
