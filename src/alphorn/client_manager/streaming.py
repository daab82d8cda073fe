"""Bodies in fragments: into the log piece by piece as they come, and out of it piece by piece as they are asked for.

A fragment is ordered and confirmed as a message is, so a client that goes on elsewhere sends again what was not
confirmed, and nothing must survive here. Reading keeps as little: each piece is asked for by itself, by the message it
belongs to. The primary knows where it is in the log, a backup gives the log entry, and the piece is cut out of it.
"""

from collections import OrderedDict, deque

import msgspec

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.fetching import Fetching
from alphorn.client_manager.publishing import Publishing
from alphorn.model import commands, link
from alphorn.model.conversation import AbandonStream, FragmentRead, ReadFragment, SendFragment, parts_of
from alphorn.model.errors import PeerViolation, Unavailable
from alphorn.model.messages import FRAGMENT_BYTES_MAX

READS_AT_ONCE = 16  # pieces that are fetched for one client; the others that it asked for wait their turn
READS_MAX = 10_000  # pieces that one client may wait for
BODIES_KNOWN_MAX = 256  # whose next pieces' places are remembered

Body = tuple[int, bytes, int]  # channel, and the message's producer and counter


class _Read(msgspec.Struct, frozen=True):
    """One piece that a client waits for."""

    connection: Connection
    request: int
    body: Body
    sequence: int
    index: int


