"""What must hold in every run. Each checker watches one promise, has a name, and raises `Violation` for a breach."""

from typing import Protocol

from alphorn.testing.checkers.bounds import NoRepairStorm, WithinBounds
from alphorn.testing.checkers.durability import CollectionWaits, DurableBeforeCommit, RulesHold
from alphorn.testing.checkers.epochs import (
    AcknowledgesAreDurable,
    EpochsBeginSafely,
    EpochsOnlyGrow,
    OneSequencerPerEpoch,
    SuccessorsKnowAll,
)
from alphorn.testing.checkers.facts import Facts
from alphorn.testing.checkers.order import NoGapAtDelivery, OrderedIsKept, ReplicasAgree, SentOnceInOrder
from alphorn.testing.checkers.promises import (
    AcceptedIsKept,
    BlankDisksDoNotVote,
    DeniedIsAbsent,
    DisksAreOrdered,
    KeptDisksVote,
)
from alphorn.testing.checkers.retention import LeadersHaveState, NeededIsKept
from alphorn.testing.workload import Workload

CHECKERS = (
    EpochsBeginSafely,
    SuccessorsKnowAll,
    DurableBeforeCommit,
    RulesHold,
    OneSequencerPerEpoch,
    EpochsOnlyGrow,
    AcknowledgesAreDurable,
    AcceptedIsKept,
    DisksAreOrdered,
    BlankDisksDoNotVote,
    KeptDisksVote,
    DeniedIsAbsent,
    NoGapAtDelivery,
    ReplicasAgree,
    SentOnceInOrder,
    OrderedIsKept,
    CollectionWaits,
    NeededIsKept,
    LeadersHaveState,
    WithinBounds,
    NoRepairStorm,
)


class Checker(Protocol):
    """Watches one promise from the start of a run."""

    name: str


class CheckerSet:
    """All checkers of one run."""

    __slots__ = ("checkers", "facts")

    def __init__(self, facts: Facts, workload: Workload) -> None:
        self.facts = facts
        self.checkers: list[Checker] = [make(facts, workload) for make in CHECKERS]

    def heal(self) -> None:
        """Faults are over."""
        for checker in self.checkers:
            if isinstance(checker, NoRepairStorm):
                checker.heal()

    def judge_repairs(self) -> None:
        """What healing has cost is known."""
        for checker in self.checkers:
            if isinstance(checker, NoRepairStorm):
                checker.finish()

    def finish(self) -> None:
        """The run is over: the checks that need the whole log."""
        for checker in self.checkers:
            if isinstance(checker, SentOnceInOrder | OrderedIsKept | NoRepairStorm | NeededIsKept):
                checker.finish()
