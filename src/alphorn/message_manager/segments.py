"""Where the messages of a destination are: runs of positions, each within one batch of one log entry.

Bodies stay in the log. A segment costs 44 bytes whatever the number of its messages. Positions grow, and so do
arrivals: the numbers of the log entries that put messages here. Most messages arrived with the entry that holds them;
those that were staged, or moved here dead or back, arrived later.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import msgspec

from alphorn.message_manager.columns import extend_column, to_bytes
from alphorn.model.ranges import RangeSet


class Run(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages of one batch."""

    sequence: int  # of the log entry
    command: int  # which command of it
    index: int  # of the first message within that command's batch
    count: int
    position: int  # of the first message within the destination
    size: int = 0  # bytes: its share of the batch
    arrival: int = 0  # the log entry that put them here; 0 for the one that holds them


class Segments:
    """Positions to places in the log, in order. Segments nobody needs are dropped by `sweep`."""

    __slots__ = ("_arrivals", "_commands", "_counts", "_indexes", "_positions", "_sequences", "_sizes")

    def __init__(self) -> None:
        self._arrivals = array("Q")
        self._positions = array("Q")
        self._sequences = array("Q")
        self._commands = array("I")
        self._indexes = array("I")
        self._counts = array("I")
        self._sizes = array("Q")  # a streamed body may be larger than any batch

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def size(self) -> int:
        """How much of the log these segments are; costs by segments."""
        return sum(self._sizes)

    def append(self, run: Run) -> None:
        """Adds the messages after all others."""
        self._arrivals.append(run.arrival or run.sequence)
        self._positions.append(run.position)
        self._sequences.append(run.sequence)
        self._commands.append(run.command)
        self._indexes.append(run.index)
        self._counts.append(run.count)
        self._sizes.append(run.size)

    def arrive(self, sequence: int) -> None:
        """All messages have come with this log entry."""
        self._arrivals = array("Q", [sequence]) * len(self)

    def runs(self, first: int, last: int) -> Iterator[Run]:
        """Where the messages from `first` through `last` are, leaving out positions that were swept."""
        place = max(0, bisect_right(self._positions, first) - 1)
        while place < len(self._positions) and self._positions[place] <= last:
            position, count, size = self._positions[place], self._counts[place], self._sizes[place]
            skip = max(0, first - position)
            taken = min(position + count - 1, last) - position - skip + 1
            if taken > 0:
                yield Run(
                    self._sequences[place],
                    self._commands[place],
                    self._indexes[place] + skip,
                    taken,
                    position + skip,
                    size * (skip + taken) // count - size * skip // count,  # so that all shares are the whole
                    self._arrivals[place],
                )
            place += 1

    def from_arrival(self, arrival: int) -> int | None:
        """The first position that arrived with this log entry or later; None where nothing did."""
        place = bisect_left(self._arrivals, arrival)
        return self._positions[place] if place < len(self._positions) else None

    def find(self, position: int) -> Run | None:
        """Where one message is."""
        return next(self.runs(position, position), None)

    def end_of(self, position: int) -> int:
        """The last position of the segment that holds this one; the position itself where none does."""
        place = bisect_right(self._positions, position) - 1
        return position if place < 0 else max(position, self._positions[place] + self._counts[place] - 1)

    def sequences(self) -> set[int]:
        """The log entries that hold any of these messages."""
        return set(self._sequences)

    def among(self, places: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Those of these batches (log entry and command) that hold any of these messages."""
        return places.intersection(zip(self._sequences, self._commands, strict=True))

    def sweep(self, needed: Iterable[RangeSet]) -> None:
        """Drops the segments that hold no position of any of these sets; costs by intervals."""
        if not len(self):
            return
        wanted = RangeSet()
        for positions in needed:
            if wanted:
                wanted.update(positions)
            else:
                wanted = positions.copy()
        slices: list[tuple[int, int]] = []  # of the columns, none touching the next
        for first, last in wanted:
            low = bisect_right(self._positions, first) - 1
            if low < 0 or self._positions[low] + self._counts[low] <= first:
                low += 1
            high = bisect_right(self._positions, last)
            if slices and low <= slices[-1][1]:
                slices[-1] = slices[-1][0], max(high, slices[-1][1])
            elif low < high:
                slices.append((low, high))
        if slices == [(0, len(self))]:
            return
        for name in self.__slots__:
            column = getattr(self, name)
            kept = array(column.typecode)
            for low, high in slices:
                kept.extend(column[low:high])
            setattr(self, name, kept)

    def encode(self, start: int, stop: int) -> list[bytes]:
        """A stretch as a checkpoint keeps it; the same on every replica, whatever its byte order."""
        return [to_bytes(getattr(self, name)[start:stop]) for name in self.__slots__]

    def extend(self, columns: list[bytes]) -> None:
        """Adds what `encode` gave after all others; raises `msgspec.ValidationError` for anything else."""
        known = max(1, len(self))
        if len(columns) != len(self.__slots__):
            raise msgspec.ValidationError("these columns are no segments")
        for name, data in zip(self.__slots__, columns, strict=True):
            extend_column(getattr(self, name), data)
        if len({len(getattr(self, name)) for name in self.__slots__}) != 1:
            raise msgspec.ValidationError("columns of segments differ in length")
        if any(self._positions[place - 1] >= self._positions[place] for place in range(known, len(self))):
            raise msgspec.ValidationError("segments are out of order")
