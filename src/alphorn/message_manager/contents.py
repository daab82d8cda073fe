"""What the log says of messages, for selectors, which must look into batches.

Batches are looked into one after the other, so the last few that were unpacked are kept.
"""

from collections.abc import Callable

from alphorn.message_manager.particulars import header_of
from alphorn.message_manager.segments import Run
from alphorn.message_manager.selector import Selector
from alphorn.model.commands import Entry, Publish, connection_of
from alphorn.model.errors import PeerViolation
from alphorn.model.messages import PackedHeader, headers_of

BATCHES_KEPT = 4

Read = Callable[[int], Entry | None]  # the log entry with this number; None where it cannot be read now


class Batch:
    """One publish, unpacked when it is first asked."""

    __slots__ = ("_headers", "_publish")

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._headers: list[PackedHeader] | None = None

    @property
    def connection(self) -> bytes:
        """Who sent it."""
        return connection_of(self._publish.producer)

    def is_selected(self, index: int, selector: Selector, priority: int) -> bool:
        """Whether a selector takes one message. `priority` is what it has here, the sender's or the policy's."""
        header = self._header(index)
        return selector.matches(header.properties, header_of(header, self._publish, index, priority))

    def _header(self, index: int) -> PackedHeader:
        """Of one message. A batch that its sender packed wrongly still has messages, with nothing in their headers."""
        if self._headers is None:
            try:
                self._headers = headers_of(self._publish.blob)
            except PeerViolation:
                self._headers = []
        return self._headers[index] if index < len(self._headers) else PackedHeader()


class Contents:
    """Reads batches by their place in the log."""

    __slots__ = ("_kept", "_read")

    def __init__(self, read: Read) -> None:
        self._read = read
        self._kept: dict[tuple[int, int], Batch] = {}  # oldest first

    def batch(self, run: Run) -> Batch | None:
        """The batch that holds a run; None where its log entry cannot be read now."""
        place = (run.sequence, run.command)
        batch = self._kept.get(place)
        if batch is not None:
            return batch
        entry = self._read(run.sequence)
        if entry is None:
            return None
        publish = entry.commands[run.command]
        assert isinstance(publish, Publish), "a segment points to a command that holds no messages"
        batch = Batch(publish)
        if len(self._kept) == BATCHES_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[place] = batch
        return batch
