"""Checkers of authority: one sequencer per epoch, epochs that only grow, promises that are durable when spoken."""

import msgspec

from alphorn.bus.config import Role
from alphorn.bus.entries import describe_epoch
from alphorn.bus.frames import CheckpointReport, CommitAcknowledge, Promise, Status, decode_all
from alphorn.bus.machine import Persist, PutAssignments
from alphorn.bus.storage import Meta
from alphorn.testing.checkers.facts import COMMIT_TYPE, EPOCH_PLACE, TYPE_PLACE, Facts
from alphorn.testing.node import SimulatedNode
from alphorn.testing.watch import Violation
from alphorn.testing.workload import Workload

SUBMIT_TYPE, ACKNOWLEDGE_TYPE, HEARTBEAT_TYPE, STATUS_TYPE, REPORT_TYPE = 4, 5, 7, 8, 17
PREPARE_TYPE, PROMISE_TYPE, NEW_EPOCH_TYPE = 18, 19, 20
BINDING_TYPES = frozenset(
    {SUBMIT_TYPE, ACKNOWLEDGE_TYPE, COMMIT_TYPE, HEARTBEAT_TYPE, PREPARE_TYPE, PROMISE_TYPE, NEW_EPOCH_TYPE}
)
LOG_TAIL = 32  # numbers before an epoch's first that are compared
_decode_meta = msgspec.msgpack.Decoder(Meta).decode


class OneSequencerPerEpoch:
    """Commits and heartbeats of one epoch come from one run of one member, which may take another name meanwhile."""

    __slots__ = ("_speakers",)
    name = "one sequencer commits per epoch"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._speakers: dict[bytes, tuple[str, int]] = {}
        facts.simulation.watch.sent.append(self._on_sent)

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        if data[TYPE_PLACE] == COMMIT_TYPE or data[TYPE_PLACE] == HEARTBEAT_TYPE:
            epoch, run = data[EPOCH_PLACE], (node.name, node.run)
            if self._speakers.setdefault(epoch, run) != run:
                text = describe_epoch(int.from_bytes(epoch, "big"))
                raise Violation(self.name, f"{node.name} speaks as sequencer of epoch {text}, which is another's")


class EpochsBeginSafely:
    """A sequencer commits nothing before a majority of commit servers has the first number of its epoch.

    Until then another log of a later epoch than the numbers' own may still be preferred to this one.
    """

    __slots__ = ("_facts", "_safe")
    name = "an epoch's first number comes first"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._safe: set[int] = set()
        facts.simulation.watch.sent.append(self._on_sent)

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        if data[TYPE_PLACE] != COMMIT_TYPE:
            return
        epoch = int.from_bytes(data[EPOCH_PLACE], "big")
        if epoch in self._safe:
            return
        begun = self._facts.begun.get(epoch)
        if begun is not None and not self._facts.has_majority(*begun):
            raise Violation(self.name, f"{node.name} commits in {describe_epoch(epoch)} before that has begun")
        self._safe.add(epoch)


class SuccessorsKnowAll:
    """A sequencer begins with everything that was committed under older epochs.

    One that begins when a higher epoch commits already is too late to do harm: nobody follows it.
    """

    __slots__ = ("_facts", "_looked_at", "_newest")
    name = "a new sequencer knows all that is committed"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._looked_at: set[int] = set()
        self._newest = 0  # epoch under which a commit was claimed
        facts.simulation.watch.sent.append(self._on_sent)
        facts.simulation.watch.persisted.append(self._on_persisted)

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        if data[TYPE_PLACE] == COMMIT_TYPE:
            self._newest = max(self._newest, int.from_bytes(data[EPOCH_PLACE], "big"))

    def _on_persisted(self, node: SimulatedNode, persist: Persist) -> None:
        begun = self._facts.begun
        for epoch in [epoch for epoch in begun if epoch not in self._looked_at]:
            first = begun[epoch][0]
            if any(
                isinstance(w, PutAssignments) and w.first <= first < w.first + len(w.assignments)
                for w in persist.writes
            ):
                self._looked_at.add(epoch)
                if epoch > self._newest:
                    self._look(node, epoch, first, persist)

    def _look(self, node: SimulatedNode, epoch: int, first: int, persist: Persist) -> None:
        committed = self._facts.committed
        log = dict(node.disk.visible.assignments)
        for write in persist.writes:
            if isinstance(write, PutAssignments):
                log.update(enumerate(write.assignments, write.first))
        if self._facts.last >= first:
            raise Violation(
                self.name, f"{node.name} begins {describe_epoch(epoch)} at {first}, and {self._facts.last} is committed"
            )
        for sequence in range(max(self._facts.collected + 1, first - LOG_TAIL), first):
            known, own = committed.get(sequence), log.get(sequence)
            if known is not None and own is not None and (known.epoch, known.id) != (own.epoch, own.id):
                raise Violation(self.name, f"{node.name} begins {describe_epoch(epoch)} with another number {sequence}")


