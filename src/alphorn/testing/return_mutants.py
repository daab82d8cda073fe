"""Mistakes about members that come back: what their disks tell, and which run of whom a word belongs to."""

from typing import Any

import msgspec

from alphorn.bus import restore, roster
from alphorn.bus.config import Budget, GroupConfig
from alphorn.bus.follower import Follower
from alphorn.bus.frames import Absent, Fetch, Frame, Join, fragment_batch
from alphorn.bus.group_state import GroupState
from alphorn.bus.membership import Membership
from alphorn.bus.repair import Repairer
from alphorn.bus.roster import Roster
from alphorn.bus.storage import CheckpointInfo, Damaged, Storage
from alphorn.bus.takeover import Takeover
from alphorn.testing.mutation import Mutant, Patch


def _unfenced_denial() -> list[Patch]:
    on_fetch, on_absent = Repairer.on_fetch, Takeover.on_absent

    def deny_anybody(self: Any, frame: Frame, fetch: Fetch, now: float) -> None:
        station = self._station
        durable, station.durable_epoch = station.durable_epoch, station.epoch
        on_fetch(self, msgspec.structs.replace(frame, epoch=station.epoch), fetch, now)
        station.durable_epoch = durable

    def hear_anybody(self: Any, frame: Frame, body: Absent, now: float) -> None:
        on_absent(self, msgspec.structs.replace(frame, epoch=self._station.epoch), body, now)

    return [(Repairer, "on_fetch", deny_anybody), (Takeover, "on_absent", hear_anybody)]


def _own_cutting() -> list[Patch]:
    def answer_batch(self: Any, to: int, batch: bytes, wanted: Any, found: Any, now: float) -> None:
        sequence, payload, timestamp, digest = found
        first, last, _ = wanted
        limit = self._station.budget.datagram_bytes
        data = fragment_batch(batch, payload, digest=digest, timestamp=timestamp, limit=limit)
        self._send(to, sequence, (data[first:last] if last else data) or data, now)

    return [(Repairer, "_answer_batch", answer_batch)]


class _WithoutMark:
    """Storage whose mark is not seen beside a checkpoint."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def group_state(self) -> tuple[int, bytes] | Damaged | None:
        """Only where there is no checkpoint."""
        return None if isinstance(self._storage.checkpoint(), CheckpointInfo) else self._storage.group_state()


def _mark_unused() -> list[Patch]:
    original = restore._base_state

    def base_state(config: GroupConfig, storage: Any, budget: Budget, *, reads: bool, **bounds: int) -> Any:
        return original(config, _WithoutMark(storage) if reads else storage, budget, reads=reads, **bounds)

    return [(restore, "_base_state", base_state)]


def _late_join() -> list[Patch]:
    original = Roster.on_join

    def on_join(self: Any, body: Join, tip: GroupState, **circumstances: Any) -> Any:
        return original(self, msgspec.structs.replace(body, told=(1 << 63, 0)), tip, **circumstances)

    return [(Roster, "on_join", on_join), (Roster, "_is_here", lambda self, known, now: False)]


def _old_entries_stay() -> list[Patch]:
    return [(Follower, "_drop_void", lambda self, first: None)]


def _damaged_is_older() -> list[Patch]:
    original = Membership._join

    def join(self: Any) -> None:
        station = self._station
        accepted, station.impaired_until = station.impaired_until, 0
        original(self)
        station.impaired_until = accepted

    return [(Membership, "_join", join)]


def _found_disk_votes() -> list[Patch]:
    return [(roster, "_DISK_STEP", 0)]


RETURN_MUTANTS = tuple(
    Mutant(name=name, description=description, patch=patch)
    for name, description, patch in (
        ("unfenced-denial", "A batch is denied by servers that still follow the sequencer before.", _unfenced_denial),
        ("own-cutting", "Fragments are sent as the server would cut them, whatever was asked for.", _own_cutting),
        ("mark-unused", "A log that begins behind the own checkpoint is taken for lost.", _mark_unused),
        ("late-join", "A late word of an earlier run takes a member's vote away.", _late_join),
        ("damaged-is-older", "A record that cannot be read costs a member its vote.", _damaged_is_older),
        ("found-disk-votes", "A disk that was lost is taken for the newest when it is found.", _found_disk_votes),
        ("old-entries-stay", "What is void behind a damaged record stays on the disk.", _old_entries_stay),
    )
)
