"""Unicast catch-up: for members that missed too much to ask for it piece by piece, and for those that start late.

The member picks a server (backups first), asks for committed entries from where it stands, and asks for the next range
when one has arrived: one answer is under way at a time, so a healed partition never floods anybody. A server that has
collected what is asked for offers its checkpoint; it is fetched chunk by chunk, and another server with the same digest
may go on where one fell silent. Chunks are kept on disk as they come, so a restart resumes too.
"""

import msgspec
import xxhash

from alphorn.bus.config import Role
from alphorn.bus.follower import Follower
from alphorn.bus.frames import (
    AssignmentQuery,
    CheckpointChunk,
    CheckpointFetch,
    CheckpointOffer,
    Frame,
    Range,
    RangeEntry,
    RangeFetch,
)
from alphorn.bus.group_state import GroupState
from alphorn.bus.machine import PutChunk, SealCheckpoint
from alphorn.bus.receiver import Receiver
from alphorn.bus.repair import Repairer
from alphorn.bus.station import Station
from alphorn.bus.storage import CheckpointInfo

_NEVER = float("inf")
_CHUNKS_MAX = 1 << 20


def _key(offer: CheckpointOffer) -> tuple[int, int, int]:
    """What two servers must have in common for one to go on where the other stopped."""
    return offer.sequence, offer.digest, offer.chunks


class _Transfer:
    """A checkpoint on its way here."""

    __slots__ = ("have", "offer", "server")

    def __init__(self, offer: CheckpointOffer, server: int) -> None:
        self.offer = offer
        self.server = server
        self.have: set[int] = set()


