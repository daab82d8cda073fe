"""What a number stands for: an `Assignment`, naming either a batch of the upper layer or a system entry.

System entries are the group's own commands. They are small and travel inside the assignment, so commit servers, which
store no data, know every decision about membership, the in-sync set, checkpoints and collection.
"""

from typing import Annotated

import msgspec
import xxhash

from alphorn.bus.config import Role

U64 = Annotated[int, msgspec.Meta(ge=0)]  # msgpack itself ends at 64 bits, a bound that msgspec cannot state
U32 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
U16 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
Id = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
OriginBytes = Annotated[bytes, msgspec.Meta(min_length=10, max_length=10)]
Text = Annotated[str, msgspec.Meta(max_length=255)]

EPOCH_NUMBER_BITS = 16
SYSTEM_BYTES_MAX = 16_384
SystemBytes = Annotated[bytes, msgspec.Meta(max_length=SYSTEM_BYTES_MAX)]


def make_epoch(counter: int, number: int) -> int:
    """Epochs are ordered by counter, then by the candidate's number; no two candidates share one."""
    return counter << EPOCH_NUMBER_BITS | number


def epoch_counter(epoch: int) -> int:
    """The part of an epoch that grows."""
    return epoch >> EPOCH_NUMBER_BITS


def epoch_number(epoch: int) -> int:
    """The member that claimed the epoch."""
    return epoch & (1 << EPOCH_NUMBER_BITS) - 1


def describe_epoch(epoch: int) -> str:
    """As people read it: counter.member."""
    return f"{epoch_counter(epoch)}.{epoch_number(epoch)}"


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """One number's meaning. Its number is known from where it stands, never stored in it.

    `epoch` is the epoch that first assigned it: two logs with the same number and epoch are equal up to there.
    """

    epoch: U64
    id: Id
    timestamp: U64 = 0  # newest committed number the sender knew at first send
    digest: U64 = 0  # of the batch
    size: U32 = 0  # of the batch
    system: SystemBytes = b""  # a system entry, encoded; empty for a batch


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A member as the log knows it."""

    number: U16
    name: Text
    address: Text
    roles: U16  # of Role
    rank: U16
    tag: Text
    origin: OriginBytes
    incarnation: U32
    is_live: bool = True
    is_voter: bool = False
    nonce: U64 = 0  # drawn at each start: tells runs apart that an old disk and a wrong clock gave the same name

    def has(self, role: Role) -> bool:
        """Whether the member plays this role."""
        return bool(self.roles & role.value)


class EpochBegun(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """First number of an epoch: `number` is sequencer, and the upper layer's primary, from here on."""

    epoch: U64
    number: U16


class MemberJoined(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A member joined, or came back in a new incarnation."""

    member: Member


class MemberLeft(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A member said goodbye, or was silent too long."""

    number: U16
    origin: OriginBytes
    failed: bool


class VoterAdded(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """One commit server more."""

    number: U16


class VoterRemoved(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """One commit server less: retired, or its disk is lost and it may be added again once it has caught up."""

    number: U16
    is_retired: bool


class InSyncChanged(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """From here on an entry is safe on `copies` of these data servers."""

    numbers: tuple[U16, ...]
    copies: U16


class CheckpointMark(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Every checkpoint server consolidates exactly up to this number."""


class Collected(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Numbers up to and including this one may be forgotten."""

    through: U64


class IntervalChanged(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Numbers between checkpoint marks, from here on."""

    interval: U32
    lifetime: U32


class Nothing(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """A number without meaning."""


SystemEntry = (
    EpochBegun
    | MemberJoined
    | MemberLeft
    | VoterAdded
    | VoterRemoved
    | InSyncChanged
    | CheckpointMark
    | Collected
    | IntervalChanged
    | Nothing
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[SystemEntry] = msgspec.msgpack.Decoder(SystemEntry)


def encode_system(entry: SystemEntry) -> bytes:
    """A system entry as it travels inside an assignment."""
    return _encoder.encode(entry)


def decode_system(data: bytes) -> SystemEntry:
    """The reverse; raises `msgspec.DecodeError`."""
    return _decoder.decode(data)


def digest_of(data: bytes | memoryview) -> int:
    """The checksum that accompanies a batch from its sender to the last disk."""
    return xxhash.xxh3_64_intdigest(data)
