"""When the primary puts the time into the log: as soon as something is due, and not all the time.

The time of the log never goes back, but clocks differ, and that of an earlier primary may have been ahead. Then the log
goes on from what it said, at half the speed until this replica's own clock is there: delays and expirations go on, and
what senders date by other clocks is out of time no longer than it must.
"""

from collections.abc import Callable

_TICK_MS = 10  # ticks are not closer than this
_NEVER = float("inf")


class Clock:
    """The calendar of one replica. `wall_ms` turns the time of a turn into milliseconds since 1970."""

    __slots__ = ("_followed_at", "_said_ms", "_ticked_ms", "wall_ms")

    def __init__(self, wall_ms: Callable[[float], int]) -> None:
        self.wall_ms = wall_ms
        self._ticked_ms = 0
        self._said_ms = 0
        self._followed_at = 0.0

    def follow(self, said_ms: int, now: float) -> None:
        """This replica is primary now; `said_ms` is the time of the log."""
        self._said_ms, self._followed_at = said_ms, now
        self._ticked_ms = 0  # what it said when it was primary before may never have come into the log

    def tick(self, due_ms: int | None, now: float) -> int | None:
        """The time to put into the log, where something was due by now."""
        time_ms = max(self.wall_ms(now), self._said_ms + int((now - self._followed_at) * 1000) // 2)
        if due_ms is None or due_ms > time_ms or time_ms < self._ticked_ms + _TICK_MS:
            return None
        self._ticked_ms = time_ms
        return time_ms

    def next_deadline(self, due_ms: int | None) -> float:
        """When `tick` gives the time for what is due."""
        if due_ms is None:
            return _NEVER
        time_ms = max(due_ms, self._ticked_ms + _TICK_MS)
        followed = self._followed_at + (2 * (time_ms - self._said_ms) + 1) / 1000
        return min(time_ms / 1000 - self.wall_ms(0.0) / 1000, followed)
