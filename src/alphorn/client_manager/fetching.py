"""Fetches log entries that a delivery names and the receive cache has not, from backups rather than from the primary.

A Message Manager that does not answer in time, or has not got the entry, is not waited for: the next one is asked. The
primary comes last, and then all of them again.
"""

from collections.abc import Callable

from alphorn.client_manager.desk import Desk
from alphorn.model.link import Entries, Fetch

ANSWER_S = 0.3  # before another one is asked; an answer that comes later counts all the same
AGAIN_S = 0.05  # before one is asked again that had not got it

_NEVER = float("inf")


class _Wish:
    """One entry that somebody waits for."""

    __slots__ = ("due", "request", "tries", "whom")

    def __init__(self) -> None:
        self.whom = ""
        self.request = 0
        self.tries = 0
        self.due = 0.0  # when another one is asked


class Fetching:
    """What is asked for. `on_fetched` hears of each entry that has come; it is in the cache until that returns.

    `on_missing` hears of each that no Message Manager has; it is asked for again until somebody forgets it.
    """

    __slots__ = ("_desk", "_on_fetched", "_on_missing", "_wishes", "fetched")

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
        self.fetched = 0

    def fetch(self, channel: int, sequence: int) -> None:
        """Asks for an entry, unless that is under way."""
        if (channel, sequence) not in self._wishes:
            wish = self._wishes[(channel, sequence)] = _Wish()
            self._ask(channel, sequence, wish)

    def forget(self, channel: int, sequence: int) -> None:
        """Nobody waits for this entry any more."""
        self._wishes.pop((channel, sequence), None)

    def on_entries(self, channel: int, frame: Entries) -> None:
        """An answer. What it does not have is asked of another."""
        cache = self._desk.channels[channel].cache
        for sequence, payload in frame.entries:
            if self._wishes.pop((channel, sequence), None) is not None:
                self.fetched += 1
                cache.pin(sequence, bytes(payload))
                self._on_fetched(channel, sequence)
                cache.unpin(sequence)
        for (number, sequence), wish in list(self._wishes.items()):
            if number == channel and wish.request == frame.request:
                self._try_next(channel, sequence, wish)

    def on_link_lost(self, channel: int, name: str) -> None:
        """What was asked of a Message Manager that is gone is asked of another."""
        for (number, sequence), wish in list(self._wishes.items()):
            if number == channel and wish.whom == name:
                self._ask(channel, sequence, wish)

    def on_time(self, now: float) -> None:
        """Asks another where an answer is overdue."""
        for (channel, sequence), wish in list(self._wishes.items()):
            if wish.due <= now:
                wish.tries += bool(wish.whom)
                self._ask(channel, sequence, wish)

    def next_deadline(self) -> float:
        """When the next answer is overdue."""
        return min((wish.due for wish in self._wishes.values()), default=_NEVER)

    def _try_next(self, channel: int, sequence: int, wish: _Wish) -> None:
        wish.tries += 1
        if wish.tries % max(1, len(self._desk.channels[channel].links)):
            self._ask(channel, sequence, wish)
        else:  # all were asked
            wish.whom, wish.request, wish.due = "", 0, self._desk.now + AGAIN_S
            self._on_missing(channel, sequence)

    def _ask(self, channel: int, sequence: int, wish: _Wish) -> None:
        ground = self._desk.channels[channel]
        backups = sorted(ground.links - {ground.primary})
        turn = sequence % len(backups) if backups else 0
        servers = backups[turn:] + backups[:turn] + [ground.primary] * (ground.primary in ground.links)
        if not servers:
            wish.whom, wish.request, wish.due = "", 0, self._desk.now + AGAIN_S
            return
        wish.whom = servers[wish.tries % len(servers)]
        wish.request = ground.number()
        wish.due = self._desk.now + ANSWER_S
        self._desk.ask(channel, wish.whom, Fetch(wish.request, [sequence]))
