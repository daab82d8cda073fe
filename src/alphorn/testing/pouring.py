"""A simulated program that streams: it sends bodies in fragments, now and then gives one up, and reads what comes.

It goes step by step beside the rest of its client's program (programs.py), on the same connection. A body's bytes are
its own, so that a body put together from parts of two is recognised.
"""

import random

from alphorn.client.core import Core
from alphorn.client.inbox import AckMode, Inbox
from alphorn.client.lane import Lane
from alphorn.client.message import Message
from alphorn.client.packing import flags_of, pack_message
from alphorn.client.reading import Reading
from alphorn.client.refusals import error_of
from alphorn.message_manager.streams import IDLE_MS_MAX
from alphorn.model.commands import key_of
from alphorn.model.conversation import Refused
from alphorn.model.errors import Error, Unavailable
from alphorn.model.messages import Packed
from alphorn.testing.book import Book
from alphorn.testing.watch import Violation

BEGIN_SHARE = 0.15  # of steps in which a program that sends no body begins one
GIVE_UP_SHARE = 0.03
PATIENCE_SHARE = 0.9  # of steps in which a program that reads a body does nothing else with that consumer
FRAGMENTS_MAX = 8
FRAGMENT_BYTES_MAX = 60


class _Read:
    """A body that is being read."""

    __slots__ = ("data", "inbox", "position", "reading", "source", "token")

    def __init__(self, reading: Reading, token: int, inbox: Inbox, source: str, position: int) -> None:
        self.reading = reading
        self.token = token
        self.inbox = inbox
        self.source = source
        self.position = position
        self.data = bytearray()


class Pouring:
    """What one client streams, in one run."""

    __slots__ = (
        "_awaited",
        "_body",
        "_book",
        "_core",
        "_destination",
        "_is_over",
        "_lane",
        "_name",
        "_reads",
        "_rest",
        "_stream",
    )

    def __init__(self, name: str, core: Core, book: Book, stream: random.Random) -> None:
        self._name = name
        self._core = core
        self._book = book
        self._stream = stream
        self._lane: Lane | None = None
        self._destination = ""  # of the body on its way
        self._body: list[bytes] = []
        self._rest: list[bytes] = []  # what is still to be sent of it
        self._awaited: list[int] = []  # counters of messages that are not confirmed
        self._is_over = False  # a body was rightly given up: it streams no more
        self._reads: list[_Read] = []

    # --- sending ---

    def step(self, places: dict[str, int], targets: tuple[str, ...], now: float, *, is_calm: bool) -> None:
        """Sends a little more; a calm program begins nothing."""
        if self._is_over:
            return
        if self._destination:
            self._send_more(now, is_calm=is_calm)
        elif not is_calm and self._stream.random() < BEGIN_SHARE:
            found = [destination for destination in targets if destination in places]
            if found:
                self._begin(self._stream.choice(found), places)

    def _begin(self, destination: str, places: dict[str, int]) -> None:
        draw = self._stream
        if self._lane is None:
            self._lane = self._core.open_lane(self._core.open_session(AckMode.AUTO).number)
        self._core.begin_body(self._lane, places[destination])
        self._destination = destination
        count = draw.randint(0, FRAGMENTS_MAX)
        self._body = [draw.randbytes(draw.randint(1, FRAGMENT_BYTES_MAX)) for _ in range(count)]
        self._rest = list(self._body)

    def _send_more(self, now: float, *, is_calm: bool) -> None:
        lane = self._lane
        assert lane is not None
        if not is_calm and self._stream.random() < GIVE_UP_SHARE:
            lane.abandon()
            self._destination = ""
            return
        for _ in range(self._stream.randint(1, 3)):
            if self._rest:
                lane.add(self._rest.pop(0))
        if not self._rest:
            counter = lane.counter + 1
            token = self._book.send(self._destination, key_of(self._core.connection, lane.number), counter, now)
            self._book.bodies[token] = b"".join(self._body)
            message = Packed(None, stream=lane.streamed())
            self._awaited.append(lane.finish(pack_message(message), flags_of(message), int(now * 1000)))
            self._destination = ""

    def look(self) -> None:
        """Notes what is confirmed, and goes on reading."""
        lane = self._lane
        if lane is not None and lane.refusal is not None and not self._is_over:
            self._on_refused(lane.refusal)
        elif lane is not None:
            while self._awaited and self._awaited[0] <= lane.confirmed:
                self._book.confirm(key_of(self._core.connection, lane.number), self._awaited.pop(0))
        for read in list(self._reads):
            self._read_more(read)

    def hear(self, refused: Refused) -> None:
        """A message may be refused when the next body is on its way already; then the lane says nothing of it."""
        if self._lane is not None and refused.producer == self._lane.number:
            through = refused.counter + refused.count - 1
            left = [counter for counter in self._awaited if not refused.counter <= counter <= through]
            if left != self._awaited:
                self._check(error_of(refused.error, refused.reason))
                self._awaited = left

    def _on_refused(self, refusal: Error) -> None:
        self._check(refusal)
        self._is_over, self._destination, self._awaited = True, "", []

    def _check(self, refusal: Error) -> None:
        """A body that was idle for an hour is given up, and by a wrong clock that hour may pass in a moment."""
        ticks = self._book.ticks
        if not isinstance(refusal, Unavailable) or not ticks or max(ticks) - min(ticks) < IDLE_MS_MAX:
            raise Violation("clients are served", f"{self._name} has a stream refused: {refusal}")

    # --- reading ---

    def read(self, inbox: Inbox, source: str, message: Message) -> int:
        """Begins to read a message's body; gives its token."""
        arrival, counter = message._arrival, message._arrival.counter + message._index
        sent = self._book.by_counter.get((arrival.producer, counter))
        if sent is None or message._stream is None:
            raise Violation("received is what was sent, stored once", f"{message} is a stream that nobody sent")
        place = self._core.places.get(inbox.destination, inbox.consume.place)
        reading = Reading(
            self._core,
            message._stream,
            place=place,
            producer=arrival.producer,
            counter=counter,
            sequence=message.sequence,
        )
        self._reads.append(_Read(reading, sent.token, inbox, source, arrival.position + message._index))
        reading.ask()
        return sent.token

    def is_reading(self, inbox: Inbox) -> bool:
        """Whether the program is busy with a body from here, and has patience."""
        is_busy = any(read.inbox is inbox for read in self._reads)
        return is_busy and self._stream.random() < PATIENCE_SHARE

    def find_unfinished(self) -> str:
        """What is still to be done, in words."""
        if self._destination or self._awaited:
            return f"{self._name} has a stream that is not confirmed"
        return f"{self._name} reads a body" if self._reads else ""

    def _read_more(self, read: _Read) -> None:
        try:
            while read.reading.is_ready and not read.reading.is_over:
                read.data += read.reading.take()
        except Unavailable as error:
            self._reads.remove(read)
            if read.position not in self._book.settled.get(read.source, ()):
                raise Violation(
                    "bodies are whole", f"the body of message {read.token} is gone, which nobody consumed: {error}"
                ) from None
            return
        if read.reading.is_over:
            self._reads.remove(read)
            self._book.read(read.token, bytes(read.data))
