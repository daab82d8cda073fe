"""Destinations: queues and topics, their names, and what can be decided for each (`Policy`)."""

import difflib
import enum
import math
from typing import Literal

import msgspec

from alphorn.model.errors import InvalidDestination

KINDS = ("queue", "topic")  # how the names of all destinations begin
NAME_BYTES_MAX = 255
COUNT_MAX = (1 << 62) - 1  # of messages or bytes in a policy: what any format can tell
SECONDS_MAX = 1e10  # no policy reaches further than three centuries
TEMPORARY = "temporary."  # how the names of temporary destinations begin
DEAD_MESSAGES = "_DMQ"  # where undeliverable messages go unless a destination names its own queue


def temporary_prefix(connection: bytes) -> str:
    """How the names of a connection's temporary destinations begin; nobody else's do."""
    return f"{TEMPORARY}{connection.hex()}."


def split_channel(destination: "Destination") -> "tuple[Destination, str]":
    """What belongs to the system, of which every channel has its own: `_DMQ@channel-2` is `_DMQ` of that channel.

    Without a channel, and for all others, the channel is empty.
    """
    name, _, channel = destination.name.partition("@")
    if not destination.is_reserved or not channel:
        return destination, ""
    return Destination(destination.kind, name), channel


class DestinationKind(enum.IntEnum):
    """How messages of a destination are given out."""

    QUEUE = 1  # each message to one consumer
    TOPIC = 2  # each message to all subscriptions


class Destination(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A name that producers send to and consumers receive from. `str()` gives the form `queue:orders`."""

    kind: DestinationKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower()}:{self.name}"

    @property
    def is_reserved(self) -> bool:
        """Whether it belongs to the system: users may read from it where that is allowed, and never create it."""
        return self.name.startswith("_")

    @property
    def is_temporary(self) -> bool:
        """Whether it lives with the connection that created it."""
        return self.name.startswith(TEMPORARY)

    def check(self) -> None:
        """Raises `InvalidDestination` for a name that no destination can have."""
        if not self.name:
            raise InvalidDestination("a destination needs a name: write queue:orders or topic:prices")
        if not self.name.isprintable():  # surrogates are not, which no encoding takes
            raise InvalidDestination(f"the destination name {self.name!r} holds a character that cannot be printed")
        size = len(self.name.encode())
        if size > NAME_BYTES_MAX:
            raise InvalidDestination(
                f"the destination name that begins with {self.name[:20]!r} is {size} bytes long; "
                f"at most {NAME_BYTES_MAX} are allowed"
            )


def parse_destination(text: str) -> Destination:
    """Reads `queue:orders` or `topic:prices`; raises `InvalidDestination`."""
    kind, colon, name = text.partition(":")
    if not colon or kind not in KINDS:
        meant = difflib.get_close_matches(kind.lower(), KINDS, 1) if colon else []
        way = f"{meant[0]}:{name}" if meant else f"queue:{text} or topic:{text}"
        raise InvalidDestination(f"{text!r} names no kind of destination; write {way}")
    destination = Destination(DestinationKind[kind.upper()], name)
    destination.check()
    return destination


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What can be decided for one destination. Times are seconds, 0 or None where nothing is decided."""

    retain_s: float = 0.0  # keeps messages this long, consumed or not: readable in the log, and for replay of a topic
    retain_bytes: int = 0  # keeps at most this many bytes so
    delivery_limit: int = 0  # deliveries of one message before it is dead; 0 is no limit
    redelivery_delay: float = 0.0  # how long a returned message waits
    dead_letter: str | None = None  # name of the queue for dead messages; None is _DMQ
    priority: int | None = None  # takes the place of the sender's
    ttl: float = 0.0  # longest time to live
    max_length: int = 0  # messages waiting; 0 is no limit
    overflow: Literal["block", "reject"] = "block"  # what happens to senders at max_length
    last_value: bool = False  # keeps the newest message of each key
    groups: bool = False  # messages with one key go to one consumer at a time, in order
    exclusive: bool = False  # one consumer at a time; the next takes over
    compress: bool = False  # bodies are compressed by the sender's library
    audit: bool = False  # what becomes of each message is said on the topic _AUDIT

    def check(self, destination: Destination) -> None:
        """Raises `InvalidDestination` that names every fault."""
        faults = [
            f"{name} must not be negative"
            for name in ("retain_s", "retain_bytes", "delivery_limit", "redelivery_delay", "ttl", "max_length")
            if getattr(self, name) < 0
        ]
        faults += [
            f"{name} must be a number of seconds up to {SECONDS_MAX:.0f}"
            for name in ("retain_s", "redelivery_delay", "ttl")
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) <= SECONDS_MAX)
        ]
        faults += [
            f"{name} is at most {COUNT_MAX}"
            for name in ("retain_bytes", "delivery_limit", "max_length")
            if getattr(self, name) > COUNT_MAX
        ]
        if self.priority is not None and not 0 <= self.priority <= 9:
            faults.append("priority goes from 0 to 9")
        if len((self.dead_letter or "").encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
            faults.append(f"dead_letter has at most {NAME_BYTES_MAX} bytes")
        if destination.kind is DestinationKind.TOPIC:
            faults += [f"{name} is for queues" for name in ("last_value", "groups", "exclusive") if getattr(self, name)]
        if self.audit and destination.is_reserved:
            faults.append("what belongs to the system is not audited")
        if faults:
            raise InvalidDestination(f"the policy of {destination} does not fit: {'; '.join(faults)}")
