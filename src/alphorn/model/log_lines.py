"""Log lines on their way to the `_LOG` topic: what any node puts into the log of its first channel."""

import zlib
from collections.abc import Sequence

import msgspec

from alphorn.model.commands import NOBODY, CreateDestination, Publish, key_of
from alphorn.model.destinations import Destination, DestinationKind, Policy

LOG_TOPIC = Destination(DestinationKind.TOPIC, "_LOG")
LOG_POLICY = Policy(retain_s=24 * 3600.0, retain_bytes=64 << 20)  # readable for a day, by whoever comes
WAITING_MAX = 1_000  # lines kept until the topic is known

_encode = msgspec.msgpack.Encoder().encode


class LogLines:
    """One node's lines. The producer belongs to no connection, so nothing ends it but a day of silence."""

    __slots__ = ("_counter", "_key", "_waiting", "dropped")

    def __init__(self, run: bytes) -> None:
        """`run` names this run of this node, unlike any other in the cluster."""
        self._key = key_of(NOBODY, zlib.crc32(run))
        self._counter = 0
        self._waiting: list[str] = []
        self.dropped = 0

    def add(self, lines: Sequence[str]) -> None:
        """Keeps lines until `publish`; the oldest go where there are too many."""
        self._waiting += lines
        excess = len(self._waiting) - WAITING_MAX
        if excess > 0:
            del self._waiting[:excess]
            self.dropped += excess

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything to publish."""
        return bool(self._waiting)

    def publish(self, number: int, now_ms: int) -> Publish:
        """All that waits, as one batch for the topic of this number."""
        lines, self._waiting = self._waiting, []
        first, self._counter = self._counter + 1, self._counter + len(lines)
        blob = memoryview(_encode([[line] for line in lines]))
        # It follows whatever the log has of it: that forgets it after a day, and some of it may have been lost.
        return Publish(number, self._key, first, len(lines), 0, now_ms, blob, after=0)

    @staticmethod
    def create() -> CreateDestination:
        """What makes the topic exist."""
        return CreateDestination(LOG_TOPIC, LOG_POLICY)
