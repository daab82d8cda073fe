"""What a member reads back from its disk. Writes go the other way, as `Persist` outputs (machine.py).

Reads are synchronous and see every write already handed over, durable or not, unless the node restarted in between. A
record whose checksum fails reads as `DAMAGED`: it existed, and it must be fetched again from a peer, never forgotten.
"""

import enum
from typing import Final, Protocol

import msgspec

from alphorn.bus.entries import Assignment


class _Damaged(enum.Enum):
    DAMAGED = "damaged"


DAMAGED: Final = _Damaged.DAMAGED
Damaged = _Damaged


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What must never go back. Stored as msgpack, with a checksum of its own."""

    config: bytes  # digest of the founding GroupConfig
    number: int  # this member's, 0 while unconfigured members have none
    incarnation: int  # one more at each start, written before anything is said; many more on another disk (roster.py)
    start: int  # start field of the run's origin (model/ids.py)
    promised: int = 0  # highest epoch promised or accepted from; older ones are fenced
    committed: int = 0  # a number known to be committed; may lag
    stored: int = 0  # entries through this number are in the log; may lag
    is_voter_barred: bool = False  # the disk was lost or is old: no vote until a config entry readmits it
    removed: int = 0  # the number at which the log had removed this voter and knew this disk; 0 while it has not


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint in storage."""

    sequence: int
    epoch: int  # of the entry at `sequence`
    size: int
    chunks: int
    digest: int  # xxh3-64 over all chunks in order
    state: bytes  # the group's own state there


class Storage(Protocol):
    """The read side of one group's store."""

    def meta(self) -> Meta | Damaged | None:
        """The meta record; None on a blank disk."""

    def assignment_bounds(self) -> tuple[int, int]:
        """First and last number with an assignment; (1, 0) when there is none."""

    def assignment(self, sequence: int) -> Assignment | Damaged | None:
        """What a number means."""

    def entry(self, sequence: int) -> bytes | memoryview | Damaged | None:
        """The batch at a number. A view is valid until the event loop's next turn."""

    def group_state(self) -> tuple[int, bytes] | Damaged | None:
        """The group's own state at the newest mark."""

    def checkpoint(self) -> CheckpointInfo | Damaged | None:
        """The newest complete checkpoint."""

    def checkpoint_chunk(self, sequence: int, chunk: int) -> bytes | memoryview | Damaged | None:
        """One chunk of a checkpoint, complete or in transfer."""
