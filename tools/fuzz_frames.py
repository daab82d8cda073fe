"""Mutates frames for as long as told: each must parse or be refused as the peer's violation, nothing else.

    python -m tools.fuzz_frames --seconds 60 --seed 1

Every mutation gets a right checksum, so that it reaches the parts behind it. What goes wrong is printed as hex, with
the seed that leads to it.
"""

import argparse
import random
import struct
import sys
import time
from typing import get_args

import xxhash
from msgspec import inspect

from alphorn.bus import frames as f
from alphorn.bus.entries import Assignment, SystemEntry, encode_system
from alphorn.model.errors import PeerViolation

_KINDS = [info for info in inspect.multi_type_info(f._BODY_TYPES.values()) if isinstance(info, inspect.StructType)]
_SYSTEM = [info for info in inspect.multi_type_info(get_args(SystemEntry)) if isinstance(info, inspect.StructType)]
_EDGES = (
    0,
    1,
    127,
    128,
    255,
    256,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x10000,
    (1 << 32) - 1,
    1 << 32,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
_CODES = bytes([0x90, 0x9F, 0xC0, 0xC1, 0xC4, 0xC6, 0xC7, 0xCA, 0xCF, 0xD3, 0xD9, 0xDB, 0xDC, 0xDD, 0xDF, 0x80, 0xE0])
_BATCH = 1000


def draw_frame(stream: random.Random) -> bytes:
    """A valid frame of any type."""
    place = stream.randrange(len(_KINDS) + 2)
    body = _draw_data(stream, is_repair=place == 0) if place < 2 else _draw(stream, _KINDS[place - 2])
    header = {"group": 7, "epoch": _draw_int(stream, 64), "number": _draw_int(stream, 16)}
    return b"".join(f.encode(**header, origin=stream.randbytes(10), body=body))  # type: ignore[arg-type]


def mutate(stream: random.Random, frame: bytes) -> bytes:
    """The same frame with a few bytes wrong, and its checksum right again."""
    data = bytearray(frame)
    for _ in range(stream.randint(1, 3)):
        start = (
            stream.randrange(8, len(data))
            if stream.random() < 0.2
            else stream.randrange(min(40, len(data) - 1), len(data))
        )
        match stream.randrange(5):
            case 0:
                data[start] ^= 1 << stream.randrange(8)
            case 1:
                data[start] = stream.choice(_CODES)
            case 2:
                data[start:start] = stream.randbytes(stream.randint(1, 5))
            case 3 if len(data) > 48:
                del data[start : start + stream.randint(1, 5)]
            case _:
                end = stream.randrange(start, len(data))
                data[start:start] = data[start:end]
    if stream.random() < 0.9:
        data[12:16] = struct.pack(">I", len(data))
    return seal(data)


def seal(data: bytes | bytearray) -> bytes:
    """The same bytes with a right checksum."""
    return struct.pack(">Q", xxhash.xxh3_64_intdigest(bytes(data[8:]))) + bytes(data[8:])


def look_at(datagram: bytes) -> bool:
    """Whether a datagram parses; False where it is refused. Whatever else happens is a mistake and is raised.

    What parses must be fit to be sent on: it has bytes, and they parse to the same.
    """
    try:
        found = f.decode_all(datagram)
    except PeerViolation:
        return False
    for frame in found:
        values = {"group": frame.group, "epoch": frame.epoch, "number": frame.number}
        again = b"".join(f.encode(**values, origin=frame.origin, body=frame.body))
        assert f.decode_all(again) == [frame]
    return True


def _draw(stream: random.Random, kind: inspect.Type) -> object:
    match kind:
        case inspect.IntType(lt=lt):
            return _draw_int(stream, lt.bit_length() - 1 if lt is not None else 64)
        case inspect.BoolType():
            return stream.random() < 0.5
        case inspect.BytesType(min_length=low, max_length=high):
            return stream.randbytes(stream.randint(low or 0, min(high or 64, 64)))
        case inspect.StrType():
            return "".join(chr(stream.choice((97, 233, 0x20AC, 0x1F600))) for _ in range(stream.randrange(8)))
        case inspect.ListType(item_type=item):
            return [_draw(stream, item) for _ in range(stream.randrange(4))]
        case inspect.VarTupleType(item_type=item):
            return tuple(_draw(stream, item) for _ in range(stream.randrange(4)))
        case inspect.TupleType(item_types=items):
            return tuple(_draw(stream, item) for item in items)
        case inspect.StructType(cls=cls, fields=fields):
            values = {field.name: _draw(stream, field.type) for field in fields}
            if cls is Assignment:
                values["system"] = _draw_system(stream)
            return cls(**values)
    raise NotImplementedError(kind)


def _draw_system(stream: random.Random) -> bytes:
    """A command of the group itself as it travels inside an assignment; none in every other, which is a batch."""
    if stream.random() < 0.5:
        return b""
    return encode_system(_draw(stream, stream.choice(_SYSTEM)))  # type: ignore[arg-type]


def _draw_int(stream: random.Random, bits: int) -> int:
    edges = [edge for edge in _EDGES if edge < 1 << bits]
    return stream.choice(edges) if stream.random() < 0.5 else stream.getrandbits(bits)


def _draw_data(stream: random.Random, *, is_repair: bool) -> f.Data:
    payload = stream.randbytes(stream.randrange(40))
    offset, fragments = stream.randrange(100), stream.randint(1, 9)
    size = offset + len(payload) + stream.randrange(100)
    place, batch = stream.randrange(fragments), stream.randbytes(16)
    timestamp, sequence, digest = (_draw_int(stream, 64) for _ in range(3))
    return f.Data(batch, timestamp, sequence, digest, size, offset, place, fragments, payload, is_repair)


def main() -> int:
    """Runs until the time is over or something goes wrong."""
    parser = argparse.ArgumentParser(description="Mutates bus frames and watches how they are decoded.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="where to begin")
    chosen = parser.parse_args()
    stream = random.Random(chosen.seed)
    end, count, parsed = time.monotonic() + chosen.seconds, 0, 0
    while time.monotonic() < end:
        for _ in range(_BATCH):
            datagram = mutate(stream, draw_frame(stream))
            count += 1
            try:
                parsed += look_at(datagram)
            except Exception as error:
                print(f"seed {chosen.seed}, mutation {count}: {type(error).__name__}: {error}\n{datagram.hex()}")
                return 1
    print(f"seed {chosen.seed}: {count} mutations, {parsed} parsed, {count - parsed} refused, nothing else")
    return 0


if __name__ == "__main__":
    sys.exit(main())
