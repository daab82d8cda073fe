"""The upper layer of a simulated member: a small deterministic state that notices every mistake of order.

Its `chain` hashes every delivered batch with its number, so two replicas are equal at a number exactly when they were
given the same log. Its checkpoints have a size that depends on the state alone, often several chunks.
"""

import struct

import msgspec
import xxhash

from alphorn.bus.entries import Assignment, digest_of
from alphorn.model.ids import ORIGIN_BYTES, counter_of

PADDING_STEP_BYTES = 700
PADDING_STEPS = 7
_LINK = struct.Struct(">QQ16sQ")


class ReplicaState(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint holds."""

    last_batch: int
    count: int
    chain: int
    counters: list[tuple[bytes, int]]
    padding: bytes = b""


_decode = msgspec.msgpack.Decoder(ReplicaState).decode


class Replica:
    """Applies what is delivered. `last_batch` is the number of the newest, `applied` that or its checkpoint's."""

    __slots__ = ("applied", "chain", "count", "counters", "last_batch")

    def __init__(self) -> None:
        self.applied = 0
        self.last_batch = 0
        self.count = 0
        self.chain = 0
        self.counters: dict[bytes, int] = {}

    def apply(self, sequence: int, assignment: Assignment, payload: bytes | memoryview) -> str:
        """Takes in one batch; gives what is wrong with it, or nothing."""
        if sequence <= self.applied:
            return f"number {sequence} is delivered after {self.applied}"
        if len(payload) != assignment.size or digest_of(payload) != assignment.digest:
            return f"the payload of number {sequence} is not what was sent"
        origin, counter = assignment.id[:ORIGIN_BYTES], counter_of(assignment.id)
        before = self.counters.get(origin, 0)
        if counter <= before:
            return f"number {sequence} is batch {counter} of a sender whose batch {before} was delivered before"
        self.counters[origin] = counter
        self.chain = link(self.chain, sequence, assignment)
        self.count += 1
        self.applied = self.last_batch = sequence
        return ""

    def encode(self) -> bytes:
        """The checkpoint of this state: equal bytes for equal states."""
        padding = bytes(self.count % PADDING_STEPS * PADDING_STEP_BYTES)
        state = ReplicaState(self.last_batch, self.count, self.chain, sorted(self.counters.items()), padding)
        return msgspec.msgpack.encode(state)

    def load(self, data: bytes, sequence: int) -> None:
        """Replaces the state by the checkpoint at this number."""
        state = _decode(data)
        self.applied = sequence
        self.last_batch, self.count, self.chain = state.last_batch, state.count, state.chain
        self.counters = dict(state.counters)


def link(chain: int, sequence: int, assignment: Assignment) -> int:
    """The chain after one more batch."""
    return xxhash.xxh3_64_intdigest(_LINK.pack(chain, sequence, assignment.id, assignment.digest))
