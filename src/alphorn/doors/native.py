"""The native door: the conversation of a client and its Client Manager (model/conversation.py) as bytes.

A connection is a stream of frames in both directions, each four bytes of length (big-endian) and one msgpack value: an
array that begins with the number of its kind.
"""

from collections.abc import Callable

import msgspec

from alphorn.model.conversation import AnyClientFrame, AnyServerFrame, ClientFrame, ServerFrame
from alphorn.model.errors import PeerViolation

VERSION = 1
LENGTH_BYTES = 4

_encode = msgspec.msgpack.Encoder().encode
_decode_client: Callable[[bytes | memoryview], AnyClientFrame] = msgspec.msgpack.Decoder(AnyClientFrame).decode
_decode_server: Callable[[bytes | memoryview], AnyServerFrame] = msgspec.msgpack.Decoder(AnyServerFrame).decode


def encode(frame: ClientFrame | ServerFrame) -> bytes:
    """A frame with its length."""
    body = _encode(frame)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_client(body: bytes | memoryview) -> AnyClientFrame:
    """What a client said, without the length; raises `PeerViolation`."""
    try:
        return _decode_client(body)
    except msgspec.MsgspecError as error:
        raise PeerViolation(f"a client's frame cannot be read: {error}") from None


def decode_server(body: bytes | memoryview) -> AnyServerFrame:
    """What a Client Manager said, without the length; raises `PeerViolation`."""
    try:
        return _decode_server(body)
    except msgspec.MsgspecError as error:
        raise PeerViolation(f"a Client Manager's frame cannot be read: {error}") from None
