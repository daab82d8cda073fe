"""Checkers of what a member's word is worth: it keeps what it accepted, and does not speak of what it cannot know."""

from itertools import takewhile

import msgspec

from alphorn.bus.config import Role
from alphorn.bus.entries import Assignment, SystemEntry, VoterAdded, VoterRemoved, describe_epoch
from alphorn.bus.frames import Absent, CommitAcknowledge, Promise, Status, decode_all
from alphorn.bus.machine import DropAfter, Output, Persist, PutAssignments, PutGroupState, PutMeta, Send
from alphorn.bus.storage import Meta
from alphorn.testing.checkers.facts import TYPE_PLACE, Facts
from alphorn.testing.node import SimulatedNode
from alphorn.testing.watch import Violation
from alphorn.testing.workload import Workload

ACKNOWLEDGE_TYPE, STATUS_TYPE, ABSENT_TYPE, PROMISE_TYPE = 5, 8, 11, 19
VOTES = frozenset({ACKNOWLEDGE_TYPE, STATUS_TYPE, PROMISE_TYPE})
FOLDED = frozenset({"meta", "assignment", "group_state", "checkpoint"})  # what a member's promises are read from
_decode_meta = msgspec.msgpack.Decoder(Meta).decode


class AcceptedIsKept:
    """What a commit server accepted under an epoch it cuts off only under a higher one, or for a checkpoint."""

    __slots__ = ("_accepted",)
    name = "accepted is kept"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._accepted: dict[int, tuple[int, int]] = {}  # node → epoch and number
        watch = facts.simulation.watch
        watch.sent.append(self._on_sent)
        watch.persisted.append(self._on_persisted)
        watch.started.append(self._on_started)

    def _on_started(self, node: SimulatedNode) -> None:
        self._accepted.pop(node.index, None)  # its disk may be another one

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        if data[TYPE_PLACE] != ACKNOWLEDGE_TYPE:
            return
        for frame in decode_all(data):
            if isinstance(frame.body, CommitAcknowledge) and frame.body.accepted:
                self._accepted[node.index] = (frame.epoch, frame.body.accepted)

    def _on_persisted(self, node: SimulatedNode, persist: Persist) -> None:
        known = self._accepted.get(node.index)
        cut = min((write.sequence for write in persist.writes if type(write) is DropAfter), default=None)
        if known is None or cut is None or cut >= known[1]:
            return
        if any(type(write) is PutGroupState for write in persist.writes):
            return
        promised = [_decode_meta(write.data).promised for write in persist.writes if isinstance(write, PutMeta)]
        if promised and promised[-1] == known[0]:
            epoch = describe_epoch(known[0])
            raise Violation(self.name, f"{node.name} cuts after {cut}, and accepted {known[1]} under epoch {epoch}")


class DisksAreOrdered:
    """No disk has a number of an older epoch after one that its member had promised to prefer.

    A number of an epoch that the member never promised is a fact it was told; its own log may go on behind it until it
    hears that epoch's sequencer. What lies behind a record that cannot be read stays until something else comes in its
    place, or before it: then all of it goes, with its batches.
    """

    __slots__ = ("_starting",)
    name = "epochs grow along every disk"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._starting: set[int] = set()  # nodes that have written nothing yet
        facts.simulation.watch.started.append(lambda node: self._starting.add(node.index))
        facts.simulation.watch.persisted.append(self._on_persisted)

    def _look_at_start(self, node: SimulatedNode, persist: Persist) -> None:
        """By the first thing that a member writes it drops what its disk should not have."""
        disk = node.disk.visible
        cut = min((write.sequence for write in persist.writes if isinstance(write, DropAfter)), default=float("inf"))
        readable = takewhile(
            lambda item: item[0] <= cut and ("assignment", item[0], 0) not in disk.damaged,
            sorted(disk.assignments.items()),
        )
        self._look(node, 0, [(sequence, assignment.epoch) for sequence, assignment in readable])

    def _on_persisted(self, node: SimulatedNode, persist: Persist) -> None:
        if node.index in self._starting:
            self._starting.remove(node.index)
            self._look_at_start(node, persist)
        cut, newest = float("inf"), dict[int, int]()
        for write in persist.writes:
            if isinstance(write, DropAfter):
                cut = min(cut, write.sequence)
                newest = {sequence: epoch for sequence, epoch in newest.items() if sequence <= write.sequence}
            elif isinstance(write, PutAssignments):
                previous = write.first - 1
                on_disk = node.disk.visible.assignments.get(previous) if previous <= cut else None
                before = newest.get(previous, on_disk.epoch if on_disk is not None else 0)
                written = [(write.first + place, known.epoch) for place, known in enumerate(write.assignments)]
                self._look(node, before, written)
                self._look_under(node, cut, written)
                newest.update(written)
        self._look_behind(node, cut, newest)

    def _look_behind(self, node: SimulatedNode, cut: float, newest: dict[int, int]) -> None:
        """What was written over the beginning of an older tail leaves nothing of that behind."""
        for sequence, epoch in newest.items():
            following = _readable(node, sequence + 1)
            if following is not None and sequence < cut and sequence + 1 not in newest:
                self._look(node, epoch, [(sequence + 1, following.epoch)])

    def _look_under(self, node: SimulatedNode, cut: float, written: list[tuple[int, int]]) -> None:
        """What a number meant before was cut off, and its batch with it."""
        for sequence, epoch in written:
            before = _readable(node, sequence)
            if before is not None and before.epoch != epoch and sequence <= cut:
                raise Violation(
                    self.name,
                    f"{node.name} writes number {sequence} of epoch {describe_epoch(epoch)} over one of "
                    f"{describe_epoch(before.epoch)}, whose batch its disk may have still",
                )

    def _look(self, node: SimulatedNode, epoch: int, log: list[tuple[int, int]]) -> None:
        meta = node.disk.durable.meta
        promised = _decode_meta(meta).promised if meta is not None else 0
        for sequence, following in log:
            if following < epoch <= promised:
                raise Violation(
                    self.name,
                    f"the disk of {node.name} has number {sequence} of epoch {describe_epoch(following)} "
                    f"after one of {describe_epoch(epoch)}",
                )
            epoch = following


