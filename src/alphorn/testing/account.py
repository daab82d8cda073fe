"""What a group of processes promised, and whether it kept it.

The account hears every event of every member. A batch whose sender was told `ordered` must be delivered by every
member, now and after every crash; members that have delivered equally many batches must have delivered the same ones.
Faults found are kept as sentences; an account without faults has seen none.
"""

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from alphorn.io.control import (
    BatchesOrdered,
    BatchRefused,
    Described,
    Event,
    LoadStarted,
    Primary,
    Stopped,
    Tallied,
)
from alphorn.io.inspect_store import inspect_store, is_faulty
from alphorn.testing.processes import MemberProcess

FAULTS_MAX = 50  # enough to understand; the first is what matters
_COMMITTED = re.compile(r"committed=(\d+)")


class StoreSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one server has on disk."""

    name: str
    committed: int
    assignments: dict[int, str]
    entries: dict[int, str]


class Account:
    """The promises of one group, over any number of lives of its members."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.refused = 0
        self.unknown = 0
        self.epoch = 0  # newest that any member delivered
        self._senders: dict[str, str] = {}  # by member: its sender's name
        self._ordered: dict[str, list[tuple[int, int]]] = {}  # by sender
        self._chains: dict[int, tuple[str, str]] = {}  # by count of batches: the chain, and who said it first
        self._commits: dict[str, tuple[int, float]] = {}  # by member: epoch, and its last commit there
        self._seen_epochs: dict[str, int] = {}

    @property
    def ordered(self) -> int:
        """Batches promised."""
        return sum(last - first + 1 for ranges in self._ordered.values() for first, last in ranges)

    def hear(self, member: MemberProcess, event: Event) -> None:
        """Takes in what a member said."""
        match event:
            case LoadStarted(sender):
                self._senders[member.name] = sender
                self._ordered[sender] = []
            case BatchesOrdered():
                self._on_ordered(member.name, event)
            case BatchRefused():
                self.refused += 1
                self.unknown += event.is_unknown
            case Primary():
                self.epoch = max(self.epoch, event.epoch)
                self._seen_epochs[member.name] = event.epoch
            case Tallied():
                self._on_tallied(member.name, event)
            case Described():
                self._on_tallied(member.name, event.tally)
                if event.repeats:
                    self.blame(f"{member.name} delivered {event.repeats} batches twice or out of their sender's order")
            case Stopped(reason) if "told to stop" not in reason:
                self.blame(f"{member.name} stopped by itself: {reason}")

    def commit_after(self, epoch: int, name: str) -> float | None:
        """When this member's first batch was committed under a later epoch; None while none was."""
        found = self._commits.get(name)
        return found[1] if found is not None and found[0] > epoch else None

    def check_all(self, described: dict[str, Described]) -> None:
        """Compares members that have come to rest: the same batches, and all that was promised among them."""
        tallies = {name: member.tally for name, member in described.items()}
        if len(set(map(msgspec.structs.astuple, tallies.values()))) > 1:
            self.blame(f"members did not deliver the same: {tallies}")
        for name, member in described.items():
            seen = {seen.sender: seen.ranges for seen in member.seen}
            for sender, ranges in self._ordered.items():
                missing = subtract(ranges, seen.get(sender, []))
                if missing:
                    self.blame(f"{name} never delivered the batches {missing} of sender {sender}, which were ordered")

    def check_stores(self, stores: Iterable[MemberProcess], *, batches: int, is_whole: bool) -> None:
        """Compares the disks of servers that have ended; `is_whole` when nothing was collected from them."""
        read = [summary for member in stores if (summary := self._read_store(member)) is not None]
        line = min((summary.committed for summary in read), default=0)
        for one, other in itertools.pairwise(read):
            for kind in ("assignments", "entries"):
                mine, theirs = getattr(one, kind), getattr(other, kind)
                common = [number for number in mine.keys() & theirs.keys() if number <= line]
                differing = [number for number in common if mine[number] != theirs[number]]
                if differing:
                    self.blame(f"{kind} {sorted(differing)[:5]} differ between {one.name} and {other.name}")
        for summary in read:
            if is_whole and len(summary.entries) < batches:
                self.blame(f"{summary.name} has {len(summary.entries)} batches on disk; {batches} were delivered")

    def blame(self, fault: str) -> None:
        """Keeps a fault."""
        if len(self.faults) < FAULTS_MAX and fault not in self.faults:
            self.faults.append(fault)

    def _on_ordered(self, name: str, event: BatchesOrdered) -> None:
        ranges = self._ordered[self._senders[name]]
        if ranges and event.first <= ranges[-1][1]:
            self.blame(f"{name} was told twice, or out of order, that its batch {event.first} is ordered")
        if ranges and event.first == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], event.last)
        else:
            ranges.append((event.first, event.last))
        epoch = self._seen_epochs.get(name, 0)
        if epoch > self._commits.get(name, (-1, 0.0))[0]:
            self._commits[name] = (epoch, event.at)

    def _on_tallied(self, name: str, tallied: Tallied) -> None:
        chain, first = self._chains.setdefault(tallied.batches, (tallied.chain, name))
        if chain != tallied.chain:
            self.blame(f"the first {tallied.batches} batches of {name} are not those of {first}")

    def _read_store(self, member: MemberProcess) -> StoreSummary | None:
        assert member.store is not None
        rows = list(inspect_store(Path(member.store)))
        bad = [f"{row.table} {row.key} {row.verdict}" for row in rows if is_faulty(row)]
        if bad:
            self.blame(f"the store of {member.name} has bad records: {bad[:5]}")
        meta = next((found for row in rows if row.table == "meta" and (found := _COMMITTED.search(row.details))), None)
        return StoreSummary(
            name=member.name,
            committed=int(meta[1]) if meta else 0,
            assignments={int(row.key): row.details for row in rows if row.table == "assignment"},
            entries={int(row.key): row.details for row in rows if row.table in ("entry", "retained")},
        )


def subtract(wanted: Iterable[tuple[int, int]], have: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of the wanted inclusive ranges is in none of the ranges at hand, which are in order."""
    missing = []
    for first, last in wanted:
        start = first
        for low, high in have:
            if high < start or low > last:
                continue
            if low > start:
                missing.append((start, low - 1))
            start = high + 1
        if start <= last:
            missing.append((start, last))
    return missing
