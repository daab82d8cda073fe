"""A data server: holds batches, asks for their numbers, stores them, and knows how far its log is complete.

A batch is reported from memory, so that numbering does not wait for the disk; it is acknowledged as stored only once
the entry is durable under the number the current epoch gave it. A number whose batch is missing here is fetched.
"""

from collections import deque

from alphorn.bus.entries import Assignment, digest_of
from alphorn.bus.frames import DataReport, Held
from alphorn.bus.holdings import Batch
from alphorn.bus.machine import PutAssignments, PutEntry
from alphorn.bus.nack import Requests
from alphorn.bus.station import Station
from alphorn.model.ids import Kind, Origin, counter_of, make_id, origin_of

_NEVER = float("inf")
_REPORT_MAX = 256


class DataServer:
    """Stores what the ledger numbers, from the batches this member holds."""

    __slots__ = (
        "_complete",
        "_delay_s",
        "_durable",
        "_is_due",
        "_missing",
        "_report_at",
        "_requests",
        "_resets",
        "_sent",
        "_station",
        "_unreported",
        "_writing",
        "holes",
        "reports",
        "settled",
        "stored_log",
    )

    def __init__(self, station: Station, requests: Requests, *, stored: int) -> None:
        self._station = station
        self._requests = requests
        self.stored_log = stored  # entries through this number are in this member's log on disk
        self._durable: set[int] = set()  # further ones, after a gap
        self._missing: dict[int, bytes] = {}  # numbered, but the batch is not here
        self._writing: deque[list[int]] = deque()  # numbers on their way to disk, one list for each turn
        self._resets = 0
        self._unreported: list[Held] = []
        self._is_due = False  # what is not reported has waited already
        self._delay_s = 0.0 if station.config.needs_reports else station.timing.report_delay_s
        self.holes: set[int] = set()  # committed numbers whose assignment cannot be read; catch-up fills them
        self._report_at = _NEVER
        self._sent: dict[bytes, int] = {}  # what each sender says it has sent
        self._complete: dict[bytes, int] = {}  # batches of each sender through this one were here
        self.settled: set[int] = set()  # durable numbers after a gap: each may be let go by itself
        self.reports = 0

    @property
    def stored(self) -> int:
        """Durable here, in the log of the epoch this member follows."""
        ledger = self._station.ledger
        if ledger.confirmed_epoch != self._station.epoch:
            return 0
        return min(self.stored_log, ledger.confirmed)

    def restore(self, through: int, now: float) -> None:
        """After a start: looks which entries of the ledger's tail are in the log on disk."""
        station = self._station
        self.stored_log = max(self.stored_log, station.ledger.base)
        for sequence in range(self.stored_log + 1, through + 1):
            assignment = station.ledger.get(sequence)
            if assignment is None:
                self.holes.add(sequence)
                continue
            entry = self._entry_of(sequence, assignment)
            if entry is not None:
                self._durable.add(sequence)
                if sequence > station.ledger.committed and not assignment.system:
                    station.holdings.put(assignment.id, bytes(entry), assignment.timestamp, assignment.digest)
            else:
                self._missing[sequence] = assignment.id
        self._report_at = now
        self._advance()

    def _entry_of(self, sequence: int, assignment: Assignment) -> bytes | memoryview | None:
        """What the log on disk has of a number; nothing where it is damaged, or of what the number meant before.

        Behind a damaged record the disk keeps old entries until it is known what the numbers mean: some may mean
        something else by then.
        """
        if assignment.system:
            return b""
        entry = self._station.storage.entry(sequence)
        if not isinstance(entry, bytes | memoryview) or digest_of(entry) != assignment.digest:
            return None
        return entry

    def on_batch(self, batch: bytes, whole: Batch, sequence: int, now: float) -> None:
        """A batch became whole here; its number is 0 where it has none."""
        if sequence:
            if self._missing.get(sequence) == batch:
                del self._missing[sequence]
                self._store([sequence])
            return
        if self.wants(batch):
            self._unreported.append(whole.held(batch))
            self._notice_gap(batch, now)

    def wants(self, batch: bytes) -> bool:
        """Whether a batch is still to be numbered, as far as this member knows."""
        origin = origin_of(batch)
        state = self._station.ledger.state
        return counter_of(batch) > state.senders.get(origin, 0)

    def on_sent(self, origin: bytes, sent: int, now: float) -> None:
        """A sender tells how many batches it has sent; what is not here is asked for."""
        if sent > self._sent.get(origin, 0):
            self._sent[origin] = sent
        self._ask_sender(origin, now)

    def _notice_gap(self, batch: bytes, now: float) -> None:
        origin, counter = origin_of(batch), counter_of(batch)
        if counter > self._sent.get(origin, 0):
            self._sent[origin] = counter
        previous = make_id(origin, Kind.BATCH, counter - 1) if counter > 1 else None
        if previous and previous not in self._station.holdings and not self._station.ledger.find(previous):
            self._ask_sender(origin, now)

    def _ask_sender(self, origin: bytes, now: float) -> None:
        """Wants every batch between the last numbered one and the newest sent."""
        station = self._station
        first = max(station.ledger.state.senders.get(origin, 0), self._complete.get(origin, 0)) + 1
        last = min(self._sent.get(origin, 0), first + station.budget.window_batches)
        for counter in range(first, last + 1):
            batch = make_id(Origin(origin), Kind.BATCH, counter)
            if batch in station.holdings or station.ledger.find(batch):
                if counter == first:
                    self._complete[origin] = counter
                    first += 1
            else:
                self._requests.want_batch(batch, now)

    def on_appended(self, first: int, now: float) -> None:
        """New numbers in the ledger: stores what is here, fetches what is not."""
        ledger, ready = self._station.ledger, []
        for sequence in range(max(first, ledger.base + 1), ledger.last + 1):
            assignment = ledger.get(sequence)
            assert assignment is not None
            if assignment.system or assignment.id in self._station.holdings:
                ready.append(sequence)
            else:
                self._missing[sequence] = assignment.id
                self._requests.want_batch(assignment.id, now)
                self._look_again(now)
        self._store(ready)

    def on_cut(self, after: int) -> None:
        """Numbers after this one mean nothing any more; their batches wait for new ones."""
        self.stored_log = min(self.stored_log, after)
        self._durable = {sequence for sequence in self._durable if sequence <= after}
        self._missing = {sequence: batch for sequence, batch in self._missing.items() if sequence <= after}
        for writing in self._writing:
            writing[:] = [sequence for sequence in writing if sequence <= after]
        self.report_all()

    def report_all(self) -> None:
        """Names everything without a number again, in the order of each sender: to a new sequencer, or after loss."""
        station = self._station
        self._is_due = True
        self._unreported = [
            whole.held(batch)
            for batch, whole in station.holdings.whole()
            if not station.ledger.find(batch) and self.wants(batch)
        ]

    def on_damaged(self, sequence: int, now: float) -> None:
        """A stored entry cannot be read: it is fetched from a peer and written again, never forgotten."""
        assignment = self._station.ledger.get(sequence)
        if assignment is None:
            self.holes.add(sequence)
        elif sequence not in self._missing:
            self._station.trace("damaged", f"sequence={sequence}")
            self._missing[sequence] = assignment.id
            self._requests.want_sequence(sequence, now)
            self._look_again(now)

    def mend(self, previous: int, assignments: list[Assignment]) -> None:
        """What final numbers mean, as others tell: written again where this disk cannot read it any more."""
        if not self.holes:
            return
        station = self._station
        for sequence, assignment in enumerate(assignments, previous + 1):
            if sequence in self.holes and sequence <= station.ledger.committed:
                self.holes.discard(sequence)
                station.journal.write(PutAssignments(sequence, [assignment]))
                if self._entry_of(sequence, assignment) is not None:
                    self._settle_later([sequence])
                else:
                    self._missing[sequence] = assignment.id
                    self._report_at = 0.0  # asked for at once

    def _look_again(self, now: float) -> None:
        self._report_at = min(self._report_at, now + self._station.timing.report_repeat_s)

    def on_collected(self, through: int) -> None:
        """Numbers through this one are forgotten: nobody has to have them."""
        self._missing = {sequence: batch for sequence, batch in self._missing.items() if sequence > through}
        self.holes.difference_update([sequence for sequence in self.holes if sequence <= through])
        self.stored_log = max(self.stored_log, through)
        self._durable = {sequence for sequence in self._durable if sequence > self.stored_log}
        self._advance()

    def is_missing(self, sequence: int) -> bool:
        """Whether this member should have this entry and has not."""
        return sequence in self._missing

    def store_late(self, sequence: int, payload: bytes | memoryview, digest: int, *, system: bool = False) -> None:
        """A fetched or caught-up entry of a committed number."""
        self._missing.pop(sequence, None)
        self.holes.discard(sequence)
        if not system:
            self._station.journal.write(PutEntry(sequence, payload, digest))
        self._settle_later([sequence])

    def reset(self, through: int) -> None:
        """The ledger starts anew after a checkpoint: what precedes it is not missed."""
        self.stored_log = through
        self._durable.clear()
        self.holes.clear()
        self._missing.clear()
        self._writing.clear()
        self._resets += 1

    def _store(self, sequences: list[int]) -> None:
        if not sequences:
            return
        ledger, holdings, journal = self._station.ledger, self._station.holdings, self._station.journal
        for sequence in sequences:
            assignment = ledger.get(sequence)
            assert assignment is not None
            if not assignment.system:
                whole = holdings.get(assignment.id)
                assert whole is not None
                journal.write(PutEntry(sequence, whole.payload, whole.digest))
        self._settle_later(sequences)

    def _settle_later(self, sequences: list[int]) -> None:
        self._writing.append(sequences)
        resets = self._resets
        self._station.journal.then(lambda: self._settle(resets))

    def _settle(self, resets: int) -> None:
        """The oldest write is durable; unless the log was replaced meanwhile, which forgot it."""
        if resets != self._resets:
            return
        for sequence in self._writing.popleft():
            if sequence == self.stored_log + 1:
                self.stored_log = sequence
            elif sequence > self.stored_log:
                self._durable.add(sequence)
                self.settled.add(sequence)
        if self._durable:
            self._advance()

    def _advance(self) -> None:
        while self.stored_log + 1 in self._durable:
            self.stored_log += 1
            self._durable.discard(self.stored_log)

    def flush(self, now: float) -> None:
        """Reports this turn's batches to the sequencer, in one frame.

        A sequencer that holds batches itself numbers them without being asked: others give it `report_delay_s` first.
        """
        station = self._station
        is_due, self._is_due = self._is_due, False
        if self._unreported and station.sequencer:
            if self._delay_s and station.sequencer != station.number and not is_due:
                self._unreported = []
                self._report_at = min(self._report_at, now + self._delay_s)
                return
            for start in range(0, len(self._unreported), _REPORT_MAX):
                self.reports += 1
                station.send_member(station.sequencer, DataReport(self._unreported[start : start + _REPORT_MAX]))
            self._report_at = now + station.timing.report_repeat_s
            self._unreported = []

    def next_deadline(self) -> float:
        """When it wants to name again what has got no number."""
        return self._report_at

    def on_time(self, now: float) -> None:
        """Reports may be lost."""
        if now >= self._report_at:
            self._report_at = _NEVER
            self.report_all()
            senders = self._station.ledger.state.senders
            self._sent = {origin: sent for origin, sent in self._sent.items() if origin in senders}
            self._complete = {}
            for sequence, batch in list(self._missing.items())[: self._station.budget.nack_numbers_max]:
                if batch in self._station.holdings:
                    del self._missing[sequence]
                    self._store([sequence])
                elif sequence <= self._station.ledger.committed:
                    self._requests.want_sequence(sequence, now)
                else:
                    self._requests.want_batch(batch, now)
            if self._missing or self._unreported:
                self._report_at = now + self._station.timing.report_repeat_s

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"stored": self.stored_log, "missing": len(self._missing), "reports": self.reports}
