"""What one producer has sent and the cluster has not confirmed yet.

Rules. Counters begin with 1 and have no gaps. A message waits (`waiting`) until the I/O side packs all that waits into
batches, then stands in a batch (`_batches`) until it is confirmed or refused; batches are kept as they were sent, so
that a resend is the same bytes with the same counters and is stored once.

Two sides use an outbox: programs add, the I/O side packs and confirms. They share only what either changes in one step:
`waiting` is appended to on one side and popped from on the other, and each number is written by one side alone.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from alphorn.client.message import message_id
from alphorn.client.packing import BATCH_BYTES_TARGET, BATCH_MESSAGES_TARGET, batch_of
from alphorn.doors.native import encode
from alphorn.model.commands import key_of
from alphorn.model.conversation import Publish, parts_of
from alphorn.model.errors import Error, Unavailable, UnknownOutcome
from alphorn.model.messages import Flag

UNCONFIRMED_BYTES_MAX = 64 << 20
UNCONFIRMED_MESSAGES_MAX = 100_000
REFUSALS_MAX = 10_000
# With so many batches under way the next one waits for a confirmation and grows meanwhile: servers work by batches.
BATCHES_UNDER_WAY_EAGER = 4


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """Messages that wait and are more than one plain body for the producer's own destination."""

    place: int
    flags: int
    count: int  # 0: one message that may share a batch; otherwise a whole batch of so many
    data: bytes


class SentBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch that is not confirmed, as it was sent."""

    counter: int
    count: int
    size: int  # of its messages, as they were counted when they were added
    frame: bytes


class Refusal(msgspec.Struct):
    """Messages that the cluster did not take."""

    first: int
    last: int
    error: Error
    is_told: bool = False  # the program has heard of it


class Outbox:
    """The messages of one producer on their way."""

    __slots__ = (
        "_batches",
        "_bytes_confirmed",
        "_bytes_packed",
        "_last",
        "_left",
        "_refusals",
        "_refusals_forgotten",
        "bytes_added",
        "bytes_max",
        "confirmed",
        "counter",
        "destination",
        "failure",
        "flags",
        "has_parcels",
        "is_open",
        "is_seeking",
        "is_stale",
        "messages_max",
        "number",
        "on_progress",
        "packed",
        "place",
        "session",
        "waiting",
    )

    def __init__(self, *, number: int, session: int, place: int, is_persistent: bool) -> None:
        self.number = number
        self.session = session
        self.place = place
        self.flags = 0 if is_persistent else int(Flag.VOLATILE)
        self.bytes_max = UNCONFIRMED_BYTES_MAX
        self.messages_max = UNCONFIRMED_MESSAGES_MAX
        self.on_progress: Callable[[], None] = lambda: None
        self.destination = ""  # its own, where it has one
        self.is_open = True
        self.is_stale = False  # its destination was deleted: it is to be looked for before more is sent
        self.is_seeking = False  # and that is under way
        self._left: set[int] = set()  # places where its destination was before
        self.failure: Error | None = None
        # Written by programs.
        self.waiting: deque[bytes | Parcel] = deque()
        self.counter = 0  # of the newest message
        self.bytes_added = 0
        self.has_parcels = False
        # Written by the I/O side.
        self.packed = 0  # through this counter messages are in batches
        self.confirmed = 0  # through this counter messages are answered
        self._bytes_packed = 0
        self._bytes_confirmed = 0
        self._batches: deque[SentBatch] = deque()
        self._last: dict[int, int] = {}  # channel → the newest counter that went there
        self._refusals: deque[Refusal] = deque()
        self._refusals_forgotten = 0

    def add_plain(self, data: bytes) -> int:
        """Takes one packed message for the producer's own destination; gives its counter."""
        self.counter = counter = self.counter + 1
        self.bytes_added += len(data)
        self.waiting.append(data)
        return counter

    def add(self, parcel: Parcel) -> int:
        """Takes a message or a batch; gives the counter of the last message."""
        self.has_parcels = True
        self.counter += parcel.count or 1
        self.bytes_added += len(parcel.data)
        self.waiting.append(parcel)
        return self.counter

    @property
    def has_room(self) -> bool:
        """Whether another message may be added now."""
        return (
            self.counter - self.confirmed < self.messages_max
            and self.bytes_added - self._bytes_confirmed < self.bytes_max
        )

    @property
    def wants_packing(self) -> bool:
        """Whether what waits should leave at once, rather than with the next confirmation."""
        waiting = len(self.waiting)
        if self.is_seeking:
            return False
        return waiting > 0 and (
            len(self._batches) < BATCHES_UNDER_WAY_EAGER
            or waiting >= BATCH_MESSAGES_TARGET
            or self.bytes_added - self._bytes_packed >= BATCH_BYTES_TARGET
        )

    @property
    def is_flushed(self) -> bool:
        """Whether everything was answered."""
        return self.confirmed == self.counter

    def pack(self, now_ms: int) -> list[bytes]:
        """Everything that waits, as frames to send."""
        pop = self.waiting.popleft
        items = [pop() for _ in range(len(self.waiting))]
        if self.has_parcels:
            return self._pack_mixed(items, now_ms)
        return self._pack_pieces(items, self.place, self.flags, now_ms)  # type: ignore[arg-type]

    def unconfirmed_frames(self) -> list[bytes]:
        """What must be sent again on a new connection, in order."""
        return [batch.frame for batch in self._batches]

    def on_vanished(self) -> None:
        """The destination was deleted; one without a destination of its own looks for each message's anyway."""
        self.is_stale = bool(self.destination)

    def on_found(self, place: int) -> None:
        """This is where the destination is now; what waits goes there."""
        self.is_stale = self.is_seeking = False
        if place != self.place:
            self._left.add(self.place)
            self.place = place

    def on_confirmed(self, counter: int) -> None:
        """All messages through this one are committed."""
        batches = self._batches
        while batches and batches[0].counter + batches[0].count - 1 <= counter:
            self._bytes_confirmed += batches.popleft().size
        self._move()

    def on_refused(self, counter: int, count: int, error: Error) -> None:
        """These were not taken."""
        last = counter + count - 1
        kept = deque(batch for batch in self._batches if not counter <= batch.counter <= last)
        if len(kept) == len(self._batches):
            return
        self._bytes_confirmed += sum(batch.size for batch in self._batches) - sum(batch.size for batch in kept)
        self._batches = kept
        self._refusals.append(Refusal(counter, last, error))
        if len(self._refusals) > REFUSALS_MAX:
            self._refusals_forgotten = self._refusals.popleft().last
        self._move()

    def on_failed(self, error: Error) -> None:
        """The library gives up."""
        self.failure = error
        self.is_open = False
        self.on_progress()

    def outcome(self, counter: int) -> Error | bool:
        """Of one message: why it was not taken, True when it is committed, False when that is not known yet."""
        if counter <= self._refusals_forgotten:
            return UnknownOutcome(
                f"message {counter} of this producer was sent too long ago to tell; ask receipts sooner"
            )
        for refusal in self._refusals:
            if refusal.first <= counter <= refusal.last:
                return refusal.error
        if counter <= self.confirmed:
            return True
        if self.failure is None:
            return False
        if counter > self.packed:
            return Unavailable(f"the message was not sent: {self.failure}")
        return UnknownOutcome(f"whether the message was committed cannot be found out any more: {self.failure}")

    def take_refusal(self) -> Error | None:
        """The first refusal that the program has not heard of; it hears of all of them now."""
        fresh = [refusal for refusal in self._refusals if not refusal.is_told]
        for refusal in fresh:
            refusal.is_told = True
        return fresh[0].error if fresh else None

    def note_told(self, counter: int) -> None:
        """The program has heard what became of this message."""
        for refusal in self._refusals:
            if refusal.first <= counter <= refusal.last:
                refusal.is_told = True

    def id_of(self, connection: bytes, counter: int) -> str:
        """The id of one of its messages."""
        return message_id(key_of(connection, self.number), counter)

    def describe(self) -> dict[str, int]:
        """The printable state."""
        return {
            "number": self.number,
            "counter": self.counter,
            "packed": self.packed,
            "confirmed": self.confirmed,
            "batches": len(self._batches),
            "refusals": len(self._refusals),
        }

    def _move(self) -> None:
        """Refusals may come before earlier confirmations: what is answered ends where the oldest open batch begins."""
        self.confirmed = self._batches[0].counter - 1 if self._batches else self.packed
        self.on_progress()

    def _pack_mixed(self, items: list[bytes | Parcel], now_ms: int) -> list[bytes]:
        frames: list[bytes] = []
        pieces: list[bytes] = []
        place, flags = self.place, self.flags
        for item in items:
            if type(item) is bytes:
                item = Parcel(self.place, 0, 0, item)
            assert isinstance(item, Parcel)
            if item.place in self._left:
                item = msgspec.structs.replace(item, place=self.place)
            if pieces and (item.count or item.place != place):
                frames += self._pack_pieces(pieces, place, flags, now_ms)
                pieces, flags = [], self.flags
            place = item.place
            if item.count:
                frames.append(
                    self._frame(item.data, item.count, place, self.flags | item.flags, len(item.data), now_ms)
                )
            else:
                pieces.append(item.data)
                flags |= item.flags
        return frames + self._pack_pieces(pieces, place, flags, now_ms)

    def _pack_pieces(self, pieces: list[bytes], place: int, flags: int, now_ms: int) -> list[bytes]:
        """As many batches as the targets for size and count ask for."""
        frames: list[bytes] = []
        start = size = 0
        for end, piece in enumerate(pieces):
            if (size + len(piece) > BATCH_BYTES_TARGET and end > start) or end - start == BATCH_MESSAGES_TARGET:
                frames.append(self._frame(batch_of(pieces[start:end]), end - start, place, flags, size, now_ms))
                start, size = end, 0
            size += len(piece)
        if start < len(pieces):
            rest = pieces[start:]
            frames.append(self._frame(batch_of(rest), len(rest), place, flags, size, now_ms))
        return frames

    def _frame(self, blob: bytes, count: int, place: int, flags: int, size: int, now_ms: int) -> bytes:
        counter = self.packed + 1
        channel, _ = parts_of(place)
        after = self._last.get(channel, 0)
        self._last[channel] = self.packed + count
        if after == self.packed:
            after = -1
        publish = Publish(self.session, self.number, place, counter, count, flags, now_ms, memoryview(blob), after)
        frame = encode(publish)
        self._batches.append(SentBatch(counter, count, size, frame))
        self._bytes_packed += size
        self.packed += count
        return frame
