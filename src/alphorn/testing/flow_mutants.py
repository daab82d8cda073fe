"""Mistakes in the flow of batches: numbering, delivery, repair, and what may be let go."""

from copy import copy
from typing import Any

from alphorn.bus.entries import Assignment, Collected
from alphorn.bus.frames import DataReport, Frame
from alphorn.bus.group_state import GroupState
from alphorn.bus.machine import Deliver, Retain
from alphorn.bus.membership import Membership
from alphorn.bus.nack import Requests
from alphorn.bus.receiver import Receiver
from alphorn.bus.repair import Repairer
from alphorn.bus.roster import Roster
from alphorn.bus.sequencer import Sequencer, _Report
from alphorn.bus.takeover import Takeover
from alphorn.io.retention import Retention
from alphorn.model.ids import IdSource, counter_of, origin_of
from alphorn.model.ranges import RangeSet
from alphorn.testing.mutation import Mutant, Patch


def _number_all(self: Any) -> None:
    for reports in self._reports.values():
        for report in reports.values():
            held = report.held
            self._append(Assignment(self.epoch, held.id, held.timestamp, held.digest, held.size))
    self._reports = {}


def _numbered_twice() -> list[Patch]:
    original = Sequencer._number_ready

    def on_report(self: Any, frame: Frame, body: DataReport, now: float) -> None:
        self.roster.hear(frame, now)
        for held in body.held:
            if self._tip.is_sender(origin_of(held.id)):
                self._reports.setdefault(origin_of(held.id), {})[counter_of(held.id)] = _Report(held)

    def number_ready(self: Any) -> None:
        _number_all(self)
        original(self)

    return [(Sequencer, "on_report", on_report), (Sequencer, "_number_ready", number_ready)]


def _any_order() -> list[Patch]:
    original = Sequencer._number_ready

    def number_ready(self: Any) -> None:
        _number_all(self)
        original(self)

    return [(Sequencer, "_number_ready", number_ready)]


def _run_name_reused() -> list[Patch]:
    original = IdSource.__init__

    def begin(self: Any, host: bytes, port: int, *, unix_s: float, previous_start: int = -1) -> None:
        original(self, host, port, unix_s=1_750_000_000.0)

    return [(IdSource, "__init__", begin), (Membership, "may_send", lambda self, now: self.is_joined)]


def _delivered_twice() -> list[Patch]:
    original = Receiver.advance

    def advance(self: Any, now: float) -> bool:
        outbox = self._station.outbox
        before = len(outbox)
        more = original(self, now)
        again = [output for output in outbox[before:] if isinstance(output, Deliver) and output.sequence % 50 == 0]
        outbox.extend(again)
        return more

    return [(Receiver, "advance", advance)]


def _delivered_early() -> list[Patch]:
    original = Receiver.advance

    def advance(self: Any, now: float) -> bool:
        more = original(self, now)
        ledger = self._station.ledger
        while not self.is_held and ledger.committed <= self.delivered < ledger.last:
            assignment = ledger.get(self.delivered + 1)
            payload = None if assignment.system else self._repairer.payload_of(self.delivered + 1)
            if payload is None:
                break
            self.delivered += 1
            self._station.outbox.append(Deliver(self.delivered, assignment, payload))
        return more

    return [(Receiver, "advance", advance)]


def _gap_passed_over() -> list[Patch]:
    original = Receiver._miss

    def miss(self: Any, sequence: int, now: float) -> None:
        original(self, sequence, now)
        self.delivered = sequence

    return [(Receiver, "_miss", miss)]


def _collected_unsaved() -> list[Patch]:
    original = Roster.collection

    def collection(self: Any, tip: Any, now: float) -> Collected | None:
        for standing in self.standings.values():
            standing.checkpoint = self._station.ledger.committed
        return original(self, tip, now)

    return [(Roster, "collection", collection)]


def _collected_from_laggards() -> list[Patch]:
    original = Roster.collection

    def collection(self: Any, tip: Any, now: float) -> Collected | None:
        ready = Roster(self._station, self.begun_at)
        for number, standing in self.standings.items():
            ready.standings[number] = copied = copy(standing)
            copied.stored = copied.accepted = self._station.ledger.last
        return original(ready, tip, now)

    return [(Roster, "collection", collection)]


def _collected_young() -> list[Patch]:
    def aged_through(self: Any, newest: int) -> int:
        return newest if self.lifetime else 0

    return [(GroupState, "aged_through", aged_through)]


