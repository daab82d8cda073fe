"""Answers fetches: from memory, from the log, or, by a batch's own sender, from what it has not seen committed.

A repair goes to the one who asked, and to a second one; when a third member asks for the same within the linger time it
goes to the group, and then not again for that long: what two lost costs the others nothing. Repairs spend a byte
budget; over it they are left out, and asked for again.
"""

import msgspec

from alphorn.bus.entries import Assignment, digest_of
from alphorn.bus.frames import DATA_HEADER_BYTES, HEADER_BYTES, Absent, Data, Fetch, Frame, fragment_batch
from alphorn.bus.machine import DATA_GROUP
from alphorn.bus.station import Station
from alphorn.model.ids import counter_of, origin_of

_REMEMBERED_MAX = 4096
_ALONE_MAX = 2  # who are sent the same repair alone, before it goes to the group
_Found = tuple[int, bytes | memoryview, int, int]  # number, payload, timestamp and digest of a batch


class Repairer:
    """The answering side of gap repair."""

    __slots__ = (
        "_bytes_left",
        "_filled_at",
        "_placed",
        "_placed_through",
        "_recent",
        "_station",
        "damaged",
        "group_bytes",
        "member_bytes",
        "over_budget",
    )

    def __init__(self, station: Station, now: float) -> None:
        self._station = station
        self._bytes_left = float(station.budget.repair_bytes_per_s)
        self._filled_at = now
        self._recent: dict[bytes, tuple[float, tuple[int, ...]]] = {}  # batch: when, and to whom (nobody: to the group)
        self._placed: dict[bytes, int] = {}  # batches in storage by their numbers, once somebody had to know
        self._placed_through = 0
        self.group_bytes = 0
        self.member_bytes = 0
        self.over_budget = 0
        self.damaged: list[int] = []  # numbers found damaged on the way; the owner takes them

    def on_fetch(self, frame: Frame, fetch: Fetch, now: float) -> None:
        """Somebody misses something and thinks it is here."""
        station = self._station
        if fetch.target != station.number or not frame.number:
            return
        self._fill(now)
        absent = []
        is_candidate = len(fetch.ids) == len(fetch.digests) == len(fetch.sequences)  # it names the number of each batch
        for place, (batch, first, last) in enumerate(fetch.ids):
            digest, number = (fetch.digests[place], fetch.sequences[place][0]) if is_candidate else (None, 0)
            found = self._find(batch, digest, number)
            if found is not None:
                cut = fetch.cuts[place] if place < len(fetch.cuts) else 0
                self._answer_batch(frame.number, batch, (first, last, cut), found, now)
            elif self.lacks(batch, number):
                absent.append(batch)
        for first, last in fetch.sequences:
            for sequence in range(first, min(last, first + station.budget.nack_numbers_max) + 1):
                self._answer_sequence(frame.number, sequence, now)
        is_final = any(first <= station.ledger.committed for first, _ in fetch.sequences)
        # Only behind the candidate's own fence, and that on disk: who denies a batch must not store it afterwards for
        # the sequencer before, which may have all it needs but this copy.
        is_fenced = frame.epoch == station.epoch == station.durable_epoch
        if absent and not is_final and is_fenced:
            station.send_member(frame.number, Absent(absent))

    def _answer_sequence(self, to: int, sequence: int, now: float) -> None:
        station = self._station
        assignment = station.ledger.get(sequence)
        if assignment is None and station.ledger.base < sequence <= station.ledger.committed:
            self.damaged.append(sequence)
        if assignment is None or assignment.system or sequence > station.ledger.committed:
            return
        payload = self.payload_of(sequence)
        if payload is not None:
            data = fragment_batch(
                assignment.id,
                payload,
                digest=assignment.digest,
                timestamp=assignment.timestamp,
                limit=station.budget.datagram_bytes,
            )
            self._send(to, sequence, data, now)

    def _answer_batch(self, to: int, batch: bytes, wanted: tuple[int, int, int], found: _Found, now: float) -> None:
        """Sends what is wanted of a batch: fragments, named as those that are there already were cut.

        Datagrams here may be of another size. Smaller cuts are made here too; where only larger ones are there, all of
        it is sent: a fragment of another cut takes the place of all that is there, and alone would never do.
        """
        sequence, payload, timestamp, digest = found
        first, last, cut = wanted
        limit = self._station.budget.datagram_bytes
        data = fragment_batch(batch, payload, digest=digest, timestamp=timestamp, limit=limit, cut=cut)
        self._send(to, sequence, (data[first:last] if len(data) == cut else data) or data, now)

    def _find(self, batch: bytes, sought: int | None, number: int) -> _Found | None:
        """A batch with its number, 0 where that is not known; a candidate has named its digest and its number."""
        station = self._station
        sequence = station.ledger.find(batch) or self._place_of(batch)
        whole = station.holdings.get(batch)
        if whole is not None:
            return sequence, whole.payload, whole.timestamp, whole.digest
        found = self._stored(sequence) if sequence else self._stray(batch, sought, number)
        return None if found is None else (sequence, *found)

    def _stored(self, sequence: int) -> tuple[bytes | memoryview, int, int] | None:
        """A numbered batch with its timestamp and digest."""
        assignment, stored = self._station.ledger.get(sequence), self.payload_of(sequence)
        return None if assignment is None or stored is None else (stored, assignment.timestamp, assignment.digest)

    def _stray(self, batch: bytes, sought: int | None, number: int) -> tuple[bytes | memoryview, int, int] | None:
        """A batch behind a number that this disk cannot read any more: the ledger has it not, the disk may.

        Its bytes are its own whatever the number means by now, and a candidate may find them nowhere else. Where what
        the number meant is unreadable itself, they are known by the digest that is sought. The ledger ends before such
        a number, or goes on after it where a checkpoint covers it.
        """
        station = self._station
        for sequence in (number, *range(station.ledger.last + 1, station.impaired_until + 1)):
            assignment = station.storage.assignment(sequence)
            if isinstance(assignment, Assignment):
                digest, timestamp = assignment.digest if assignment.id == batch else None, assignment.timestamp
            else:
                digest, timestamp = sought, 0
            stored = station.storage.entry(sequence) if digest is not None else None
            if isinstance(stored, bytes | memoryview) and digest_of(stored) == digest:
                return stored, timestamp, digest
        return None

    def lacks(self, batch: bytes, number: int = 0) -> bool:
        """Whether this member is sure it never stored a batch, as that number if one is named; a lost disk never is.

        Nor may it deny what the log it knows has passed: the number is final, even if only a checkpoint tells so here.
        """
        station = self._station
        if station.is_barred or batch in station.holdings:
            return False
        if counter_of(batch) <= station.ledger.state.senders.get(origin_of(batch), 0):
            return False
        sequence = station.ledger.find(batch) or self._place_of(batch)
        if sequence and station.storage.entry(sequence) is not None:
            return False
        if not station.is_whole:
            return self._is_without(batch, number)
        return bool(sequence) or self._is_known(batch) or self._placed_through >= station.ledger.floor

    def _is_without(self, batch: bytes, number: int) -> bool:
        """Whether a disk that cannot read all of its log tells all the same that it has no batch of that id and number.

        It never came so far, or what it accepted last as that number can be read, and is something else, or its entry
        was never written. Had it stored the batch there, and that been committed, nothing else could have been accepted
        in its place.
        """
        station = self._station
        found = station.storage.assignment(number)
        if isinstance(found, Assignment):
            return found.id != batch or station.storage.entry(number) is None
        return found is None and number > station.impaired_until

    def _is_known(self, batch: bytes) -> bool:
        """Whether the group remembers the sender: then the state tells whether the log has passed a batch of it."""
        return origin_of(batch) in self._station.ledger.state.senders

    def _place_of(self, batch: bytes) -> int:
        """The number, in storage, of a batch whose sender the group has forgotten, or never knew; 0 for none.

        Costs a look at all numbers in storage, the first time: such a sender left long ago, or has just come.
        """
        ledger = self._station.ledger
        if self._is_known(batch):
            return 0
        if self._placed_through < ledger.floor:
            self._placed = {known: number for known, number in self._placed.items() if number > ledger.base}
            self._placed_through = max(self._placed_through, ledger.base)
            for sequence, placed in ledger.stored_ids(self._placed_through):
                self._placed[placed] = sequence
                self._placed_through = sequence
        sequence = self._placed.get(batch, 0)
        return sequence if sequence > ledger.base else 0

    def payload_of(self, sequence: int) -> bytes | memoryview | None:
        """A numbered batch from memory or the log; None where it is not here, and noted where it is damaged."""
        station = self._station
        assignment = station.ledger.get(sequence)
        if assignment is None:
            return None
        whole = station.holdings.get(assignment.id)
        if whole is not None:
            return whole.payload
        stored = station.storage.entry(sequence)
        if stored is None:
            return None
        if isinstance(stored, bytes | memoryview):
            # Within a turn the disk may still hold what a number meant before it was cut off.
            return stored if digest_of(stored) == assignment.digest else None
        self.damaged.append(sequence)
        return None

    def _send(self, to: int, sequence: int, fragments: list[Data], now: float) -> None:
        station = self._station
        # With their headers: whoever asks names the cut, and tiny fragments are nearly all header.
        size = sum(len(data.payload) for data in fragments) + len(fragments) * (HEADER_BYTES + DATA_HEADER_BYTES)
        batch = fragments[0].id
        when, whom = self._recent.get(batch, (-1.0, ()))
        is_lingering = now - when < station.timing.repair_linger_s
        if is_lingering and (not whom or to in whom):
            return
        if size > self._bytes_left:
            self.over_budget += 1
            return
        self._bytes_left -= size
        is_for_all = is_lingering and len(whom) >= _ALONE_MAX
        self._recent[batch] = (now, () if is_for_all else (*whom, to) if is_lingering else (to,))
        for data in fragments:
            repair = msgspec.structs.replace(data, sequence=sequence, is_repair=True)
            if is_for_all:
                self.group_bytes += len(data.payload)
                station.send(DATA_GROUP, repair)
            else:
                self.member_bytes += len(data.payload)
                station.send_member(to, repair)
        station.trace("repair", f"sequence={sequence} to={'group' if is_for_all else to}")

    def _fill(self, now: float) -> None:
        rate = self._station.budget.repair_bytes_per_s
        self._bytes_left = min(float(rate), self._bytes_left + (now - self._filled_at) * rate)
        self._filled_at = now
        if len(self._recent) > _REMEMBERED_MAX:
            self._recent.clear()

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"to_group": self.group_bytes, "to_members": self.member_bytes, "over_budget": self.over_budget}
