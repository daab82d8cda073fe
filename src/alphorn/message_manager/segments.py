"""Where the messages of a destination are: runs of positions, each within one batch of one log entry.

Bodies stay in the log. A segment costs 28 bytes whatever the number of its messages.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import msgspec

from alphorn.model.ranges import RangeSet

_IS_BIG = array("H", [1]).tobytes()[0] == 0  # this machine's byte order


class Run(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages of one batch."""

    sequence: int  # of the log entry
    command: int  # which command of it
    index: int  # of the first message within that command's batch
    count: int
    position: int  # of the first message within the destination


class Segments:
    """Positions to places in the log, in order. Segments nobody needs are dropped by `sweep`."""

    __slots__ = ("_commands", "_counts", "_indexes", "_positions", "_sequences")

    def __init__(self) -> None:
        self._positions = array("Q")
        self._sequences = array("Q")
        self._commands = array("I")
        self._indexes = array("I")
        self._counts = array("I")

    def __len__(self) -> int:
        return len(self._positions)

    def append(self, run: Run) -> None:
        """Adds the messages after all others."""
        self._positions.append(run.position)
        self._sequences.append(run.sequence)
        self._commands.append(run.command)
        self._indexes.append(run.index)
        self._counts.append(run.count)

    def runs(self, first: int, last: int) -> Iterator[Run]:
        """Where the messages from `first` through `last` are, leaving out positions that were swept."""
        place = max(0, bisect_right(self._positions, first) - 1)
        while place < len(self._positions) and self._positions[place] <= last:
            position, count = self._positions[place], self._counts[place]
            skip = max(0, first - position)
            count = min(position + count - 1, last) - position - skip + 1
            if count > 0:
                yield Run(
                    self._sequences[place],
                    self._commands[place],
                    self._indexes[place] + skip,
                    count,
                    position + skip,
                )
            place += 1

    def find(self, position: int) -> Run | None:
        """Where one message is."""
        return next(self.runs(position, position), None)

    def first_after(self, sequence: int) -> int | None:
        """Position of the first message of a log entry at or after this number."""
        for place, number in enumerate(self._sequences):
            if number >= sequence:
                return self._positions[place]
        return None

    def sequences(self) -> RangeSet:
        """The log entries that hold any of these messages."""
        found = RangeSet()
        for sequence in sorted(set(self._sequences)):
            found.add(sequence, sequence)
        return found

    def sweep(self, needed: Iterable[RangeSet]) -> None:
        """Drops the segments that hold no position of any of these sets."""
        wanted = list(needed)
        kept = [
            place
            for place, (position, count) in enumerate(zip(self._positions, self._counts, strict=True))
            if any(pending.intersection(position, position + count - 1) for pending in wanted)
        ]
        if len(kept) == len(self._positions):
            return
        for name in self.__slots__:
            column = getattr(self, name)
            setattr(self, name, array(column.typecode, [column[place] for place in kept]))

    def encode(self) -> list[bytes]:
        """As a checkpoint keeps it; the same on every replica, whatever its byte order."""
        return [_to_bytes(getattr(self, name)) for name in sorted(self.__slots__)]

    @classmethod
    def decode(cls, columns: list[bytes]) -> "Segments":
        """What `encode` gave; raises `msgspec.ValidationError` for anything else."""
        made = cls()
        names = sorted(cls.__slots__)
        if len(columns) != len(names):
            raise msgspec.ValidationError("these columns are no segments")
        for name, data in zip(names, columns, strict=True):
            column = getattr(made, name)
            if len(data) % column.itemsize:
                raise msgspec.ValidationError("a column of segments is cut off")
            column.frombytes(data)
            _swap_if_big(column)
        if len({len(getattr(made, name)) for name in names}) != 1:
            raise msgspec.ValidationError("columns of segments differ in length")
        return made


def _to_bytes(column: "array[int]") -> bytes:
    twin = array(column.typecode, column)
    _swap_if_big(twin)
    return twin.tobytes()


def _swap_if_big(column: "array[int]") -> None:
    if _IS_BIG:
        column.byteswap()
