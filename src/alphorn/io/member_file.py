"""The file that says what one process is: a member of one group, with its place on the network and on disk.

TOML for people, JSON for programs; the same fields. `[group]` must be equal on all members, the rest is each member's
own. A member whose name is among `group.members` is that configured member; any other name is a client, which joins
when it comes and keeps nothing on disk.

    name = "primary"
    directory = "/var/lib/alphorn/primary"

    [group]
    id = 7
    [[group.members]]
    number = 1
    name = "primary"
    address = "10.0.0.1:21100"
    roles = ["sequencer", "data", "commit", "checkpoint"]
"""

from pathlib import Path
from typing import Literal

import msgspec

from alphorn.bus.config import Budget, GroupConfig, MemberConfig, Role, Timing
from alphorn.model.errors import Misuse
from alphorn.model.fitting import Unfit, fit

RoleName = Literal["sequencer", "data", "commit", "checkpoint"]

SERVER: tuple[RoleName, ...] = ("sequencer", "data", "commit", "checkpoint")
WITNESS: tuple[RoleName, ...] = ("commit",)
ANY_PORT = "127.0.0.1:0"


class MemberTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One configured member, as the file writes it."""

    number: int
    name: str
    address: str  # IPv4 host:port
    roles: tuple[RoleName, ...]
    rank: int = 0  # lower asks first to be sequencer
    tag: str = ""


class GroupTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The group's agreement, as the file writes it; `bus.config.GroupConfig` explains each field."""

    id: int
    members: tuple[MemberTable, ...]
    copies: int = 2
    copies_min: int = 1
    report_quorum: int = 1
    acknowledge_quorum: int = 0
    stable_before_submit: bool = False
    checkpoint_interval: int = 4096
    lifetime: int = 0
    lowest_rank_first: bool = True

    def config(self) -> GroupConfig:
        """As the bus takes it; raises `Misuse` that names every fault."""
        made = GroupConfig(
            group=self.id,
            members=tuple(_configured(member) for member in self.members),
            copies=self.copies,
            copies_min=self.copies_min,
            report_quorum=self.report_quorum,
            acknowledge_quorum=self.acknowledge_quorum,
            stable_before_submit=self.stable_before_submit,
            checkpoint_interval=self.checkpoint_interval,
            lifetime=self.lifetime,
            lowest_rank_first=self.lowest_rank_first,
        )
        made.check()
        return made


class MemberFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process. Paths are taken relative to the file's own directory."""

    name: str
    group: GroupTable
    directory: str = ""  # of the store; a configured member needs one
    address: str = ANY_PORT  # of a client; a configured member has its own among `group.members`
    interface: str = ""  # by name, where the address is not the first of its interface
    cluster_key: str = ""  # seals everything said; the same file on all members
    capture: str = ""  # a new file that records every frame
    data_address: str = ""  # multicast "host:port"; empty derives it from the group's id
    control_address: str = ""
    ttl: int = 1
    trace: bool = False  # logs every step of the protocol, for finding faults
    history: bool = True  # False lets a client begin at the newest number
    timing: Timing = Timing()
    budget: Budget = Budget()

    def config(self) -> GroupConfig:
        """The group's agreement, with the bus it is on: files that name other addresses do not agree."""
        bus = " ".join(address for address in (self.data_address, self.control_address) if address)
        return msgspec.structs.replace(self.group.config(), bus=bus)

    def me(self) -> MemberConfig:
        """Who this process is in its group."""
        for member in self.group.members:
            if member.name == self.name:
                return _configured(member)
        return MemberConfig(number=0, name=self.name, address=self.address, roles=Role.NONE, tag="client")


def read_member_file(path: Path) -> MemberFile:
    """The file as values; raises `Misuse` for one that cannot be read or does not say what it must."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Misuse(f"member file {path} cannot be read ({error.strerror}); check the path") from error
    try:
        decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
        read = fit(decode(data), MemberFile)
    except (msgspec.DecodeError, UnicodeDecodeError, Unfit) as error:
        raise Misuse(f"member file {path} is not right: {error}; docs/operations.md has a sample") from error
    if read.me().number and not read.directory:
        raise Misuse(f"member file {path} gives {read.name} no directory; a configured member keeps its log in one")
    return _with_whole_paths(read, path.absolute().parent)


def write_member_file(path: Path, member: MemberFile) -> None:
    """Writes the file as JSON, for programs that start members."""
    assert path.suffix == ".json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(member)))


def _with_whole_paths(member: MemberFile, start: Path) -> MemberFile:
    names = ("directory", "cluster_key", "capture")
    paths = {name: str(start / getattr(member, name)) for name in names if getattr(member, name)}
    return msgspec.structs.replace(member, **paths)


def _configured(member: MemberTable) -> MemberConfig:
    roles = Role.NONE
    for name in member.roles:
        roles |= Role[name.upper()]
    return MemberConfig(
        number=member.number,
        name=member.name,
        address=member.address,
        roles=roles,
        rank=member.rank,
        tag=member.tag,
    )
