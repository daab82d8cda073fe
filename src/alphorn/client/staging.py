"""Publishes in two steps: batches lie in the log unseen, and become visible together when the writer says so, once.

    stager = Stager(connection, Staging(writer="nightly", batch=7, partition=0, attempt=12345))
    stager.add("topic:results", [packed, …])
    staged = stager.finish()                     # committed, and still unseen
    publish_staged(connection, "nightly", 7, [staged])

Every step may be repeated without harm. What is staged in an attempt that nobody publishes is let go.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from alphorn.client.blocking.connection import Connection
from alphorn.client.choices import check_destination
from alphorn.client.refusals import again
from alphorn.client.requests import Answer
from alphorn.model.commands import CONNECTION_BYTES, key_of
from alphorn.model.conversation import AnyClientFrame, Done, Resolve, parts_of
from alphorn.model.errors import Blocked, Error, Misuse, PeerViolation, Postponed, Unavailable
from alphorn.model.log_conversation import ChannelKnown, Channels, ChannelsAnswer, DropStaged, NoteReader, PublishStaged
from alphorn.model.log_conversation import Stage as StageFrame

IN_FLIGHT_BYTES = 4 << 20
TIMEOUT_S = 60.0
_PAUSE_S_FIRST = 0.01  # before the same is sent again, and twice as long each time
_PAUSE_S_MAX = 0.5
_ORDINAL_BITS = 32
BATCH_MAX = (1 << 30) - 1


class Staging(msgspec.Struct, frozen=True, kw_only=True):
    """What is staged: one attempt at one partition of one batch of one writer."""

    writer: str
    batch: int
    partition: int
    attempt: int  # no two attempts have the same, not even of a program and its next run

    @property
    def producer(self) -> bytes:
        """The producer of these messages: the same for every attempt and every batch."""
        digest = hashlib.blake2b(self.writer.encode(), digest_size=CONNECTION_BYTES).digest()
        return key_of(digest, self.partition)


class Staged(msgspec.Struct, frozen=True):
    """What an attempt has staged: by channel, how many parts and messages; and the place of each destination."""

    partition: int
    attempt: int
    channels: dict[int, tuple[int, int]]
    places: dict[str, int] = {}
    newest: int = 0  # batch of the writer that is published, where that is later than this one


class Share(msgspec.Struct):
    """What one channel publishes of a batch."""

    attempts: list[tuple[int, int, int, int]] = []  # partitions, attempts, parts and messages
    destinations: list[int] = []  # that they are for


class Stager:
    """Stages messages over a connection, a bounded amount at a time."""

    def __init__(self, connection: Connection, staging: Staging, *, timeout_s: float = TIMEOUT_S) -> None:
        if not 0 <= staging.batch <= BATCH_MAX:
            raise Misuse(f"a writer has batches 0 to {BATCH_MAX}, not {staging.batch}; begin with a new writer")
        self._connection = connection
        self._line = connection._line
        self._staging = staging
        self._timeout_s = timeout_s
        self._producer = staging.producer
        self._channels: dict[int, tuple[int, int]] = {}
        self._places: dict[str, int] = {}  # as they were found for this attempt: the next one may find them elsewhere
        self._ordinal = 0  # of the next message
        self._sent = 0  # bytes; this thread's
        self._answered = 0  # bytes; the connection's own thread's
        self._postponed: list[tuple[Callable[[int], StageFrame], int]] = []  # the channel had no room
        self._reason = ""  # why it had none, until it takes something again
        self._newest = 0  # published batch of this writer that was told of
        self._failure: Error | None = None

    def add(self, destination: str, blob: bytes, count: int, flags: int) -> None:
        """Stages one batch (model/messages.py). Returns when there is room for more; raises what went wrong before."""
        place = self._find(destination)
        channel, _ = parts_of(place)
        parts, messages = self._channels.get(channel, (0, 0))
        staging = self._staging
        make: Callable[[int], StageFrame] = partial(
            StageFrame,
            place=place,
            producer=self._producer,
            counter=(staging.batch << _ORDINAL_BITS) + self._ordinal + 1,
            count=count,
            flags=flags,
            timestamp=time.time_ns() // 1_000_000,
            blob=memoryview(blob),
            writer=staging.writer,
            batch=staging.batch,
            partition=staging.partition,
            attempt=staging.attempt,
            part=parts,
        )
        size = len(blob)
        self._sent += size
        self._send(make, size)
        self._channels[channel] = (parts + 1, messages + count)
        self._ordinal += count
        self._wait(IN_FLIGHT_BYTES)

    def finish(self) -> Staged:
        """Waits until everything is committed; raises what went wrong."""
        self._wait(0)
        return Staged(self._staging.partition, self._staging.attempt, self._channels, self._places, self._newest)

    def _find(self, destination: str) -> int:
        """A destination's place; it is created where it does not exist."""
        known = self._places.get(destination)
        if known is not None:
            return known
        name = check_destination(destination)
        answer = _ask(self._connection, partial(Resolve, destination=name), f"find {name}", self._timeout_s)
        place = self._places[destination] = self._connection._line.core.remember_place(name, answer)
        return place

    def _send(self, make: Callable[[int], StageFrame], size: int) -> None:
        _request(self._connection, make, partial(self._on_answer, make, size))

    def _wait(self, bytes_max: int) -> None:
        """Waits until no more than so much is under way; what was postponed meanwhile is sent again, now and then."""
        deadline, pause = time.monotonic() + self._timeout_s, _PAUSE_S_FIRST
        while True:
            left = deadline - time.monotonic()
            is_done = self._line.wait_for(
                lambda: self._failure is not None or self._postponed or self._sent - self._answered <= bytes_max,
                max(0.0, left),
            )
            if self._failure is not None:
                raise again(self._failure)
            if not self._postponed:
                break
            if left <= 0:
                break
            self._line.wait_for(lambda: self._failure is not None, min(left, pause))
            pause = min(_PAUSE_S_MAX, 2 * pause)
            self._send_again()
        if self._postponed or (self._reason and not is_done):
            raise Blocked(self._reason)
        if not is_done:
            raise _overdue("take staged messages", self._timeout_s)

    def _send_again(self) -> None:
        with self._line.lock:
            postponed, self._postponed = self._postponed, []
        for make, size in postponed:
            self._send(make, size)

    def _on_answer(self, make: Callable[[int], StageFrame], size: int, answer: Answer | Error) -> None:
        if isinstance(answer, Postponed):
            self._postponed.append((make, size))
            self._reason = str(answer)
            return
        self._answered += size
        if isinstance(answer, Error):
            self._failure = self._failure or answer
            return
        self._reason = ""
        if isinstance(answer, Done):
            self._newest = max(self._newest, answer.number)