def _readable(node: SimulatedNode, sequence: int) -> Assignment | None:
    disk = node.disk.visible
    return None if ("assignment", sequence, 0) in disk.damaged else disk.assignments.get(sequence)


class BlankDisksDoNotVote:
    """A commit server that lost its disk gives no promise and accepts nothing until the log adds it again.

    Nor does one that got a lost disk back, after it had voted on another.
    """

    __slots__ = ("_blank", "_facts", "_lives")
    name = "a blank disk does not vote"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._blank: dict[int, int] = {}  # node → how often the log had added it when its disk was lost
        self._lives: dict[int, int] = {}  # node → which of its disks it last started on
        facts.simulation.watch.started.append(self._on_started)
        facts.simulation.watch.sent.append(self._on_sent)

    def _on_started(self, node: SimulatedNode) -> None:
        is_found = node.disk.is_found and self._lives.get(node.index) != node.disk.life
        self._lives[node.index] = node.disk.life
        if node.has_founded and Role.COMMIT in node.me.roles and (node.disk.durable.meta is None or is_found):
            self._blank[node.index] = self._count_added(node)

    def _count_added(self, node: SimulatedNode) -> int:
        changes = self._facts.changes
        return sum(isinstance(entry, VoterAdded) and entry.number == node.me.number for _, _, entry in changes)

    def _is_counted(self, node: SimulatedNode) -> bool:
        return any(node.index in voters for voters in self._facts.voter_sets(self._facts.last + 1))

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        if node.index not in self._blank or data[TYPE_PLACE] not in VOTES:
            return
        for frame in decode_all(data):
            body = frame.body
            is_vote = isinstance(body, Promise) and body.is_granted
            is_vote = is_vote or (isinstance(body, CommitAcknowledge | Status) and body.accepted > 0)
            if is_vote and self._is_counted(node) and self._count_added(node) == self._blank[node.index]:
                raise Violation(self.name, f"{node.name} lost its disk and votes by {type(body).__name__}")


class DeniedIsAbsent:
    """A data server says it does not have a batch only if its disk has no record of it, readable or not.

    What its checkpoint covers it must not deny either: that is committed.
    """

    __slots__ = ("_facts",)
    name = "denied is absent"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        facts.simulation.watch.turn.append(self._on_turn)

    def _on_turn(self, node: SimulatedNode, outputs: list[Output]) -> None:
        for output in outputs:
            if type(output) is Send and bytes(output.parts[0])[TYPE_PLACE] == ABSENT_TYPE:
                self._look(node, output, outputs)

    def _look(self, node: SimulatedNode, send: Send, outputs: list[Output]) -> None:
        cuts = [
            write.sequence
            for persist in outputs
            if isinstance(persist, Persist)
            for write in persist.writes
            if isinstance(write, DropAfter)
        ]
        frames = decode_all(b"".join(send.parts))
        denied = {batch for frame in frames if isinstance(frame.body, Absent) for batch in frame.body.ids}
        state = node.disk.visible
        for sequence, assignment in state.assignments.items():
            is_cut = any(sequence > cut for cut in cuts)
            if assignment.id in denied and sequence in state.entries and not is_cut:
                raise Violation(self.name, f"{node.name} denies number {sequence}, which is on its disk")


class KeptDisksVote:
    """Nobody loses its vote for its disk who still has all that it ever wrote there, or knows what it cannot read."""

    __slots__ = ("_facts", "_spoiled")
    name = "a whole disk keeps its vote"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._spoiled: set[int] = set()  # nodes whose disk was lost or old, or without a beginning, at some start
        facts.simulation.watch.started.append(self._on_started)
        facts.decided.append(self._on_decided)

    def _on_started(self, node: SimulatedNode) -> None:
        if node.disk.life or any(key[0] in FOLDED - {"assignment"} for key in node.disk.durable.damaged):
            self._spoiled.add(node.index)

    def _on_decided(
        self, node: SimulatedNode, sequence: int, assignment: Assignment, entry: SystemEntry | None
    ) -> None:
        if not isinstance(entry, VoterRemoved) or entry.is_retired:
            return
        index = self._facts.index_of(entry.number)
        if index not in self._spoiled:
            loser = self._facts.simulation.nodes[index].name
            raise Violation(
                self.name, f"{node.name} takes the vote of {loser} at number {sequence}, whose disk is whole"
            )
