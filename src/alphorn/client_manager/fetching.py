"""Fetches log entries that a delivery names and the receive cache has not, from backups rather than from the primary.

What is wanted within a turn is asked for together. A Message Manager gives as much of it as one answer may hold, in the
order asked; the rest is asked of it again. One that does not answer in time, or has not got an entry, is not waited
for: the next one is asked. The primary comes last, and then all of them again.
"""

from collections.abc import Callable

from alphorn.client_manager.desk import Desk
from alphorn.model.link import Entries, Fetch

ANSWER_S = 0.3  # before another one is asked; an answer that comes later counts all the same
AGAIN_S = 0.05  # before one is asked again that had not got it
ENTRIES_MAX = 64  # in one question

_NEVER = float("inf")


class _Wish:
    """One entry that somebody waits for."""

    __slots__ = ("due", "request", "tries", "turn", "whom")

    def __init__(self, turn: int) -> None:
        self.turn = turn  # which backup is the first to be asked
        self.whom = ""
        self.request = 0
        self.tries = 0
        self.due = 0.0  # when another one is asked


class Fetching:
    """What is asked for. `on_fetched` hears of each entry that has come; it is in the cache until that returns.

    `on_missing` hears of each that no Message Manager has; it is asked for again until somebody forgets it.
    """

    __slots__ = ("_desk", "_on_fetched", "_on_missing", "_turn", "_unasked", "_wishes", "fetched")

    def __init__(
        self,
        desk: Desk,
        on_fetched: Callable[[int, int], None],
        on_missing: Callable[[int, int], None] = lambda channel, sequence: None,
    ) -> None:
        self._desk = desk
        self._on_fetched = on_fetched
        self._on_missing = on_missing
        self._wishes: dict[tuple[int, int], _Wish] = {}  # by channel and sequence
        self._unasked: dict[tuple[int, int], _Wish] = {}  # those of them that this turn asks for
        self._turn = 0
        self.fetched = 0

    def fetch(self, channel: int, sequence: int) -> None:
        """Wants an entry, unless that is under way."""
        if (channel, sequence) not in self._wishes:
            wish = _Wish(self._turn)
            self._wishes[(channel, sequence)] = self._unasked[(channel, sequence)] = wish

    def flush(self) -> None:
        """Asks for what this turn wants."""
        unasked, self._unasked = self._unasked, {}
        groups: dict[tuple[int, int, int], list[int]] = {}
        for (channel, sequence), wish in unasked.items():
            if self._wishes.get((channel, sequence)) is wish:
                groups.setdefault((channel, wish.turn, wish.tries), []).append(sequence)
        for (channel, turn, tries), sequences in groups.items():
            sequences.sort()
            for start in range(0, len(sequences), ENTRIES_MAX):
                self._ask(channel, turn, tries, sequences[start : start + ENTRIES_MAX])
        self._turn += bool(groups)

    def forget(self, channel: int, sequence: int) -> None:
        """Nobody waits for this entry any more."""
        self._wishes.pop((channel, sequence), None)

    def on_entries(self, channel: int, frame: Entries) -> None:
        """An answer. What it should have had is asked of another, what had no room in it of the same one."""
        cache = self._desk.channels[channel].cache
        given = [sequence for sequence, _ in frame.entries]
        came = []
        for sequence, payload in frame.entries:
            if self._wishes.pop((channel, sequence), None) is not None:
                cache.pin(sequence, bytes(payload))
                came.append(sequence)
        for sequence in came:
            self.fetched += 1
            self._on_fetched(channel, sequence)
        for sequence in came:
            cache.unpin(sequence)
        for (number, sequence), wish in list(self._wishes.items()):
            if number != channel or wish.request != frame.request:
                continue
            if given and sequence > max(given):
                self._unasked[(channel, sequence)] = wish
            else:
                self._try_next(channel, sequence, wish)

    def on_link_lost(self, channel: int, name: str) -> None:
        """What was asked of a Message Manager that is gone is asked of another."""
        for (number, sequence), wish in self._wishes.items():
            if number == channel and wish.whom == name:
                self._unasked[(channel, sequence)] = wish

    def on_time(self, now: float) -> None:
        """Asks another where an answer is overdue."""
        for place, wish in self._wishes.items():
            if wish.due <= now:
                wish.tries += bool(wish.whom)
                self._unasked[place] = wish

    def next_deadline(self) -> float:
        """When the next answer is overdue."""
        return min((wish.due for wish in self._wishes.values()), default=_NEVER)

    def _try_next(self, channel: int, sequence: int, wish: _Wish) -> None:
        wish.tries += 1
        if wish.tries % max(1, len(self._desk.channels[channel].links)):
            self._unasked[(channel, sequence)] = wish
        else:  # all were asked
            self._wait(wish)
            self._on_missing(channel, sequence)

    def _wait(self, wish: _Wish) -> None:
        wish.whom, wish.request, wish.due = "", 0, self._desk.now + AGAIN_S

    def _ask(self, channel: int, turn: int, tries: int, sequences: list[int]) -> None:
        ground = self._desk.channels[channel]
        wishes = [self._wishes[(channel, sequence)] for sequence in sequences]
        backups = sorted(ground.links - {ground.primary})
        first = turn % len(backups) if backups else 0
        servers = backups[first:] + backups[:first] + [ground.primary] * (ground.primary in ground.links)
        if not servers:
            for wish in wishes:
                self._wait(wish)
            return
        whom, request = servers[tries % len(servers)], ground.number()
        for wish in wishes:
            wish.whom, wish.request, wish.due = whom, request, self._desk.now + ANSWER_S
        self._desk.ask(channel, whom, Fetch(request, sequences))
