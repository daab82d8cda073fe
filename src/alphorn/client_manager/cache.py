"""The receive cache: log entries a Client Manager heard, so that deliveries need not carry bodies.

Bounded by bytes; the oldest go first. What was fetched for a delivery that waits is kept until that is done.
"""

from collections import OrderedDict

from alphorn.model.commands import Entry, Publish, decode_entry
from alphorn.model.errors import PeerViolation


class ReceiveCache:
    """Entries of one channel by number."""

    __slots__ = ("_bytes", "_bytes_max", "_entries", "_pinned", "hits", "misses")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: OrderedDict[int, tuple[bytes, Entry | None]] = OrderedDict()
        self._pinned: dict[int, tuple[bytes, Entry]] = {}
        self.hits = 0
        self.misses = 0

    def put(self, sequence: int, payload: bytes, entry: Entry | None = None) -> None:
        """Keeps an entry, which may push out the oldest."""
        if sequence in self._entries:
            return
        self._entries[sequence] = (payload, entry)
        self._bytes += len(payload)
        while self._bytes > self._bytes_max:
            _, (old, _) = self._entries.popitem(last=False)
            self._bytes -= len(old)

    def pin(self, sequence: int, payload: bytes) -> None:
        """Keeps a fetched entry until `unpin`; raises `PeerViolation` for one that cannot be read."""
        self._pinned[sequence] = (payload, decode_entry(payload))

    def unpin(self, sequence: int) -> None:
        """No delivery waits for it any more."""
        self._pinned.pop(sequence, None)

    def entry(self, sequence: int) -> Entry | None:
        """A log entry; None when it is not here."""
        held = self._pinned.get(sequence) or self._entries.get(sequence)
        if held is None:
            return None
        payload, entry = held
        if entry is None:
            entry = decode_entry(payload)
            self._entries[sequence] = (payload, entry)
        return entry

    def find(self, sequence: int, command: int) -> Publish | None:
        """The batch at a place of the log; None when it is not here. Raises `PeerViolation` when nothing is there."""
        entry = self.entry(sequence)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        found = entry.commands[command] if command < len(entry.commands) else None
        if not isinstance(found, Publish):
            raise PeerViolation(f"command {command} of log entry {sequence} is no batch of messages")
        return found

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "entries": len(self._entries),
            "bytes": self._bytes,
            "pinned": len(self._pinned),
            "hits": self.hits,
            "misses": self.misses,
        }