class EpochsOnlyGrow:
    """A member never speaks under an older epoch than before, across restarts.

    What binds it (promises, acknowledgements, a sequencer's words) it says only under an epoch that is on its disk.
    """

    __slots__ = ("_durable", "_epochs", "_facts")
    name = "epochs only grow"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._epochs: dict[int, int] = {}
        self._durable: dict[int, tuple[bytes | None, int]] = {}
        watch = facts.simulation.watch
        watch.sent.append(self._on_sent)
        watch.started.append(self._on_started)

    def _on_started(self, node: SimulatedNode) -> None:
        self._epochs[node.index] = self._promised(node)

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        epoch = int.from_bytes(data[EPOCH_PLACE], "big")
        before = self._epochs[node.index]
        if epoch < before:
            raise Violation(
                self.name, f"{node.name} speaks under {describe_epoch(epoch)} after {describe_epoch(before)}"
            )
        self._epochs[node.index] = epoch
        if data[TYPE_PLACE] in BINDING_TYPES and self._promised(node) < epoch and _is_binding(data):
            raise Violation(self.name, f"{node.name} speaks under {describe_epoch(epoch)} before that is on its disk")

    def _promised(self, node: SimulatedNode) -> int:
        data = node.disk.durable.meta
        known = self._durable.get(node.index)
        if known is None or known[0] is not data:
            known = (data, 0 if data is None else _decode_meta(data).promised)
            self._durable[node.index] = known
        return known[1]


class AcknowledgesAreDurable:
    """A commit server says that it accepted, a data server that it stored, and a checkpoint server that it has a
    checkpoint, only what is on its disk.
    """

    __slots__ = ("_facts", "_stored")
    name = "acknowledged is durable"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._facts = facts
        self._stored: dict[int, int] = {}  # by node, looked at in this run of it
        facts.simulation.watch.sent.append(self._on_sent)
        facts.simulation.watch.started.append(self._on_started)

    def _on_started(self, node: SimulatedNode) -> None:
        self._stored[node.index] = 0

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        if data[TYPE_PLACE] not in (ACKNOWLEDGE_TYPE, STATUS_TYPE, REPORT_TYPE):
            return
        for frame in decode_all(data):
            body = frame.body
            if isinstance(body, CommitAcknowledge):
                self._look(node, body.accepted, body.stored)
            elif isinstance(body, CheckpointReport):
                self._look_for_checkpoint(node, body.sequence)
            elif isinstance(body, Status):
                self._look_for_checkpoint(node, body.checkpoint)

    def _look_for_checkpoint(self, node: SimulatedNode, sequence: int) -> None:
        saved = node.disk.durable.checkpoint
        if sequence > (saved.sequence if saved is not None else 0):
            raise Violation(self.name, f"{node.name} reports checkpoint {sequence}, which is not on its disk")

    def _look(self, node: SimulatedNode, accepted: int, stored: int) -> None:
        state = node.disk.durable
        covered = max(
            state.checkpoint.sequence if state.checkpoint else 0, state.group_state[0] if state.group_state else 0
        )
        if accepted > max(covered, max(state.assignments, default=0)):
            raise Violation(self.name, f"{node.name} acknowledges {accepted}, which is not on its disk")
        known = max(covered, self._facts.collected, self._stored[node.index])
        for sequence in range(known + 1, stored + 1 if Role.DATA in node.me.roles else 0):
            assignment = state.assignments.get(sequence)
            if assignment is None or not (assignment.system or sequence in state.entries):
                raise Violation(self.name, f"{node.name} acknowledges entry {sequence}, which is not on its disk")
        self._stored[node.index] = stored


def _is_binding(data: bytes) -> bool:
    """Everything but a refusal to promise, which binds nobody."""
    return not all(isinstance(frame.body, Promise) and not frame.body.is_granted for frame in decode_all(data))