class CatchUp:
    """The asking side. Its owner applies what it brings (`on_range`, `installed`)."""

    __slots__ = (
        "_attempts",
        "_due",
        "_follower",
        "_holes",
        "_progress",
        "_receiver",
        "_server",
        "_station",
        "_transfer",
        "is_active",
        "ranges",
        "sealed",
    )

    def __init__(self, station: Station, follower: Follower, receiver: Receiver, holes: set[int]) -> None:
        self._station = station
        self._follower = follower
        self._receiver = receiver
        self._holes = holes
        self._server = 0
        self._attempts = 0
        self._due = _NEVER
        self._progress = (-1, -1, 0)
        self._transfer: _Transfer | None = None
        self.is_active = False
        self.sealed: CheckpointOffer | None = None  # all of it is here; the owner installs it
        self.ranges = 0

    @property
    def is_needed(self) -> bool:
        """Whether too much is missing to ask for it number by number."""
        station, follower = self._station, self._follower
        if follower.is_disk_behind:
            return False
        if self._receiver.is_held:
            return self._wants_newer
        if follower.collected > station.ledger.committed:
            return True
        if not station.reads:
            return follower.known_committed - station.ledger.committed > 4 * station.budget.nack_numbers_max
        if self._holes:
            return True
        delivered = self._receiver.delivered
        if station.ledger.committed > delivered and not self._receiver.is_waiting:
            return False
        limit = 0 if self.is_active else station.budget.nack_numbers_max
        return follower.collected > delivered or follower.known_committed - delivered > limit

    @property
    def _wants_newer(self) -> bool:
        """Whether the checkpoint being installed is of no use: refused, or the log that follows it is gone."""
        return self._receiver.is_refused or self._follower.collected > self._station.ledger.committed

    def plan(self, now: float) -> None:
        """Starts or ends, by what is needed."""
        if self.sealed is not None:
            return
        if self.is_needed and not self.is_active and self._station.number:  # nobody answers a member without number
            self.is_active, self._attempts = True, 0
            self._station.trace("catch-up", f"from={self._receiver.delivered + 1}")
            self._ask(now)
        elif self.is_active and not self.is_needed:
            self._station.trace("caught-up", f"at={self._receiver.delivered}")
            self.is_active, self._due, self._transfer = False, _NEVER, None

    def _ask(self, now: float) -> None:
        station = self._station
        self._due = now + station.timing.catch_up_s * station.random.uniform(0.8, 1.2)
        if not self._server:
            self._server = self._choose()
        if not self._server:
            return
        if self._transfer is not None:
            chunk = self._next_chunk(self._transfer)
            offer = self._transfer.offer
            station.send_member(self._server, CheckpointFetch(offer.sequence, offer.digest, chunk))
            return
        if self._receiver.is_held:
            station.send_member(self._server, CheckpointFetch(0, 0, 0))  # there is none at 0: the newest is offered
            return
        first = (self._receiver.delivered if station.reads else station.ledger.committed) + 1
        if self._holes:
            first = min(first, *self._holes)
            self._ask_meaning(min(self._holes))
        station.send_member(self._server, RangeFetch(first, station.reads))

    def _ask_meaning(self, sequence: int) -> None:
        """A commit server knows what a number means, also where no data server but this one has its batch."""
        station = self._station
        voters = [number for number in station.ledger.state.voters if number != station.number]
        if voters:
            query = AssignmentQuery(sequence - 1, sequence)
            station.send_member(voters[self._attempts % len(voters)], query)

    def _choose(self) -> int:
        station = self._station
        members = station.ledger.state.members
        servers = [n for n, m in sorted(members.items()) if m.has(Role.DATA) and n != station.number]
        order = station.backups_first(servers)
        return order[self._attempts % len(order)] if order else 0

    def next_deadline(self) -> float:
        """When a silent server is given up."""
        return self._due

    def on_time(self, now: float) -> None:
        """Looks at a transfer that has become whole; otherwise turns to another server."""
        if not self.is_active or now < self._due or self.sealed is not None:
            return
        transfer = self._transfer
        if transfer is not None and len(transfer.have) == transfer.offer.chunks:
            self._check(transfer, now)
        else:
            self._attempts += 1
            self._server = 0
            self._ask(now)

    def expects(self, frame: Frame, body: Range) -> bool:
        """Whether this is the answer that was asked for."""
        return self.is_active and frame.number == self._server and bool(body.entries)

    def on_range(self, body: Range) -> None:
        """Committed entries whose batches the owner has already taken."""
        self.ranges += 1
        self._transfer = None
        self._follower.known_committed = max(self._follower.known_committed, body.committed)
        self._follower.take_range(body.first, [entry.assignment for entry in body.entries])

    def ask_next(self, now: float) -> None:
        """After a range was applied; where it brought nothing new, another server is asked when its time comes."""
        progress = (self._receiver.delivered, self._station.ledger.committed, -len(self._holes))
        if self.is_active and self._transfer is None and self.is_needed and progress > self._progress:
            self._ask(now)
        self._progress = progress

    def on_offer(self, frame: Frame, body: CheckpointOffer, now: float) -> None:
        """The server has forgotten what was asked for and offers its state instead."""
        station = self._station
        if not self.is_active or self.sealed is not None or frame.number != self._server:
            return
        if body.sequence <= self._receiver.delivered or body.chunks > _CHUNKS_MAX:
            return
        if not station.reads:
            self.sealed = body
            return
        transfer = self._transfer
        if transfer is None or _key(transfer.offer) != _key(body):
            transfer = self._transfer = _Transfer(body, frame.number)
            transfer.have = {
                chunk
                for chunk in range(body.chunks)
                if isinstance(station.storage.checkpoint_chunk(body.sequence, chunk), bytes | memoryview)
            }
            station.trace("offer", f"sequence={body.sequence} chunks={body.chunks} have={len(transfer.have)}")
        self._continue(transfer, now)

    def on_chunk(self, frame: Frame, body: CheckpointChunk, now: float) -> None:
        """A piece of the checkpoint; kept, and the next asked for."""
        transfer = self._transfer
        if transfer is None or (body.sequence, body.digest) != (transfer.offer.sequence, transfer.offer.digest):
            return
        if body.chunk >= transfer.offer.chunks or body.chunk in transfer.have:
            return
        self._station.journal.write(PutChunk(body.sequence, body.chunk, body.payload))
        transfer.have.add(body.chunk)
        if len(transfer.have) < transfer.offer.chunks:
            self._ask(now)
        else:
            self._due = now  # the last chunk can be read back once this turn's writes are handed over

    def _continue(self, transfer: _Transfer, now: float) -> None:
        if len(transfer.have) < transfer.offer.chunks:
            self._ask(now)
        else:
            self._check(transfer, now)

    def _check(self, transfer: _Transfer, now: float) -> None:
        station, offer = self._station, transfer.offer
        digest = xxhash.xxh3_64()
        for chunk in range(offer.chunks):
            payload = station.storage.checkpoint_chunk(offer.sequence, chunk)
            if not isinstance(payload, bytes | memoryview):
                transfer.have.discard(chunk)
                self._ask(now)
                return
            digest.update(payload)
        if digest.intdigest() != offer.digest:
            station.trace("bad-checkpoint", f"sequence={offer.sequence}")
            transfer.have.clear()
            self._attempts += 1
            self._server = 0
            self._ask(now)
            return
        station.journal.write(
            SealCheckpoint(offer.sequence, offer.epoch, offer.size, offer.chunks, offer.digest, offer.state)
        )
        self._due = _NEVER
        self.sealed = offer

    def decode_state(self, data: bytes) -> GroupState | None:
        """The group's state as a peer sent it; None where it is malformed."""
        station = self._station
        try:
            return GroupState.decode(data, station.config, departed_max=station.budget.departed_senders_max)
        except msgspec.DecodeError:
            return None

    def installed(self) -> None:
        """The owner has gone on from the checkpoint."""
        self.sealed = None
        self._transfer = None
        self.is_active, self._due = False, _NEVER

    @staticmethod
    def _next_chunk(transfer: _Transfer) -> int:
        return next(chunk for chunk in range(transfer.offer.chunks) if chunk not in transfer.have)

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"active": self.is_active, "server": self._server, "ranges": self.ranges}


