"""When to ask for what is missing: random back-off, suppression, coalesced ranges, other servers on each attempt.

The first request waits a random time, so that of many members that miss the same frame few ask. Hearing another ask for
the same holds one's own request back. Each attempt waits longer than the one before and turns to another server.
Whoever misses more than a bounded run is not served from here but by unicast catch-up (catch_up.py).
"""

from alphorn.bus.config import Role
from alphorn.bus.frames import Fetch
from alphorn.bus.station import Station
from alphorn.model.ids import counter_of, origin_of

_NEVER = float("inf")
Key = int | bytes  # a number, or a batch that has none yet
_Wanted = tuple[bytes, int, int, int]  # a batch, its first missing fragment, one past the last, of how many


class _Request:
    __slots__ = ("attempts", "due")

    def __init__(self, due: float) -> None:
        self.due = due
        self.attempts = 0


class Requests:
    """What this member misses and when it asks next."""

    __slots__ = ("_deadline", "_open", "_station", "asked", "suppressed")

    def __init__(self, station: Station) -> None:
        self._station = station
        self._open: dict[Key, _Request] = {}
        self._deadline = _NEVER
        self.asked = 0
        self.suppressed = 0

    def want_sequence(self, sequence: int, now: float) -> None:
        """A committed number whose batch is not here: asked of data servers."""
        self._want(sequence, now)

    def want_batch(self, batch: bytes, now: float) -> None:
        """A batch without a number, or with an open one: asked of its sender and of data servers in turn."""
        self._want(batch, now)

    def _want(self, key: Key, now: float) -> None:
        if key in self._open or len(self._open) >= 4 * self._station.budget.nack_numbers_max:
            return
        due = now + self._station.timing.nack_s * self._station.random.uniform(0.5, 1.5)
        self._open[key] = _Request(due)
        self._deadline = min(self._deadline, due)

    def satisfied(self, key: Key) -> None:
        """It is here now, or nobody needs it any more."""
        self._open.pop(key, None)

    def forget_sequences_through(self, sequence: int) -> None:
        """Numbers this member has passed."""
        for key in [key for key in self._open if type(key) is int and key <= sequence]:
            del self._open[key]

    def overheard(self, fetch: Fetch, now: float) -> None:
        """Somebody else asks for the same; the answer may serve both."""
        if not self._open:
            return
        later = now + self._station.timing.nack_repeat_s * self._station.random.uniform(1.0, 1.5)
        keys: list[Key] = [batch for batch, _, _ in fetch.ids]
        for first, last in fetch.sequences:
            keys += [key for key in self._open if type(key) is int and first <= key <= last]
        for key in keys:
            request = self._open.get(key)
            if request is not None and request.due < later:
                request.due = later
                self.suppressed += 1

    def next_deadline(self) -> float:
        """When something is due."""
        return self._deadline

    def on_time(self, now: float) -> None:
        """Asks for all that is due, each server in one frame."""
        if now < self._deadline:
            return
        station, timing = self._station, self._station.timing
        sequences: dict[int, list[int]] = {}
        batches: dict[int, list[_Wanted]] = {}
        deadline = _NEVER
        for key in [key for key in self._open if self._is_moot(key)]:
            del self._open[key]
        for key, request in self._open.items():
            if request.due <= now + timing.nack_s:  # what is due soon goes along, in one frame
                target = self._whom(key, request.attempts)
                wait = min(timing.nack_repeat_s * 2 ** min(request.attempts, 8), timing.nack_repeat_s_max)
                request.attempts += 1
                request.due = now + wait * station.random.uniform(0.8, 1.2)
                if target and isinstance(key, int):
                    sequences.setdefault(target, []).append(key)
                elif target and isinstance(key, bytes):
                    batches.setdefault(target, []).append((key, *station.holdings.missing(key)))
            deadline = min(deadline, request.due)
        self._deadline = deadline
        for target in sorted({*sequences, *batches}):
            self._ask(target, as_ranges(sequences.get(target, [])), batches.get(target, []))

    def _ask(self, target: int, ranges: list[tuple[int, int]], batches: list[_Wanted]) -> None:
        """One frame for all of it, or as many as the datagram size makes necessary."""
        room = (self._station.budget.datagram_bytes - 100) // 33
        while ranges or batches:
            asked = batches[: max(0, room - len(ranges))]
            ids, cuts = [wanted[:3] for wanted in asked], [cut for *_, cut in asked]
            fetch = Fetch(target, ranges[:room], ids, cuts=cuts)
            ranges, batches = ranges[room:], batches[len(asked) :]
            self.asked += 1
            self._station.trace("fetch", f"of={target} sequences={fetch.sequences} batches={len(fetch.ids)}")
            self._station.tell(fetch)

    def _is_moot(self, key: Key) -> bool:
        """Whether it has come meanwhile, is asked for by its number from now on, or is forgotten by all."""
        station = self._station
        if isinstance(key, int):
            return key <= station.ledger.base
        state, origin = station.ledger.state, origin_of(key)
        if key in station.holdings or counter_of(key) <= state.senders.get(origin, 0):
            return True
        return not state.is_sender(origin) and not station.ledger.find(key)

    def _whom(self, key: Key, attempts: int) -> int:
        """The sender first for what has no number; then data servers, backups before the primary."""
        station = self._station
        state = station.ledger.state
        servers = [m for n, m in sorted(state.members.items()) if m.has(Role.DATA) and n != station.number]
        order = station.backups_first([member.number for member in servers if member.is_live])
        # One that the log takes for gone may be back, and have what nobody else has.
        order += [member.number for member in servers if not member.is_live]
        if isinstance(key, bytes):
            sender = state.number_of(origin_of(key))
            is_servers_turn = attempts % 2 == 1 and station.ledger.find(key)
            if sender and sender != station.number and not is_servers_turn:
                return sender
            attempts //= 2
        if not order:
            return 0
        return order[attempts % len(order)]

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"open": len(self._open), "asked": self.asked, "suppressed": self.suppressed}


def as_ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Numbers as inclusive ranges, in order."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