def publish_staged(
    connection: Connection, writer: str, batch: int, staged: Sequence[Staged], *, timeout_s: float = TIMEOUT_S
) -> None:
    """Makes a batch visible: on each channel all at once, and on every one only the first time."""
    for channel, share in shares_of(batch, staged).items():
        make = partial(
            PublishStaged,
            channel=channel,
            writer=writer,
            batch=batch,
            attempts=share.attempts,
            destinations=share.destinations,
        )
        _ask(connection, make, "publish what is staged", timeout_s)


def shares_of(batch: int, staged: Sequence[Staged]) -> dict[int, Share]:
    """What is to be published on each channel, in their order.

    Raises `Unavailable` where a destination was found on two channels: its part of a batch is published by one command,
    or one of two might fail and could not be told from none.
    """
    homes: dict[str, int] = {}
    numbers: dict[int, set[int]] = {}
    found: dict[int, Share] = {}
    for one in sorted(staged, key=lambda one: one.partition):
        for destination, place in one.places.items():
            channel, number = parts_of(place)
            if homes.setdefault(destination, channel) != channel:
                raise Unavailable(
                    f"{destination} was moved to another channel while batch {batch} was staged; run the batch again"
                )
            numbers.setdefault(channel, set()).add(number)
        for channel, (parts, messages) in one.channels.items():
            found.setdefault(channel, Share()).attempts.append((one.partition, one.attempt, parts, messages))
    for channel, share in found.items():
        share.destinations = sorted(numbers[channel])
    return dict(sorted(found.items()))


def drop_staged(
    connection: Connection, writer: str, batch: int, channels: Iterable[int], *, timeout_s: float = TIMEOUT_S
) -> None:
    """Lets go of what was staged for a batch that will not be published."""
    for channel in sorted(channels):
        make = partial(DropStaged, channel=channel, writer=writer, batch=batch)
        _ask(connection, make, "let go of what is staged", timeout_s)


def ask_channels(connection: Connection, *, timeout_s: float = TIMEOUT_S) -> list[ChannelKnown]:
    """The channels of the cluster, and who serves them."""
    answer = _ask(connection, Channels, "name its channels", timeout_s)
    if not isinstance(answer, ChannelsAnswer):
        raise PeerViolation("the Client Manager answered the question for its channels with something else")
    return answer.channels


def note_reader(connection: Connection, channel: int, name: str, destinations: Sequence[int], sequence: int) -> None:
    """Says how far a named reader has come on a channel, for `alphorn status`. Waits for nothing."""
    make = partial(NoteReader, channel=channel, name=name, destinations=list(destinations), sequence=sequence)
    _request(connection, make, lambda answer: None)


def _request(
    connection: Connection, make: Callable[[int], AnyClientFrame], on_answer: Callable[[Answer | Error], None]
) -> None:
    line = connection._line
    line.check()
    with line.lock:
        line.core.request(make, on_answer)
        line.wake()


def _ask(connection: Connection, make: Callable[[int], AnyClientFrame], what: str, timeout_s: float) -> Answer:
    """Asks and waits, not longer than so; raises the error that is the answer."""
    answers: list[Answer | Error] = []
    _request(connection, make, answers.append)
    if not connection._line.wait_for(lambda: answers, timeout_s):
        raise _overdue(what, timeout_s)
    answer = answers[0]
    if isinstance(answer, Error):
        raise again(answer)
    return answer


def _overdue(what: str, timeout_s: float) -> Unavailable:
    return Unavailable(f"the cluster did not {what} within {timeout_s:g} s; check that a primary serves, then repeat")
