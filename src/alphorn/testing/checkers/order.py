"""Checkers of order and content: what is delivered is what was sent, once, in one order, without gaps."""

from alphorn.bus.entries import Assignment, SystemEntry
from alphorn.bus.machine import Deliver
from alphorn.model.ids import ORIGIN_BYTES, counter_of
from alphorn.testing.checkers.facts import Facts
from alphorn.testing.node import SimulatedNode
from alphorn.testing.replica import link
from alphorn.testing.watch import Violation
from alphorn.testing.workload import Outcome, Workload


class NoGapAtDelivery:
    """Between two numbers delivered one after the other there are only system entries."""

    __slots__ = ("_doubtful", "_facts", "_positions")
    name = "no gap at delivery"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._positions: dict[int, int] = {}
        self._doubtful: dict[int, str] = {}  # numbers passed over whose meaning nobody has claimed yet
        watch = facts.simulation.watch
        watch.started.append(self._on_started)
        watch.delivered.append(self._on_delivered)
        watch.installed.append(self._on_installed)
        facts.claimed.append(self._on_claimed)

    def _on_started(self, node: SimulatedNode) -> None:
        self._positions[node.index] = 0

    def _on_installed(self, node: SimulatedNode, sequence: int) -> None:
        self._positions[node.index] = max(sequence, self._positions[node.index])

    def _on_delivered(self, node: SimulatedNode, output: Deliver) -> None:
        before = self._positions[node.index]
        if not before and not node.has_all:
            before = output.sequence - 1  # it begins wherever the log is
        for sequence in range(before + 1, output.sequence):
            assignment = self._facts.committed.get(sequence)
            if assignment is None:
                self._doubtful[sequence] = node.name
            elif not assignment.system:
                raise Violation(self.name, f"{node.name} passed over number {sequence} before {output.sequence}")
        self._positions[node.index] = output.sequence

    def _on_claimed(
        self, node: SimulatedNode, sequence: int, assignment: Assignment, entry: SystemEntry | None
    ) -> None:
        if sequence in self._doubtful and not assignment.system:
            raise Violation(self.name, f"{self._doubtful[sequence]} passed over number {sequence}, which is a batch")


class ReplicasAgree:
    """The states of two upper layers at the same number are equal, whether by delivery or by checkpoint."""

    __slots__ = ("_chains",)
    name = "replica states are equal"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._chains: dict[int, int] = {0: 0}
        watch = facts.simulation.watch
        watch.delivered.append(self._on_delivered)
        watch.installed.append(self._on_installed)

    def _on_delivered(self, node: SimulatedNode, output: Deliver) -> None:
        if not node.has_all:
            return
        chain = link(node.replica.chain, output.sequence, output.assignment)
        self._compare(node, output.sequence, chain)

    def _on_installed(self, node: SimulatedNode, sequence: int) -> None:
        if node.has_all:
            self._compare(node, node.replica.last_batch, node.replica.chain)

    def _compare(self, node: SimulatedNode, sequence: int, chain: int) -> None:
        if self._chains.setdefault(sequence, chain) != chain:
            raise Violation(self.name, f"{node.name} differs from an earlier replica at number {sequence}")


class SentOnceInOrder:
    """Each number stands for a batch that was sent; each batch for one number; each sender's batches in its order."""

    __slots__ = ("_counters", "_facts", "_handles", "_numbers", "_sent", "_workload")
    name = "sent once, in the sender's order"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._workload = workload
        self._counters: dict[bytes, int] = {}
        self._numbers: dict[bytes, int] = {}  # id → number
        self._handles: dict[int, int] = {}  # handle → number
        self._sent: dict[int, int] = {}  # origin and run → newest handle
        facts.simulation.watch.delivered.append(self._on_delivered)
        facts.claimed.append(self._on_claimed)

    def _on_claimed(
        self, node: SimulatedNode, sequence: int, assignment: Assignment, entry: SystemEntry | None
    ) -> None:
        if assignment.system:
            return
        earlier = self._numbers.setdefault(assignment.id, sequence)
        if earlier != sequence:
            raise Violation(self.name, f"one batch has the numbers {earlier} and {sequence}")

    def _on_delivered(self, node: SimulatedNode, output: Deliver) -> None:
        handle = self._workload.handles.get(output.assignment.digest)
        if handle is None:
            raise Violation(self.name, f"{node.name} was given number {output.sequence}, which nobody sent")
        if not handle or self._handles.get(handle) == output.sequence:
            return
        batch = self._workload.batches[handle]
        if handle in self._handles:
            raise Violation(self.name, f"batch #{handle} has the numbers {self._handles[handle]} and {output.sequence}")
        if batch.outcome is Outcome.REFUSED:
            raise Violation(self.name, f"batch #{handle} was refused and has number {output.sequence}")
        self._handles[handle] = output.sequence

    def finish(self) -> None:
        """Looks at the whole log: each run's batches stand in the order in which they were ordered, without gap."""
        newest: dict[tuple[int, int], int] = {}
        for handle, sequence in sorted(self._handles.items(), key=lambda pair: pair[1]):
            batch = self._workload.batches[handle]
            run = (batch.node, batch.run)
            if newest.get(run, 0) > handle:
                raise Violation(self.name, f"number {sequence}, batch #{handle}, stands after #{newest[run]}")
            newest[run] = handle
        for sequence in sorted(self._facts.committed):
            assignment = self._facts.committed[sequence]
            if assignment.system:
                continue
            origin, counter = assignment.id[:ORIGIN_BYTES], counter_of(assignment.id)
            if counter != self._counters.get(origin, 0) + 1:
                raise Violation(
                    self.name,
                    f"number {sequence} is batch {counter} of its sender after {self._counters.get(origin, 0)}",
                )
            self._counters[origin] = counter


class OrderedIsKept:
    """What a sender was told is ordered stands at that number, with that content, for ever."""

    __slots__ = ("_facts", "_workload")
    name = "committed is never lost"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._workload = workload
        facts.simulation.watch.ordered.append(self._on_ordered)

    def _on_ordered(self, node: SimulatedNode, handle: int, sequence: int) -> None:
        self._look(handle, sequence)

    def finish(self) -> None:
        """Every batch reported as ordered is in the log; one whose number its sender never learnt, somewhere in it."""
        digests = {assignment.digest for assignment in self._facts.committed.values()}
        for batch in self._workload.batches.values():
            if batch.outcome is not Outcome.ORDERED:
                continue
            if batch.sequence not in self._facts.committed if batch.sequence else batch.digest not in digests:
                raise Violation(self.name, f"batch #{batch.handle}, number {batch.sequence}, is not in the log")
            self._look(batch.handle, batch.sequence)

    def _look(self, handle: int, sequence: int) -> None:
        assignment = self._facts.committed.get(sequence)
        if assignment is not None and assignment.digest != self._workload.batches[handle].digest:
            raise Violation(self.name, f"batch #{handle} was ordered as {sequence}, which now means {assignment}")
