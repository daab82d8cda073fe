"""Messages into bytes: what a program may send, checked, and packed as model/messages.py says.

A message is packed when it is sent, so a body that the program changes afterwards does not change the message. What
cannot come back as what it was is refused with a `Misuse` that names the type and its place.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from alphorn.model.errors import MessageTooLarge, Misuse
from alphorn.model.messages import BATCH_BYTES_MAX, PRIORITY_DEFAULT, Flag, Packed

MESSAGE_BYTES_MAX = BATCH_BYTES_MAX - 16  # alone in a batch, which begins with its count
BATCH_BYTES_TARGET = 256 << 10
BATCH_MESSAGES_TARGET = 1_000
DEPTH_MAX = 100  # of lists and dicts in each other
SECONDS_LIMIT = 1e10  # no message lives or waits for three centuries

SIMPLE_TYPES = frozenset({str, bytes, int, float, bool, type(None)})
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1

Scratch = list[bytearray]  # memory to pack in again and again; empty while a thread uses it

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode


def pack_body(body: Any) -> bytes:
    """A message that is nothing but a body."""
    try:
        if type(body) not in SIMPLE_TYPES and not _is_sendable(body, DEPTH_MAX):
            _check_value(body, "body")
        data = encode((body,))
    except (OverflowError, UnicodeEncodeError, TypeError) as error:
        raise refusal_of(body, "body", error) from None
    if len(data) > MESSAGE_BYTES_MAX:
        raise too_large(len(data))
    return data


def pack_message(message: Packed) -> bytes:
    """A message with more than a body; fields at the end that have their defaults are left out."""
    pack_body(message.body)  # says what is wrong with the body alone
    fields: list[Any] = list(msgspec.structs.astuple(message))
    for default in _DEFAULTS_FROM_THE_END:
        if fields[-1] != default or len(fields) == 1:
            break
        fields.pop()
    data = encode(fields)
    if len(data) > MESSAGE_BYTES_MAX:
        raise too_large(len(data))
    return data


_DEFAULTS_FROM_THE_END = (None, None, None, None, None, None, 0, 0, PRIORITY_DEFAULT, None)


def pack_bodies(bodies: Sequence[Any], scratch: Scratch | None = None) -> list[tuple[int, bytes]]:
    """Batches of messages that are nothing but bodies: how many, and their bytes."""
    try:
        buffer = scratch.pop() if scratch else bytearray()
    except IndexError:  # another thread was faster
        buffer = bytearray()
    made = _pack_bodies(bodies, buffer)
    if scratch is not None:
        scratch[:] = [buffer]
    return made


def _pack_bodies(bodies: Sequence[Any], buffer: bytearray) -> list[tuple[int, bytes]]:
    if not SIMPLE_TYPES.issuperset(map(type, bodies)):
        for place, body in enumerate(bodies):
            if type(body) not in SIMPLE_TYPES and not _is_sendable(body, DEPTH_MAX):
                _check_value(body, f"bodies[{place}]")
    made: list[tuple[int, bytes]] = []
    start, size = 0, _first_guess(bodies)
    while start < len(bodies):
        part = bodies[start : start + size]
        blob = _encode_bodies(part, start, buffer)
        if len(blob) > 2 * BATCH_BYTES_TARGET and len(part) > 1:
            size = max(1, len(part) * BATCH_BYTES_TARGET // len(blob))
            continue
        if len(blob) > MESSAGE_BYTES_MAX:
            raise too_large(len(blob))
        made.append((len(part), blob))
        start += len(part)
        size = max(1, min(BATCH_MESSAGES_TARGET, len(part) * BATCH_BYTES_TARGET // len(blob)))
    return made


def batch_of(pieces: list[bytes]) -> bytes:
    """The batch of messages that are packed already."""
    count = len(pieces)
    head = bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
    return head + b"".join(pieces)


def flags_of(message: Packed) -> int:
    """What a server must know of a message without looking into it."""
    flags = 0
    if message.properties:
        flags |= Flag.PROPERTIES
    if message.priority != PRIORITY_DEFAULT:
        flags |= Flag.PRIORITY
    if message.expiration:
        flags |= Flag.EXPIRATION
    if message.deliver_at:
        flags |= Flag.DELAY
    if message.key is not None:
        flags |= Flag.KEY
    if not message.type is message.correlation_id is message.reply_to is message.content_type is None:
        flags |= Flag.OTHER
    if message.stream is not None:
        flags |= Flag.STREAM
    return int(flags)


def check_properties(properties: Any) -> dict[str, Any] | None:
    """A copy of the properties; raises `Misuse` naming the one that cannot be sent."""
    if properties is None:
        return None
    if not isinstance(properties, dict):
        raise Misuse(f"properties are a dict, not {_type_name(properties)}")
    for name, value in properties.items():
        if type(name) is not str:
            raise Misuse(f"the property name {name!r} is {_type_name(name)}; names of properties are str")
        if type(value) not in SIMPLE_TYPES:
            raise Misuse(f"the property {name!r} is {_type_name(value)}; use bool, int, float, str, bytes or None")
        if type(value) is int and not _INT_MIN <= value <= _INT_MAX:
            raise Misuse(f"the property {name!r} is an int of more than 64 bits; send it as str")
    try:
        encode(properties)
    except UnicodeEncodeError:
        raise Misuse("a property holds a str that is no valid Unicode text; send it as bytes") from None
    return dict(properties)


def check_priority(priority: Any) -> int:
    """A priority from 0 to 9; raises `Misuse`."""
    if type(priority) is not int or not 0 <= priority <= 9:
        raise Misuse(f"priority is {priority!r}; it is an int from 0 (last) to 9 (first)")
    return priority


def check_seconds(name: str, value: Any) -> float | None:
    """A duration, or None; raises `Misuse`."""
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < SECONDS_LIMIT:
        raise Misuse(f"{name} is {value!r}; it is a number of seconds, 0 or more and less than {SECONDS_LIMIT:.0f}")
    return float(value)


def check_text(name: str, value: Any) -> str | None:
    """A str, or None; raises `Misuse`."""
    if value is not None and type(value) is not str:
        raise Misuse(f"{name} is {_type_name(value)}; it is a str")
    if value is not None:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Misuse(f"{name} is no valid Unicode text; leave out lone surrogates") from None
    return value


def refusal_of(body: Any, place: str, error: BaseException) -> Misuse:
    """Why a value cannot be sent, found by looking at its parts."""
    try:
        _check_value(body, place)
    except Misuse as found:
        return found
    return Misuse(f"{place} cannot be sent: {error}")


def too_large(size: int) -> MessageTooLarge:
    """The error for a message of this many bytes."""
    return MessageTooLarge(
        f"the message takes {size} bytes packed, at most {MESSAGE_BYTES_MAX} are allowed; send it with send_stream"
    )


def _first_guess(bodies: Sequence[Any]) -> int:
    first = bodies[0] if bodies else None
    size = len(first) if isinstance(first, str | bytes) else 16
    return max(1, min(BATCH_MESSAGES_TARGET, BATCH_BYTES_TARGET // (size + 4)))


def _encode_bodies(bodies: Sequence[Any], start: int, buffer: bytearray) -> bytes:
    """A batch. It is made in a buffer that has grown before: growing is dearer than copying what is done out of it."""
    try:
        _encoder.encode_into([(body,) for body in bodies], buffer)
        return bytes(buffer)
    except (OverflowError, UnicodeEncodeError, TypeError) as error:
        for place, body in enumerate(bodies, start):
            try:
                encode(body)
            except (OverflowError, UnicodeEncodeError, TypeError) as inner:
                raise refusal_of(body, f"bodies[{place}]", inner) from None
        raise refusal_of(list(bodies), "bodies", error) from None


def _is_sendable(value: Any, depth: int) -> bool:
    """The quick look: whether nothing in a value needs words. Ints are left to the encoder."""
    kind = type(value)
    if kind is dict:
        return depth > 0 and all(
            type(key) is str and (type(part) in SIMPLE_TYPES or _is_sendable(part, depth - 1))
            for key, part in value.items()
        )
    if kind is list:
        return depth > 0 and all(type(part) in SIMPLE_TYPES or _is_sendable(part, depth - 1) for part in value)
    return kind in SIMPLE_TYPES


def _check_value(value: Any, place: str, depth: int = DEPTH_MAX) -> None:
    """The slow look: raises `Misuse` for the first thing that cannot be sent."""
    kind = type(value)
    if kind in (dict, list) and depth == 0:
        raise Misuse(f"{place[:20]}... is nested deeper than {DEPTH_MAX}, or contains itself; send something flatter")
    if kind is dict:
        for key, part in value.items():
            if type(key) is not str:
                raise Misuse(f"{place} has the key {key!r} of type {_type_name(key)}; keys are str")
            _check_value(key, f"a key of {place}")
            _check_value(part, f"{place}[{key!r}]", depth - 1)
    elif kind is list:
        for index, part in enumerate(value):
            _check_value(part, f"{place}[{index}]", depth - 1)
    elif kind is int:
        if not _INT_MIN <= value <= _INT_MAX:
            raise Misuse(f"{place} is an int of more than 64 bits; send it as str or bytes")
    elif kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Misuse(f"{place} is a str that is no valid Unicode text; send it as bytes") from None
    elif kind not in SIMPLE_TYPES:
        raise Misuse(
            f"{place} is {_type_name(value)}, which would not come back as what it was; "
            "send str, bytes, int, float, bool, None, or a list or dict of these"
        )


def _type_name(value: Any) -> str:
    return type(value).__qualname__
