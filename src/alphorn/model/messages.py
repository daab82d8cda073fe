"""Messages on their way: packed once by the sender's library, passed on untouched, unpacked by the receiver's.

A batch is the msgpack list of its messages. A message without anything but a body is a list of one; the batch's flags
say which other fields occur anywhere in it, so that servers look into a batch only where a feature needs it.
"""

import enum
from collections.abc import Sequence
from typing import Any

import msgspec

from alphorn.model.errors import PeerViolation
from alphorn.model.nesting import DEPTH_MAX, is_too_deep, may_be_too_deep

_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
PRIORITY_DEFAULT = 4
BATCH_MESSAGES_MAX = 65_536
BATCH_BYTES_MAX = 3 << 20  # with what else one log entry holds it must fit a batch of the bus
FRAGMENT_BYTES_MAX = 1 << 20  # of a streamed body
STREAM_DIGEST_BYTES = 16
_ROOM = b"\x91" * 5 * DEPTH_MAX  # lists in each other, each of one
_LITTLE_BYTES = 1024

Properties = dict[str, Any]  # values are bool, int, float, str, bytes or None; senders' libraries see to it


class Flag(enum.IntFlag):
    """What occurs in a batch besides bodies; 0 is a plain batch."""

    PROPERTIES = 1
    PRIORITY = 2  # other than the default
    EXPIRATION = 4
    DELAY = 8
    KEY = 16
    VOLATILE = 32  # need not survive all that a persistent message survives
    OTHER = 64  # type, correlation id, reply-to, content type: for the receiver alone
    STREAM = 128  # the body came before, in fragments; such a batch is one message


class Streamed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A body that was sent in fragments: what receivers check it by."""

    fragments: int
    size: int  # bytes
    digest: bytes  # of all bytes (`STREAM_DIGEST_BYTES`, xxh3)


class Packed(msgspec.Struct, array_like=True, gc=False):
    """One message within a batch. Missing fields at the end have their defaults."""

    body: Any = None
    properties: Properties | None = None
    priority: int = PRIORITY_DEFAULT
    expiration: int = 0  # ms since 1970; 0 never
    deliver_at: int = 0  # ms since 1970; 0 at once
    key: str | None = None
    type: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    content_type: str | None = None
    stream: Streamed | None = None  # where the body came before, in fragments


class PackedHeader(msgspec.Struct, array_like=True, gc=False):
    """The same, for servers: the body is not unpacked."""

    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    properties: Properties | None = None
    priority: int = PRIORITY_DEFAULT
    expiration: int = 0
    deliver_at: int = 0
    key: str | None = None
    type: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    content_type: str | None = None
    stream: Streamed | None = None  # where the body came before, in fragments


_decode_headers = msgspec.msgpack.Decoder(list[PackedHeader]).decode
_decode_value = msgspec.msgpack.Decoder(msgspec.Raw).decode
_decode_raw = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


def headers_of(blob: bytes | memoryview) -> list[PackedHeader]:
    """What servers may know of the messages of a batch; raises `PeerViolation` for bytes that are no batch."""
    try:
        headers = _decode_headers(blob)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerViolation(f"a batch of messages cannot be read: {error}") from None
    for header in headers:
        if is_too_deep(bytes(header.body)):
            raise PeerViolation(f"a message's body is nested more than {DEPTH_MAX} deep; send it as bytes")
        if header.properties and any(type(value) not in _PLAIN for value in header.properties.values()):
            raise PeerViolation("a message's property is no plain value; only the body can hold lists and maps")
    return headers


def check_plain(blob: bytes | memoryview) -> None:
    """Raises `PeerViolation` for a batch without flags that is no msgpack, or nested deeper than servers can read.

    Decoders recurse, and those that read it later stand deeper in the stack. Read inside of so many lists more, what
    passes here leaves them that room. It costs by batches, not by messages; `DEPTH_MAX` always passes.
    """
    try:
        if len(blob) > _LITTLE_BYTES or may_be_too_deep(bytes(blob)):
            _decode_value(_ROOM + blob)
        else:
            _decode_value(blob)
    except RecursionError:
        raise PeerViolation(f"a message is nested far more than {DEPTH_MAX} deep; send its body as bytes") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PeerViolation(f"a batch cannot be read: {error}") from None


def count_of(blob: bytes | memoryview) -> int:
    """How many messages a batch says it has, from its first bytes alone; raises `PeerViolation`."""
    mark = blob[0] if len(blob) else 0
    if 0x90 <= mark <= 0x9F:
        return int(mark & 0x0F)
    if mark == 0xDC and len(blob) >= 3:
        return int.from_bytes(blob[1:3], "big")
    if mark == 0xDD and len(blob) >= 5:
        return int.from_bytes(blob[1:5], "big")
    raise PeerViolation("a batch of messages does not begin with its count")


def split_batch(blob: bytes | memoryview) -> list[msgspec.Raw]:
    """The messages of a batch, as they are packed."""
    return _decode_raw(blob)


def join_batch(messages: Sequence[msgspec.Raw]) -> bytes:
    """A batch of these messages."""
    return _encode(messages)


def cut_batch(blob: bytes | memoryview, places: Sequence[int] | range) -> bytes:
    """A batch of only the messages at these places."""
    messages = split_batch(blob)
    return join_batch([messages[place] for place in places])