def _repair_storm() -> list[Patch]:
    def want(self: Any, key: Any, now: float) -> None:
        is_new = key not in self._open
        original(self, key, now)
        if is_new and key in self._open:
            self._open[key].due = self._deadline = now

    def on_time(self: Any, now: float) -> None:
        on_time_original(self, now)
        for request in self._open.values():
            request.attempts = 0
            request.due = min(request.due, now + 0.005)
            self._deadline = min(self._deadline, request.due)

    def send(self: Any, to: int, sequence: int, fragments: list[Any], now: float) -> None:
        self._recent[fragments[0].id] = (now, -1)
        self._bytes_left = float(self._station.budget.repair_bytes_per_s)
        send_original(self, to, sequence, fragments, now)

    original, on_time_original, send_original = Requests._want, Requests.on_time, Repairer._send
    return [
        (Requests, "_want", want),
        (Requests, "on_time", on_time),
        (Requests, "overheard", lambda self, fetch, now: None),
        (Repairer, "_send", send),
    ]


def _nothing_let_go() -> list[Patch]:
    def release(self: Any, through: int) -> None:
        self.released = max(self.released, through)

    return [(Receiver, "release", release), (Receiver, "prune", lambda self: None)]


def _needed_dropped() -> list[Patch]:
    def unneeded(self: Any, through: int) -> RangeSet:
        return RangeSet([(0, min(through, self._checkpoint))])

    return [(Retention, "_unneeded", unneeded)]


def _undecided_dropped() -> list[Patch]:
    def unneeded(self: Any, through: int) -> RangeSet:
        return RangeSet([(0, through)]).difference(self._needed or RangeSet())

    return [(Retention, "_unneeded", unneeded)]


def _retained_for_ever() -> list[Patch]:
    original = Retention.dropped_by

    def dropped_by(self: Any, write: Any, bounds: Any) -> RangeSet | None:
        dropped = original(self, write, bounds)
        return RangeSet() if isinstance(write, Retain) else dropped

    return [(Retention, "dropped_by", dropped_by)]


def _stateless_sequencer() -> list[Patch]:
    return [(Takeover, "_has_state", property(lambda self: True))]


FLOW_MUTANTS = (
    Mutant(
        name="numbered-twice",
        description="The sequencer keeps no sender counters: a batch reported again gets another number.",
        patch=_numbered_twice,
    ),
    Mutant(
        name="any-order",
        description="The sequencer numbers a sender's batches as they are reported, not as they were sent.",
        patch=_any_order,
    ),
    Mutant(
        name="run-name-reused",
        description="A restarted member goes by the name of its earlier run.",
        patch=_run_name_reused,
    ),
    Mutant(
        name="delivered-twice",
        description="Now and then a batch is delivered a second time.",
        patch=_delivered_twice,
    ),
    Mutant(
        name="delivered-early",
        description="Batches are delivered as soon as they have a number.",
        patch=_delivered_early,
    ),
    Mutant(
        name="gap-passed-over",
        description="Delivery goes on after a number whose batch is missing.",
        patch=_gap_passed_over,
    ),
    Mutant(
        name="collected-unsaved",
        description="Entries are collected before a checkpoint covers them.",
        patch=_collected_unsaved,
    ),
    Mutant(
        name="collected-from-laggards",
        description="Entries are collected that live servers have not stored yet.",
        patch=_collected_from_laggards,
    ),
    Mutant(
        name="collected-young",
        description="Entries are collected by age before their lifetime is over.",
        patch=_collected_young,
    ),
    Mutant(
        name="repair-storm",
        description="Members ask for what they miss at once and again and again, and every repair goes to the group.",
        patch=_repair_storm,
    ),
    Mutant(
        name="nothing-let-go",
        description="Batches stay in memory after they are delivered and stored.",
        patch=_nothing_let_go,
    ),
    Mutant(
        name="needed-dropped",
        description="Collection drops entries that the newest checkpoint needs.",
        patch=_needed_dropped,
    ),
    Mutant(
        name="undecided-dropped",
        description="Collection drops entries after the newest checkpoint, before the next one says what it needs.",
        patch=_undecided_dropped,
    ),
    Mutant(
        name="retained-for-ever",
        description="What was retained once is never dropped again.",
        patch=_retained_for_ever,
    ),
    Mutant(
        name="stateless-sequencer",
        description="A member stands for election while its upper layer takes over a checkpoint.",
        patch=_stateless_sequencer,
    ),
)
