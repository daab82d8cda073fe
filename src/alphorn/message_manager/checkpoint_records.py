"""The records of a checkpoint: what each kind says, and its number on disk (checkpoint.py writes them)."""

from typing import Any

import msgspec

from alphorn.message_manager.readers import Reader
from alphorn.message_manager.transaction_state import Reserved, Staged
from alphorn.message_manager.writers import StagedPart
from alphorn.model.commands import MoveStage
from alphorn.model.destinations import Destination


class Head(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first record."""

    sequence: int
    now_ms: int
    next_number: int
    signet: bytes = b""


class ProducerKept(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A producer's counters."""

    key: bytes
    next: int
    used_ms: int
    refused: list[tuple[str, str, list[int]]]  # error, reason, flat pairs
    last: int = 0
    table: int = 0  # the destination that counts for itself; 0 for the channel
    awaited: int = 0
    awaited_at: int = 0


class RetiredKept(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """What a connection has said of its numbers: through this one only these are used."""

    connection: bytes
    through: int
    used: list[int]


class DestinationKept(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A destination; its subscriptions and parts follow."""

    number: int
    destination: Destination
    policy: dict[str, Any]  # what is not the default
    owner: bytes
    next_position: int
    next_subscription: int  # of a topic
    retained_bytes: int
    is_awaiting: bool
    kept_from: int = 0


class SubscriptionKept(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A subscription of a topic; its parts follow."""

    topic: int
    number: int
    name: str
    client: str
    consumers: list[bytes]
    selector: str
    is_durable: bool
    is_shared: bool
    no_local: bytes
    selected_from: int
    made_at: int


class Part(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Some rows of what a destination, or a subscription of it, knows."""

    number: int
    subscription: int
    what: str
    columns: list[bytes]
    texts: list[str] = []


class TransactionKept(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The newest transaction of a session, with all that finishing a prepared one needs."""

    session: bytes
    counter: int
    outcome: int
    reason: str
    channels: list[int]
    is_open: bool
    has_come_back: bool
    forgotten_ms: int
    reserved: list[Reserved]
    staged: list[Staged]
    refused: int = 0


class OpenKept(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """A body whose fragments are still coming; its pieces follow."""

    producer: bytes
    destination: int
    size: int
    due_ms: int
    is_active: bool


class SealedKept(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """The body of a message, in fragments; its pieces follow."""

    producer: bytes
    counter: int
    size: int
    sequence: int
    command: int


class PiecesKept(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """Some runs of fragments of the body before."""

    columns: list[bytes]


class WriterKept(msgspec.Struct, frozen=True, array_like=True, tag=60):
    """A writer that stages; what it has staged follows."""

    name: str
    published: int
    used_ms: int
    published_at: int = 0
    into: list[tuple[int, int]] = []  # destination and batch, the latest last
    earlier_at: int = 0
    published_as: int = 0


class StagedKept(msgspec.Struct, frozen=True, array_like=True, tag=61):
    """Some of what the last writer has staged in one attempt."""

    attempt: tuple[int, int, int]
    parts: list[StagedPart]


class ReaderKept(msgspec.Struct, frozen=True, array_like=True, tag=62):
    """A named reader of the log."""

    reader: Reader


class LeavingKept(msgspec.Struct, frozen=True, array_like=True, tag=55):
    """A destination on its way to another channel; it is among the destinations."""

    number: int
    channel: int
    target: int  # its number there
    stage: MoveStage
    begun_at: int


class IncomingKept(msgspec.Struct, frozen=True, array_like=True, tag=56):
    """A destination on its way here; its names, segments and pieces follow."""

    number: int
    destination: Destination
    policy: dict[str, Any]
    home: tuple[int, int]
    through: int
    attempt: bytes


class PieceKept(msgspec.Struct, frozen=True, array_like=True, tag=57):
    """A piece of what is known of a destination on its way here."""

    number: int
    records: list[bytes]


class LandingKept(msgspec.Struct, frozen=True, array_like=True, tag=58):
    """A destination that has come here and whose consumers follow; what is lent follows as parts."""

    number: int
    home: tuple[int, int]
    begun_at: int


class End(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The last record says how many came before."""

    records: int


Record = (
    Head
    | ProducerKept
    | RetiredKept
    | DestinationKept
    | SubscriptionKept
    | Part
    | TransactionKept
    | OpenKept
    | SealedKept
    | PiecesKept
    | WriterKept
    | StagedKept
    | ReaderKept
    | LeavingKept
    | IncomingKept
    | PieceKept
    | LandingKept
    | End
)
