"""Writers that stage: what lies in the log unseen, and which batch of each was published last.

A batch is published once. So a writer that does not know whether it was may publish again, for as long as it is
remembered: `WRITER_IDLE_MS` after it was last heard of, or until `WRITERS_MAX` others have come. What was staged and
not published is let go after `STAGED_IDLE_MS`. Time comes from Ticks alone, so idleness counts from the first Tick
after. A writer that fails at one batch again and again is not idle, so older attempts make way for newer ones.

What a writer has published holds for all destinations that were in the channel since the batch before was published: no
task of the batch found them elsewhere. One that came later from another channel has its own record: the newest batch
that was published into it, there or here. So a batch that is repeated after a move is published where it is missing,
and nowhere else.
"""

from collections.abc import Iterable, Iterator
from itertools import takewhile

import msgspec

STAGED_IDLE_MS = 24 * 3600 * 1000
WRITER_IDLE_MS = 30 * STAGED_IDLE_MS
WRITERS_MAX = 10_000
ATTEMPTS_MAX = 4  # at one partition: a task and its double, and as many of a run that is not known to be over
DESTINATIONS_MAX = 10_000  # of one writer: it is remembered what it has published into the latest

Attempt = tuple[int, int, int]  # batch, partition, attempt


class StagedPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One batch of messages that lies in the log."""

    part: int
    sequence: int  # of the log entry that holds it
    command: int
    destination: int
    producer: bytes
    counter: int
    count: int
    flags: int
    timestamp: int
    size: int


class Staged:
    """How many bytes all writers of a channel have staged."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class Writer:
    """What one writer has staged and published; the bytes of it are counted among those of all, too."""

    __slots__ = (
        "_all",
        "earlier_at",
        "into",
        "parts",
        "published",
        "published_as",
        "published_at",
        "size",
        "staged",
        "used_ms",
    )

    def __init__(self, staged: Staged | None = None) -> None:
        self._all = staged or Staged()
        self.published = -1  # its newest batch that is visible
        self.published_as = 0  # digest of the attempts that were named the last time
        self.published_at = 0  # the log entry that first made it so
        self.earlier_at = 0  # the one that did so for the batch before
        self.into: dict[int, int] = {}  # destination → newest batch that is in it, the latest at the end
        self.used_ms = -1  # by the first Tick after it was heard of; -1 until that comes
        self.staged: dict[Attempt, dict[int, StagedPart]] = {}
        self.parts = 0
        self.size = 0  # bytes of them

    def has_staged(self, attempt: Attempt, part: int) -> bool:
        """Whether a part is staged."""
        return part in self.staged.get(attempt, ())

    def make_way(self, attempt: Attempt) -> None:
        """An attempt is staged: where it is one too many at its partition, the one that began first is let go.

        What began first is told from the log, so that all replicas say the same.
        """
        if attempt in self.staged:
            return
        others = [other for other in self.staged if other[:2] == attempt[:2]]
        if len(others) >= ATTEMPTS_MAX:
            oldest = min(others, key=lambda other: (min(part.sequence for part in self.staged[other].values()), other))
            self._drop(oldest)

    def add(self, attempt: Attempt, part: StagedPart) -> None:
        """A part is staged; a second time it changes nothing."""
        parts = self.staged.setdefault(attempt, {})
        if part.part not in parts:
            parts[part.part] = part
            self.parts += 1
            self._count(part.size)

    @property
    def due_ms(self) -> int:
        """When something of it is forgotten, of one that a Tick has seen."""
        return self.used_ms + (STAGED_IDLE_MS if self.staged else WRITER_IDLE_MS)

    def has_published(self, batch: int, destination: int, came_at: int) -> bool:
        """Whether a destination has a batch or a later one; `came_at` is the log entry that brought it, 0 for none.

        One that came since the batch before was published may have been looked up where it was before, and what was
        staged for it there may be lost: only what is noted for it counts.
        """
        was_here = came_at == 0 or came_at < self.earlier_at
        return batch <= max(self.into.get(destination, -1), self.published if was_here else -1)

    def publish(self, batch: int, destinations: Iterable[int], sequence: int, digest: int) -> None:
        """A batch is visible, and has messages in these destinations."""
        if batch > self.published:
            self.earlier_at, self.published_at = self.published_at, sequence
        self.published, self.published_as = batch, digest
        for destination in destinations:
            self.note(destination, batch)
        self.drop(range(batch + 1))

    def note(self, destination: int, batch: int) -> None:
        """A destination has this batch."""
        self.into.pop(destination, None)
        self.into[destination] = batch
        if len(self.into) > DESTINATIONS_MAX:
            del self.into[next(iter(self.into))]

    def drop(self, batches: range) -> None:
        """What is staged for these batches is let go."""
        for attempt in [attempt for attempt in self.staged if attempt[0] in batches]:
            self._drop(attempt)

    def drop_all(self) -> None:
        """Everything that is staged is let go."""
        for attempt in list(self.staged):
            self._drop(attempt)

    def _drop(self, attempt: Attempt) -> None:
        parts = self.staged.pop(attempt)
        self.parts -= len(parts)
        self._count(-sum(part.size for part in parts.values()))

    def _count(self, size: int) -> None:
        self.size += size
        self._all.size += size