class Streaming:
    """Fragments of all clients, both ways."""

    __slots__ = (
        "_asked",
        "_desk",
        "_going",
        "_known",
        "_locating",
        "_publishing",
        "_queued",
        "_reading",
        "_waiting",
        "fetching",
        "read",
    )

    def __init__(self, desk: Desk, publishing: Publishing) -> None:
        self._desk = desk
        self._publishing = publishing
        self.fetching = Fetching(desk, self._on_fetched, self._on_missing)
        self._known: OrderedDict[Body, tuple[int, list[int]]] = OrderedDict()  # places from an index on, as told
        self._asked: dict[tuple[Body, int], list[_Read]] = {}  # who waits to hear where his piece is; `_question`
        self._locating: dict[tuple[int, int], tuple[_Read, int]] = {}  # channel and request; the entry that is missing
        self._waiting: dict[tuple[int, int], list[tuple[_Read, int]]] = {}  # channel and entry → reads, with commands
        self._queued: dict[Connection, deque[_Read]] = {}
        self._reading: dict[Connection, int] = {}
        self._going: set[Connection] = set()
        self.read = 0

    # --- sending ---

    def on_fragment(self, connection: Connection, frame: SendFragment) -> None:
        """One piece of a body, on its way while the client still reads the next."""
        self._publishing.check_sender(connection, frame)
        if frame.index < 0 or not 0 < len(frame.blob) <= FRAGMENT_BYTES_MAX:
            raise PeerViolation(
                f"a fragment with index {frame.index} has {len(frame.blob)} bytes; it has 1 to {FRAGMENT_BYTES_MAX}"
            )
        command = commands.Fragment(
            parts_of(frame.place)[1],
            commands.key_of(connection.id, frame.producer),
            frame.counter,
            frame.index,
            memoryview(bytes(frame.blob)),
        )
        # The primary answers for each: who sends a body that was given up hears it now, and not at its end.
        self._publishing.order(connection, frame, command, is_judged=True)

    def on_abandon(self, connection: Connection, frame: AbandonStream) -> None:
        """A client gives up what it has begun."""
        self._publishing.check_sender(connection, frame)
        command = commands.Abandon(commands.key_of(connection.id, frame.producer), frame.counter)
        self._publishing.order(connection, frame, command)

    # --- reading ---

    def on_read(self, connection: Connection, frame: ReadFragment) -> None:
        """A client wants a piece of a message that it was given."""
        channel = parts_of(frame.place)[0]
        if not 0 <= channel < len(self._desk.channels) or frame.index < 0:
            raise PeerViolation(f"no destination has the place {frame.place}, or no fragment the index {frame.index}")
        if not 0 <= frame.sequence < commands.COUNTER_MAX:
            raise PeerViolation(f"no log entry has the number {frame.sequence}")
        queued = self._queued.setdefault(connection, deque())
        if len(queued) >= READS_MAX:
            raise PeerViolation(f"a client asks for at most {READS_MAX} fragments at a time; wait for some of them")
        body = (channel, frame.producer, frame.counter)
        queued.append(_Read(connection, frame.request, body, frame.sequence, frame.index))
        self.go_on(connection)

    def go_on(self, connection: Connection) -> None:
        """Fetches what a client waits for, as far as it takes what it is sent."""
        if connection in self._going:
            return  # what was given at once has made room for the next, which whoever gave it sees to
        self._going.add(connection)
        queued = self._queued.get(connection)
        while queued and connection.is_writable and self._reading.get(connection, 0) < READS_AT_ONCE:
            self._reading[connection] = self._reading.get(connection, 0) + 1
            self._begin(queued.popleft())
        self._going.discard(connection)
        if not queued:
            self._queued.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        """A client is gone, and waits for nothing more."""
        self._queued.pop(connection, None)
        if self._reading.pop(connection, None) is None:
            return
        for key, (read, checked) in list(self._locating.items()):
            if read.connection is connection and not checked:
                del self._locating[key]
        for question, waiting in list(self._asked.items()):
            staying = [read for read in waiting if read.connection is not connection]
            if not staying:
                del self._asked[question]
            elif len(staying) < len(waiting):
                self._asked[question] = staying
                if staying[0] is not waiting[0]:
                    self._ask(staying[0])

    def _begin(self, read: _Read) -> None:
        first, places = self._known.get(read.body, (0, []))
        if first <= read.index < first + len(places) // 2:
            self._find(read, *places[2 * (read.index - first) :][:2])
        else:
            self._locate(read)

    def _locate(self, read: _Read) -> None:
        """Asks the primary where a piece is, once for all who wait for pieces of that body."""
        waiting = self._asked.setdefault(_question(read), [])
        waiting.append(read)
        if len(waiting) == 1:
            self._ask(read)

    def _ask(self, read: _Read, checked: int = 0) -> None:
        channel, producer, counter = read.body
        request = self._desk.channels[channel].number()
        self._locating[channel, request] = read, checked
        self._desk.ask_primary(channel, link.LocateFragments(request, producer, counter, read.sequence, read.index))

    def ask_again(self, channel: int) -> None:
        """A primary is there, or another one: who waits to hear where his piece is asks that one."""
        for key in [key for key in self._locating if key[0] == channel]:
            del self._locating[key]
        for waiting in list(self._asked.values()):
            if waiting[0].body[0] == channel:
                self._ask(waiting[0])

    def on_located(self, channel: int, frame: link.FragmentsLocated) -> None:
        """The primary says where pieces are; nowhere, when nobody needs the message any more."""
        asked, checked = self._locating.pop((channel, frame.request), (None, 0))
        if asked is None:
            return
        body, first, places = asked.body, asked.index, frame.places
        self._remember(body, first, places)
        if checked:
            if not places:
                self._give_up(asked, checked)
            return
        for read in self._asked.pop(_question(asked), []):
            place = places[2 * (read.index - first) :][:2] if read.index >= first else []
            if place:
                self._find(read, *place)
            elif read is asked:
                self._fail(read)
            else:
                self._locate(read)

    def _remember(self, body: Body, first: int, places: list[int]) -> None:
        self._known.pop(body, None)
        if places:
            self._known[body] = first, places
        if len(self._known) > BODIES_KNOWN_MAX:
            self._known.popitem(last=False)

    def _find(self, read: _Read, sequence: int, command: int) -> None:
        channel = read.body[0]
        entry = self._desk.channels[channel].cache.entry(sequence)
        if entry is not None:
            self._give(read, entry, command)
            return
        self._waiting.setdefault((channel, sequence), []).append((read, command))
        self.fetching.fetch(channel, sequence)

    def _on_fetched(self, channel: int, sequence: int) -> None:
        entry = self._desk.channels[channel].cache.entry(sequence)
        assert entry is not None
        for read, command in self._waiting.pop((channel, sequence), []):
            self._give(read, entry, command)

    def _on_missing(self, channel: int, sequence: int) -> None:
        """Nobody has the entry yet, or any more: the primary knows whether it is worth asking on."""
        for read, _ in self._waiting.get((channel, sequence), []):
            self._ask(read, sequence)

    def _give_up(self, read: _Read, sequence: int) -> None:
        """Nobody needs the message any more, and so nobody has it."""
        key = (read.body[0], sequence)
        waiting = self._waiting.pop(key, [])
        left = [item for item in waiting if item[0] is not read]
        if left:
            self._waiting[key] = left
        else:
            self.fetching.forget(*key)
        if len(left) < len(waiting):
            self._fail(read)

    def _give(self, read: _Read, entry: commands.Entry, place: int) -> None:
        found = entry.commands[place] if place < len(entry.commands) else None
        if not isinstance(found, commands.Fragment):
            self._fail(read)
            return
        self._end(read)
        self.read += 1
        if self._desk.is_there(read.connection):
            self._desk.reply(read.connection.stream, FragmentRead(read.request, found.blob))

    def _fail(self, read: _Read) -> None:
        self._end(read)
        if self._desk.is_there(read.connection):
            reason = (
                f"fragment {read.index} of the message's body is not kept any more; read a message before it is "
                "acknowledged, expires or is purged"
            )
            self._desk.fail(read.connection.stream, read.request, Unavailable(reason))

    def _end(self, read: _Read) -> None:
        left = self._reading.get(read.connection, 1) - 1
        if left:
            self._reading[read.connection] = left
        else:
            self._reading.pop(read.connection, None)
        self.go_on(read.connection)

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"read": self.read, "reading": sum(self._reading.values()), "fetched": self.fetching.fetched}


def _question(read: _Read) -> tuple[Body, int]:
    """What is asked once for all who ask it.

    The number of the message's entry is a client's word, and a primary that has not come so far does not answer: who
    names a wrong one waits alone.
    """
    return read.body, read.sequence
