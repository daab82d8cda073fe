"""The native door: the conversation of a client and its Client Manager (model/conversation.py) as bytes.

A connection is a stream of frames in both directions, each four bytes of length (big-endian) and one msgpack value: an
array that begins with the number of its kind.
"""

import struct
from collections.abc import Callable

import msgspec

from alphorn.model.conversation import AnyClientFrame, AnyServerFrame, Delivered, FragmentRead, Publish, SendFragment
from alphorn.model.errors import PeerViolation
from alphorn.model.frame_kinds import ClientFrame, ServerFrame

VERSION = 2
LENGTH_BYTES = 4

_HTTP = int.from_bytes(b"HTTP", "big")  # how every answer of a server for that begins
_EMPTY = memoryview(b"")
_EMPTY_MARK = b"\xc4\x00"  # how msgpack writes no bytes
_BIN32 = b"\xc6"
_JOINED_BYTES_MIN = 8 << 10  # for less the encoder alone is faster
_U32 = struct.Struct(">I").pack

_encode = msgspec.msgpack.Encoder().encode
_decode_client: Callable[[bytes | memoryview], AnyClientFrame] = msgspec.msgpack.Decoder(AnyClientFrame).decode
_decode_server: Callable[[bytes | memoryview], AnyServerFrame] = msgspec.msgpack.Decoder(AnyServerFrame).decode


def oversized(announced: int, bytes_max: int) -> str:
    """Why a stream is ended whose next four bytes announce so much."""
    if announced == _HTTP:
        return "what answers there is HTTP; alphorn+ws:// leads through it, or name the port for clients"
    return f"a frame of {announced} bytes was announced; at most {bytes_max} are allowed"


def encode(frame: ClientFrame | ServerFrame) -> bytes:
    """A frame with its length."""
    body = _encode(frame)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def encode_publish(frame: Publish) -> bytes:
    """A batch with its length; a large one is copied once, into the frame."""
    if len(frame.blob) < _JOINED_BYTES_MIN:
        return encode(frame)
    size, tail = len(frame.blob), _encode(frame.after)
    head = _encode(msgspec.structs.replace(frame, blob=_EMPTY))[: -len(_EMPTY_MARK) - len(tail)] + _BIN32 + _U32(size)
    length = (len(head) + size + len(tail)).to_bytes(LENGTH_BYTES, "big")
    return b"".join((length, head, frame.blob, tail))


def encode_parts(frame: Delivered | FragmentRead | SendFragment) -> tuple[bytes, memoryview]:
    """A frame that ends with bulk, with its length, in two parts: the bulk itself is not copied."""
    blob = frame.blob
    head = _encode(msgspec.structs.replace(frame, blob=_EMPTY))[: -len(_EMPTY_MARK)] + _BIN32 + _U32(len(blob))
    return (len(head) + len(blob)).to_bytes(LENGTH_BYTES, "big") + head, blob


def decode_client(body: bytes | memoryview) -> AnyClientFrame:
    """What a client said, without the length; raises `PeerViolation`."""
    try:
        return _decode_client(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerViolation(f"a client's frame cannot be read: {error}") from None


def decode_server(body: bytes | memoryview) -> AnyServerFrame:
    """What a Client Manager said, without the length; raises `PeerViolation`."""
    try:
        return _decode_server(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerViolation(f"a Client Manager's frame cannot be read: {error}") from None
