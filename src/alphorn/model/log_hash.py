"""The log hash of kept messages: by it two who hold the same messages, byte for byte, know it without comparing them.

    base of a batch    xxh3-64 of what its log entry says of it, seeded with the xxh3-64 of its bytes
    mark of a place    mixed(base + index): 64 bits for each place between messages of the batch
    a message          the mark behind it less the mark before it, modulo 2**64
    many messages      the sum of theirs, modulo 2**64

So a run of a batch's messages costs two marks whatever its length, a hash can be put together from parts in any order,
however they are cut, and it says which messages of a batch are there rather than how many. It tells damage and
mistakes, not malice: whoever wants to can make other messages that have the same hash.
"""

import msgspec
from xxhash import xxh3_64_intdigest

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB

_encode = msgspec.msgpack.Encoder().encode


def mixed(number: int) -> int:
    """A number whose every bit depends on all of this one's (SplitMix64)."""
    mix = (number + STEP) & MASK
    mix = ((mix ^ mix >> 30) * MIX_1) & MASK
    mix = ((mix ^ mix >> 27) * MIX_2) & MASK
    return mix ^ mix >> 31


def base_of(arrival: int, producer: bytes, counter: int, flags: int, timestamp: int, blob: bytes | memoryview) -> int:
    """Where the marks of a batch begin: depends on all that a reader gets of it, and so on every byte of `blob`."""
    return xxh3_64_intdigest(_encode((arrival, producer, counter, flags, timestamp)), xxh3_64_intdigest(blob))


def hash_of(base: int, index: int, count: int) -> int:
    """The hash of so many messages of a batch from the one at `index` on."""
    return (mixed(base + index + count) - mixed(base + index)) & MASK


def hash_text(total: int) -> str:
    """A hash, or the sum of hashes, as people and manifests have it."""
    return f"{total & MASK:016x}"
