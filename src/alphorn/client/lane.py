"""The way of large bodies into the cluster: one lane carries one body at a time, in fragments.

A lane is a producer of its own for the cluster, so what it has under way never stands before small messages of the
program's producers. Only `WINDOW_BYTES` of it are under way at a time, and one fragment leaves with each write:
whatever else the connection has to say comes in between. Everything unconfirmed is kept as it was sent; a resend is the
same bytes with the same counters and is stored once. What was postponed waits to be sent again; while its destination
or its session is `blocked` nothing leaves but the word that a body is given up. The owner calls everything under the
connection's lock.

Fragments are kept in buffers that are used again for later ones, with room for a frame's head before the bulk: memory
that is new for each of them costs more than all copies. Whoever can read into a buffer is given one (`buffer`).
"""

from collections import deque
from collections.abc import Callable, Mapping

import msgspec
import xxhash

from alphorn.client.message import message_id
from alphorn.client.packing import batch_of
from alphorn.doors.native import encode, encode_parts
from alphorn.model.commands import key_of
from alphorn.model.conversation import AbandonStream, Publish, SendFragment
from alphorn.model.errors import Error, UnknownOutcome
from alphorn.model.messages import Streamed

# Larger fragments cost less, and every small message that meets one waits longer. With its head one is less than a
# mebibyte: from there on a reader's C library maps memory for each (io/process.py), which makes reading a third slower.
FRAGMENT_BYTES = 960 << 10
WINDOW_BYTES = 4 * FRAGMENT_BYTES  # of one body, sent and not confirmed: more is faster, and small messages wait longer

_HEAD_BYTES = 64  # of a frame before its bulk, at most
_BUFFER_BYTES = _HEAD_BYTES + FRAGMENT_BYTES


class _Sent(msgspec.Struct, frozen=True, gc=False):
    """A frame that is not confirmed."""

    counter: int
    size: int
    frame: bytes | memoryview
    place: int
    buffer: bytearray | None = None  # what the frame is in, where that may be used again


def room(buffer: bytearray) -> memoryview:
    """Where a piece of a body is to be in a lane's buffer."""
    return memoryview(buffer)[_HEAD_BYTES:]