class Writers:
    """All writers of a channel, whoever was heard of last at the end; those that no Tick has seen are the last.

    When something is forgotten next is asked in every turn, so it is not worked out each time: nothing can be due
    before `_due_ms`, which Ticks and checkpoints set.
    """

    __slots__ = ("_by_name", "_due_ms", "staged")

    def __init__(self) -> None:
        self.staged = Staged()
        self._by_name: dict[str, Writer] = {}
        self._due_ms: int | None = None

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[tuple[str, Writer]]:
        return iter(self._by_name.items())

    @property
    def newest(self) -> Writer:
        """Who was heard of last; raises `LookupError` where nobody was."""
        if not self._by_name:
            raise LookupError("there is no writer")
        return next(reversed(self._by_name.values()))

    def find(self, name: str) -> Writer | None:
        """A writer that is remembered."""
        return self._by_name.get(name)

    def use(self, name: str) -> Writer:
        """A writer that was heard of just now, new or not."""
        writer = self._by_name.pop(name, None) or Writer(self.staged)
        writer.used_ms = -1
        return self.put(name, writer)

    def put(self, name: str, writer: Writer) -> Writer:
        """A writer behind all others; the one that was silent longest goes where there are too many."""
        self._by_name[name] = writer
        if len(self._by_name) > WRITERS_MAX:
            self._by_name.pop(next(iter(self._by_name))).drop_all()
        return writer

    def have_staged(self, destination: int) -> bool:
        """Whether anything is staged for a destination."""
        return any(
            part.destination == destination
            for writer in self._by_name.values()
            for parts in writer.staged.values()
            for part in parts.values()
        )

    def sequences(self) -> set[int]:
        """The log entries that hold staged messages."""
        return {
            part.sequence
            for writer in self._by_name.values()
            for parts in writer.staged.values()
            for part in parts.values()
        }

    def on_tick(self, now_ms: int) -> None:
        """Forgets what was silent too long."""
        fresh = list(takewhile(lambda writer: writer.used_ms < 0, reversed(self._by_name.values())))
        for writer in fresh:
            writer.used_ms = now_ms
        if self._due_ms is not None and self._due_ms <= now_ms:
            self._forget_idle(now_ms)
            self.settle()
        elif fresh:
            first = min(writer.due_ms for writer in fresh)
            self._due_ms = first if self._due_ms is None else min(self._due_ms, first)

    def _forget_idle(self, now_ms: int) -> None:
        for name, writer in list(self._by_name.items()):
            if writer.used_ms + WRITER_IDLE_MS <= now_ms:
                self._by_name.pop(name).drop_all()
            elif writer.used_ms + STAGED_IDLE_MS <= now_ms:
                writer.drop_all()

    def settle(self) -> None:
        """All of them are as they stay for now: after a Tick, or as a checkpoint had them."""
        self._due_ms = min((writer.due_ms for writer in self._by_name.values() if writer.used_ms >= 0), default=None)

    def next_idle(self) -> int | None:
        """When something may be forgotten next, at the earliest."""
        return self._due_ms
