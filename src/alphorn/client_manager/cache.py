"""The receive cache: log entries a Client Manager heard, so that deliveries need not carry bodies.

Bounded by bytes, of memory and not of the log: where messages are small, what is known of an entry is much more than
the entry. The oldest go first. What was fetched for a delivery that waits is kept until that is done.
"""

from collections import OrderedDict

from alphorn.model.commands import Entry, Publish, decode_entry
from alphorn.model.errors import PeerViolation

_ENTRY_BYTES = 300  # that an entry takes here besides its payload,
_COMMAND_BYTES = 550  # and each of its commands


class ReceiveCache:
    """Entries of one channel by number."""

    __slots__ = ("_bytes", "_bytes_max", "_entries", "_pinned", "hits", "misses")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: OrderedDict[int, tuple[bytes, Entry]] = OrderedDict()
        self._pinned: dict[int, tuple[bytes, Entry]] = {}
        self.hits = 0
        self.misses = 0

    def put(self, sequence: int, payload: bytes, entry: Entry) -> None:
        """Keeps an entry that has messages, which may push out the oldest; nobody asks for others."""
        if sequence in self._entries or not any(isinstance(command, Publish) for command in entry.commands):
            return
        self._entries[sequence] = (payload, entry)
        self._bytes += _size_of(payload, entry)
        while self._bytes > self._bytes_max:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= _size_of(*oldest)

    def pin(self, sequence: int, payload: bytes) -> None:
        """Keeps a fetched entry until `unpin`; raises `PeerViolation` for one that cannot be read."""
        self._pinned[sequence] = (payload, decode_entry(payload))

    def unpin(self, sequence: int) -> None:
        """No delivery waits for it any more."""
        self._pinned.pop(sequence, None)

    def entry(self, sequence: int) -> Entry | None:
        """A log entry; None when it is not here."""
        held = self._pinned.get(sequence) or self._entries.get(sequence)
        return held[1] if held is not None else None

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


def _size_of(payload: bytes, entry: Entry) -> int:
    return len(payload) + _ENTRY_BYTES + _COMMAND_BYTES * len(entry.commands)
