"""What an audited destination testifies: events on the `_AUDIT` topic, one JSON object each.

Client Managers say what clients gave them and what they gave to clients; every Message Manager says what the log did,
for itself, so that the death of a primary leaves no hole and replicas that disagree are found. An event covers a range
of messages: `first` to `last` are positions, `counter` is the producer's for the first of them. Each message has a
digest (xxh3 of its packed bytes), so that stages can be compared. Testimony is soft: nobody waits for it, and what a
node has not published when it dies is not said.
"""

import enum
import zlib
from collections.abc import Iterable

import msgspec
import xxhash

from alphorn.model.commands import NOBODY, CreateDestination, Publish, key_of
from alphorn.model.destinations import Destination, DestinationKind, Policy

AUDIT_TOPIC = Destination(DestinationKind.TOPIC, "_AUDIT")
AUDIT_POLICY = Policy(retain_s=24 * 3600.0, retain_bytes=256 << 20)  # one day, or less where much is audited
WAITING_MAX = 10_000  # events kept until the topic is known
BATCH_BYTES = 128 << 10  # a batch is closed when it has become this large; the rest follows it
DIGESTS_MAX = 1_000  # of one event; more messages make more events

_SIGN = 1 << 63
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_decode_raw = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class AuditStage(enum.StrEnum):
    """What may happen to a message, and to its audit."""

    BEGUN = "begun"  # a destination is audited from this position on
    ENDED = "ended"  # it is not audited any more
    PRODUCED = "produced"  # a client's batch was taken at the door
    CONFIRMED = "confirmed"  # its client was told that it is committed
    COMMITTED = "committed"  # a replica applied it and gave it positions
    OFFERED = "offered"  # it can be given out: to a queue's consumers, or to a subscription's
    DELIVERED = "delivered"  # it was sent to a consumer
    ACKNOWLEDGED = "acknowledged"  # it was consumed
    RETURNED = "returned"  # it came back from a consumer
    DEAD = "dead"  # it expired, was rejected, or came back too often; `detail` says which
    DROPPED = "dropped"  # it was purged, replaced by a newer value, or its subscription ended


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. Fields that do not belong to its stage are left out."""

    stage: AuditStage
    node: str = ""
    destination: str
    time_ms: int = 0  # of the node's clock
    epoch: int = 0
    sequence: int = 0  # of the log entry that holds the messages
    command: int = 0  # which command of it
    index: int = 0  # of the first message within that command's batch
    subscription: int = 0  # 0 for a queue
    first: int = 0
    last: int = 0
    producer: str = ""  # key in hexadecimal digits
    counter: int = 0
    count: int = 0
    consumer: str = ""  # key in hexadecimal digits
    attempt: int = 0  # the delivery count
    is_unseen: bool = False  # of what came back: no program had seen it
    flags: int = 0  # of the batch: model.messages.Flag
    detail: str = ""
    digests: list[int] = []  # as signed numbers, in order


def digests_of(blob: bytes | memoryview, start: int = 0, count: int | None = None) -> list[int]:
    """The digest of each message of a batch, or of a part of it."""
    messages = _decode_raw(blob)
    stop = len(messages) if count is None else start + count
    return [xxhash.xxh3_64_intdigest(bytes(message)) - _SIGN for message in messages[start:stop]]


def pieces_of(event: AuditEvent) -> Iterable[AuditEvent]:
    """The event, or several where it has more digests than one may have."""
    if len(event.digests) <= DIGESTS_MAX:
        return [event]
    return [_piece(event, start) for start in range(0, len(event.digests), DIGESTS_MAX)]


def _piece(event: AuditEvent, start: int) -> AuditEvent:
    digests = event.digests[start : start + DIGESTS_MAX]
    return msgspec.structs.replace(
        event,
        index=event.index + start,
        first=event.first + start if event.first else 0,
        last=event.first + start + len(digests) - 1 if event.first else 0,
        counter=event.counter + start if event.counter else 0,
        count=len(digests),
        digests=digests,
    )


class AuditTrail:
    """One node's events on their way to one channel's topic. The producer belongs to no connection."""

    __slots__ = ("_counter", "_key", "_node", "_waiting", "dropped")

    def __init__(self, node: str, run: bytes) -> None:
        """`run` names this run of this node, unlike any other in the cluster."""
        self._node = node
        self._key = key_of(NOBODY, zlib.crc32(b"audit" + run))
        self._counter = 0
        self._waiting: list[AuditEvent] = []
        self.dropped = 0  # a rise means that the topic was not there for long; the audit then finds gaps

    def add(self, event: AuditEvent) -> None:
        """Keeps an event until `publish`; the oldest go where there are too many."""
        self._waiting += pieces_of(event)
        excess = len(self._waiting) - WAITING_MAX
        if excess > 0:
            del self._waiting[:excess]
            self.dropped += excess

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything to publish."""
        return bool(self._waiting)

    def publish(self, number: int, now_ms: int) -> Publish:
        """What waits, as a batch for the topic of this number; where that is too much, the rest waits on."""
        bodies: list[str] = []
        size = 0
        while len(bodies) < len(self._waiting) and size < BATCH_BYTES:
            event = msgspec.structs.replace(self._waiting[len(bodies)], node=self._node, time_ms=now_ms)
            bodies.append(_encode_json(event).decode())
            size += len(bodies[-1])
        del self._waiting[: len(bodies)]
        first, self._counter = self._counter + 1, self._counter + len(bodies)
        blob = memoryview(_encode([[body] for body in bodies]))
        # It follows whatever the log has of it: that forgets it after a day, and some of it may have been lost.
        return Publish(number, self._key, first, len(bodies), 0, now_ms, blob, after=0)

    @staticmethod
    def create() -> CreateDestination:
        """What makes the topic exist."""
        return CreateDestination(AUDIT_TOPIC, AUDIT_POLICY)
