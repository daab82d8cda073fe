"""How much may be destroyed: the limits of the fault model.

No log survives the loss of every copy. A disk, or a record of it, may be destroyed only if every number it holds and
every checkpoint stays intact on another disk; if open numbers whose batch is on no disk can still be given up; and if a
majority of commit servers keeps disks that remember their promises, one that may become sequencer among them: of the
voters in force, and of those that any open change of voters may bring about. A successor may find any of the open
changes in the log it adopts, alone or with others, and must count by what it finds.
"""

import msgspec

from alphorn.bus.config import Role
from alphorn.bus.machine import Output
from alphorn.bus.storage import Meta
from alphorn.testing.checkers.facts import COMMIT_TYPE, EPOCH_PLACE, TYPE_PLACE, Facts
from alphorn.testing.checkers.promises import FOLDED
from alphorn.testing.disk import DiskState, Key
from alphorn.testing.node import NodeState, SimulatedNode

HEARTBEAT_TYPE = 7
SEQUENCER_SILENT_S = 0.15
_decode_meta = msgspec.msgpack.Decoder(Meta).decode


class Ruin:
    """Knows what is still intact, and who is the sequencer."""

    __slots__ = ("_expected", "_facts", "_spoke_at", "newest_epoch")

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._spoke_at = 0.0
        self._expected: dict[int, set[int]] = {}  # by asked member: changes it was asked for and has not begun
        self.newest_epoch = 0
        watch = facts.simulation.watch
        watch.sent.append(self._on_sent)
        watch.turn.append(self._on_turn)
        watch.started.append(self._on_started)

    @property
    def has_sequencer(self) -> bool:
        """Whether a sequencer spoke a moment ago."""
        return bool(self.newest_epoch) and self._facts.simulation.now - self._spoke_at < SEQUENCER_SILENT_S

    def may_lose_disk(self, victim: SimulatedNode) -> bool:
        """Whether the group can do without everything on this disk."""
        if not (self._keeps_majority(victim) and self._keeps_entries(victim) and self._keeps_checkpoint(victim)):
            return False
        return self._keeps_denials(victim)

    def may_damage_assignment(self, victim: SimulatedNode) -> bool:
        """Whether the group can do without this member's vote until it has asked its peers."""
        return self._keeps_majority(victim)

    def may_damage_number(self, victim: SimulatedNode, sequence: int) -> bool:
        """The same for what one number means; the entry behind it is known by its digest, where it can be read."""
        disk = victim.disk.durable
        is_kept = sequence not in disk.entries or is_intact(disk, sequence) or self.may_damage_entry(victim, sequence)
        return is_kept and self.may_damage_assignment(victim)

    def may_damage_entry(self, victim: SimulatedNode, sequence: int) -> bool:
        """Whether another data server has the same entry; what it has as that number may be of another epoch's log."""
        entry = victim.disk.durable.entries.get(sequence)
        others = [node.disk.durable for node in self._others(victim)]
        return any(is_intact(disk, sequence) and entry in (None, disk.entries[sequence]) for disk in others)

    def may_damage_base(self, victim: SimulatedNode, key: Key) -> bool:
        """The same for a record of what the group was where a log begins; without any, a log means nothing.

        A data server that has no such record left begins as on a lost disk, at another's checkpoint: it denies nothing
        and keeps no entry, however many of them it could read.
        """
        disk = victim.disk.durable
        if Role.DATA in victim.me.roles and _has_base(disk, set()) and not _has_base(disk, {key}):
            return self.may_lose_disk(victim)
        return self.may_damage_assignment(victim)

    def may_tear(self, victim: SimulatedNode) -> bool:
        """Whether a number can be settled without the entry this member was writing: others have it, or deny it."""
        if any(copies < 2 for _, copies in self._facts.in_sync_rules(self._facts.last + 1)):
            return False
        damaged = (key for node in self._others(victim) for key in node.disk.durable.damaged)
        return not any(kind == "entry" for kind, _, _ in damaged)

    def may_damage_checkpoint(self, victim: SimulatedNode) -> bool:
        """Whether another disk has a checkpoint that serves as well."""
        return self._keeps_checkpoint(victim)

    def may_remove_voter(self, index: int) -> bool:
        """Whether the remaining commit servers can form a majority of disks that remember."""
        for voters in self._possible_voters():
            remaining = voters - {index}
            if len(remaining) < 2 or not self._can_decide(remaining, len(remaining)):
                return False
        return True

    def expect_change(self, asked: SimulatedNode, index: int) -> None:
        """A member is about to be asked to add or remove this commit server."""
        self._expected.setdefault(asked.index, set()).add(index)

    def _possible_voters(self) -> list[frozenset[int]]:
        """Every set of voters that a log may end with: the one in force, and it with any of the changes under way."""
        sets = set(self._facts.voter_sets(self._facts.last + 1))
        for index in sorted(set().union(*self._expected.values())):
            sets |= {voters ^ {index} for voters in sets}
        return [voters for voters in sets if voters]

    def _keeps_majority(self, victim: SimulatedNode) -> bool:
        return all(self._can_decide(voters - {victim.index}, len(voters)) for voters in self._possible_voters())

    def _can_decide(self, indices: frozenset[int], voters: int) -> bool:
        """Whether these are a majority of so many voters with disks that remember, and one of them can be sequencer."""
        nodes = [self._facts.simulation.nodes[index] for index in sorted(indices)]
        whole = [node for node in nodes if remembers(node.disk.durable) and not node.disk.is_old]
        return len(whole) >= voters // 2 + 1 and any(Role.SEQUENCER in node.me.roles for node in whole)

    def _keeps_entries(self, victim: SimulatedNode) -> bool:
        if any(copies < 2 for _, copies in self._facts.in_sync_rules(self._facts.last + 1)):
            return False
        held = set(victim.disk.durable.entries) | set(victim.disk.visible.entries)
        for node in self._others(victim):  # of what another cannot read, this one can say whether it ever had it
            held |= {sequence for kind, sequence, _ in node.disk.durable.damaged if kind == "entry"}
        return all(self.may_damage_entry(victim, sequence) for sequence in sorted(held))

    def _keeps_checkpoint(self, victim: SimulatedNode) -> bool:
        needed = victim.disk.durable.checkpoint
        if needed is None:
            return True
        for node in self._others(victim):
            other = node.disk.durable.checkpoint
            is_whole = not any(key[0] in ("checkpoint", "chunk") for key in node.disk.durable.damaged)
            if other is not None and other.sequence >= needed.sequence and is_whole:
                return True
        return False

    def _keeps_denials(self, victim: SimulatedNode) -> bool:
        """Whether the group can settle the open numbers without the word of this disk.

        A number may be open whose batch is on no disk: its sender ended, and whoever had it. It is given up once so
        many in-sync servers deny the batch that it cannot be committed, and a lost disk denies nothing.
        """
        others = self._others(victim)
        witnesses = {node.index for node in others if remembers(node.disk.durable) and not node.disk.is_old}
        for sequence in self._open_without_batch(others):
            for in_sync, copies in self._facts.in_sync_rules(sequence):
                if len(in_sync & witnesses) <= len(in_sync) - copies:
                    return False
        return True

    def _open_without_batch(self, nodes: list[SimulatedNode]) -> set[int]:
        """The open numbers on the disks of these that none of them has the batch of."""
        named: dict[tuple[int, bytes], bool] = {}  # number and batch → whether one has it
        for disk in (node.disk.durable for node in nodes):
            for sequence, assignment in disk.assignments.items():
                if sequence > self._facts.last and not assignment.system:
                    place = sequence, assignment.id
                    named[place] = named.get(place, False) or is_intact(disk, sequence)
        return {sequence for (sequence, _), is_here in named.items() if not is_here}

    def _others(self, victim: SimulatedNode) -> list[SimulatedNode]:
        nodes = self._facts.simulation.servers()
        return [node for node in nodes if node is not victim and Role.DATA in node.me.roles]

    def _on_sent(self, node: SimulatedNode, to: str, data: bytes, troubles: object) -> None:
        if data[TYPE_PLACE] == HEARTBEAT_TYPE or data[TYPE_PLACE] == COMMIT_TYPE:
            epoch = int.from_bytes(data[EPOCH_PLACE], "big")
            if epoch >= self.newest_epoch:
                self.newest_epoch = epoch
                self._spoke_at = self._facts.simulation.now

    def _on_turn(self, node: SimulatedNode, outputs: list[Output]) -> None:
        self._expected.pop(node.index, None)  # what it made of its wishes stands among the open changes now

    def _on_started(self, node: SimulatedNode) -> None:
        self._expected.pop(node.index, None)


def _has_base(state: DiskState, rotten: set[Key]) -> bool:
    """Whether a disk tells what the group was where its log begins, though these records cannot be read either."""
    damaged, (first, last) = state.damaged | rotten, state.bounds
    begins = [state.group_state[0]] if state.group_state is not None and ("group_state", 0, 0) not in damaged else []
    if state.checkpoint is not None and ("checkpoint", 0, 0) not in damaged:
        begins.append(state.checkpoint.sequence)
    return first <= 1 <= last or any(begin + 1 >= first for begin in begins)


def is_intact(state: DiskState, sequence: int) -> bool:
    """Whether a disk has this entry and can read it."""
    return state.is_intact(sequence)


def remembers(state: DiskState) -> bool:
    """Whether a disk knows every promise its member made."""
    if state.meta is None or any(key[0] in FOLDED for key in state.damaged):
        return False
    return not _decode_meta(state.meta).is_voter_barred


def all_calm(facts: Facts) -> bool:
    """Whether every member runs and follows the log."""
    return all(
        node.state is NodeState.UP and node.is_synchronised for node in facts.simulation.nodes if not node.has_left
    )