class CatchUpServer:
    """The answering side, on data servers: ranges from the log, or the newest checkpoint."""

    __slots__ = ("_holes", "_repairer", "_station", "served")

    def __init__(self, station: Station, repairer: Repairer, holes: set[int]) -> None:
        self._station = station
        self._repairer = repairer
        self._holes = holes
        self.served = 0

    def on_range_fetch(self, frame: Frame, body: RangeFetch, now: float) -> None:
        """Committed entries from a number on, or a checkpoint where they are forgotten."""
        station, ledger = self._station, self._station.ledger
        if not frame.number:
            return
        if body.first <= ledger.base:
            self._offer(frame.number, reads=body.reads)
            return
        entries: list[RangeEntry] = []
        size = 0
        for sequence in range(body.first, ledger.committed + 1):
            assignment = ledger.get(sequence)
            if assignment is None:
                self._holes.add(sequence)
                break
            payload = b"" if assignment.system else self._repairer.payload_of(sequence)
            if payload is None:
                break
            entries.append(RangeEntry(assignment, bytes(payload)))
            size += len(payload) + len(assignment.system) + 64
            if size >= station.budget.range_bytes:
                break
        self.served += len(entries)
        station.send_member(frame.number, Range(body.first, ledger.committed, entries))

    def _offer(self, to: int, *, reads: bool) -> None:
        """A checkpoint; to a witness, or where nobody makes checkpoints, the group's own state is enough."""
        station = self._station
        info = station.storage.checkpoint()
        if not isinstance(info, CheckpointInfo) or info.sequence < station.ledger.base:
            state = station.storage.group_state()
            if (
                isinstance(state, tuple)
                and state[0] >= station.ledger.base
                and not (reads and station.config.makes_checkpoints)
            ):
                self._offer_state(to, *state)
            return
        station.send_member(
            to, CheckpointOffer(info.sequence, info.epoch, info.size, info.chunks, info.digest, info.state)
        )

    def _offer_state(self, to: int, sequence: int, state: bytes) -> None:
        epoch = self._station.ledger.epoch_at(sequence)
        if epoch is not None:
            digest = xxhash.xxh3_64_intdigest(b"")
            self._station.send_member(to, CheckpointOffer(sequence, epoch, 0, 0, digest, state))

    def on_checkpoint_fetch(self, frame: Frame, body: CheckpointFetch, now: float) -> None:
        """One chunk."""
        station = self._station
        info = station.storage.checkpoint()
        if not isinstance(info, CheckpointInfo) or not frame.number:
            return
        if (info.sequence, info.digest) != (body.sequence, body.digest) or body.chunk >= info.chunks:
            self._offer(frame.number, reads=True)
            return
        payload = station.storage.checkpoint_chunk(info.sequence, body.chunk)
        if isinstance(payload, bytes | memoryview):
            chunk = CheckpointChunk(info.sequence, info.digest, body.chunk, info.chunks, bytes(payload))
            station.send_member(frame.number, chunk)

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"served": self.served}
