"""Batches in memory: fragments being put together, and whole batches that are not yet safe to let go.

Bounded by bytes. What does not fit is not taken; it is asked for again once there is room, like anything that was lost.
"""

import msgspec

from alphorn.bus.entries import digest_of
from alphorn.bus.frames import Data, Held

_PLACE_BYTES = 8  # the place of a fragment takes memory before the fragment comes
_SMALL_BYTES = 4096  # a view this small is copied, so that it does not hold on to a whole datagram


class Batch(msgspec.Struct, frozen=True, gc=False):
    """A whole batch."""

    payload: bytes | memoryview
    timestamp: int
    digest: int

    def held(self, batch: bytes) -> Held:
        """As a data server reports it."""
        return Held(batch, self.timestamp, self.digest, len(self.payload))


class _Partial:
    __slots__ = ("claim", "fragments", "have", "size")

    def __init__(self, fragments: int, size: int, claim: int) -> None:
        self.fragments: list[bytes | memoryview | None] = [None] * fragments
        self.have = 0
        self.size = size
        self.claim = claim  # bytes it counts for


class Holdings:
    """What this member has of batches, by id."""

    __slots__ = ("_bytes", "_bytes_max", "_partial", "_verifies", "_whole", "damaged", "refused")

    def __init__(self, bytes_max: int, *, verifies: bool = True) -> None:
        self._whole: dict[bytes, Batch] = {}
        self._partial: dict[bytes, _Partial] = {}
        self._bytes = 0
        self._bytes_max = bytes_max
        # Frames are checked on arrival; who stores batches checks the whole too: a sender's mistake is not kept.
        self._verifies = verifies
        self.refused = 0  # fragments not taken for want of room
        self.damaged = 0  # batches whose digest did not match

    def __contains__(self, batch: bytes) -> bool:
        return batch in self._whole

    def get(self, batch: bytes) -> Batch | None:
        """A whole batch, or None."""
        return self._whole.get(batch)

    @property
    def bytes_held(self) -> int:
        """What all of it takes."""
        return self._bytes

    def whole(self) -> list[tuple[bytes, Batch]]:
        """All whole batches, oldest first."""
        return list(self._whole.items())

    def partial(self, batch: bytes) -> bool:
        """Whether some but not all of a batch is here."""
        return batch in self._partial

    @property
    def is_tight(self) -> bool:
        """Whether what can be read back from the disk should be let go."""
        return 4 * self._bytes > 3 * self._bytes_max

    def add(self, data: Data, *, is_needed: bool = False) -> Batch | None:
        """Takes a fragment; gives the batch when it became whole by it.

        What all others wait for (`is_needed`) is always taken: refusing it for want of room would keep that for ever.
        """
        batch = data.id
        if batch in self._whole:
            return None
        if data.fragments == 1:
            if data.size != len(data.payload):
                return None
            return self._keep(batch, data.payload, data.timestamp, data.digest, is_needed=is_needed)
        partial = self._partial.get(batch)
        if partial is None or partial.size != data.size or len(partial.fragments) != data.fragments:
            claim = data.size + _PLACE_BYTES * data.fragments
            if not is_needed and self._bytes + claim > self._bytes_max:
                self.refused += 1
                return None
            self._forget_partial(batch)
            partial = self._partial[batch] = _Partial(data.fragments, data.size, claim)
            self._bytes += claim
        if partial.fragments[data.fragment] is None:
            partial.fragments[data.fragment] = data.payload
            partial.have += 1
        if partial.have < data.fragments:
            return None
        self._forget_partial(batch)
        payload = b"".join(part for part in partial.fragments if part is not None)
        if len(payload) != data.size:
            return None
        return self._keep(batch, payload, data.timestamp, data.digest, is_needed=is_needed)

    def put(
        self, batch: bytes, payload: bytes | memoryview, timestamp: int, digest: int, *, is_needed: bool = False
    ) -> Batch | None:
        """Takes a whole batch that came from a peer's log."""
        self._forget_partial(batch)
        return self._whole.get(batch) or self._keep(batch, payload, timestamp, digest, is_needed=is_needed)

    def put_own(self, batch: bytes, payload: bytes, timestamp: int, digest: int) -> None:
        """Takes a batch of this member itself, always: nobody else has it."""
        self._whole[batch] = Batch(payload, timestamp, digest)
        self._bytes += len(payload)

    def _keep(
        self, batch: bytes, payload: bytes | memoryview, timestamp: int, digest: int, *, is_needed: bool
    ) -> Batch | None:
        if self._verifies and digest_of(payload) != digest:
            self.damaged += 1
            return None
        if not is_needed and self._bytes + len(payload) > self._bytes_max:
            self.refused += 1
            return None
        if len(payload) < _SMALL_BYTES:
            payload = bytes(payload)
        kept = self._whole[batch] = Batch(payload, timestamp, digest)
        self._bytes += len(payload)
        return kept

    def missing(self, batch: bytes) -> tuple[int, int, int]:
        """First missing fragment, one past the last, and of how many; zeros when nothing is known of the batch."""
        partial = self._partial.get(batch)
        if partial is None:
            return 0, 0, 0
        gaps = [index for index, part in enumerate(partial.fragments) if part is None]
        return gaps[0], gaps[-1] + 1, len(partial.fragments)

    def drop(self, batch: bytes) -> None:
        """Lets a batch go."""
        kept = self._whole.pop(batch, None)
        if kept is not None:
            self._bytes -= len(kept.payload)
        self._forget_partial(batch)

    def ids(self) -> list[bytes]:
        """All batches of which anything is here."""
        return [*self._whole, *self._partial]

    def _forget_partial(self, batch: bytes) -> None:
        partial = self._partial.pop(batch, None)
        if partial is not None:
            self._bytes -= partial.claim

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "batches": len(self._whole),
            "partial": len(self._partial),
            "bytes": self._bytes,
            "refused": self.refused,
            "damaged": self.damaged,
        }
