"""What all roles of one member share: who it is, whom it follows, its ledger, its batches, its journal, its outbox."""

import random

import msgspec

from alphorn.bus.config import Budget, GroupConfig, Role, Timing
from alphorn.bus.entries import (
    Assignment,
    Member,
    SystemEntry,
    VoterAdded,
    VoterRemoved,
    decode_system,
    encode_system,
)
from alphorn.bus.frames import COMMIT_TYPE, SUBMIT_TYPE, Body, Data, Frame, encode, is_part, says_only
from alphorn.bus.holdings import Holdings
from alphorn.bus.journal import Journal
from alphorn.bus.ledger import Ledger
from alphorn.bus.machine import CONTROL_GROUP, Output, PutMeta, Send, Trace
from alphorn.bus.storage import Meta, Storage
from alphorn.model.ids import Kind, Origin, make_id

KEEPING = Role.DATA | Role.COMMIT  # roles that store assignments
_SUBMIT = frozenset((SUBMIT_TYPE,))
_COMMIT = frozenset((COMMIT_TYPE,))


class Station:
    """One member's shared ground. Roles change it only in the ways documented here.

    `epoch` is the fence: the highest epoch promised, or followed on a sequencer's word. It never falls; what is
    promised or acknowledged under it waits for `durable_epoch`. `sequencer` is the member that spoke under it, 0 while
    none did.
    """

    __slots__ = (
        "_is_dirty",
        "_system_counter",
        "address",
        "addresses",
        "budget",
        "config",
        "durable_epoch",
        "epoch",
        "holdings",
        "impaired_until",
        "incarnation",
        "is_alone",
        "is_barred",
        "is_checkpoint_server",
        "is_commit_server",
        "is_data_server",
        "is_tracing",
        "journal",
        "keeps_log",
        "ledger",
        "local",
        "may_sequence",
        "meta",
        "name",
        "nonce",
        "number",
        "origin",
        "outbox",
        "random",
        "rank",
        "reads",
        "roles",
        "sequencer",
        "storage",
        "tag",
        "timing",
    )

    def __init__(
        self,
        *,
        config: GroupConfig,
        timing: Timing,
        budget: Budget,
        random: random.Random,
        storage: Storage,
        ledger: Ledger,
        meta: Meta,
        member: Member,
        reads: bool,
        impaired_until: int,
        is_tracing: bool,
    ) -> None:
        self.config, self.timing, self.budget, self.random = config, timing, budget, random
        self.storage, self.ledger, self.meta = storage, ledger, meta
        self.holdings = Holdings(budget.held_bytes_max, verifies=bool(member.roles & Role.DATA))
        self.journal = Journal()
        self.outbox: list[Output] = []
        self.local: list[Frame] = []  # what this member's roles say to each other
        self.number, self.name, self.address = member.number, member.name, member.address
        self.rank, self.tag, self.roles = member.rank, member.tag, Role(member.roles)
        self.is_data_server = Role.DATA in self.roles
        self.is_commit_server = Role.COMMIT in self.roles
        self.is_checkpoint_server = Role.CHECKPOINT in self.roles
        self.may_sequence = Role.SEQUENCER in self.roles
        self.keeps_log = self.is_data_server or self.is_commit_server  # whether it stores assignments
        others = (known for known in config.members if known.number != member.number)
        is_kept_elsewhere = any(known.roles & KEEPING for known in others)
        self.is_alone = self.keeps_log and not is_kept_elsewhere
        self.origin, self.incarnation = Origin(member.origin), member.incarnation
        self.nonce = self.random.getrandbits(64)
        self.epoch = self.durable_epoch = meta.promised
        self.sequencer = 0
        self.addresses = {known.number: known.address for known in config.members}
        self.is_barred = meta.is_voter_barred
        self.reads = reads
        self.impaired_until = impaired_until  # numbers through this one were accepted; records of them are damaged
        self.is_tracing = is_tracing
        self._is_dirty = False
        self._system_counter = 0

    @property
    def is_voter(self) -> bool:
        """Whether the newest voters in this member's log, open entries included, have it among them."""
        member = self.ledger.state.members.get(self.number)
        is_voter = member is not None and member.is_voter
        for assignment in self.ledger.slice(self.ledger.committed, self.ledger.last):
            entry = decode_system(assignment.system) if assignment.system else None
            if isinstance(entry, VoterAdded | VoterRemoved) and entry.number == self.number:
                is_voter = isinstance(entry, VoterAdded)
        return is_voter

    @property
    def is_whole(self) -> bool:
        """Whether this member can tell all it ever promised, accepted and stored; only then may it vote or deny."""
        return not self.is_barred and self.ledger.last >= self.impaired_until

    def can_wait(self, datagram: bytes | memoryview) -> bool:
        """Whether nobody waits for what this member does when it hears this.

        One without a log learns nothing from a submit that the commit does not tell again; one with a log has done
        what the group needs before it hears of the commit. And with a part of a batch nothing can be done before the
        rest has come, which is under way.
        """
        return is_part(datagram) or says_only(datagram, _COMMIT if self.keeps_log else _SUBMIT, self.epoch)

    def as_member(self) -> Member:
        """This member as it asks to join."""
        return Member(
            self.number,
            self.name,
            self.address,
            int(self.roles),
            self.rank,
            self.tag,
            self.origin,
            self.incarnation,
            nonce=self.nonce,
        )

    def lift_bar(self) -> None:
        """The log counts this member's disk in again."""
        self.trace("readmitted")
        self.is_barred = False
        self.remember(is_voter_barred=False, removed=0)

    def count_starts(self, incarnation: int) -> None:
        """The log says how many starts this member has behind it, with those on disks that it had before this one."""
        if incarnation > self.incarnation:
            self.incarnation = incarnation
            self.remember(incarnation=incarnation)

    def take_new_start(self) -> None:
        """Becomes another run, in name: the old one is spoken for."""
        start = self.meta.start + 1
        self.origin = Origin(self.origin[:6] + start.to_bytes(4, "big"))
        self.remember(start=start)

    def send(self, to: str, body: Data | Body) -> None:
        """A frame to a member's address or one of the group's."""
        if to == self.address:
            self._say_here(body)
            return
        parts = encode(group=self.config.group, epoch=self.epoch, number=self.number, origin=self.origin, body=body)
        self.outbox.append(Send(to, parts))

    def tell(self, body: Body, *, self_too: bool = False) -> None:
        """A frame to all others, and where asked to this member's own roles."""
        self.send(CONTROL_GROUP, body)
        if self_too:
            self._say_here(body)

    def send_member(self, number: int, body: Data | Body) -> bool:
        """A frame to one member, where its address is known; this member's own roles hear it without the network."""
        if number == self.number:
            self._say_here(body)
            return True
        address = self.address_of(number)
        if not address:
            return False
        self.send(address, body)
        return True

    def _say_here(self, body: Data | Body) -> None:
        self.local.append(Frame(self.config.group, self.epoch, self.number, self.origin, body))

    def address_of(self, number: int) -> str:
        """Where a member is, or nothing."""
        member = self.ledger.state.members.get(number)
        return self.addresses.get(number) or (member.address if member else "")

    def backups_first(self, servers: list[int]) -> list[int]:
        """In which order to ask for something: backups, each member beginning with another one, then the primary."""
        backups = [number for number in servers if number != self.sequencer]
        turn = self.number % len(backups) if backups else 0
        return backups[turn:] + backups[:turn] + [number for number in servers if number == self.sequencer]

    def follow(self, epoch: int, sequencer: int) -> bool:
        """Hears a sequencer; False when the fence is higher."""
        if epoch < self.epoch:
            return False
        if epoch > self.epoch:
            self.raise_fence(epoch)
        self.sequencer = sequencer
        return True

    def raise_fence(self, epoch: int) -> None:
        """Never listens to older epochs again, after this turn's writes and across restarts."""
        assert epoch > self.epoch
        self.epoch = epoch
        self.sequencer = 0
        self.remember(promised=epoch)
        self.journal.then(lambda: self._fence_settled(epoch))

    def _fence_settled(self, epoch: int) -> None:
        self.durable_epoch = max(self.durable_epoch, epoch)

    def remember(self, **changes: object) -> None:
        """Changes the durable facts of this member, with this turn's writes."""
        self.meta = msgspec.structs.replace(self.meta, **changes)
        self._is_dirty = True

    def write_meta(self, *, stored: int) -> bool:
        """The last write of a turn: facts that changed, and how far the log has come.

        Gives whether somebody may wait for what this turn wrote. Nobody waits for the vote of a witness on an entry
        that as many data servers must store as are a majority by themselves.
        """
        if not self._is_dirty and not self.journal.has_writes:
            return False
        is_urgent = (
            self._is_dirty
            or self.is_data_server
            or self.journal.has_system
            or not self.ledger.state.is_decided_by_data_servers
        )
        self.meta = msgspec.structs.replace(self.meta, committed=self.ledger.committed, stored=stored)
        self.journal.write(PutMeta(msgspec.msgpack.encode(self.meta)))
        self._is_dirty = False
        return is_urgent

    def lost(self, what: str) -> str:
        """For people: this disk, the only one with the log, cannot be read there, so that nobody can go on."""
        return (
            f"{what} cannot be read in the store of {self.name}, and no other member keeps the log; put an earlier "
            "copy of the whole store in its place, or begin a new log on a blank one"
        )

    def system(self, entry: SystemEntry, epoch: int) -> Assignment:
        """A system entry as an assignment of this epoch."""
        self._system_counter += 1
        batch = make_id(self.origin, Kind.NODE, self._system_counter)
        return Assignment(epoch, batch, self.ledger.committed, 0, 0, encode_system(entry))

    def trace(self, event: str, details: str = "") -> None:
        """A line for the timeline, where somebody looks."""
        if self.is_tracing:
            self.outbox.append(Trace(event, details))
