"""The simplest upper layer: it remembers of each delivered batch only that it came, and in which order.

`chain` folds number and bytes of every batch into one value, so two members that agree on it have delivered the same
batches at the same numbers. Batches of `node/load.py` name their sender and a counter; the tally keeps which counters
came, as ranges, and counts those that came again or out of their sender's order.

The whole tally is the state of a checkpoint, so a member that restarts, or joins late, has it too.
"""

import struct
from collections.abc import Iterable, Iterator

import msgspec
import xxhash

from alphorn.io.control import Seen, Tallied

HEAD = struct.Struct(">8sQ")  # sender, counter
_LINK = struct.Struct(">QQQ")


class _State(msgspec.Struct, kw_only=True, array_like=True):
    batches: int = 0
    payload_bytes: int = 0
    chain: int = 0
    repeats: int = 0
    seen: dict[bytes, list[list[int]]] = msgspec.field(default_factory=dict)


class Tally:
    """What was delivered. `add` in order; `save` and `load` for checkpoints."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = _State()

    @property
    def batches(self) -> int:
        """Batches delivered since the log began."""
        return self._state.batches

    @property
    def payload_bytes(self) -> int:
        """Bytes of all of them."""
        return self._state.payload_bytes

    @property
    def repeats(self) -> int:
        """Batches that broke their sender's order: delivered again, or after a later one."""
        return self._state.repeats

    def add(self, sequence: int, payload: bytes | memoryview, digest: int) -> None:
        """The next delivered batch, with the digest the log has of it."""
        state = self._state
        state.batches += 1
        state.payload_bytes += len(payload)
        link = _LINK.pack(state.chain, sequence, digest)
        state.chain = xxhash.xxh3_64_intdigest(link)
        if len(payload) >= HEAD.size:
            self._see(*HEAD.unpack_from(payload))

    def tallied(self) -> Tallied:
        """The tally as one value to compare."""
        return Tallied(batches=self._state.batches, chain=f"{self._state.chain:016x}")

    def seen(self) -> list[Seen]:
        """Which counters of which senders came."""
        return [
            Seen(sender=sender.hex(), ranges=[(first, last) for first, last in ranges])
            for sender, ranges in self._state.seen.items()
        ]

    def save(self) -> Iterable[bytes]:
        """The state; the same bytes on every member that delivered the same."""
        yield msgspec.msgpack.encode(self._state)

    def load(self, chunks: Iterator[bytes]) -> None:
        """Replaces the state."""
        self._state = msgspec.msgpack.decode(b"".join(chunks), type=_State)

    def _see(self, sender: bytes, counter: int) -> None:
        ranges = self._state.seen.get(sender)
        if ranges is None:
            self._state.seen[sender] = [[counter, counter]]
        elif counter == ranges[-1][1] + 1:
            ranges[-1][1] = counter
        elif counter > ranges[-1][1]:
            ranges.append([counter, counter])
        else:
            self._state.repeats += 1
