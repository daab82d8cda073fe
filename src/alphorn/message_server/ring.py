"""The ring: what was said to all and what happened, of the last minute, for whoever reads or comes back.

Invariants:

- Each sender's run has one lane, numbered 1, 2, 3 …; the ring has its numbers in order, each at most once. A number
  that is skipped was never here: it is recorded as dropped, missed by whoever reads here, and does not come later.
- Positions are of this run of this server and are never used again. Two servers have the lanes alike, and mix them
  differently; so a reader that changes its server brings the numbers of lanes along, and no positions.
- A reader has a cursor. It gets what it wants in the order of positions, as much as it takes: what it has not confirmed
  is bounded. The other server is a reader too, without a bound: what senders have on their way is bounded.
- An entry is dropped when it is old, or when there are too many, whoever reads or not. A reader that would have wanted
  it is told that it missed it.
- An entry is safe when whoever has to have it does (`settle`). When the other server comes or goes, it is seen anew of
  everything that is kept whether it is safe (`unsettle`). What was dropped before it was safe is lost.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator

from msgspec.structs import replace

from alphorn.message_server.happenings import size_of
from alphorn.model.events import EVERYTHING, Event
from alphorn.model.internal import LANES_MAX, NUMBER_MAX, Dropped, Hold, Notify, RelayAll

RECORDS_MAX = 10_000  # of what was dropped; older ones are forgotten, and counted for nobody
LOST_MAX = 1_000  # numbers of a lane; it has as many under way at most
OVERHEAD_BYTES = 200  # of an entry without a body

Lanes = dict[bytes, int]


class Entry:
    """What one sender said to all, or reported."""

    __slots__ = ("at", "body", "event", "frame", "is_given", "number", "position", "run", "sender", "size", "source")

    def __init__(self, sender: str, run: bytes, number: int, body: bytes, event: Event | None) -> None:
        self.sender = sender
        self.run = run
        self.number = number
        self.body = body
        self.event = event
        self.is_given = True  # False: an event that is known, and only counts for its lane
        self.size = OVERHEAD_BYTES + (len(body) if event is None else size_of(event))
        self.position = 0
        self.at = 0.0
        self.source: Cursor | None = None  # the reader that gave it, which does not get it
        self.frame: RelayAll | Notify | None = None  # the same object for all, so that it is encoded once

    @property
    def kind(self) -> str:
        """Of the event; empty for a message."""
        return "" if self.event is None else self.event.kind

    def for_process(self) -> RelayAll | Notify:
        """What a process is told."""
        if self.frame is None:
            if self.event is None:
                self.frame = RelayAll(self.position, self.sender, self.run, self.number, self.body)
            else:
                self.frame = Notify(self.position, self.run, self.number, self.event)
        return self.frame

    def for_peer(self) -> Hold:
        """What the other server is told."""
        return Hold(self.position, self.sender, self.run, self.number, self.body, self.event, self.is_given)


class Cursor:
    """Where a reader is in the ring, and what it was given and has not confirmed."""

    __slots__ = ("_bytes_max", "_unconfirmed", "bytes", "has", "kinds", "missed", "next", "own", "passed")

    def __init__(self, own: bytes, kinds: frozenset[str] | None, has: Lanes, bytes_max: float) -> None:
        self.own = own  # its run: what it said itself it does not get
        self.kinds = kinds  # of events; None for a reader that gets every entry
        self.has = has  # of each lane the last number that it does not need
        self.next = 0  # position that it is to look at
        self.passed: Lanes = {}  # of lanes, what it went by since it was last told
        self.missed = 0  # of that, what it would have wanted
        self._unconfirmed: deque[tuple[int, int]] = deque()  # position, size
        self._bytes_max = bytes_max
        self.bytes = 0

    @property
    def through(self) -> int:
        """It has, or does not need, everything through this position."""
        return self._unconfirmed[0][0] - 1 if self._unconfirmed else self.next - 1

    @property
    def has_room(self) -> bool:
        """Whether it may be given more."""
        return self.bytes < self._bytes_max

    def wants(self, kind: str) -> bool:
        """Whether it gets messages, with an empty kind, or such events."""
        return self.kinds is None or not kind or kind in self.kinds or EVERYTHING in self.kinds

    def confirm(self, position: int) -> None:
        """It has everything through this position."""
        while self._unconfirmed and self._unconfirmed[0][0] <= position:
            self.bytes -= self._unconfirmed.popleft()[1]

    def step(self, entry: Entry) -> bool:
        """Goes by this entry; whether the reader gets it."""
        self.next = entry.position + 1
        if entry.run == self.own or entry.source is self or entry.number <= self.has.get(entry.run, 0):
            return False
        if self.kinds is None or (entry.is_given and self.wants(entry.kind)):
            self._unconfirmed.append((entry.position, entry.size))
            self.bytes += entry.size
            return True
        self.passed[entry.run] = entry.number
        return False

    def lose(self, entry: Entry) -> None:
        """The entry is dropped before this reader got to it."""
        if self.step(entry):
            _, size = self._unconfirmed.pop()
            self.bytes -= size
            self.missed += 1
            self.passed[entry.run] = entry.number

    def count_missed(self, record: Dropped) -> int:
        """How much of what was dropped the reader would have wanted."""
        if record.run == self.own or not record.is_given or not self.wants(record.kind):
            return 0
        if record.is_past and record.run not in self.has:
            return 0
        return max(0, record.last - max(record.first - 1, self.has.get(record.run, 0)))

    def take_passed(self) -> tuple[Lanes, int]:
        """What the reader is to be told that it does not get, and how much of that it missed."""
        passed, missed, self.passed, self.missed = self.passed, self.missed, {}, 0
        return passed, min(missed, NUMBER_MAX)  # who lies about its numbers makes it any number


class _Lane:
    """What is known of one sender's run."""

    __slots__ = ("last", "lost", "unsafe")

    def __init__(self) -> None:
        self.last = 0
        self.unsafe: deque[int] = deque()  # numbers that are not known to be safe
        self.lost: deque[int] = deque(maxlen=LOST_MAX)

    @property
    def safe(self) -> int:
        """Everything through this number is, or is lost."""
        return self.unsafe[0] - 1 if self.unsafe else self.last


