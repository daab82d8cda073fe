"""Bodies that are sent in fragments: where in the log their pieces are, and for how long they are needed.

A body is open while its fragments come, and sealed when the message that it belongs to is published. An open one is
known by its producer, which has one at a time; a sealed one by its message: the producer and the message's counter.

- Pieces stay in the log, as messages do. Neighbours in the log are one run of 28 bytes, so a body that has the log to
  itself takes one run whatever its size.
- A sealed body is needed as long as any destination has its message. Nobody counts that: whoever asks what the state
  needs looks (`sweep`), as often as the log is collected. What a sweep has not dropped yet means nothing to anybody.
- An open body to which nothing was added for `IDLE_MS_MAX` is given up. The clock is only looked at in ticks.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable

import msgspec

from alphorn.message_manager.columns import extend_column, to_bytes
from alphorn.message_manager.segments import Segments
from alphorn.model.commands import connection_of

IDLE_MS_MAX = 3600 * 1000

Name = tuple[bytes, int]  # of a message: its producer's key and its counter
Entries = tuple["array[int]", "array[int]"]  # runs of log entries: the first of each, and how many they are


class Pieces:
    """Where the fragments of one body are, in order."""

    __slots__ = ("_commands", "_counts", "_sequences", "_starts", "count", "size")

    _COLUMNS = ("_starts", "_sequences", "_commands", "_counts")

    def __init__(self) -> None:
        self._starts = array("Q")  # index of each run's first fragment
        self._sequences = array("Q")  # its log entry; the next fragments are in the next entries
        self._commands = array("I")  # the command, the same in all of them
        self._counts = array("Q")
        self.count = 0
        self.size = 0  # bytes

    @property
    def runs(self) -> int:
        """How many runs it takes."""
        return len(self._starts)

    def append(self, sequence: int, command: int, size: int) -> None:
        """The next fragment is there."""
        if self._counts and self._commands[-1] == command and self._sequences[-1] + self._counts[-1] == sequence:
            self._counts[-1] += 1
        else:
            self._starts.append(self.count)
            self._sequences.append(sequence)
            self._commands.append(command)
            self._counts.append(1)
        self.count += 1
        self.size += size

    def entries(self) -> Entries:
        """The log entries that hold any of it, as they are now."""
        return self._sequences[:], self._counts[:]

    def places(self, index: int, maximum: int) -> list[int]:
        """Log entry and command (flat pairs) of up to so many fragments from this one on."""
        found: list[int] = []
        run = bisect_right(self._starts, index) - 1
        while 0 <= run < self.runs and len(found) < 2 * maximum:
            skip = max(0, index - self._starts[run])
            for offset in range(skip, min(self._counts[run], skip + maximum - len(found) // 2)):
                found += (self._sequences[run] + offset, self._commands[run])
            run += 1
        return found

    def encode(self, start: int, stop: int) -> list[bytes]:
        """Some runs as a checkpoint keeps them."""
        return [to_bytes(getattr(self, name)[start:stop]) for name in self._COLUMNS]

    def extend(self, columns: list[bytes]) -> None:
        """Adds the runs that `encode` gave; raises `msgspec.ValidationError` for anything else."""
        if len(columns) != len(self._COLUMNS):
            raise msgspec.ValidationError("these columns are no fragments")
        known = self.runs
        for name, data in zip(self._COLUMNS, columns, strict=True):
            extend_column(getattr(self, name), data)
        if len({len(getattr(self, name)) for name in self._COLUMNS}) != 1:
            raise msgspec.ValidationError("columns of fragments differ in length")
        for run in range(known, self.runs):
            if self._starts[run] != self.count:
                raise msgspec.ValidationError("fragments are missing")
            self.count += self._counts[run]


class OpenBody:
    """A body whose fragments are still coming."""

    __slots__ = ("destination", "due_ms", "is_active", "pieces")

    def __init__(self, destination: int) -> None:
        self.destination = destination
        self.pieces = Pieces()
        self.due_ms = 0  # when it is looked at again; 0: with the next Tick
        self.is_active = True  # whether anything was added since it was looked at


class SealedBody:
    """The whole body of a message that was published at this place of the log."""

    __slots__ = ("command", "pieces", "sequence")

    def __init__(self, pieces: Pieces, sequence: int, command: int) -> None:
        self.pieces = pieces
        self.sequence = sequence
        self.command = command


class Streams:
    """All bodies of a channel that came in fragments."""

    __slots__ = ("open", "sealed")

    def __init__(self) -> None:
        self.open: dict[bytes, OpenBody] = {}  # by the producer's key
        self.sealed: dict[Name, SealedBody] = {}

    def begin(self, producer: bytes, destination: int) -> OpenBody:
        """A new body; an unfinished one of this producer is given up."""
        made = self.open[producer] = OpenBody(destination)
        return made

    def give_up(self, producer: bytes) -> None:
        """The unfinished body of this producer, if it has one, will not be finished."""
        self.open.pop(producer, None)

    def seal(self, name: Name, sequence: int, command: int) -> int:
        """The producer's body belongs to this message now; gives its bytes."""
        body = self.open.pop(name[0], None)
        pieces = body.pieces if body is not None else Pieces()  # nothing at all is a body too
        self.sealed[name] = SealedBody(pieces, sequence, command)
        return pieces.size

    def forget(self, connection: bytes) -> None:
        """A connection has ended: what it did not finish is given up."""
        for producer in self.of(connection):
            del self.open[producer]

    def of(self, connection: bytes) -> list[bytes]:
        """The producers of a connection that have an unfinished body."""
        return [producer for producer in self.open if connection_of(producer) == connection]

    def tick(self, now_ms: int) -> None:
        """Gives up what nothing was added to for too long."""
        for producer, body in list(self.open.items()):
            if body.due_ms > now_ms:
                continue
            if body.due_ms and not body.is_active:
                del self.open[producer]
                continue
            body.due_ms, body.is_active = now_ms + IDLE_MS_MAX, False

    def next_due(self, soon_ms: int) -> int | None:
        """When `tick` has something to do; `soon_ms` where a body waits for the next Tick, whenever that is."""
        return min((body.due_ms or soon_ms for body in self.open.values()), default=None)

    def places(self) -> set[tuple[int, int]]:
        """The batches (log entry and command) whose messages have sealed bodies."""
        return {(body.sequence, body.command) for body in self.sealed.values()}

    def sweep(self, segments_with: Callable[[set[tuple[int, int]]], Iterable[Segments]]) -> None:
        """Lets go of the bodies whose messages are nowhere; `segments_with` gives what may hold such."""
        if not self.sealed:
            return
        wanted = self.places()
        found: set[tuple[int, int]] = set()
        for segments in segments_with(wanted):
            found |= segments.among(wanted)
        self.sealed = {name: body for name, body in self.sealed.items() if (body.sequence, body.command) in found}

    def entries(self) -> list[Entries]:
        """The log entries that hold any fragment that is needed, of each body."""
        bodies: list[OpenBody | SealedBody] = [*self.open.values(), *self.sealed.values()]
        return [body.pieces.entries() for body in bodies]

    def describe(self) -> dict[str, object]:
        """The printable state."""
        return {
            "open": len(self.open),
            "open_bytes": sum(body.pieces.size for body in self.open.values()),
            "sealed": len(self.sealed),
            "sealed_bytes": sum(body.pieces.size for body in self.sealed.values()),
        }
