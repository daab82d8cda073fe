"""What the members of a group must agree on (`GroupConfig`) and what each may set for itself (`Timing`, `Budget`).

Every field says its unit and what raising it does. `GroupConfig.check` names all faults at once.
"""

import enum
import hashlib

import msgspec

from alphorn.model.errors import Misuse

MEMBER_NUMBER_MAX = 0xFFFF
CONFIGURED_NUMBER_MAX = 0x7FFF  # numbers above are given to members that join without being configured


class Role(enum.IntFlag):
    """What a member does besides receiving, which every member does."""

    NONE = 0
    SEQUENCER = 1  # may be elected to assign numbers
    DATA = 2  # stores entries
    COMMIT = 4  # votes: stores assignments and promises
    CHECKPOINT = 8  # consolidates entries into checkpoints
    READER = 16  # somebody waits there for what is committed, as at every member without another role


class MemberConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One configured member. Numbers are never given to another member."""

    number: int
    name: str
    address: str  # where its unicast frames go: "host:port" on a network, a name in the simulator
    roles: Role
    rank: int = 0  # lower asks first to be sequencer
    tag: str = ""  # what the upper layer calls it, shown in membership events


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The founding agreement of one group. Its digest must be equal on all configured members."""

    group: int  # 32-bit id of the group; frames of other groups are ignored
    members: tuple[MemberConfig, ...]
    bus: str = ""  # which bus carries the group; a member configured for another one is refused
    copies: int = 2  # data servers that must hold an entry durably before it is committed
    copies_min: int = 1  # how far `copies` may fall, by a recorded decision, when data servers are away
    report_quorum: int = 1  # data reports before a number is assigned; raising it costs a hop and saves fetches
    acknowledge_quorum: int = 0  # commit acknowledgements before a commit; 0 is a majority, never less
    stable_before_submit: bool = False  # the sequencer stores a number before it tells commit servers
    checkpoint_interval: int = 4096  # numbers between checkpoint marks; raising it lengthens replay and saves work
    lifetime: int = 0  # age in numbers at which entries are collected where nobody makes checkpoints; 0 is never
    lowest_rank_first: bool = True  # False lets the highest rank ask first

    def check(self) -> None:
        """Raises `Misuse` that names every fault."""
        faults = []
        numbers = [member.number for member in self.members]
        if len(set(numbers)) != len(numbers):
            faults.append("two members share a number")
        if any(not 1 <= number <= CONFIGURED_NUMBER_MAX for number in numbers):
            faults.append(f"member numbers go from 1 to {CONFIGURED_NUMBER_MAX}")
        if len({member.name for member in self.members}) != len(numbers):
            faults.append("two members share a name")
        for role in (Role.SEQUENCER, Role.DATA, Role.COMMIT):
            if not any(role in member.roles for member in self.members):
                faults.append(f"no member has the role {(role.name or '').lower()}")
        data = sum(Role.DATA in member.roles for member in self.members)
        commit = sum(Role.COMMIT in member.roles for member in self.members)
        if not 1 <= self.copies_min <= self.copies:
            faults.append(f"copies_min {self.copies_min} is not between 1 and copies {self.copies}")
        if self.copies > data:
            faults.append(f"copies {self.copies} needs as many data servers, and there are {data}")
        if not 1 <= self.report_quorum <= data:
            faults.append(f"report_quorum {self.report_quorum} is not between 1 and the {data} data servers")
        if self.acknowledge_quorum and not commit // 2 + 1 <= self.acknowledge_quorum <= commit:
            faults.append(f"acknowledge_quorum {self.acknowledge_quorum} is not a majority of {commit} commit servers")
        if self.checkpoint_interval < 1 or self.lifetime < 0:
            faults.append("checkpoint_interval is at least 1 and lifetime at least 0")
        for member in self.members:
            if Role.SEQUENCER in member.roles and Role.COMMIT not in member.roles:
                faults.append(f"{member.name} may be sequencer, so it must be a commit server too")
        checkpoints = sum(Role.CHECKPOINT in member.roles for member in self.members)
        if checkpoints and checkpoints < self.copies:
            faults.append(f"copies {self.copies} needs as many checkpoint servers, and there are {checkpoints}")
        for member in self.members:
            if Role.CHECKPOINT in member.roles and Role.DATA not in member.roles:
                faults.append(f"{member.name} makes checkpoints, so it must be a data server too")
        if faults:
            raise Misuse("the group's configuration cannot work: " + "; ".join(faults))

    @property
    def makes_checkpoints(self) -> bool:
        """Whether the upper layer has a state to go on from; otherwise it goes on from wherever the log begins."""
        return any(Role.CHECKPOINT in member.roles for member in self.members)

    @property
    def needs_reports(self) -> bool:
        """Whether some sequencer cannot number a batch by itself: it holds none, or must hear of it from others too."""
        return self.report_quorum > 1 or any(
            Role.SEQUENCER in member.roles and Role.DATA not in member.roles for member in self.members
        )

    def digest(self) -> bytes:
        """Sixteen bytes that differ when any member would disagree."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()[:16]


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. No safety depends on any of these, only how soon things happen."""

    heartbeat_s: float = 0.05  # sequencer's heartbeat when idle
    heartbeat_busy_s: float = 0.005  # first heartbeat after a commit: how soon a lost last frame is noticed
    status_s: float = 0.1  # each member's own report of where it stands
    suspect_s: float = 0.2  # silence after which the sequencer is suspected
    rank_delay_s: float = 0.05  # further wait of each rank before it asks to be sequencer
    start_s: float = 1.0  # at most this long after its start one that has followed nobody waits for a better candidate
    prepare_s: float = 0.1  # between two attempts of a candidate
    lease_s: float = 0.4  # a sequencer without a majority for this long steps down
    away_s: float = 0.5  # silence after which a data server leaves the in-sync set
    evict_s: float = 3.0  # silence after which a member is reported as failed
    nack_s: float = 0.004  # mean first back-off before asking for what is missing
    nack_repeat_s: float = 0.03  # before asking again; doubles with each attempt
    nack_repeat_s_max: float = 0.5
    repair_linger_s: float = 0.01  # a repair is not sent twice to the group within this time
    catch_up_s: float = 0.3  # before a silent catch-up server is replaced by another
    report_delay_s: float = 0.0  # servers beside a sequencer that holds data itself give it this time to number it
    report_repeat_s: float = 0.05  # data servers name again what has got no number
    join_s: float = 0.1  # between two requests to join
    stall_s: float = 3.0  # a sequencer that cannot commit for this long begins a new epoch


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on memory and traffic."""

    datagram_bytes: int = 60_000  # largest frame sent to the group; the interface's MTU on a real network
    batch_bytes_max: int = 4 << 20  # largest batch that `order` takes
    window_bytes: int = 6 << 20  # uncommitted bytes of all senders together: what receive buffers can hold
    window_batches: int = 256  # uncommitted batches of one sender
    held_bytes_max: int = 64 << 20  # batches in memory that are not yet committed and stored
    open_numbers_max: int = 4096  # numbers a sequencer may have assigned and not committed
    nack_numbers_max: int = 64  # a member that misses more is moved to unicast catch-up
    repair_bytes_per_s: int = 32 << 20  # what one data server spends on repairs to the group
    range_bytes: int = 1 << 20  # one answer of a catch-up
    chunk_bytes: int = 1 << 20  # one piece of a checkpoint
    departed_senders_max: int = 4096  # senders remembered after they left, so that a late resend is stored once


# Of the groups of message channels: what a run had in hand when it was given up is never ordered. Whoever waits for
# what a Client Manager has in hand turns to another one and says it there again, so it must not come later.
CHANNEL_BUDGET = Budget(departed_senders_max=0)
