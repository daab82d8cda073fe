"""What simulated members ask of the log: batches of varied size, as fast as their window allows and thought permits.

Batches with room for it begin with their handle, so that no two are equal and the checkers know each again.
"""

import enum
import random
from collections.abc import Callable

import msgspec

from alphorn.bus.entries import digest_of
from alphorn.bus.machine import Order
from alphorn.testing.node import NodeState, SimulatedNode
from alphorn.testing.simulator import Simulation

HANDLE_BYTES = 8
BURST_MAX = 3


class Outcome(enum.Enum):
    """What its sender knows of a batch."""

    OPEN = "open"
    ORDERED = "ordered"
    REFUSED = "refused"
    UNKNOWN = "unknown"  # refused as unknown, or its sender died


class Batch(msgspec.Struct):
    """One batch that a member asked to have ordered."""

    handle: int
    node: int
    run: int
    size: int
    digest: int
    outcome: Outcome = Outcome.OPEN
    sequence: int = 0


class Workload:
    """Orders batches on every member that is asked to send, and remembers each outcome."""

    __slots__ = (
        "_is_running",
        "_outstanding",
        "_simulation",
        "_stream",
        "asked",
        "batches",
        "handles",
        "outstanding_max",
        "size_max",
        "think_s",
    )

    def __init__(self, simulation: Simulation, *, think_s: float, size_max: int, outstanding_max: int) -> None:
        self._simulation = simulation
        self._stream: random.Random = simulation.streams.workload
        self._is_running = True
        self.asked: list[Callable[[bytes], None]] = []  # hear of whatever is to be ordered
        self._outstanding: dict[int, int] = {}  # by node index
        self.batches: dict[int, Batch] = {}
        self.handles: dict[int, int] = {}  # by digest; 0 where two small batches are equal
        self.think_s = think_s
        self.size_max = size_max
        self.outstanding_max = outstanding_max
        watch = simulation.watch
        watch.ordered.append(self._on_ordered)
        watch.refused.append(self._on_refused)
        watch.ended.append(self._on_ended)

    def add_sender(self, node: SimulatedNode) -> None:
        """Lets a member send, from now on and through its restarts."""
        self._simulation.schedule.after(self._stream.expovariate(1.0) * self.think_s, self._tick, node)

    def stop(self) -> None:
        """Nobody begins anything new."""
        self._is_running = False

    @property
    def next_handle(self) -> int:
        """What the next batch will be known by."""
        return len(self.batches) + 1

    def order(self, node: SimulatedNode, size: int) -> Batch:
        """Orders one batch of this size now."""
        return self.order_payload(node, make_payload(self.next_handle, size, self._stream))

    def order_some(self, node: SimulatedNode) -> None:
        """Orders a few batches now, as far as this member may."""
        for _ in range(self._stream.randint(1, BURST_MAX)):
            if self._may_order(node):
                self.order(node, draw_size(self._stream, self.size_max))

    def order_payload(self, node: SimulatedNode, payload: bytes) -> Batch:
        """Orders these bytes now."""
        handle, size, digest = self.next_handle, len(payload), digest_of(payload)
        batch = Batch(handle, node.index, node.run, size, digest)
        self.batches[handle] = batch
        self.handles[digest] = 0 if digest in self.handles else handle
        self._outstanding[node.index] = self._outstanding.get(node.index, 0) + 1
        node.tell_input("order", f"#{handle} {size} bytes")
        for callback in self.asked:
            callback(payload)
        node.feed(Order(payload, handle))
        return batch

    def count(self, outcome: Outcome) -> int:
        """How many batches ended this way."""
        return sum(batch.outcome is outcome for batch in self.batches.values())

    def _tick(self, node: SimulatedNode) -> None:
        if not self._is_running:
            return
        self.order_some(node)
        self._simulation.schedule.after(self._stream.expovariate(1.0) * self.think_s, self._tick, node)

    def _may_order(self, node: SimulatedNode) -> bool:
        outstanding = self._outstanding.get(node.index, 0)
        return node.state is NodeState.UP and node.is_window_open and outstanding < self.outstanding_max

    def _on_ordered(self, node: SimulatedNode, handle: int, sequence: int) -> None:
        self._finish(handle, Outcome.ORDERED).sequence = sequence

    def _on_refused(self, node: SimulatedNode, handle: int, reason: str, is_unknown: bool) -> None:
        self._finish(handle, Outcome.UNKNOWN if is_unknown else Outcome.REFUSED)

    def _finish(self, handle: int, outcome: Outcome) -> Batch:
        batch = self.batches[handle]
        if batch.outcome is Outcome.OPEN:
            self._outstanding[batch.node] -= 1
        batch.outcome = outcome
        return batch

    def _on_ended(self, node: SimulatedNode, reason: str) -> None:
        if self._outstanding.get(node.index):
            for batch in self.batches.values():
                if batch.node == node.index and batch.outcome is Outcome.OPEN:
                    batch.outcome = Outcome.UNKNOWN
        self._outstanding[node.index] = 0


def draw_size(stream: random.Random, size_max: int) -> int:
    """Mostly small, sometimes one byte, sometimes several fragments."""
    draw = stream.random()
    if draw < 0.1:
        return stream.randint(1, HANDLE_BYTES)
    if draw < 0.7:
        return stream.randint(HANDLE_BYTES, 400)
    return stream.randint(HANDLE_BYTES, size_max)


def make_payload(handle: int, size: int, stream: random.Random) -> bytes:
    """Bytes that no other batch shares, where there is room for that."""
    if size < HANDLE_BYTES:
        return stream.randbytes(size)
    return handle.to_bytes(HANDLE_BYTES, "big") + stream.randbytes(size - HANDLE_BYTES)
