"""What one producer has sent and the cluster has not confirmed yet.

Rules. Counters begin with 1 and have no gaps. A message waits (`waiting`) until the I/O side packs all that waits into
batches, then stands in a batch (`_batches`) until it is confirmed or refused; batches are kept as they were sent, so
that a resend is the same bytes with the same counters and is stored once.

What is under way is bounded (`WINDOW_BYTES`). Batches that were postponed wait in `_postponed` and are sent again
before anything new, in order: about as many messages as had room last time, then twice as many with each batch that is
confirmed (`_pace`). While its destination or its session is `blocked`, nothing is sent.

Two sides use an outbox: programs add, the I/O side packs and confirms. They share only what either changes in one step:
`waiting` is appended to on one side and popped from on the other, and each number is written by one side alone.
"""

from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from alphorn.client.message import message_id
from alphorn.client.packing import BATCH_BYTES_TARGET, BATCH_MESSAGES_TARGET, batch_of
from alphorn.doors.native import LENGTH_BYTES, decode_client, encode_publish
from alphorn.model.commands import key_of
from alphorn.model.conversation import Publish, parts_of
from alphorn.model.errors import Error, MessageTooLarge, Misuse, Unavailable, UnknownOutcome
from alphorn.model.messages import BATCH_BYTES_MAX, Flag, cut_batch

