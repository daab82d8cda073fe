"""How a member begins: what its disk says, and what it may do with that.

A blank disk belongs to a founder, to a plain client, or to a member that lost what it had; the last must not vote.
Every start is a new incarnation, written before anything is said.

The founder's word counts on a blank disk, and on one that was blank when it was started without that word and has heard
of no log since: it was barred, so it has promised and accepted nothing, and there is no more to forget on it than on a
blank one. It still waits for the word of a sequencer, where there is one to be heard (commit_server.py).
"""

import random

import msgspec
import xxhash

from alphorn.bus.config import CONFIGURED_NUMBER_MAX, Budget, GroupConfig, MemberConfig, Role, Timing
from alphorn.bus.entries import Assignment, Member
from alphorn.bus.group_state import GroupState
from alphorn.bus.ledger import Ledger
from alphorn.bus.machine import DropAfter
from alphorn.bus.station import Station
from alphorn.bus.storage import DAMAGED, CheckpointInfo, Damaged, Meta, Storage
from alphorn.model.errors import Corruption, Misuse
from alphorn.model.ids import IdSource


class Restored(msgspec.Struct, frozen=True):
    """A member as its disk left it."""

    station: Station
    checkpoint: int  # number of the checkpoint the upper layer starts from; 0 for none
    delivered: int  # number after which it goes on
    is_returning: bool  # it has voted before, so the sequencer looks at its disk first


def restore(
    *,
    config: GroupConfig,
    me: MemberConfig,
    storage: Storage,
    host: bytes,
    port: int,
    unix_s: float,
    founding: bool,
    reads: bool,
    timing: Timing,
    budget: Budget,
    random: random.Random,
    is_tracing: bool,
) -> Restored:
    """Reads the disk.

    Raises `Misuse` where it belongs to another member or group, and `Corruption` where it is the only one that has the
    log and cannot be read back: nobody could ever help.
    """
    config.check()
    found = storage.meta()
    is_configured = 0 < me.number <= CONFIGURED_NUMBER_MAX
    is_founder = founding and not _has_log(storage)
    if isinstance(found, Meta):
        _check_meta(found, config, me)
        is_barred = found.is_voter_barred and not (is_founder and _is_untouched(found))
        meta = msgspec.structs.replace(found, incarnation=found.incarnation + 1, is_voter_barred=is_barred)
    else:
        # A record that cannot be read had promises in it, whoever starts this member for the first time again.
        is_barred = is_configured and not (is_founder and found is None)
        meta = Meta(config=config.digest(), number=me.number, incarnation=1, start=-1, is_voter_barred=is_barred)
    source = IdSource(host, port, unix_s=unix_s, previous_start=meta.start)
    meta = msgspec.structs.replace(meta, start=source.start)
    member = Member(me.number, me.name, me.address, int(me.roles), me.rank, me.tag, source.origin, meta.incarnation)
    ledger, impaired_until, checkpoint, is_lost = _restore_ledger(config, storage, budget, reads=reads)
    if is_lost:
        meta = msgspec.structs.replace(meta, is_voter_barred=True)
    station = Station(
        config=config,
        timing=timing,
        budget=budget,
        random=random,
        storage=storage,
        ledger=ledger,
        meta=meta,
        member=member,
        reads=reads,
        impaired_until=impaired_until,
        is_tracing=is_tracing,
    )
    if station.is_alone and (what := _unreadable(station, found, checkpoint, is_lost=is_lost)):
        raise Corruption(station.lost(what))
    if storage.assignment_bounds()[1] > ledger.last and not impaired_until:
        station.journal.write(DropAfter(ledger.last))
    is_returning = isinstance(found, Meta) and Role.COMMIT in me.roles
    if not config.makes_checkpoints:
        checkpoint = 0  # at most one that another had in place of a state
    begin = checkpoint if config.makes_checkpoints else ledger.base
    return Restored(station, checkpoint, begin if reads else ledger.committed, is_returning)


