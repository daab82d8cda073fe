"""Checkers of what upper layers stand on: the entries that their checkpoints need, and a state before they lead."""

from alphorn.bus.entries import EpochBegun, decode_system, digest_of
from alphorn.bus.machine import Output, Persist, PutAssignments
from alphorn.testing.checkers.facts import Facts
from alphorn.testing.disk import DiskState
from alphorn.testing.node import SimulatedNode
from alphorn.testing.replica import needed_by
from alphorn.testing.watch import Violation
from alphorn.testing.workload import Workload

SAMPLE_S = 0.5
UNREADABLE = frozenset({"checkpoint", "chunk"})


class NeededIsKept:
    """Every entry that a member's newest durable checkpoint needs is on its disk, unless a fault damaged it there.

    A checkpoint that came from a peer counts once it is installed. In the end nothing else is kept outside the log.
    """

    __slots__ = ("_facts", "_whole")
    name = "what a checkpoint needs is kept, and nothing else"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._whole: dict[int, tuple[int, int]] = {}  # node → checkpoint with all it needs, and the life of the disk
        watch = facts.simulation.watch
        watch.checkpoint.append(self._on_whole)
        watch.installed.append(self._on_whole)
        watch.ended.append(lambda node, reason: self._look(node))
        facts.simulation.schedule.after(SAMPLE_S, self._sample)

    def finish(self) -> None:
        """Looks once more, and for what should be gone."""
        for node in self._facts.simulation.servers():
            self._look(node)
            state = node.disk.visible
            if not self._counts(node, state) or not node.is_synchronised:
                continue
            first, last = state.bounds
            kept = [number for number in state.entries if number < first or first > last]
            assert state.checkpoint is not None
            needed = needed_by(_bytes_of(state))
            surplus = [number for number in kept if number <= state.checkpoint.sequence and number not in needed]
            if surplus:
                raise Violation(self.name, f"{node.name} still has {surplus}, and its checkpoint needs only {needed}")

    def _on_whole(self, node: SimulatedNode, sequence: int) -> None:
        if node.keeps_entries:
            self._whole[node.index] = (sequence, node.disk.life)

    def _sample(self) -> None:
        for node in self._facts.simulation.servers():
            self._look(node)
        self._facts.simulation.schedule.after(SAMPLE_S, self._sample)

    def _counts(self, node: SimulatedNode, state: DiskState) -> bool:
        """Whether the newest checkpoint of this disk can be read, and once had all that it needs."""
        if state.checkpoint is None or any(kind in UNREADABLE for kind, _, _ in state.damaged):
            return False
        return self._whole.get(node.index) == (state.checkpoint.sequence, node.disk.life)

    def _look(self, node: SimulatedNode) -> None:
        state = node.disk.durable
        if not self._counts(node, state):
            return
        for first, last in needed_by(_bytes_of(state)):
            for number in range(first, last + 1):
                self._look_at(node, state, number)

    def _look_at(self, node: SimulatedNode, state: DiskState, number: int) -> None:
        if ("entry", number, 0) in state.damaged:
            return
        entry, meant = state.entries.get(number), self._facts.committed.get(number)
        if entry is None:
            raise Violation(self.name, f"{node.name} has lost entry {number}, which its checkpoint needs")
        if meant is not None and digest_of(entry) != meant.digest:
            raise Violation(self.name, f"{node.name} has other bytes than those of number {number}")


class LeadersHaveState:
    """No member begins an epoch while its upper layer is taking over a checkpoint."""

    __slots__ = ("_begun",)
    name = "a sequencer's upper layer has its state"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._begun: set[int] = set()
        facts.simulation.watch.turn.append(self._on_turn)

    def _on_turn(self, node: SimulatedNode, outputs: list[Output]) -> None:
        for output in outputs:
            if type(output) is Persist:
                for write in output.writes:
                    if isinstance(write, PutAssignments):
                        self._look(node, write)

    def _look(self, node: SimulatedNode, write: PutAssignments) -> None:
        for assignment in write.assignments:
            if not assignment.system or assignment.epoch in self._begun:
                continue
            entry = decode_system(assignment.system)
            if isinstance(entry, EpochBegun):
                self._begun.add(assignment.epoch)  # whoever writes it first is its sequencer
                if node.installing.is_busy:
                    raise Violation(self.name, f"{node.name} begins an epoch, and installs a checkpoint")


def _bytes_of(state: DiskState) -> bytes:
    """The newest checkpoint of a disk."""
    assert state.checkpoint is not None
    sequence, chunks = state.checkpoint.sequence, state.checkpoint.chunks
    return b"".join(state.chunks[sequence, place] for place in range(chunks))