UNCONFIRMED_BYTES_MAX = 64 << 20
UNCONFIRMED_MESSAGES_MAX = 100_000
TRANSACTION_BYTES_MAX = BATCH_BYTES_MAX  # a transaction is one entry in the log of each channel
REFUSALS_MAX = 10_000
# With so many batches under way the next one waits for a confirmation and grows meanwhile: servers work by batches.
BATCHES_UNDER_WAY_EAGER = 4
WINDOW_BYTES = 6 << 20  # sent and not confirmed: as much as the bus has under way
PACE_MAX = 1 << 30  # messages: no limit


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
    place: int


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
        "_pace",
        "_postponed",
        "_refusals",
        "_refusals_forgotten",
        "blocked",
        "blocked_places",
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
        "is_transacted",
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
        self.is_transacted = False  # what waits leaves with its session's transaction, and not before
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
        self.blocked = ""  # why nothing is sent at the moment
        self.blocked_places: Mapping[int, str] = {}  # of the connection
        self._batches: deque[SentBatch] = deque()
        self._postponed: deque[SentBatch] = deque()  # after those, and to be sent again
        self._pace = PACE_MAX  # messages that may be under way
        self._last: dict[int, int] = {}  # channel → the newest counter that went there
        self._refusals: deque[Refusal] = deque()
        self._refusals_forgotten = 0

    def add_plain(self, data: bytes) -> int:
        """Takes one packed message for the producer's own destination; gives its counter."""
        size = len(data)  # first: after a call a signal's handler may raise, and these three belong together
        self.counter = counter = self.counter + 1
        self.bytes_added += size
        self.waiting.append(data)
        return counter

    def add(self, parcel: Parcel) -> int:
        """Takes a message or a batch; gives the counter of the last message."""
        size = len(parcel.data)  # first, as above
        self.has_parcels = True
        self.counter += parcel.count or 1
        self.bytes_added += size
        self.waiting.append(parcel)
        return self.counter

    @property
    def has_room(self) -> bool:
        """Whether another message may be added now."""
        bytes_max = TRANSACTION_BYTES_MAX if self.is_transacted else self.bytes_max
        return (
            (self.is_transacted or not self.blocked)
            and self.counter - self.confirmed < self.messages_max
            and self.bytes_added - self._bytes_confirmed < bytes_max
        )

    def why_full(self, place: int) -> str:
        """Why a message for this destination has to wait; empty when it may be added now."""
        reason = self.blocked or self.blocked_places.get(place, "")
        if reason and not self.is_transacted:  # whether a transaction can be done is seen when it is committed
            return reason
        if self.has_room:
            return ""
        return f"{self.counter - self.confirmed} messages of this producer are not confirmed yet; retry later"

    @property
    def wants_packing(self) -> bool:
        """Whether what waits should leave at once, rather than with the next confirmation."""
        waiting = len(self.waiting)
        if self.is_transacted or self.blocked or self.is_seeking or not (waiting or self._postponed):
            return False
        if self._postponed:
            return self._pace_left > 0 and self._postponed[0].place not in self.blocked_places
        return min(self._room, self._pace_left) > 0 and (
            len(self._batches) < BATCHES_UNDER_WAY_EAGER
            or waiting >= BATCH_MESSAGES_TARGET
            or self.bytes_added - self._bytes_packed >= BATCH_BYTES_TARGET
        )

    @property
    def is_flushed(self) -> bool:
        """Whether everything was answered."""
        return self.confirmed == self.counter

    def pack(self, now_ms: int) -> list[bytes]:
        """What waits, as frames to send, as far as the window and the pace allow."""
        if self._postponed:
            return self._send_again()
        is_narrow = self._pace < PACE_MAX or self.bytes_added - self._bytes_packed > self._room
        if is_narrow and not self.is_transacted:  # a transaction leaves as one
            items = self._take(self._room, self._pace_left)
        else:
            pop = self.waiting.popleft
            items = [pop() for _ in range(len(self.waiting))]
        if self.has_parcels:
            return self._pack_mixed(items, now_ms)
        return self._pack_pieces(items, self.place, self.flags, now_ms)  # type: ignore[arg-type]

    def unconfirmed_frames(self) -> list[bytes]:
        """What must be sent again on a new connection, in order; a transaction is asked again as a whole."""
        return [] if self.is_transacted else [batch.frame for batch in self._batches]

    def on_transaction(self, error: Error | None) -> None:
        """The transaction with all that was packed is over: done, or rolled back for this reason."""
        first, last = self.confirmed + 1, self.packed
        if error is None:
            self.on_confirmed(last)
        elif first <= last:
            self.on_refused(first, last - first + 1, error)

    def drop_waiting(self, error: Error) -> None:
        """What waits is not sent, for this reason."""
        if self.waiting:
            self.pack(0)
            self.on_transaction(error)

    def on_vanished(self) -> None:
        """The destination was deleted; one without a destination of its own looks for each message's anyway."""
        self.is_stale = bool(self.destination)

    def on_found(self, place: int) -> None:
        """This is where the destination is now; what waits goes there."""
        self.is_stale = self.is_seeking = False
        if place != self.place:
            self._left.add(self.place)
            self.place = place
            self.blocked = self.blocked_places.get(place, "") or self.blocked

    def on_confirmed(self, counter: int) -> None:
        """All messages through this one are committed."""
        batches = self._batches
        while batches and batches[0].counter + batches[0].count - 1 <= counter:
            self._bytes_confirmed += batches.popleft().size
            self._pace = min(2 * self._pace, PACE_MAX)
        self._move()

    def on_postponed(self, counter: int, taken: int) -> None:
        """Messages from this counter on were not taken now: they are sent again, at first as many as were `taken`."""
        batches = self._batches
        while batches and batches[-1].counter >= counter:
            self._postponed.appendleft(batches.pop())
        if batches and batches[-1].counter + batches[-1].count > counter:
            done, left = _split(batches.pop(), counter)
            self._bytes_confirmed += done.size
            self._postponed.appendleft(left)
        self._pace = BATCH_MESSAGES_TARGET if taken < 0 else max(1, taken)
        self._move()

    def on_refused(self, counter: int, count: int, error: Error) -> None:
        """These were not taken."""
        last = counter + count - 1
        kept = deque(batch for batch in self._batches if not counter <= batch.counter <= last)
        if len(kept) == len(self._batches):
            return
        self._pace = min(2 * self._pace, PACE_MAX)
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

    def on_forgotten(self, reason: str) -> None:
        """The cluster does not know its counters any more, so nobody can tell what of the rest was stored.

        It would take nothing that comes after that, so nothing else is sent.
        """
        if self.confirmed < self.packed:
            unknown = UnknownOutcome(f"whether the message was committed cannot be found out any more: {reason}")
            self._refusals.append(Refusal(self.confirmed + 1, self.packed, unknown))
        self._batches.clear()
        self._postponed.clear()
        self._bytes_confirmed = self._bytes_packed
        self._move()
        self.on_failed(Unavailable(reason))

    def outcome(self, counter: int) -> Error | bool:
        """Of one message: why it was not taken, True when it is committed, False when that is not known yet."""
        if counter <= self._refusals_forgotten:
            return UnknownOutcome(
                f"message {counter} of this producer was sent too long ago to tell; ask receipts sooner"
            )
        is_answered = counter <= self.confirmed  # first: the other side notes a refusal before it counts as an answer
        for refusal in tuple(self._refusals):
            if refusal.first <= counter <= refusal.last:
                return refusal.error
        if is_answered:
            return True
        if self.failure is None:
            return False
        if counter > self.packed:
            return Unavailable(f"the message was not sent: {self.failure}")
        return UnknownOutcome(f"whether the message was committed cannot be found out any more: {self.failure}")

    def take_refusal(self) -> Error | None:
        """The first refusal that the program has not heard of; it hears of all of them now."""
        fresh = [refusal for refusal in tuple(self._refusals) if not refusal.is_told]
        for refusal in fresh:
            refusal.is_told = True
        return fresh[0].error if fresh else None

    def check_wait(self, counter: int) -> None:
        """Raises `Misuse` where nothing would come of waiting for this message: its transaction is open."""
        if self.is_transacted and counter > self.packed:
            raise Misuse("this message is part of a transaction that is still open; commit the session first")

    def check_room(self) -> None:
        """Raises `MessageTooLarge` where no waiting makes room: the open transaction is full."""
        if self.is_transacted and not self.has_room:
            raise MessageTooLarge(
                f"a transaction takes {self.messages_max} messages and {TRANSACTION_BYTES_MAX} bytes of a producer; "
                "commit more often"
            )

    def note_told(self, counter: int) -> None:
        """The program has heard what became of this message."""
        for refusal in tuple(self._refusals):
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
            "postponed": len(self._postponed),
            "refusals": len(self._refusals),
        }

    def _move(self) -> None:
        """Refusals may come before earlier confirmations: what is answered ends where the oldest open batch begins."""
        open_batches = self._batches or self._postponed
        self.confirmed = open_batches[0].counter - 1 if open_batches else self.packed
        self.on_progress()

    @property
    def _room(self) -> int:
        """How many bytes more may be under way."""
        return WINDOW_BYTES - (self._bytes_packed - self._bytes_confirmed)

    @property
    def _pace_left(self) -> int:
        """How many messages more may be under way."""
        if self._pace >= PACE_MAX or not self._batches:
            return self._pace
        last = self._batches[-1]
        return self._pace - (last.counter + last.count - self._batches[0].counter)

    def _take(self, size: int, count: int) -> list[bytes | Parcel]:
        """What waits, up to this size and number; at least one."""
        items: list[bytes | Parcel] = []
        while self.waiting and (min(size, count) > 0 or not items):
            item = self.waiting.popleft()
            items.append(item)
            if isinstance(item, Parcel):
                size, count = size - len(item.data), count - (item.count or 1)
            else:
                size, count = size - len(item), count - 1
        return items

    def _send_again(self) -> list[bytes]:
        """The first of what was postponed, as many as may be under way."""
        frames = []
        while self._postponed and (left := self._pace_left) > 0:
            if self._postponed[0].place in self.blocked_places:
                break
            batch = self._postponed.popleft()
            if batch.count > left:
                batch, rest = _split(batch, batch.counter + left)
                self._postponed.appendleft(rest)
            self._batches.append(batch)
            frames.append(batch.frame)
        return frames

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
        frame = encode_publish(publish)
        self._batches.append(SentBatch(counter, count, size, frame, place))
        self._bytes_packed += size
        self.packed += count
        return frame


def _split(batch: SentBatch, counter: int) -> tuple[SentBatch, SentBatch]:
    """A batch as two: the messages before this counter, and those from it on."""
    publish = decode_client(batch.frame[LENGTH_BYTES:])
    assert isinstance(publish, Publish)
    parts = []
    for start, end in ((batch.counter, counter), (counter, batch.counter + batch.count)):
        blob = cut_batch(publish.blob, range(start - batch.counter, end - batch.counter))
        after = publish.after if start == batch.counter else -1
        part = msgspec.structs.replace(publish, counter=start, count=end - start, blob=memoryview(blob), after=after)
        size = batch.size * (end - start) // batch.count
        parts.append(SentBatch(start, end - start, size, encode_publish(part), batch.place))
    first, second = parts
    return first, msgspec.structs.replace(second, size=batch.size - first.size)