def _check_meta(meta: Meta, config: GroupConfig, me: MemberConfig) -> None:
    if meta.config != config.digest():
        raise Misuse(
            f"the store of {me.name} belongs to a group with another configuration: its bus, its members with their "
            "names, addresses and ranks, copies, copies_min or checkpoint_interval are not what they were at the first "
            "start; write them as they were, and keep the store, which has the messages"
        )
    if meta.number != me.number:
        raise Misuse(f"the store belongs to member {meta.number}, not to {me.name}; each member needs its own")


def _has_log(storage: Storage) -> bool:
    """Whether anything of any log is on this disk."""
    first, last = storage.assignment_bounds()
    return first <= last or storage.checkpoint() is not None or storage.group_state() is not None


def _is_untouched(meta: Meta) -> bool:
    """Whether a disk without a log never had one, and no promise was given on it."""
    return not (meta.promised or meta.committed or meta.stored or meta.removed)


def _restore_ledger(
    config: GroupConfig, storage: Storage, budget: Budget, *, reads: bool
) -> tuple[Ledger, int, int, bool]:
    """The ledger; how far it went where not all of it is readable; the checkpoint; whether the base is lost."""
    first, last = storage.assignment_bounds()
    state, checkpoint = _base_state(config, storage, budget, reads=reads, first=first, last=last)
    is_lost = state is None
    if state is None:
        state = GroupState(config, departed_max=budget.departed_senders_max)
    has_rest = not is_lost and first <= state.sequence + 1 <= last + 1 and last >= first
    base = first - 1 if has_rest else state.sequence
    ledger = Ledger(state, storage, base=min(base, state.sequence))
    epoch, is_void = state.epoch, False
    for sequence in range(state.sequence + 1, last + 1) if has_rest else ():
        assignment = storage.assignment(sequence)
        if not isinstance(assignment, Assignment):
            break
        if assignment.epoch < epoch:
            # A newer epoch wrote up to here while this was unreadable behind a damaged record: it is void.
            is_void = True
            break
        epoch = assignment.epoch
        ledger.append(assignment)
    return ledger, last if ledger.last < last and not is_void else 0, checkpoint, is_lost


def _unreadable(station: Station, found: Meta | Damaged | None, checkpoint: int, *, is_lost: bool) -> str:
    """What this member would have to ask others for; nothing where it can go on by itself."""
    ledger = station.ledger
    if found is DAMAGED:
        return "the record of promises"
    if is_lost or (station.is_checkpoint_server and station.reads and checkpoint < ledger.base):
        return "the checkpoint that the log begins with"
    return f"the meaning of number {ledger.last + 1}" if station.impaired_until else ""


def _is_whole(info: CheckpointInfo, storage: Storage) -> bool:
    """Whether every chunk of a checkpoint can be read and is what was written."""
    digest = xxhash.xxh3_64()
    for chunk in range(info.chunks):
        payload = storage.checkpoint_chunk(info.sequence, chunk)
        if not isinstance(payload, bytes | memoryview):
            return False
        digest.update(payload)
    return digest.intdigest() == info.digest


def _base_state(
    config: GroupConfig, storage: Storage, budget: Budget, *, reads: bool, first: int, last: int
) -> tuple[GroupState | None, int]:
    """Where folding starts: at the checkpoint, at the newest mark, or at the founding."""
    info, mark = storage.checkpoint(), storage.group_state()
    snapshots: list[tuple[int, bytes]] = []
    if isinstance(info, CheckpointInfo):
        snapshots.append((info.sequence, info.state))
    if isinstance(mark, tuple):
        # A log may begin behind this member's own checkpoint: others had theirs sooner. It needs one of them then, but
        # what the group was is here.
        snapshots.append(mark)
    checkpoint = info.sequence if reads and isinstance(info, CheckpointInfo) and _is_whole(info, storage) else 0
    for sequence, data in snapshots:
        if sequence + 1 < first:
            continue
        try:
            return GroupState.decode(data, config, departed_max=budget.departed_senders_max), checkpoint
        except msgspec.DecodeError:
            continue
    if first <= 1 and (last >= first or not (info is DAMAGED or mark is DAMAGED)):
        return GroupState(config, departed_max=budget.departed_senders_max), checkpoint
    return None, 0
