"""Checkers of authority: one sequencer per epoch, epochs that only grow, promises that are durable when spoken."""

import msgspec

from alphorn.bus.entries import describe_epoch
from alphorn.bus.frames import CommitAcknowledge, Promise, decode_all
from alphorn.bus.storage import Meta
from alphorn.testing.checkers.facts import COMMIT_TYPE, EPOCH_PLACE, TYPE_PLACE, Facts
from alphorn.testing.node import SimulatedNode
from alphorn.testing.watch import Violation
from alphorn.testing.workload import Workload

SUBMIT_TYPE, ACKNOWLEDGE_TYPE, HEARTBEAT_TYPE = 4, 5, 7
PREPARE_TYPE, PROMISE_TYPE, NEW_EPOCH_TYPE = 18, 19, 20
BINDING_TYPES = frozenset(
    {SUBMIT_TYPE, ACKNOWLEDGE_TYPE, COMMIT_TYPE, HEARTBEAT_TYPE, PREPARE_TYPE, PROMISE_TYPE, NEW_EPOCH_TYPE}
)
ORIGIN_PLACE = slice(30, 40)
_decode_meta = msgspec.msgpack.Decoder(Meta).decode


class OneSequencerPerEpoch:
    """Commits and heartbeats of one epoch come from one run of one member."""

    __slots__ = ("_speakers",)
    name = "one sequencer commits per epoch"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self._speakers: dict[bytes, bytes] = {}
        facts.simulation.watch.sent.append(self._on_sent)

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        if data[TYPE_PLACE] == COMMIT_TYPE or data[TYPE_PLACE] == HEARTBEAT_TYPE:
            epoch, origin = data[EPOCH_PLACE], data[ORIGIN_PLACE]
            if self._speakers.setdefault(epoch, origin) != origin:
                text = describe_epoch(int.from_bytes(epoch, "big"))
                raise Violation(self.name, f"{node.name} speaks as sequencer of epoch {text}, which is another's")


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
    """A commit server says that it accepted, and a data server that it stored, only what is on its disk."""

    __slots__ = ()
    name = "acknowledged is durable"

    def __init__(self, facts: Facts, workload: Workload) -> None:
        facts.simulation.watch.sent.append(self._on_sent)

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        if data[TYPE_PLACE] != ACKNOWLEDGE_TYPE:
            return
        for frame in decode_all(data):
            body = frame.body
            if isinstance(body, CommitAcknowledge) and body.accepted:
                self._look(node, body.accepted)

    def _look(self, node: SimulatedNode, accepted: int) -> None:
        state = node.disk.durable
        covered = max(
            state.checkpoint.sequence if state.checkpoint else 0, state.group_state[0] if state.group_state else 0
        )
        if accepted > max(covered, max(state.assignments, default=0)):
            raise Violation(self.name, f"{node.name} acknowledges {accepted}, which is not on its disk")


def _is_binding(data: bytes) -> bool:
    """Everything but a refusal to promise, which binds nobody."""
    return not all(isinstance(frame.body, Promise) and not frame.body.is_granted for frame in decode_all(data))
