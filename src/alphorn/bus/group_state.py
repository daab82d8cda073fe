"""What the log itself says about its group: members, voters, in-sync set, senders, marks. A pure fold over assignments.

Every member that folds the same numbers holds the same state, so it can be part of a checkpoint and be compared. The
sequencer keeps a second one, folded through what it assigned but has not committed: the tip.
"""

from bisect import bisect_left

import msgspec

from alphorn.bus.config import MEMBER_NUMBER_MAX, GroupConfig, MemberConfig, Role
from alphorn.bus.entries import (
    Assignment,
    CheckpointMark,
    Collected,
    EpochBegun,
    InSyncChanged,
    IntervalChanged,
    Member,
    MemberJoined,
    MemberLeft,
    SystemEntry,
    VoterAdded,
    VoterRemoved,
    decode_system,
)
from alphorn.model.ids import ORIGIN_BYTES, counter_of

FIRST_JOINED_NUMBER = 0x8000
NO_ORIGIN = bytes(ORIGIN_BYTES)
_AGE_STEP = 64  # numbers between two samples of the age index


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    sequence: int
    epoch: int
    primary: int
    members: list[Member]
    in_sync: tuple[int, ...]
    copies: int
    senders: list[tuple[bytes, int]]
    departed: list[bytes]
    interval: int
    lifetime: int
    mark: int
    collected: int
    ages: list[tuple[int, int]]
    newest_age: int
    forgotten: int = 0


_decode = msgspec.msgpack.Decoder(_Snapshot).decode


