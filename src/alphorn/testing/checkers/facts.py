"""What the simulator knows and no member can: every claim of a commit, and what every disk has ever made durable.

A claim is a `Commit` frame sent, a batch delivered or a batch reported as ordered. Disks are watched from outside, and
what was once durable stays noted after the disk is lost, because a member may have spoken of it before.
"""

from collections.abc import Callable

from alphorn.bus.config import Role
from alphorn.bus.entries import (
    Assignment,
    Collected,
    EpochBegun,
    InSyncChanged,
    SystemEntry,
    VoterAdded,
    VoterRemoved,
    decode_system,
)
from alphorn.bus.frames import Commit, decode_all
from alphorn.bus.machine import Deliver, Output, Persist, PutAssignments, PutEntry, SealCheckpoint
from alphorn.testing.node import SimulatedNode
from alphorn.testing.simulator import Simulation
from alphorn.testing.watch import Violation

TYPE_PLACE = 11  # of the frame type in a frame (bus/frames.py)
EPOCH_PLACE = slice(20, 28)
COMMIT_TYPE = 6
Claimed = Callable[[SimulatedNode, int, Assignment, SystemEntry | None], None]


class Facts:
    """Shared by the checkers of one run. `claimed` callbacks run once per number, at its first claim; `decided`
    ones when a sequencer decides on a system entry, open as it is.
    """

    __slots__ = (
        "_change_places",
        "accepted",
        "begun",
        "changes",
        "claimed",
        "collected",
        "committed",
        "decided",
        "last",
        "saved",
        "simulation",
        "stored",
    )

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.committed: dict[int, Assignment] = {}
        self.last = 0  # highest number claimed
        self.collected = 0  # numbers through this one may be forgotten, by the newest claim of that
        self.claimed: list[Claimed] = []
        self.decided: list[Claimed] = []
        self.accepted: dict[int, dict[tuple[int, bytes], int]] = {}  # number → (epoch, id) → bits of members
        self.stored: dict[int, dict[int, int]] = {}  # number → digest → bits of members
        self.saved: dict[int, int] = {}  # node → newest checkpoint it ever had on disk
        self.changes: list[tuple[int, Assignment, SystemEntry]] = []  # voters and in-sync set, assigned anywhere
        self.begun: dict[int, tuple[int, Assignment]] = {}  # epoch → its first number, once its sequencer chose it
        self._change_places: set[tuple[int, int]] = set()
        simulation.watch.sent.append(self._on_sent)
        simulation.watch.delivered.append(self._on_delivered)
        simulation.watch.durable.append(self._on_durable)
        simulation.watch.turn.append(self._on_turn)

    def claim(self, node: SimulatedNode, sequence: int, assignment: Assignment) -> None:
        """A member says that this number is final and means this."""
        known = self.committed.get(sequence)
        if known is not None:
            if known.epoch != assignment.epoch or known.id != assignment.id or known.digest != assignment.digest:
                raise Violation(
                    "same log everywhere",
                    f"{node.name} has number {sequence} as {assignment}, and it was committed as {known}",
                )
            return
        self.committed[sequence] = assignment
        self.last = max(self.last, sequence)
        entry = decode_system(assignment.system) if assignment.system else None
        for callback in self.claimed:
            callback(node, sequence, assignment, entry)
        if isinstance(entry, Collected):
            self.collected = max(self.collected, entry.through)

    def voter_sets(self, sequence: int) -> list[frozenset[int]]:
        """The sets of commit servers (node indices) any of which may make this number final."""
        members = self.simulation.config.members
        voters = frozenset(index for index, member in enumerate(members) if Role.COMMIT in member.roles)
        sets = [voters]
        for number, assignment, entry in self.changes:
            if isinstance(entry, VoterAdded | VoterRemoved) and self._may_stand(number, assignment):
                index = self.index_of(entry.number)
                is_added = isinstance(entry, VoterAdded)
                changed = [voters | {index} if is_added else voters - {index} for voters in sets]
                if number < sequence and number in self.committed:
                    sets = changed
                else:  # it may stand or fall
                    sets += [voters for voters in changed if voters not in sets]
        return sets

    def in_sync_rules(self, sequence: int) -> list[tuple[frozenset[int], int]]:
        """(data servers, copies) any of which may make this number's entry safe."""
        config = self.simulation.config
        everyone = frozenset(index for index, member in enumerate(config.members) if Role.DATA in member.roles)
        rules = [(everyone, config.copies)]
        for number, assignment, entry in self.changes:
            if isinstance(entry, InSyncChanged) and self._may_stand(number, assignment):
                rule = (frozenset(self.index_of(member) for member in entry.numbers), entry.copies)
                if number < sequence and number in self.committed:
                    rules = [rule]
                elif number < sequence or self.has_majority(number, assignment):
                    rules.append(rule)
        return rules

    def has_majority(self, sequence: int, assignment: Assignment) -> bool:
        """Whether a majority of commit servers has ever held this assignment durably."""
        bits = self.accepted.get(sequence, {}).get((assignment.epoch, assignment.id), 0)
        return any(
            sum(bits >> index & 1 for index in voters) >= len(voters) // 2 + 1 for voters in self.voter_sets(sequence)
        )

    def index_of(self, number: int) -> int:
        """The node of a configured member's number; -1 for another's."""
        return next((i for i, member in enumerate(self.simulation.config.members) if member.number == number), -1)

    def _may_stand(self, sequence: int, assignment: Assignment) -> bool:
        known = self.committed.get(sequence)
        return known is None or known.epoch == assignment.epoch

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        if data[TYPE_PLACE] != COMMIT_TYPE:
            return
        for frame in decode_all(data):
            if isinstance(frame.body, Commit):
                for sequence, assignment in enumerate(frame.body.assignments, frame.body.first):
                    if sequence <= frame.body.committed:
                        self.claim(node, sequence, assignment)

    def _on_delivered(self, node: SimulatedNode, output: Deliver) -> None:
        self.claim(node, output.sequence, output.assignment)

    def _on_turn(self, node: SimulatedNode, outputs: list[Output]) -> None:
        """A sequencer counts by the newest voters it has decided on, from that very turn on."""
        for output in outputs:
            if type(output) is Persist:
                self._look_for_changes(node, output)

    def _look_for_changes(self, node: SimulatedNode, persist: Persist) -> None:
        for write in persist.writes:
            if isinstance(write, PutAssignments):
                for sequence, assignment in enumerate(write.assignments, write.first):
                    if assignment.system and (sequence, assignment.epoch) not in self._change_places:
                        self._note_change(node, sequence, assignment)

    def _note_change(self, node: SimulatedNode, sequence: int, assignment: Assignment) -> None:
        self._change_places.add((sequence, assignment.epoch))
        entry = decode_system(assignment.system)
        if isinstance(entry, VoterAdded | VoterRemoved | InSyncChanged):
            self.changes.append((sequence, assignment, entry))
            self.changes.sort(key=lambda change: (change[0], change[1].epoch))
        elif isinstance(entry, EpochBegun):
            self.begun.setdefault(assignment.epoch, (sequence, assignment))
        for callback in self.decided:
            callback(node, sequence, assignment, entry)

    def _on_durable(self, node: SimulatedNode, persist: Persist) -> None:
        bit = 1 << node.index
        for write in persist.writes:
            if isinstance(write, PutAssignments):
                for sequence, assignment in enumerate(write.assignments, write.first):
                    holders = self.accepted.setdefault(sequence, {})
                    key = (assignment.epoch, assignment.id)
                    holders[key] = holders.get(key, 0) | bit
            elif isinstance(write, PutEntry):
                copies = self.stored.setdefault(write.sequence, {})
                copies[write.digest] = copies.get(write.digest, 0) | bit
            elif isinstance(write, SealCheckpoint):
                self.saved[node.index] = max(write.sequence, self.saved.get(node.index, 0))
