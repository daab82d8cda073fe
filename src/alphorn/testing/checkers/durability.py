"""Checkers of what must be on disk before something is said, and of what may be forgotten."""

from alphorn.bus.entries import Assignment, Collected, SystemEntry
from alphorn.bus.machine import DropThrough, Persist
from alphorn.bus.storage import CheckpointInfo
from alphorn.testing.checkers.facts import Facts
from alphorn.testing.node import NodeState, SimulatedNode
from alphorn.testing.watch import Violation
from alphorn.testing.workload import Workload


class DurableBeforeCommit:
    """At its first claim a number is durable on a majority of commit servers, its entry on `copies` data servers."""

    __slots__ = ("_facts",)
    name = "nothing is delivered before commit"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        facts.claimed.append(self._on_claimed)

    def _on_claimed(
        self, node: SimulatedNode, sequence: int, assignment: Assignment, entry: SystemEntry | None
    ) -> None:
        facts = self._facts
        if not facts.has_majority(sequence, assignment):
            bits = facts.accepted.get(sequence, {}).get((assignment.epoch, assignment.id), 0)
            raise Violation(
                self.name,
                f"{node.name} takes number {sequence} as final, and it is durable only on {self._names(bits)}; "
                f"commit servers: {[self._names(_bits_of(voters)) for voters in facts.voter_sets(sequence)]}",
            )
        if assignment.system:
            return
        bits = facts.stored.get(sequence, {}).get(assignment.digest, 0)
        rules = facts.in_sync_rules(sequence)
        if not any(sum(bits >> index & 1 for index in servers) >= copies for servers, copies in rules):
            told = "; ".join(f"{copies} of {self._names(_bits_of(servers))}" for servers, copies in rules)
            raise Violation(
                self.name,
                f"{node.name} takes number {sequence} as final, and its entry is durable only on {self._names(bits)}; "
                f"needed: {told}",
            )

    def _names(self, bits: int) -> str:
        nodes = self._facts.simulation.nodes
        return ",".join(node.name for node in nodes if bits >> node.index & 1) or "nobody"


class CollectionWaits:
    """Nothing is collected before a checkpoint covers it and the live in-sync data servers have stored it."""

    __slots__ = ("_collected", "_facts")
    name = "collection never passes what is needed"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._collected = 0
        facts.claimed.append(self._on_claimed)
        facts.simulation.watch.persisted.append(self._on_persisted)

    def _on_claimed(
        self, node: SimulatedNode, sequence: int, assignment: Assignment, entry: SystemEntry | None
    ) -> None:
        if not isinstance(entry, Collected) or entry.through <= self._collected:
            return
        if entry.through >= sequence:
            raise Violation(self.name, f"number {sequence} collects through {entry.through}, beyond itself")
        if not self._facts.simulation.config.lifetime:
            self._look_for_checkpoint(entry.through)
        self._look_for_lagging(sequence, entry.through)
        self._collected = entry.through

    def _look_for_checkpoint(self, through: int) -> None:
        for node in self._facts.simulation.nodes:
            info = node.disk.durable.checkpoint
            if isinstance(info, CheckpointInfo) and info.sequence >= through:
                return
        raise Violation(self.name, f"numbers through {through} are collected, and no disk has a checkpoint of them")

    def _look_for_lagging(self, sequence: int, through: int) -> None:
        facts = self._facts
        servers, _ = facts.in_sync_rules(sequence)[0]
        for index in sorted(servers):
            node = facts.simulation.nodes[index]
            info = node.disk.durable.checkpoint
            covered = max(self._collected, info.sequence if info is not None else 0)
            if node.state is not NodeState.UP or not node.is_synchronised:
                continue
            for number in range(covered + 1, through + 1):
                assignment = facts.committed.get(number)
                if assignment is None or assignment.system:
                    continue
                if not facts.stored.get(number, {}).get(assignment.digest, 0) >> index & 1:
                    raise Violation(self.name, f"{node.name} has not stored {number}, collected through {through}")

    def _on_persisted(self, node: SimulatedNode, persist: Persist) -> None:
        for write in persist.writes:
            if isinstance(write, DropThrough) and write.sequence > self._collected:
                own = node.disk.visible.checkpoint
                sealed = any(getattr(other, "epoch", None) is not None for other in persist.writes)
                if not sealed and (own is None or own.sequence < write.sequence):
                    raise Violation(self.name, f"{node.name} drops through {write.sequence} of its own accord")


def _bits_of(indices: frozenset[int]) -> int:
    return sum(1 << index for index in indices)
