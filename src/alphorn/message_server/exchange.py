"""Gives what processes say to whom it concerns.

What one process says to another is passed on, or dropped: its sender keeps it until the receiver has confirmed it, and
says it again. What is for all goes into the ring (ring.py). It is safe, and its sender told so, as soon as the other
server has it; where there is no other, as soon as every process with a connection here has it.
"""

from collections import deque
from collections.abc import Callable
from operator import attrgetter

from alphorn.message_server.happenings import Happenings
from alphorn.message_server.machine import Output, Tell, TellPeer
from alphorn.message_server.ring import Cursor, Entry, Ring
from alphorn.message_server.roster import Process, Roster
from alphorn.message_server.settings import Settings
from alphorn.model import internal
from alphorn.model.errors import PeerViolation
from alphorn.model.events import Event

NEVER = float("inf")
_NOTHING: deque[internal.Dropped] = deque(maxlen=0)


class Exchange:
    """What is said through this server. Small answers of one turn are put together at its end."""

    def __init__(self, roster: Roster, settings: Settings, say: Callable[[Output], None]) -> None:
        self._roster = roster
        self._settings = settings
        self._say = say
        limits = settings.limits
        self.ring = Ring(keep_s=settings.timing.keep_s, bytes_max=limits.ring_bytes, entries_max=limits.ring_entries)
        self.recent = Happenings(limits.events)
        self._readers: dict[bytes, Process] = {}  # whose home is here
        self._served: set[bytes] = set()  # of them, who may get more in this turn
        self._is_moved = False  # something may have become safe
        self._peer: Cursor | None = None  # the other server, once it has said what it has
        self._held = 0  # position of its ring that it is to be told that this server has
        self._number = 0  # of this server's own lane
        self._confirmed: dict[bytes, dict[bytes, int]] = {}  # sender → receiver → through
        self.relayed = self.dropped = 0

    @property
    def readers(self) -> int:
        """So many processes have their home here."""
        return len(self._readers)

    # --- from one process to another ---

    def say(self, process: Process, frame: internal.Say) -> None:
        """A message for one process."""
        row, target = process.row, self._roster.of_run(frame.to)
        if target is not None and target.connection is None and target.is_at_peer:
            self._say(TellPeer(internal.Carry(frame.to, row.name, row.run, frame.base, frame.number, frame.body)))
        else:
            self._relay(target, internal.Relay(row.name, row.run, frame.base, frame.number, frame.body))

    def carry(self, frame: internal.Carry) -> None:
        """A message that came to the other server."""
        relay = internal.Relay(frame.sender, frame.run, frame.base, frame.number, frame.body)
        self._relay(self._roster.of_run(frame.to), relay)

    def _relay(self, target: Process | None, relay: internal.Relay) -> None:
        if target is None or target.connection is None:
            self.dropped += 1  # its sender hears when the receiver is reached again
        else:
            self.relayed += 1
            self._say(Tell(target.connection, relay))

    def confirm(self, receiver: bytes, sender: bytes, through: int) -> None:
        """The receiver has what this sender said to it alone. Of several in one turn the last is told."""
        self._confirmed.setdefault(sender, {})[receiver] = through

    def carry_back(self, frame: internal.CarryBack) -> None:
        """Confirmations that came to the other server. What cannot be told is not sent back there."""
        for sender, receiver, through in frame.items:
            process = self._roster.of_run(sender)
            if process is not None and process.connection is not None:
                self.confirm(receiver, sender, through)

    # --- to all ---

    def come_home(self, process: Process, frame: internal.Home) -> None:
        """This server is the home of a process: it speaks here, and reads the ring from where it was."""
        self.leave_home(process)
        self.ring.begin_lane(process.run, frame.first)
        kinds, limit = frozenset(process.row.wants), self._settings.limits.reader_bytes
        process.cursor = self.ring.open(process.run, kinds, dict(frame.lanes), limit)
        process.taken = process.held = frame.first - 1
        self._readers[process.run] = process
        self._served.add(process.run)
        self._is_moved = True

    def leave_home(self, process: Process) -> None:
        """It is not any more."""
        if process.cursor is not None:
            self.ring.close(process.cursor)
            process.cursor = None
            del self._readers[process.run]
        self._is_moved = True

    def want(self, process: Process) -> None:
        """A process wants other events than before: what was there before, it wanted as before."""
        if process.cursor is not None:
            self._serve(process)
            self.tell_passed(process)
            process.cursor.kinds = frozenset(process.row.wants)

    def say_all(self, process: Process, number: int, body: bytes, event: Event | None, now: float) -> None:
        """The next of a process's lane."""
        if process.cursor is None:
            raise PeerViolation(f"{process.row.name} speaks to all and has not made this server its home")
        if self.ring.has(process.run, number):
            self._is_moved = True
        elif not self.ring.is_next(process.run, number):
            raise PeerViolation(f"{process.row.name} left out what comes before number {number} of its lane")
        else:
            self._append(Entry(process.row.name, process.run, number, body, event), now)

    def happen(self, event: Event, now: float) -> None:
        """Something that this server has noticed by itself."""
        self._number += 1
        self._append(Entry(self._settings.name, self._settings.run, self._number, b"", event), now)

    def took(self, process: Process, position: int) -> None:
        """A process has what it was given through this position."""
        if process.cursor is not None:
            process.cursor.confirm(position)
            self._served.add(process.run)
            self._is_moved = True

    def tell_passed(self, process: Process) -> None:
        """Says how far a process is in lanes of which it gets nothing."""
        if process.cursor is not None and process.connection is not None:
            lanes, missed = process.cursor.take_passed()
            if lanes or missed:
                self._say(Tell(process.connection, internal.Passed(list(lanes.items()), missed)))

    # --- the other server ---

    def meet(self, lanes: internal.Lanes) -> None:
        """The other server has so much of each lane: it is given the rest, and then whatever comes."""
        self.part()
        has = dict(lanes)
        lost: dict[bytes, deque[internal.Dropped]] = {}
        for record in sorted(self.ring.lost(has), key=attrgetter("first")):
            lost.setdefault(record.run, deque()).append(record)
        self._peer = self.ring.open(b"", None, has, NEVER)
        for entry in self.ring.read(self._peer):
            self._tell_lost(lost.get(entry.run, _NOTHING), entry.number)
            self._say(TellPeer(entry.for_peer()))
        for records in lost.values():
            self._tell_lost(records, NEVER)

    def _tell_lost(self, records: deque[internal.Dropped], before: float) -> None:
        """What is not kept of a lane takes its place in the order of the lane: nothing comes behind it."""
        found: list[internal.Dropped] = []
        while records and records[0].first < before and len(found) < internal.ITEMS_MAX:
            found.append(records.popleft())
        if found:
            self._say(TellPeer(internal.Lost(found)))

    def part(self) -> None:
        """The other server is gone, or comes anew, perhaps with nothing of what it had."""
        if self._peer is not None:
            self.ring.close(self._peer)
            self._peer = None
        self._held = 0
        self.ring.unsettle()
        self._is_moved = True

    def hold(self, frame: internal.Hold, now: float) -> None:
        """What somebody said to the other server; it may have come here by now on another way."""
        self._held = frame.position
        if self.ring.has(frame.run, frame.number):
            self._is_moved = True
            return
        entry = Entry(frame.sender, frame.run, frame.number, frame.body, frame.event)
        entry.source, entry.is_given = self._peer, frame.is_given
        self._append(entry, now)

    def held(self, position: int) -> None:
        """The other server has this ring through this position."""
        if self._peer is not None:
            self._peer.confirm(position)
            self._is_moved = True

    # --- the end of a turn ---

    def finish_turn(self) -> None:
        """Gives out what has come, and says what has become safe."""
        if self._is_moved:
            self._serve_peer()
        for run in sorted(self._served):
            if run in self._readers:
                self._serve(self._readers[run])
        self._served.clear()
        if self._held:
            self._say(TellPeer(internal.Held(self._held)))
            self._held = 0
        if self._is_moved:
            self._is_moved = False
            self.ring.settle(self._safe_through())
            self._tell_taken()
        self.tell_confirmed()

    def _append(self, entry: Entry, now: float) -> None:
        if entry.event is not None:
            entry.is_given = self.recent.add(entry.event) and entry.is_given
        self.ring.append(entry, now)
        self._served.update(self._readers)
        self._is_moved = True

    def _serve(self, process: Process) -> None:
        assert process.cursor is not None
        assert process.connection is not None
        if process.cursor.missed:
            self.tell_passed(process)
        for entry in self.ring.read(process.cursor):
            self._say(Tell(process.connection, entry.for_process()))

    def _serve_peer(self) -> None:
        if self._peer is not None:
            for entry in self.ring.read(self._peer):
                self._say(TellPeer(entry.for_peer()))

    def _safe_through(self) -> int:
        if self._peer is not None:
            return self._peer.through
        through = self.ring.end - 1
        for process in self._roster.here:
            through = min(through, process.cursor.through if process.cursor is not None else 0)
        return through

    def _tell_taken(self) -> None:
        for run in sorted(self.ring.moved):
            process, safe = self._readers.get(run), self.ring.safe(run)
            if process is None or process.connection is None:
                continue
            held = safe if self._peer is not None else process.held
            if safe > process.taken or held > process.held:
                lost = self.ring.lost_of(run, process.taken)
                process.taken, process.held = safe, held
                self._say(Tell(process.connection, internal.Taken(safe, held, lost)))
        self.ring.moved.clear()

    def tell_confirmed(self) -> None:
        """Lets senders hear what receivers have."""
        back: list[tuple[bytes, bytes, int]] = []
        for sender, by in self._confirmed.items():
            process = self._roster.of_run(sender)
            if process is None:
                continue
            if process.connection is not None:
                self._say(Tell(process.connection, internal.Confirmed(list(by.items()))))
            elif process.is_at_peer:
                back += [(sender, receiver, through) for receiver, through in by.items()]
        for start in range(0, len(back), internal.ITEMS_MAX):
            self._say(TellPeer(internal.CarryBack(back[start : start + internal.ITEMS_MAX])))
        self._confirmed.clear()
