"""Checkers of what must be on disk before something is said, and of what may be forgotten."""

from alphorn.bus.entries import Assignment, Collected, InSyncChanged, IntervalChanged, SystemEntry
from alphorn.bus.machine import DropThrough, Persist
from alphorn.testing.checkers.facts import COMMIT_TYPE, EPOCH_PLACE, TYPE_PLACE, Facts
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
    """Nothing is collected before enough checkpoints of in-sync data servers cover it, or, where nobody makes any, its
    lifetime is over; nor before the live in-sync data servers have stored it. That holds already when a sequencer
    decides on it, unless in vain, because a higher epoch commits already: a checkpoint may not come.
    """

    __slots__ = ("_facts", "_lifetimes")
    name = "collection never passes what is needed"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        config = facts.simulation.config
        self._lifetimes = [config.lifetime, config.lifetime]  # the last two: a change may be open when one decides
        facts.claimed.append(self._on_claimed)
        facts.decided.append(self._on_decided)
        facts.simulation.watch.persisted.append(self._on_persisted)

    def _on_claimed(
        self, node: SimulatedNode, sequence: int, assignment: Assignment, entry: SystemEntry | None
    ) -> None:
        if isinstance(entry, IntervalChanged):
            self._lifetimes = [self._lifetimes[-1], entry.lifetime]
        if not isinstance(entry, Collected) or entry.through <= self._facts.collected:
            return
        if entry.through >= sequence:
            raise Violation(self.name, f"number {sequence} collects through {entry.through}, beyond itself")
        self._look_for_lagging(sequence, entry.through)

    def _on_decided(
        self, node: SimulatedNode, sequence: int, assignment: Assignment, entry: SystemEntry | None
    ) -> None:
        facts = self._facts
        if not isinstance(entry, Collected) or entry.through <= facts.collected:
            return
        newest = facts.committed.get(facts.last)
        if newest is not None and newest.epoch > assignment.epoch:
            return
        if facts.simulation.config.makes_checkpoints:
            self._look_for_checkpoints(sequence, entry.through)
        elif not self._is_aged(sequence, entry.through):
            raise Violation(self.name, f"numbers through {entry.through} are collected, and not all are old enough")

    def _is_aged(self, sequence: int, through: int) -> bool:
        """Whether all that is collected was sent so long ago that its lifetime is over."""
        lifetimes = [lifetime for lifetime in self._lifetimes if lifetime]
        if not lifetimes:
            return False
        committed = self._facts.committed
        numbers = [
            n for n in range(self._facts.collected + 1, through + 1) if n in committed and not committed[n].system
        ]
        return all(committed[number].timestamp < sequence - min(lifetimes) for number in numbers)

    def _look_for_checkpoints(self, sequence: int, through: int) -> None:
        facts, rules = self._facts, self._facts.in_sync_rules(sequence)
        counts = [(sum(facts.saved.get(index, 0) >= through for index in servers), copies) for servers, copies in rules]
        if not any(saved >= copies for saved, copies in counts):
            told = " or ".join(f"{saved} of {copies}" for saved, copies in counts)
            raise Violation(
                self.name, f"numbers through {through} are collected, and {told} in-sync disks have a checkpoint"
            )

    def _look_for_lagging(self, sequence: int, through: int) -> None:
        facts = self._facts
        servers, _ = facts.in_sync_rules(sequence)[0]
        for index in sorted(servers):
            node = facts.simulation.nodes[index]
            info = node.disk.durable.checkpoint
            covered = max(self._facts.collected, info.sequence if info is not None else 0)
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
            if isinstance(write, DropThrough) and write.sequence > self._facts.collected:
                own = node.disk.visible.checkpoint
                sealed = any(getattr(other, "epoch", None) is not None for other in persist.writes)
                if not sealed and (own is None or own.sequence < write.sequence):
                    raise Violation(self.name, f"{node.name} drops through {write.sequence} of its own accord")


class RulesHold:
    """When a sequencer decides on an in-sync set, and again when that is final, enough of it has, or had, everything
    that is committed before it in the log.

    Only so may a successor that finds it conclude from that set's denials that a number was never committed. A
    sequencer decides in vain, and does no harm, when a higher epoch commits already. Nor does it when a disk was lost
    that had it all, as entries or in a checkpoint: it may not have heard, and such a member denies nothing.
    """

    __slots__ = ("_facts", "_newest")
    name = "the in-sync rule holds for all that precedes it"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._newest = 0  # epoch under which a commit was claimed
        facts.claimed.append(self._on_claimed)
        facts.decided.append(self._on_decided)
        facts.simulation.watch.sent.append(self._on_sent)

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        if data[TYPE_PLACE] == COMMIT_TYPE:
            self._newest = max(self._newest, int.from_bytes(data[EPOCH_PLACE], "big"))

    def _on_claimed(
        self, node: SimulatedNode, sequence: int, assignment: Assignment, entry: SystemEntry | None
    ) -> None:
        if isinstance(entry, InSyncChanged) and not self._is_superseded(sequence):
            self._look(sequence, entry)

    def _on_decided(
        self, node: SimulatedNode, sequence: int, assignment: Assignment, entry: SystemEntry | None
    ) -> None:
        if isinstance(entry, InSyncChanged) and assignment.epoch >= self._newest:
            self._look(sequence, entry)

    def _look(self, sequence: int, entry: InSyncChanged) -> None:
        facts = self._facts
        servers = [facts.simulation.nodes[facts.index_of(number)] for number in entry.numbers]
        saved = sorted((facts.saved.get(server.index, 0) for server in servers), reverse=True)
        for number in range(saved[entry.copies - 1] + 1, sequence):
            known = facts.committed.get(number)
            if known is None or known.system:
                continue
            bits = facts.stored.get(number, {}).get(known.digest, 0)
            holders = sum(bits >> server.index & 1 or facts.saved.get(server.index, 0) >= number for server in servers)
            if holders < entry.copies:
                told = ",".join(server.name for server in servers)
                raise Violation(
                    self.name, f"number {sequence} asks for {entry.copies} of {told}, and {holders} have {number}"
                )

    def _is_superseded(self, sequence: int) -> bool:
        """Whether a majority has a later rule: whoever finds this one finds that one too."""
        return any(
            number > sequence and isinstance(entry, InSyncChanged) and self._facts.has_majority(number, assignment)
            for number, assignment, entry in self._facts.changes
        )


def _bits_of(indices: frozenset[int]) -> int:
    return sum(1 << index for index in indices)
