"""The upper layer of a simulated member: a small deterministic state that notices every mistake of order.

Its `chain` hashes every delivered batch with its number, so two replicas are equal at a number exactly when they were
given the same log. Its checkpoints have a size that depends on the state alone, often several chunks.

Where it is told to keep batches, it needs some of them after they are delivered, as queues need what is not consumed
yet: which ones follows from the chain alone, so it is the same everywhere.
"""

import struct
from collections.abc import Callable, Iterator

import msgspec
import xxhash

from alphorn.bus.entries import Assignment, digest_of
from alphorn.model.ids import ORIGIN_BYTES, counter_of
from alphorn.model.ranges import RangeSet

PADDING_STEP_BYTES = 700
PADDING_STEPS = 7
KEPT_OF = 3  # one of so many batches is needed on,
CONSUMED_OF = 5  # and each of so many ends the need for others
_LINK = struct.Struct(">QQ16sQ")


class ReplicaState(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint holds."""

    last_batch: int
    count: int
    chain: int
    counters: list[tuple[bytes, int]]
    content: bytes = b""  # padding, or the state of what stands on the log
    needed: list[int] = msgspec.field(default_factory=list)


_decode = msgspec.msgpack.Decoder(ReplicaState).decode


class Replica:
    """Applies what is delivered. `last_batch` is the number of the newest, `applied` that or its checkpoint's.

    `keeps` is how many batches it needs at most.
    """

    __slots__ = ("applied", "chain", "count", "counters", "keeps", "last_batch", "needed")

    def __init__(self, *, keeps: int = 0) -> None:
        self.keeps = keeps
        self.needed = RangeSet()
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
        self._keep(sequence)
        return ""

    def _keep(self, sequence: int) -> None:
        if self.keeps and self.chain % KEPT_OF == 0:
            self.needed.add(sequence, sequence)
        if self.needed and self.chain % CONSUMED_OF == 0:  # often not the oldest: what is kept has holes
            first, last = list(self.needed)[self.chain // CONSUMED_OF % self.needed.intervals]
            self.needed.remove(first, last)
        self.needed.take(len(self.needed) - self.keeps)

    def needs(self) -> RangeSet:
        """The numbers of the entries that the state needs; the caller's own."""
        return self.needed.copy()

    def give(self) -> "Given":
        """The checkpoint of this state: equal bytes for equal states."""
        needed = self.needs()
        return Given(self, iter([self.content()]), lambda: needed)

    def content(self) -> bytes:
        """The part of a checkpoint that is nobody's concern but the upper layer's."""
        return bytes(self.count % PADDING_STEPS * PADDING_STEP_BYTES)

    def restore(self, content: bytes) -> None:
        """Goes on from what `content` gave."""

    def load(self, data: bytes, sequence: int) -> None:
        """Replaces the state by the checkpoint at this number; an empty one means to begin there."""
        state = _decode(data) if data else ReplicaState(0, 0, 0, [])
        self.applied = sequence
        self.last_batch, self.count, self.chain = state.last_batch, state.count, state.chain
        self.counters = dict(state.counters)
        self.needed = RangeSet.from_flat(state.needed)
        self.restore(state.content)


class Given:
    """A state on its way into a checkpoint, piece by piece, while its replica goes on."""

    __slots__ = ("_close", "_content", "_needed", "_pieces", "_state", "is_whole")

    def __init__(
        self,
        replica: Replica,
        pieces: Iterator[bytes],
        needed: Callable[[], RangeSet],
        close: Callable[[], None] | None = None,
    ) -> None:
        """`close`, where the state is not all there yet, is called when nobody takes the rest."""
        counters = sorted(replica.counters.items())
        self._state = ReplicaState(replica.last_batch, replica.count, replica.chain, counters)
        self._content = bytearray()
        self._pieces = pieces
        self._needed = needed
        self._close = close
        self.is_whole = close is None

    def take(self) -> bool:
        """Takes the next piece; False where there was none."""
        piece = next(self._pieces, None)
        self._content += piece or b""
        return piece is not None

    def encode(self) -> tuple[bytes, RangeSet]:
        """All of it, after the last piece, and the numbers of the entries that it needs."""
        needed = self._needed()
        state = msgspec.structs.replace(self._state, content=bytes(self._content), needed=needed.flat())
        return msgspec.msgpack.encode(state), needed

    def close(self) -> None:
        """Nobody takes the rest."""
        if self._close is not None:
            self._close()


def link(chain: int, sequence: int, assignment: Assignment) -> int:
    """The chain after one more batch."""
    return xxhash.xxh3_64_intdigest(_LINK.pack(chain, sequence, assignment.id, assignment.digest))


def needed_by(checkpoint: bytes) -> RangeSet:
    """The numbers that the state of a checkpoint needs."""
    return RangeSet.from_flat(_decode(checkpoint).needed)
