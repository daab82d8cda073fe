"""What a channel knows of transactions: of each session the newest one, and of prepared ones all that finishing needs.

A session has one transaction at a time, so one record per session is enough. A session goes on with the next one when
the last is done everywhere, or decided to be rolled back: then a channel that was out of reach may still have it
prepared. It takes no part in later ones before that is over (`refused`). Records of one channel end with their
connection. Those of several channels stay a while longer, because a late command of a Client Manager that hung must
find what was decided.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import takewhile

import msgspec

from alphorn.message_manager.backlog import Piece
from alphorn.model.commands import Publish, connection_of

FORGOTTEN_MS = 3600 * 1000  # how long a transaction over several channels is known after its session has ended
BRIEF_MS = 300 * 1000  # and one of this channel alone


class Outcome(IntEnum):
    """What became of a transaction here."""

    PREPARED = 0  # nothing yet: it is decided elsewhere
    DONE = 1
    ROLLED_BACK = 2


class Reserved(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one backlog that a prepared transaction consumes."""

    destination: int
    subscription: int
    consumer: bytes  # key of who had them
    pieces: list[Piece]
    keys: list[tuple[int, str]]


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """A batch that a prepared transaction publishes, and where in the log it is."""

    sequence: int
    place: int
    batch: Publish


class Record(msgspec.Struct, kw_only=True):
    """The newest transaction of one session."""

    counter: int
    outcome: Outcome = Outcome.PREPARED
    reason: str = ""  # why it was rolled back
    channels: list[int] = []  # that take part, home first; none where only this one does
    is_open: bool = False  # decided here to be done, and not every channel has finished
    has_come_back: bool = False  # it was prepared here, and what it consumed has come back
    forgotten_ms: int = 0  # when its session ended
    refused: int = 0  # later transactions through this one are rolled back: they came while this one was prepared
    reserved: list[Reserved] = []
    staged: list[Staged] = []

    @property
    def is_unresolved(self) -> bool:
        """Whether somebody has to see to its end."""
        return self.outcome is Outcome.PREPARED or self.is_open


class Transactions:
    """The records of all sessions, by connection and session."""

    __slots__ = ("_brief", "_forgotten", "_staged", "of", "unresolved")

    def __init__(self) -> None:
        self.of: dict[bytes, dict[bytes, Record]] = {}
        self.unresolved: dict[bytes, Record] = {}  # those of them that somebody has to see to
        self._staged: Counter[int] = Counter()  # destination → messages that prepared ones will bring; none where 0
        # Session → when its connection ended, oldest first: of transactions over several channels, and of all others.
        self._forgotten: dict[bytes, int] = {}
        self._brief: dict[bytes, int] = {}

    def find(self, session: bytes) -> Record | None:
        """The newest transaction of a session, if one is known."""
        found = self.of.get(connection_of(session))
        return None if found is None else found.get(session)

    def put(self, session: bytes, record: Record) -> Record:
        """Another transaction of a session, or another state of the same."""
        if not record.forgotten_ms:
            self._forgotten.pop(session, None)
            self._brief.pop(session, None)
        self.of.setdefault(connection_of(session), {})[session] = record
        if record.is_unresolved:
            self.unresolved[session] = record
        else:
            self.unresolved.pop(session, None)
        return record

    def staged_for(self, destination: int) -> int:
        """Messages that prepared transactions will bring to a destination, if they are committed."""
        return self._staged[destination]

    def stage(self, record: Record, staged: Staged) -> None:
        """A transaction that is being prepared publishes this too."""
        record.staged.append(staged)
        self._staged[staged.batch.destination] += staged.batch.count

    def unstage(self, record: Record) -> list[Staged]:
        """A prepared transaction is over; gives what it was to publish."""
        staged, record.staged = record.staged, []
        for each in staged:
            number = each.batch.destination
            self._staged[number] -= each.batch.count
            if not self._staged[number]:
                del self._staged[number]
        return staged

    def involve(self, destination: int) -> bool:
        """Whether a prepared transaction has set something of a destination aside, or something for it."""
        return self.staged_for(destination) > 0 or any(
            reserved.destination == destination for record in self.unresolved.values() for reserved in record.reserved
        )

    def sequences(self) -> set[int]:
        """The log entries that hold what prepared transactions publish."""
        return {staged.sequence for record in self.unresolved.values() for staged in record.staged}

    def connections(self) -> set[bytes]:
        """Connections that are not forgotten and have records here."""
        return {
            connection
            for connection, records in self.of.items()
            if any(not record.forgotten_ms for record in records.values())
        }

    def forget(self, connection: bytes, now_ms: int, is_over: Callable[[bytes], bool] = lambda session: True) -> None:
        """A connection has ended, or some of its sessions.

        What was done stays known: a Client Manager that hung may order it once more.
        """
        records = self.of.get(connection, {})
        for session, record in sorted(records.items()):
            if not record.forgotten_ms and is_over(session):
                record.forgotten_ms = max(1, now_ms)
                (self._forgotten if record.channels else self._brief)[session] = record.forgotten_ms

    def forget_old(self, now_ms: int) -> None:
        """What nobody can ask for any more is dropped. Costs by those that are old enough."""
        old = _through(self._forgotten, now_ms - FORGOTTEN_MS) + _through(self._brief, now_ms - BRIEF_MS)
        for session in [session for session in old if session not in self.unresolved]:
            self._drop(session)

    def next_forgotten(self) -> int | None:
        """When the next record is to be dropped."""
        dues = []
        for times, kept_ms in ((self._forgotten, FORGOTTEN_MS), (self._brief, BRIEF_MS)):
            first = next((time for session, time in times.items() if session not in self.unresolved), None)
            dues += [] if first is None else [first + kept_ms]
        return min(dues, default=None)

    def restore(self) -> None:
        """Works out what follows from the rest, after a checkpoint was read."""
        ended = sorted(
            (known.forgotten_ms, session, bool(known.channels)) for session, known in self if known.forgotten_ms
        )
        self._forgotten = {session: time for time, session, is_wide in ended if is_wide}
        self._brief = {session: time for time, session, is_wide in ended if not is_wide}
        self._staged.clear()
        for record in self.unresolved.values():
            for staged in record.staged:
                self._staged[staged.batch.destination] += staged.batch.count

    def _drop(self, session: bytes) -> None:
        self._forgotten.pop(session, None)
        self._brief.pop(session, None)
        records = self.of[connection_of(session)]
        del records[session]
        if not records:
            del self.of[connection_of(session)]

    def __iter__(self) -> Iterator[tuple[bytes, Record]]:
        """In order of their keys, the same on every replica."""
        for connection in sorted(self.of):
            for session in sorted(self.of[connection]):
                yield session, self.of[connection][session]


def _through(times: dict[bytes, int], time_ms: int) -> list[bytes]:
    """Those that ended by then."""
    return [session for session, _ in takewhile(lambda item: item[1] <= time_ms, times.items())]