class GroupState:
    """The fold through `sequence`."""

    __slots__ = (
        "_ages",
        "_departed",
        "_departed_max",
        "_newest_age",
        "_voters",
        "collected",
        "copies",
        "epoch",
        "forgotten",
        "in_sync",
        "interval",
        "left",
        "lifetime",
        "mark",
        "members",
        "primary",
        "senders",
        "sequence",
    )

    def __init__(self, config: GroupConfig, *, departed_max: int) -> None:
        self.sequence = 0
        self.epoch = 0
        self.primary = 0
        self.members = {member.number: _founder(member) for member in config.members}
        self.in_sync = tuple(sorted(n for n, member in self.members.items() if member.has(Role.DATA)))
        self.copies = config.copies
        self.senders: dict[bytes, int] = {}
        self.interval = config.checkpoint_interval
        self.lifetime = config.lifetime
        self.mark = 0
        self.collected = 0
        self.forgotten = 0  # the number by which a sender was last forgotten
        self.left: Member | None = None  # who left by the newest `MemberLeft` or `MemberJoined`, as it was before
        self._departed: list[bytes] = []
        self._departed_max = departed_max
        self._ages: list[tuple[int, int]] = []
        self._newest_age = 0
        self._voters: list[int] | None = None  # of `members` as they are; never changed, only made anew

    @property
    def voters(self) -> list[int]:
        """Commit servers, in order of number."""
        if self._voters is None:
            self._voters = sorted(number for number, member in self.members.items() if member.is_voter)
        return self._voters

    @property
    def majority(self) -> int:
        """How many voters agree on anything."""
        return len(self.voters) // 2 + 1

    @property
    def is_decided_by_data_servers(self) -> bool:
        """Whether as many data servers as must store an entry are a majority of voters by themselves."""
        voting = sum(number in self.in_sync for number in self.voters)
        return min(self.copies, voting) >= self.majority

    def number_of(self, origin: bytes) -> int:
        """The member of this run, or 0."""
        return next((number for number, member in self.members.items() if member.origin == origin), 0)

    def free_number(self) -> int:
        """A number for a member that is not configured."""
        numbers = range(FIRST_JOINED_NUMBER, MEMBER_NUMBER_MAX + 1)
        return next((number for number in numbers if number not in self.members), 0)

    def aged_through(self, newest: int) -> int:
        """Every entry through this number carries a logical timestamp older than `newest` minus the lifetime."""
        if not self.lifetime or newest <= self.lifetime:
            return 0
        place = bisect_left(self._ages, newest - self.lifetime, key=lambda sample: sample[1])
        return self._ages[place - 1][0] if place else 0

    def fold(self, sequence: int, assignment: Assignment) -> SystemEntry | None:
        """Takes in the next number; gives the system entry it stands for, if it is one."""
        assert sequence == self.sequence + 1, (sequence, self.sequence)
        self.sequence = sequence
        if assignment.system:
            entry = decode_system(assignment.system)
            self._fold_system(sequence, entry)
            return entry
        self.senders[assignment.id[:ORIGIN_BYTES]] = counter_of(assignment.id)
        self._newest_age = max(self._newest_age, assignment.timestamp)
        if sequence % _AGE_STEP == 0:
            self._ages.append((sequence, self._newest_age))
        return None

    def _fold_system(self, sequence: int, entry: SystemEntry) -> None:
        self._voters = None
        match entry:
            case EpochBegun():
                self.epoch, self.primary = entry.epoch, entry.number
            case MemberJoined():
                self._join(entry.member)
            case MemberLeft():
                self._leave(entry)
            case VoterAdded():
                self._change(entry.number, voter=True, commit=True)
            case VoterRemoved():
                self._change(entry.number, voter=False, commit=not entry.is_retired)
            case InSyncChanged():
                self.in_sync, self.copies = entry.numbers, entry.copies
            case CheckpointMark():
                self.mark = sequence
            case Collected():
                self.collected = max(self.collected, entry.through)
                self._ages = [sample for sample in self._ages if sample[0] > self.collected]
            case IntervalChanged():
                self.interval, self.lifetime = entry.interval, entry.lifetime

    def _join(self, member: Member) -> None:
        known = self.members.get(member.number)
        is_replaced = known is not None and known.origin not in (member.origin, NO_ORIGIN)
        self.left = known if is_replaced and known is not None and known.is_live else None
        if is_replaced and known is not None:
            self._depart(known.origin)
        is_voter = known is not None and known.is_voter
        is_retired = known is not None and not known.has(Role.COMMIT)
        roles = member.roles & ~Role.COMMIT if is_retired else member.roles
        self.members[member.number] = msgspec.structs.replace(member, roles=int(roles), is_voter=is_voter, is_live=True)
        self.senders.setdefault(member.origin, 0)
        if member.origin in self._departed:
            self._departed.remove(member.origin)

    def _leave(self, entry: MemberLeft) -> None:
        member = self.members.get(entry.number)
        self.left = member if member is not None and member.origin == entry.origin else None
        if member is None or self.left is None:
            return
        if entry.number < FIRST_JOINED_NUMBER:
            self.members[entry.number] = msgspec.structs.replace(member, is_live=False)
        else:
            del self.members[entry.number]
        self._depart(entry.origin)

    def _depart(self, origin: bytes) -> None:
        """A sender that left is remembered for a while, so that it may return and resend without a duplicate."""
        if origin in self._departed:
            return
        self._departed.append(origin)
        while len(self._departed) > self._departed_max:
            self.senders.pop(self._departed.pop(0), None)
            self.forgotten = self.sequence

    def _change(self, number: int, *, voter: bool, commit: bool) -> None:
        member = self.members.get(number)
        if member is not None:
            roles = member.roles | Role.COMMIT if commit else member.roles & ~Role.COMMIT
            self.members[number] = msgspec.structs.replace(member, is_voter=voter, roles=int(roles))

    def may_be_forgotten(self, origin: bytes, unused: int) -> bool:
        """Whether the log may have batches of a run that is not known here, and sent none through number `unused`."""
        return origin not in self.senders and unused < self.forgotten

    def is_sender(self, origin: bytes) -> bool:
        """Whether batches of this run may be numbered."""
        return origin in self.senders and origin not in self._departed

    def encode(self) -> bytes:
        """The whole state, equal bytes for equal states."""
        return msgspec.msgpack.encode(
            _Snapshot(
                self.sequence,
                self.epoch,
                self.primary,
                [self.members[number] for number in sorted(self.members)],
                self.in_sync,
                self.copies,
                sorted(self.senders.items()),
                self._departed,
                self.interval,
                self.lifetime,
                self.mark,
                self.collected,
                self._ages,
                self._newest_age,
                self.forgotten,
            )
        )

    @classmethod
    def decode(cls, data: bytes, config: GroupConfig, *, departed_max: int) -> "GroupState":
        """The reverse of `encode`; raises `msgspec.DecodeError`."""
        try:
            snapshot = _decode(data)
        except UnicodeDecodeError as error:  # msgspec gives what is no UTF-8 on as it comes
            raise msgspec.DecodeError(str(error)) from error
        state = cls(config, departed_max=departed_max)
        state.sequence, state.epoch, state.primary = snapshot.sequence, snapshot.epoch, snapshot.primary
        state.members = {member.number: member for member in snapshot.members}
        state.in_sync, state.copies = snapshot.in_sync, snapshot.copies
        state.senders, state._departed = dict(snapshot.senders), list(snapshot.departed)
        state.interval, state.lifetime = snapshot.interval, snapshot.lifetime
        state.mark, state.collected = snapshot.mark, snapshot.collected
        state._ages, state._newest_age = list(snapshot.ages), snapshot.newest_age
        state.forgotten = snapshot.forgotten
        return state

    def copy(self, config: GroupConfig) -> "GroupState":
        """An independent equal."""
        return GroupState.decode(self.encode(), config, departed_max=self._departed_max)

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "sequence": self.sequence,
            "primary": self.primary,
            "voters": self.voters,
            "in_sync": list(self.in_sync),
            "copies": self.copies,
            "mark": self.mark,
            "collected": self.collected,
            "senders": len(self.senders),
            "members": {
                number: {"name": member.name, "tag": member.tag, "rank": member.rank, "live": member.is_live}
                for number, member in sorted(self.members.items())
            },
        }


def _founder(config: MemberConfig) -> Member:
    return Member(
        number=config.number,
        name=config.name,
        address=config.address,
        roles=int(config.roles),
        rank=config.rank,
        tag=config.tag,
        origin=NO_ORIGIN,
        incarnation=0,
        is_live=False,
        is_voter=Role.COMMIT in config.roles,
    )