class Ring:
    """The last of what is for all."""

    def __init__(self, *, keep_s: float, bytes_max: int, entries_max: int) -> None:
        self._keep_s = keep_s
        self._bytes_max = bytes_max
        self._entries_max = entries_max
        self._entries: deque[Entry] = deque()
        self._begin = self.end = 1  # positions of the first entry, and behind the last one
        self._settled = 0  # position through which everything is safe
        self._lanes: OrderedDict[bytes, _Lane] = OrderedDict()  # most recently used last
        self._records: deque[Dropped] = deque(maxlen=RECORDS_MAX)
        self._cursors: set[Cursor] = set()
        self.moved: set[bytes] = set()  # senders that may have something more that is safe
        self.bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    # --- what comes ---

    def begin_lane(self, run: bytes, first: int) -> None:
        """Its sender goes on from this number: what it said before and was not here is nobody's to give any more."""
        self.skip(Dropped(run, 1, first - 1))
        self.moved.add(run)

    def is_next(self, run: bytes, number: int) -> bool:
        """Whether this is new in its lane and nothing is missing before it, as far as is known."""
        lane = self._lanes.get(run)
        return lane is None or number == lane.last + 1

    def has(self, run: bytes, number: int) -> bool:
        """Whether this was here. Its sender does not know yet that it is safe."""
        lane = self._lanes.get(run)
        if lane is None or number > lane.last:
            return False
        self.moved.add(run)
        return True

    def append(self, entry: Entry, now: float) -> None:
        """One more. Numbers before it that were never here are skipped."""
        self.skip(Dropped(entry.run, 1, entry.number - 1))
        lane = self._lane(entry.run)
        assert entry.number > lane.last
        lane.last = entry.number
        lane.unsafe.append(entry.number)
        entry.position, entry.at = self.end, now
        self.end += 1
        self._entries.append(entry)
        self.bytes += entry.size
        while self.bytes > self._bytes_max or len(self._entries) > self._entries_max:
            self._drop()

    def skip(self, record: Dropped, *, was_kept: bool = False) -> None:
        """These numbers will not come, as far as they are not here."""
        lane = self._lane(record.run)
        first = max(record.first, lane.last + 1)
        if first > record.last:
            return
        is_past = record.is_past or (not lane.last and not was_kept)
        record = replace(record, first=first, is_past=is_past)
        self._record(record)
        for cursor in self._cursors:
            cursor.missed += cursor.count_missed(record)
        lane.last = record.last

    def expire(self, now: float) -> None:
        """Drops what is old."""
        while self._entries and now - self._entries[0].at > self._keep_s:
            self._drop()

    # --- who reads ---

    def open(self, own: bytes, kinds: frozenset[str] | None, has: Lanes, bytes_max: float) -> Cursor:
        """A reader that has of each lane so much. What it has missed is counted."""
        cursor = Cursor(own, kinds, has, bytes_max)
        cursor.next = self._begin
        if all(lane.last <= has.get(run, 0) or run == own for run, lane in self._lanes.items()):
            cursor.next = self.end
        kept: Lanes = {}
        for record in self.lost(has):
            if record.run != own:
                kept = kept or {entry.run: entry.number for entry in reversed(self._entries)}
                cursor.passed[record.run] = min(record.last, kept.get(record.run, record.last + 1) - 1)
                cursor.missed += cursor.count_missed(record)
        self._cursors.add(cursor)
        return cursor

    def close(self, cursor: Cursor) -> None:
        """The reader is gone."""
        self._cursors.discard(cursor)

    def read(self, cursor: Cursor) -> Iterator[Entry]:
        """What this reader gets now."""
        while cursor.next < self.end and cursor.has_room:
            entry = self._entries[cursor.next - self._begin]
            if cursor.step(entry):
                yield entry
        if cursor.has and cursor.next >= self.end:
            cursor.has = {run: number for run, number in cursor.has.items() if self._last(run) < number}

    def lanes(self) -> list[tuple[bytes, int]]:
        """Of each lane the last number."""
        return [(run, lane.last) for run, lane in self._lanes.items()]

    def lost(self, has: Lanes) -> list[Dropped]:
        """What is not kept any more, and a reader with these numbers does not have."""
        return [record for record in self._records if record.last > has.get(record.run, 0)]

    # --- what is safe ---

    def safe(self, run: bytes) -> int:
        """Of this lane everything through this number is, or is lost."""
        lane = self._lanes.get(run)
        return lane.safe if lane is not None else 0

    def lost_of(self, run: bytes, after: int) -> list[int]:
        """What of this lane, after this number, was dropped before it was safe."""
        lane = self._lanes.get(run)
        return [number for number in lane.lost if number > after] if lane is not None else []

    def settle(self, through: int) -> None:
        """Everything through this position is safe."""
        while self._settled < min(through, self.end - 1):
            self._settled += 1
            entry = self._entries[self._settled - self._begin]
            self._make_safe(entry)

    def unsettle(self) -> None:
        """Others are to have it now: nothing that is kept is known to be safe."""
        self._settled = self._begin - 1
        for lane in self._lanes.values():
            lane.unsafe.clear()
        for entry in self._entries:
            if entry.run in self._lanes:
                self._lanes[entry.run].unsafe.append(entry.number)

    # --- parts ---

    def _last(self, run: bytes) -> int:
        lane = self._lanes.get(run)
        return lane.last if lane is not None else 0

    def _lane(self, run: bytes) -> _Lane:
        lane = self._lanes.get(run)
        if lane is None:
            lane = self._lanes[run] = _Lane()
            if len(self._lanes) > LANES_MAX:
                self._lanes.popitem(last=False)
        else:
            self._lanes.move_to_end(run)
        return lane

    def _record(self, record: Dropped) -> None:
        latest = self._records[-1] if self._records else None
        if latest is not None and latest == replace(record, first=latest.first, last=record.first - 1):
            self._records.pop()
            record = replace(record, first=latest.first)
        self._records.append(record)

    def _drop(self) -> None:
        entry = self._entries.popleft()
        self._begin += 1
        self.bytes -= entry.size
        self.dropped += 1
        if self._settled < entry.position:
            self._settled = entry.position
            self._make_safe(entry)
            self._lane(entry.run).lost.append(entry.number)
        self._record(Dropped(entry.run, entry.number, entry.number, entry.kind, entry.is_given))
        for cursor in self._cursors:
            if cursor.next <= entry.position:
                cursor.lose(entry)

    def _make_safe(self, entry: Entry) -> None:
        lane = self._lanes.get(entry.run)
        if lane is not None and lane.unsafe and lane.unsafe[0] <= entry.number:
            lane.unsafe.popleft()
            self.moved.add(entry.run)
