"""Messages as programs receive them, and the arrivals they came in.

A batch is unpacked straight into `Message` objects; all that its messages share (position, sequence number, sender,
time) stays with the `Arrival` and is computed when it is asked for.
"""

from collections.abc import Callable, Generator
from copy import copy
from typing import Any, Protocol

import msgspec

from alphorn.client.forks import FORKS, forked
from alphorn.client.packing import check_seconds
from alphorn.model.errors import PeerViolation
from alphorn.model.messages import PRIORITY_DEFAULT, Properties, Streamed
from alphorn.model.ranges import RangeSet


class Settled:
    """What acknowledging gives back: asyncio code may await it, and it is done already."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


SETTLED = Settled()


class Keeper(Protocol):
    """Who holds the messages of an arrival until they are acknowledged or returned."""

    destination: str
    opener: "Callable[[Message], Any]"

    def acknowledge(self, arrival: "Arrival", index: int) -> None:
        """The program is done with this message (and, by the session's mode, with others)."""

    def reject(self, arrival: "Arrival", index: int, *, delay_ms: int, is_dead: bool) -> None:
        """The program could not use this message."""


class Arrival:
    """Consecutive messages of one producer that came in one piece. Numbers are those of index 0 of the blob."""

    __slots__ = (
        "blob",
        "counter",
        "delivery_count",
        "end",
        "first_index",
        "forks",
        "generation",
        "history",
        "keeper",
        "position",
        "producer",
        "sequence",
        "start",
        "timestamp",
        "unpacked",
    )

    def __init__(
        self,
        keeper: Keeper,
        *,
        position: int,
        delivery_count: int,
        sequence: int,
        first_index: int,
        producer: bytes,
        counter: int,
        timestamp: int,
        blob: bytes,
        history: bytes,
        start: int,
        end: int,
        generation: int,
    ) -> None:
        self.keeper = keeper
        self.position = position
        self.delivery_count = delivery_count
        self.sequence = sequence
        self.first_index = first_index
        self.producer = producer
        self.counter = counter
        self.timestamp = timestamp
        self.blob = blob
        self.history = history
        self.start = start  # the messages from here
        self.end = end  # to before here are for the program
        self.generation = generation
        self.forks = FORKS.number  # its connection belongs to the process that received it
        self.unpacked: list[Message] | None = None  # those messages, where they were unpacked before

    def rest(self, messages: "list[Message]") -> "Arrival":
        """The last of its messages, which are unpacked, as an arrival of their own."""
        part = copy(self)
        part.start, part.unpacked = self.end - len(messages), messages
        return part

    def without(self, positions: RangeSet) -> "list[Arrival]":
        """Its parts that have none of these positions."""
        found = []
        mine = RangeSet([(self.position + self.start, self.position + self.end - 1)])
        for first, last in mine.difference(positions):
            part = copy(self)
            part.start, part.end = first - self.position, last - self.position + 1
            if self.unpacked is not None:
                part.unpacked = self.unpacked[part.start - self.start : part.end - self.start]
            found.append(part)
        return found

    def unpack(self) -> "list[Message]":
        """Its messages; raises `PeerViolation` for bytes that are no batch."""
        if self.unpacked is not None:
            return self.unpacked
        try:
            messages = _decode(self.blob)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PeerViolation(f"messages from {self.keeper.destination} cannot be read: {error}") from None
        self.blob = b""
        index = 0
        for message in messages:
            message._arrival = self
            message._index = index
            index += 1
        if self.start or self.end != index:
            return messages[self.start : self.end]
        return messages


class Message(msgspec.Struct, array_like=True, gc=False, eq=False):
    """One received message.

    `body` is what was sent: `str`, `bytes`, `None` or a JSON-like value; None for a stream, which `open` reads. A
    message stays readable for as long as the program keeps it, whatever becomes of its session.
    """

    body: Any = None
    _properties: Properties | None = None
    priority: int = PRIORITY_DEFAULT
    _expiration_ms: int = 0
    _deliver_at_ms: int = 0
    key: str | None = None
    type: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    content_type: str | None = None
    _stream: Streamed | None = None
    _arrival: Any = None
    _index: int = 0

    def __repr__(self) -> str:
        return f"<Message {self.id} from {self.destination}>"

    @property
    def id(self) -> str:
        """The name that no other message has; the sender's receipt gives the same."""
        return message_id(self._arrival.producer, self._arrival.counter + self._index)

    @property
    def properties(self) -> Properties:
        """What the sender said about the message; empty where it said nothing."""
        if self._properties is None:
            self._properties = {}
        return self._properties

    @property
    def destination(self) -> str:
        """Where it was received from, as `queue:orders`."""
        return str(self._arrival.keeper.destination)

    @property
    def sequence(self) -> int:
        """The number of the log entry that brought it: the one order that everybody sees."""
        return int(self._arrival.sequence)

    @property
    def index(self) -> int:
        """Its place within that log entry's batch."""
        return int(self._arrival.first_index + self._index)

    @property
    def timestamp(self) -> float:
        """When it was sent, in seconds since 1970 by the sender's clock."""
        return float(self._arrival.timestamp / 1000)

    @property
    def expiration(self) -> float | None:
        """When it expires, in seconds since 1970 by the cluster's time; None for never."""
        return self._expiration_ms / 1000 if self._expiration_ms else None

    @property
    def delivery_count(self) -> int:
        """How often it was given out, this time included."""
        return int(self._arrival.delivery_count)

    @property
    def redelivered(self) -> bool:
        """Whether it was given out before."""
        return bool(self._arrival.delivery_count > 1)

    @property
    def history(self) -> dict[str, Any]:
        """Of a dead message: original destination, reason, deliveries. Empty for others."""
        return msgspec.msgpack.decode(self._arrival.history, type=dict[str, Any]) if self._arrival.history else {}

    @property
    def size(self) -> int | None:
        """Bytes of a body that was sent with `send_stream`, which `body` does not hold; None for others."""
        return self._stream.size if self._stream is not None else None

    def open(self) -> Any:
        """A readable for the body, which is fetched while it is read: a binary file, or in asyncio `await read(size)`.

        A body of `bytes` or `str` can be opened too; raises `Misuse` for others. A body that was sent with
        `send_stream` must be read before the message is acknowledged, or goes away in another manner; reading raises
        `Unavailable` after that. Whether all of it came is checked when the last byte is read (`Corruption`).
        """
        return self._arrival.keeper.opener(self)

    def acknowledge(self) -> Settled:
        """Says that it is consumed; in a session with `ack="client"` all that the session has received so far.

        Returns at once. A second time changes nothing. Raises `Misuse` in a forked child, which cannot tell the server.
        """
        arrival = self._arrival
        if FORKS.number != arrival.forks:
            raise forked()
        arrival.keeper.acknowledge(arrival, self._index)
        return SETTLED

    def reject(self, requeue: bool = True, delay: float = 0) -> Settled:
        """Gives it back: to be delivered again, after `delay` seconds, or with `requeue=False` as a dead message.

        With a delay of 0 the destination's policy decides how long it waits. Raises `Misuse` for no number of seconds,
        and in a forked child, which cannot tell the server.
        """
        arrival = self._arrival
        if FORKS.number != arrival.forks:
            raise forked()
        delay_ms = round((check_seconds("delay", delay) or 0) * 1000) or -1
        arrival.keeper.reject(arrival, self._index, delay_ms=delay_ms, is_dead=not requeue)
        return SETTLED


def message_id(producer: bytes, counter: int) -> str:
    """A message's name, from its producer's key and the producer's counter."""
    return f"ID:{producer.hex()}:{counter}"


_decode: Callable[[bytes], list[Message]] = msgspec.msgpack.Decoder(list[Message]).decode