class Lane:
    """Fragments on their way, and the message they become."""

    __slots__ = (
        "_before",
        "_digest",
        "_index",
        "_is_growing",
        "_sent",
        "_size",
        "_spare",
        "_under_way",
        "_waiting",
        "blocked",
        "blocked_places",
        "confirmed",
        "counter",
        "failure",
        "is_open",
        "number",
        "on_progress",
        "place",
        "refusal",
        "session",
    )

    def __init__(self, *, number: int, session: int) -> None:
        self.number = number
        self.session = session
        self.place = 0
        self.counter = 0  # of the newest frame
        self.confirmed = 0  # through this counter everything is answered
        self.failure: Error | None = None  # of the connection
        self.refusal: Error | None  # of the body
        self.blocked = ""  # why nothing is sent at the moment
        self.blocked_places: Mapping[int, str] = {}  # of the connection
        self.is_open = True
        self.on_progress: Callable[[], None] = lambda: None
        self._waiting: deque[_Sent] = deque()
        self._sent: deque[_Sent] = deque()
        self._under_way = 0
        self._spare: list[bytearray] = []
        self.begin(0)
        self._is_growing = False

    # For who sends a body.

    def begin(self, place: int) -> None:
        """Another body, for this destination; what became of the one before is over."""
        self.place = place
        self.refusal = None
        self._index = self._size = 0
        self._before = self.counter  # of the last frame of the body before
        self._digest = xxhash.xxh3_128()
        self._is_growing = True  # more of it is to come

    @property
    def has_room(self) -> bool:
        """Whether the next fragment may be added now."""
        return self._under_way + FRAGMENT_BYTES <= WINDOW_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way

    @property
    def is_stuck(self) -> bool:
        """Whether a message that nobody waits for any more waits for room; the next body would wait behind it."""
        return bool(self._waiting) and not self.wants_packing

    def buffer(self) -> bytearray:
        """For the next piece of the body, which `room` shows the place of; `add_from` gives it back."""
        return self._spare.pop() if self._spare else bytearray(_BUFFER_BYTES)

    def add(self, blob: bytes | bytearray | memoryview) -> None:
        """The next piece of the body; it is copied."""
        buffer = self.buffer() if 2 * len(blob) > FRAGMENT_BYTES else bytearray(_HEAD_BYTES + len(blob))
        room(buffer)[: len(blob)] = blob
        self.add_from(buffer, len(blob))

    def add_from(self, buffer: bytearray, size: int) -> None:
        """The next piece of the body is so much of a buffer's room; nobody else writes to it any more."""
        blob = room(buffer)[:size]
        self._digest.update(blob)
        fragment = SendFragment(self.session, self.number, self.place, self.counter + 1, self._index, blob)
        head, _ = encode_parts(fragment)
        start = _HEAD_BYTES - len(head)
        buffer[start:_HEAD_BYTES] = head
        self._add(memoryview(buffer)[start : _HEAD_BYTES + size], size, buffer)
        self._index += 1
        self._size += size

    def streamed(self) -> Streamed:
        """The body that was added, as its message names it."""
        return Streamed(self._index, self._size, self._digest.digest())

    def finish(self, message: bytes, flags: int, now_ms: int) -> int:
        """The packed message that the body belongs to; gives its counter."""
        blob = memoryview(batch_of([message]))
        publish = Publish(self.session, self.number, self.place, self.counter + 1, 1, flags, now_ms, blob)
        self._add(encode(publish), len(message))
        self._end()
        return self.counter

    def abandon(self) -> None:
        """The body is given up, unless its message has left. Of its frames that may not leave now only counters do."""
        if self.blocked:
            for place, sent in enumerate(self._waiting):
                if sent.counter > self._before:
                    self._under_way -= sent.size
                    self._waiting[place] = _Sent(sent.counter, 0, self._given_up(sent.counter), self.place)
        if self._index:
            self._add(self._given_up(self.counter + 1), 0)
        self._end()

    def id_of(self, connection: bytes, counter: int) -> str:
        """The id of a message."""
        return message_id(key_of(connection, self.number), counter)

    # For the core, as an outbox.

    @property
    def wants_packing(self) -> bool:
        """Whether something waits to be sent, and may be; that a body is given up makes room, and always may."""
        if not self._waiting:
            return False
        first = self._waiting[0]
        return not first.size or not (self.blocked or first.place in self.blocked_places)

    def pack(self, now_ms: int) -> list[bytes | memoryview]:
        """The next frame to send: one at a time, so that others have their turns."""
        sent = self._waiting.popleft()
        self._sent.append(sent)
        return [sent.frame]

    def unconfirmed_frames(self) -> list[bytes | memoryview]:
        """What must be sent again on a new connection, in order.

        Its buffers are not used again: it may be confirmed by what was sent before, and then still wait to leave.
        """
        self._sent = deque(msgspec.structs.replace(sent, buffer=None) for sent in self._sent)
        return [sent.frame for sent in self._sent]

    def on_confirmed(self, counter: int) -> None:
        """Everything through this counter is committed."""
        while self._sent and self._sent[0].counter <= counter:
            sent = self._sent.popleft()
            self._under_way -= sent.size
            if self._is_growing and sent.buffer is not None and len(sent.buffer) == _BUFFER_BYTES:
                self._spare.append(sent.buffer)
        self._move()

    def on_postponed(self, counter: int, taken: int) -> None:
        """Everything from this counter on was not taken now: it is sent again."""
        while self._sent and self._sent[-1].counter >= counter:
            self._waiting.appendleft(self._sent.pop())

    def on_refused(self, counter: int, count: int, error: Error) -> None:
        """This was not taken, and so the body is not; what becomes of one before it, nobody waits for any more."""
        kept = deque(sent for sent in self._sent if not counter <= sent.counter < counter + count)
        self._under_way -= sum(sent.size for sent in self._sent) - sum(sent.size for sent in kept)
        self._sent = kept
        if counter > self._before:
            self.refusal = self.refusal or error
        self._move()

    def on_vanished(self) -> None:
        """Its destination was deleted. The body is refused; who sends the next one looks for the destination first."""

    def on_failed(self, error: Error) -> None:
        """The library gives up."""
        self.failure = error
        self.is_open = False
        self.on_progress()

    def outcome(self, counter: int) -> Error | bool:
        """Of one frame: why it was not taken, True when it is committed, False when that is not known yet."""
        if self.refusal is not None:
            return self.refusal
        if counter <= self.confirmed:
            return True
        if self.failure is None:
            return False
        return UnknownOutcome(f"whether the message was committed cannot be found out any more: {self.failure}")

    def describe(self) -> dict[str, int]:
        """The printable state."""
        return {"number": self.number, "counter": self.counter, "confirmed": self.confirmed, "bytes": self._under_way}

    def _given_up(self, counter: int) -> bytes:
        return encode(AbandonStream(self.session, self.number, self.place, counter))

    def _end(self) -> None:
        self._is_growing = False
        self._spare.clear()

    def _add(self, frame: bytes | memoryview, size: int, buffer: bytearray | None = None) -> None:
        self.counter += 1
        self._under_way += size
        self._waiting.append(_Sent(self.counter, size, frame, self.place, buffer))

    def _move(self) -> None:
        first = self._sent or self._waiting
        self.confirmed = first[0].counter - 1 if first else self.counter
        self.on_progress()
