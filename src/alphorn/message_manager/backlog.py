"""What one queue, or one subscription of a topic, still has to give out.

A message is pending from its arrival until it is consumed, expired or dead. Pending ones that wait for their time are
deferred; all others are ready. How often one was given out is known for those that came back; all others have not
been, or are with a consumer for the first time: that is the dispatcher's to know. What a prepared transaction consumes
is not pending but reserved, until the transaction is over.

Whoever gives messages out walks through `candidates`, or asks `next_ready` for each of `levels`: highest priority
first, then by position. Both look at the backlog as it is at each step, so it may change in between.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from alphorn.model.messages import PRIORITY_DEFAULT
from alphorn.model.ranges import Range, RangeSet


class Piece(NamedTuple):
    """Positions that are alike in what is known of them."""

    first: int
    last: int
    deliveries: int  # how often they came back
    priority: int


class Backlog:
    """Positions that are not yet consumed."""

    __slots__ = (
        "_waiting",
        "count",
        "counts",
        "deferred",
        "lapsed",
        "pending",
        "priorities",
        "reserved",
        "reserved_count",
    )

    def __init__(self) -> None:
        self.pending = RangeSet()
        self.count = 0  # of pending messages
        self.deferred: dict[int, int] = {}  # position → due, ms since 1970; below 0: so many ms after the next Tick
        self.counts: dict[int, int] = {}  # position → how often it came back
        self.priorities: dict[int, RangeSet] = {}  # all pending positions of other than the default priority
        self.reserved = RangeSet()  # consumed by transactions that are prepared and not finished
        self.reserved_count = 0  # of those messages
        self.lapsed = RangeSet()  # reserved, or pending and with a consumer: those that would have expired meanwhile
        self._waiting = RangeSet()  # the positions of `deferred`

    @property
    def kept(self) -> RangeSet:
        """All positions whose messages are still needed."""
        if not self.reserved:
            return self.pending
        found = self.pending.copy()
        found.update(self.reserved)
        return found

    @property
    def occupied(self) -> int:
        """Messages that count against a limit: pending ones, and those that may come back."""
        return self.count + self.reserved_count

    def __len__(self) -> int:
        return self.count

    def arrive(self, first: int, last: int) -> None:
        """New messages, after all others."""
        self.pending.add(first, last)
        self.count += last - first + 1

    def prioritise(self, first: int, last: int, priority: int) -> None:
        """These new messages have this priority; what has the default priority needs no word."""
        if priority != PRIORITY_DEFAULT:
            self.priorities.setdefault(priority, RangeSet()).add(first, last)

    def defer(self, first: int, last: int, due_ms: int) -> None:
        """Pending messages are not given out before this time."""
        self._waiting.add(first, last)
        for position in range(first, last + 1):
            self.deferred[position] = due_ms

    def release(self, first: int, last: int, now_ms: int) -> list[Range]:
        """Gives those of these that were deferred and whose time has come; they are ready now."""
        found = RangeSet()
        for start, end in self._waiting.intersection(first, last):
            for position in range(start, end + 1):
                if 0 <= self.deferred[position] <= now_ms:
                    found.add(position, position)
                    del self.deferred[position]
        for start, end in found:
            self._waiting.remove(start, end)
        return list(found)

    def remove(self, first: int, last: int) -> list[Range]:
        """These are done with; gives those that were pending."""
        removed = self.pending.cut(first, last)
        for start, end in removed:
            self.count -= end - start + 1
            if self.counts:
                forget(self.counts, start, end)
            if self.lapsed:
                self.lapsed.remove(start, end)
            if self.deferred:
                forget(self.deferred, start, end)
                self._waiting.remove(start, end)
            if self.priorities:
                for priority in list(self.priorities):
                    self.priorities[priority].remove(start, end)
                    if not self.priorities[priority]:
                        del self.priorities[priority]
        return removed

    def count_deliveries(self, first: int, last: int, deliveries: int) -> None:
        """These new messages came back so often before they came here."""
        if deliveries:
            self.counts.update(dict.fromkeys(range(first, last + 1), deliveries))

    def give_back(self, first: int, last: int, *, is_counted: bool = True) -> list[Range]:
        """These were given out and came back; gives those that are still pending, each counted once more."""
        returned = self.pending.intersection(first, last)
        for start, end in returned if is_counted else ():
            for position in range(start, end + 1):
                self.counts[position] = self.counts.get(position, 0) + 1
        return returned

    def reserve(self, first: int, last: int) -> list[Piece]:
        """Pending messages are consumed, unless the transaction is rolled back; gives what `unreserve` needs then."""
        parts = self.pending.intersection(first, last)
        pieces = [piece for part in parts for piece in self.pieces(*part)]
        lapsed = self.lapsed.intersection(first, last)
        self.remove(first, last)
        self.lapsed.update(RangeSet(lapsed))
        for first, last in parts:
            self.reserved.add(first, last)
            self.reserved_count += last - first + 1
        return pieces

    def unreserve(self, piece: Piece) -> list[Range]:
        """These are pending again, as they were; gives those whose time was over meanwhile."""
        self.reserved_count -= self.reserved.remove(piece.first, piece.last)
        self.arrive(piece.first, piece.last)
        self.prioritise(piece.first, piece.last, piece.priority)
        self.count_deliveries(piece.first, piece.last, piece.deliveries)
        return self.lapsed.cut(piece.first, piece.last)

    def use_up(self, piece: Piece) -> None:
        """What was reserved is consumed."""
        self.reserved_count -= self.reserved.remove(piece.first, piece.last)
        self.lapsed.remove(piece.first, piece.last)

    def lapse(self, first: int, last: int) -> None:
        """The time of these is over; those that are reserved hear of it when they come back."""
        for part in self.reserved.intersection(first, last):
            self.lapsed.add(*part)

    def spare(self, first: int, last: int) -> list[Range]:
        """The time of these is over while a consumer has them, so they die when they come back; gives what was news."""
        pending = RangeSet(self.pending.intersection(first, last))
        fresh = list(pending.difference(self.lapsed))
        for part in fresh:
            self.lapsed.add(*part)
        return fresh

    def ready(self, first: int, last: int) -> list[Range]:
        """Those of these that may be given out now, whatever their priority."""
        pending = self.pending.intersection(first, last)
        if not self._waiting:
            return pending
        ready = RangeSet(pending)
        for start, end in self._waiting.intersection(first, last):
            ready.remove(start, end)
        return list(ready)

    def levels(self) -> list[int]:
        """The priorities that occur, highest first; the default is always among them."""
        return sorted({PRIORITY_DEFAULT, *self.priorities}, reverse=True)

    def next_ready(self, after: int, priority: int = PRIORITY_DEFAULT) -> Range | None:
        """The first ready messages at or after a position, of one priority."""
        if priority != PRIORITY_DEFAULT:
            source, others = self.priorities.get(priority, RangeSet()), [self._waiting]
        else:
            source, others = self.pending, [self._waiting, *self.priorities.values()]
        while (found := source.next_range(after)) is not None:
            first, last = found
            for other in others:
                taken = other.next_range(first)
                if taken is None or taken[0] > last:
                    continue
                if taken[0] <= first:
                    first = taken[1] + 1
                    break
                last = taken[0] - 1
            else:
                return first, last
            after = first
        return None

    def candidates(self, after: int = 0) -> Iterator[Range]:
        """All ready messages from a position on: by priority, highest first, then by position."""
        for priority in self.levels():
            start = after
            while (found := self.next_ready(start, priority)) is not None:
                yield found
                start = found[1] + 1

    def priority_of(self, position: int) -> int:
        """The priority of a pending message."""
        found = [priority for priority, positions in self.priorities.items() if position in positions]
        return found[0] if found else PRIORITY_DEFAULT

    def pieces(self, first: int, last: int) -> Iterator[Piece]:
        """These positions in order, in pieces that are alike in count and priority."""
        if not self.counts and not self.priorities:
            yield Piece(first, last, 0, PRIORITY_DEFAULT)
            return
        borders = {first, last + 1}
        for position in within(self.counts, first, last):
            borders |= {position, position + 1}
        for positions in self.priorities.values():
            for start, end in positions.intersection(first, last):
                borders |= {start, end + 1}
        places = sorted(borders)
        piece: Piece | None = None
        for start, after in pairwise(places):
            known = self.counts.get(start, 0), self.priority_of(start)
            if piece is not None and piece[2:] == known:
                piece = Piece(piece.first, after - 1, *known)
                continue
            if piece is not None:
                yield piece
            piece = Piece(start, after - 1, *known)
        if piece is not None:
            yield piece

    def restore(self) -> None:
        """Works out what follows from the rest, after a checkpoint was read."""
        self.count = len(self.pending)
        self.reserved_count = len(self.reserved)
        self._waiting = RangeSet((position, position) for position in sorted(self.deferred))


def within(notes: dict[int, int] | dict[int, str], first: int, last: int) -> list[int]:
    """The positions of these notes from `first` through `last`; costs by the smaller of both."""
    if last - first < len(notes):
        return [position for position in range(first, last + 1) if position in notes]
    return [position for position in notes if first <= position <= last]


def forget(notes: dict[int, int], first: int, last: int) -> None:
    """Drops the notes on positions from `first` through `last`."""
    for position in within(notes, first, last):
        del notes[position]
