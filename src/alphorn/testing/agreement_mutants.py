"""Mistakes in agreement: who may decide, what must be durable first, and which log is gone on from."""

from collections.abc import Iterable
from typing import Any

import msgspec

from alphorn.bus.commit_server import CommitServer
from alphorn.bus.data_server import DataServer
from alphorn.bus.endpoint import Endpoint
from alphorn.bus.entries import InSyncChanged
from alphorn.bus.follower import Follower
from alphorn.bus.frames import Promise
from alphorn.bus.group_state import GroupState
from alphorn.bus.ledger import Ledger
from alphorn.bus.repair import Repairer
from alphorn.bus.roster import Roster
from alphorn.bus.sequencer import Sequencer
from alphorn.bus.station import Station
from alphorn.bus.storage import CheckpointInfo
from alphorn.bus.takeover import Takeover
from alphorn.model.ids import counter_of, origin_of
from alphorn.testing.mutation import Mutant, Patch


def _half_decides() -> list[Patch]:
    return [(GroupState, "majority", property(lambda self: max(1, len(self.voters) // 2)))]


def _one_vote_commits() -> list[Patch]:
    def accepted(self: Any, number: int) -> int:
        return max((standing.accepted for standing in self.standings.values()), default=0)

    return [(Roster, "accepted", accepted)]


def _one_copy_fewer() -> list[Patch]:
    original = Sequencer._commit

    def commit(self: Any, now: float) -> None:
        rules = self._rules
        self._rules = [(sequence, numbers, max(1, copies - 1)) for sequence, numbers, copies in rules]
        original(self, now)
        self._rules = rules[len(rules) - len(self._rules) :]

    return [(Sequencer, "_commit", commit)]


def _new_rule_at_once() -> list[Patch]:
    original = Sequencer._fold

    def fold(self: Any, sequence: int, assignment: Any) -> None:
        before = len(self._rules)
        original(self, sequence, assignment)
        if len(self._rules) > before:
            self._rules = self._rules[-1:]

    return [(Sequencer, "_fold", fold)]


def _unready_in_sync() -> list[Patch]:
    def rule(self: Any, numbers: list[int], tip: GroupState) -> InSyncChanged | None:
        config = self._station.config
        changed = InSyncChanged(tuple(sorted(numbers)), min(config.copies, len(numbers)))
        is_news = (changed.numbers, changed.copies) != (tip.in_sync, tip.copies)
        return changed if is_news and changed.copies >= config.copies_min else None

    return [(Roster, "_rule", rule)]


def _no_fence() -> list[Patch]:
    def follow(self: Any, epoch: int, sequencer: int) -> bool:
        if epoch > self.epoch:
            self.raise_fence(epoch)
        self.sequencer = sequencer
        return True

    return [(Station, "follow", follow)]


def _early_promise() -> list[Patch]:
    original = CommitServer.on_prepare

    def on_prepare(self: Any, frame: Any, body: Any, now: float) -> None:
        original(self, frame, body, now)
        self._promise(frame, body)

    return [(CommitServer, "on_prepare", on_prepare)]


def _forgotten_promise() -> list[Patch]:
    def raise_fence(self: Any, epoch: int) -> None:
        self.epoch = epoch
        self.sequencer = 0
        self.journal.then(lambda: self._fence_settled(epoch))

    return [(Station, "raise_fence", raise_fence)]


def _epoch_goes_back() -> list[Patch]:
    original = Station.__init__

    def begin(self: Any, *, meta: Any, **settings: Any) -> None:
        original(self, meta=msgspec.structs.replace(meta, promised=0), **settings)

    return [(Station, "__init__", begin)]


def _early_acceptance() -> list[Patch]:
    def accepted(self: Any) -> int:
        ledger = self._station.ledger
        if not self.may_vote or ledger.confirmed_epoch != self._station.epoch:
            return 0
        return int(min(ledger.last, ledger.confirmed))

    return [(CommitServer, "accepted", property(accepted))]


def _unconfirmed_acceptance() -> list[Patch]:
    return [(CommitServer, "accepted", property(lambda self: self._follower.durable if self.may_vote else 0))]


def _early_storage() -> list[Patch]:
    def settle_later(self: Any, sequences: Iterable[int]) -> None:
        self._durable.update(sequences)
        self._advance()

    return [(DataServer, "_settle_later", settle_later)]


def _blank_disk_votes() -> list[Patch]:
    return [(CommitServer, "may_vote", property(lambda self: True))]


class _Some(dict[int, Promise]):
    """Promises of which a candidate sees only some logs, though all are counted."""

    def __init__(self, promises: dict[int, Promise], seen: Iterable[Promise]) -> None:
        super().__init__(promises)
        self.seen = list(seen)

    def values(self) -> Any:
        """Only the logs that are seen."""
        return self.seen


def _shortest_log() -> list[Patch]:
    original = Takeover._count

    def count(self: Any, now: float) -> None:
        shortest = min(self._promises.items(), key=lambda item: (item[1].last_epoch, item[1].last))[1]
        self._promises = _Some(self._promises, [shortest])
        original(self, now)

    return [(Takeover, "_count", count)]


def _longest_log() -> list[Patch]:
    original = Takeover._count

    def count(self: Any, now: float) -> None:
        longest = max(self._promises.items(), key=lambda item: item[1].last)[1]
        self._promises = _Some(self._promises, [longest])
        original(self, now)

    return [(Takeover, "_count", count)]


def _own_log() -> list[Patch]:
    original = Takeover._count

    def count(self: Any, now: float) -> None:
        own = self._promises.get(self._station.number)
        if own is not None:
            self._promises = _Some(self._promises, [own])
            original(self, now)

    return [(Takeover, "_count", count)]


def _hasty_abandon() -> list[Patch]:
    original = Takeover._cannot_be_committed

    def cannot(self: Any, batch: bytes, tip: GroupState) -> bool:
        return original(self, batch, tip) or len(self._denied[batch] & set(tip.in_sync)) >= max(
            1, len(tip.in_sync) - tip.copies
        )

    return [(Takeover, "_cannot_be_committed", cannot)]


def _damaged_is_absent() -> list[Patch]:
    def lacks(self: Any, batch: bytes, number: int = 0) -> bool:
        station = self._station
        if batch in station.holdings or counter_of(batch) <= station.ledger.state.senders.get(origin_of(batch), 0):
            return False
        sequence = station.ledger.find(batch)
        return not sequence or self.payload_of(sequence) is None

    return [(Repairer, "lacks", lacks)]


def _passed_is_absent() -> list[Patch]:
    def lacks(self: Any, batch: bytes, number: int = 0) -> bool:
        station = self._station
        if not station.is_whole or batch in station.holdings:
            return False
        sequence = station.ledger.find(batch)
        return not sequence or station.storage.entry(sequence) is None

    return [(Repairer, "lacks", lacks)]


def _early_checkpoint() -> list[Patch]:
    original = Endpoint._tell_synchronised

    def tell_synchronised(self: Any) -> None:
        original(self)
        offer = self._station.storage.checkpoint()
        if isinstance(offer, CheckpointInfo) and self._receiver.is_held and self._station.is_checkpoint_server:
            self._checkpoints.on_written(offer.sequence, 0.0)

    return [(Endpoint, "_tell_synchronised", tell_synchronised)]


def _unmatched_submit() -> list[Patch]:
    return [(Ledger, "matches", lambda self, previous, previous_epoch: previous <= self.last)]


def _cut_in_memory_only() -> list[Patch]:
    def forget(self: Any, after: int) -> None:
        self.durable = min(self.durable, after)
        for mark in self._pending:
            mark[0] = min(mark[0], after)
        self.on_cut(after)

    return [(Follower, "_forget", forget)]


def _old_numbers_commit_alone() -> list[Patch]:
    original = Sequencer._commit

    def commit(self: Any, now: float) -> None:
        start, self.start = self.start, 0
        original(self, now)
        self.start = start

    return [(Sequencer, "_commit", commit)]


AGREEMENT_MUTANTS = (
    Mutant(
        name="half-decides",
        description="Half of the commit servers is taken for a majority.",
        patch=_half_decides,
    ),
    Mutant(
        name="one-vote-commits",
        description="What one commit server accepted counts as accepted by all.",
        patch=_one_vote_commits,
    ),
    Mutant(
        name="one-copy-fewer",
        description="A batch is committed with one copy less than the rule asks for.",
        patch=_one_copy_fewer,
    ),
    Mutant(
        name="new-rule-at-once",
        description="A change of the in-sync set counts before a majority has it.",
        patch=_new_rule_at_once,
    ),
    Mutant(
        name="unready-in-sync",
        description="An in-sync set becomes the rule though too few of its members hold what is committed.",
        patch=_unready_in_sync,
    ),
    Mutant(
        name="no-fence",
        description="Sequencers of older epochs are followed.",
        patch=_no_fence,
    ),
    Mutant(
        name="early-promise",
        description="A promise is said before it is durable.",
        patch=_early_promise,
    ),
    Mutant(
        name="forgotten-promise",
        description="A promise is never written to disk.",
        patch=_forgotten_promise,
    ),
    Mutant(
        name="epoch-goes-back",
        description="A restarted member begins at the first epoch again.",
        patch=_epoch_goes_back,
    ),
    Mutant(
        name="early-acceptance",
        description="A commit server acknowledges numbers that are not yet on its disk.",
        patch=_early_acceptance,
    ),
    Mutant(
        name="unconfirmed-acceptance",
        description="A commit server acknowledges numbers of an older epoch's log as the new one's.",
        patch=_unconfirmed_acceptance,
    ),
    Mutant(
        name="early-storage",
        description="A data server acknowledges entries that are not yet on its disk.",
        patch=_early_storage,
    ),
    Mutant(
        name="blank-disk-votes",
        description="A commit server that lost its disk votes.",
        patch=_blank_disk_votes,
    ),
    Mutant(
        name="shortest-log",
        description="A candidate goes on from the worst of the promised logs.",
        patch=_shortest_log,
    ),
    Mutant(
        name="longest-log",
        description="A candidate goes on from the longest log, whatever its epoch.",
        patch=_longest_log,
    ),
    Mutant(
        name="own-log",
        description="A candidate goes on from its own log, whatever others promised.",
        patch=_own_log,
    ),
    Mutant(
        name="hasty-abandon",
        description="A candidate cuts off a number that may still have enough copies.",
        patch=_hasty_abandon,
    ),
    Mutant(
        name="damaged-is-absent",
        description="A data server says it never had what it cannot read.",
        patch=_damaged_is_absent,
    ),
    Mutant(
        name="unmatched-submit",
        description="Numbers are taken without looking whether what precedes them is the same.",
        patch=_unmatched_submit,
    ),
    Mutant(
        name="cut-in-memory-only",
        description="A log that was cut is whole again after a restart.",
        patch=_cut_in_memory_only,
    ),
    Mutant(
        name="old-numbers-commit-alone",
        description="A new sequencer commits numbers of older epochs before the first of its own.",
        patch=_old_numbers_commit_alone,
    ),
    Mutant(
        name="passed-is-absent",
        description="A data server says it never had what its own checkpoint covers.",
        patch=_passed_is_absent,
    ),
    Mutant(
        name="early-checkpoint",
        description="A fetched checkpoint is reported before it is durable and the upper layer has it.",
        patch=_early_checkpoint,
    ),
)
