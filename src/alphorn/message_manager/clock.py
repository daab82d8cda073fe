"""When the primary puts the time into the log: as soon as something is due, and not all the time.

Clocks differ, so only the first primary's says what the time of the log is. Whoever is primary next goes on from what
Client Managers know of it, be its own clock ahead or behind. Where none of them knows any, the cluster has stood still,
nobody can say for how long, and this replica's own clock is believed. The time never goes back.
"""

from collections.abc import Callable

HEAR_S = 2.0  # a new primary waits so long for a Client Manager that knows the time
MATTERS_MS = 1000  # differences that are less come from the way between nodes
_TICK_MS = 10  # ticks are not closer than this
_NEVER = float("inf")


class Clock:
    """The calendar of one replica. `wall_ms` turns the time of a turn into milliseconds since 1970."""

    __slots__ = ("_ahead_ms", "_least_ms", "_ticked_ms", "_waits_until", "wall_ms")

    def __init__(self, wall_ms: Callable[[float], int]) -> None:
        self.wall_ms = wall_ms
        self._ahead_ms = 0  # of the own clock is the time of the log,
        self._least_ms = 0  # and not less than this
        self._ticked_ms = 0
        self._waits_until = 0.0

    def follow(self, said_ms: int, now: float, *, is_alone: bool) -> None:
        """This replica is primary now. `said_ms` is the last time in the log; `is_alone`: nobody knows more."""
        self._least_ms = said_ms - self.wall_ms(now)
        self._ahead_ms = max(0, self._least_ms)
        self._waits_until = now if is_alone else now + HEAR_S
        self._ticked_ms = 0  # what it said when it was primary before may never have come into the log

    def hear(self, told_ms: int, now: float) -> bool:
        """A Client Manager says what time it knows; True where that is not what holds now for all."""
        ahead_ms, is_waiting = told_ms - self.wall_ms(now), now < self._waits_until
        self._waits_until = min(self._waits_until, now)
        if abs(ahead_ms - self._ahead_ms) < MATTERS_MS:
            return False
        if is_waiting:
            self._ahead_ms = max(ahead_ms, self._least_ms)
        return True

    def time_ms(self, now: float) -> int:
        """The time of the log."""
        return self.wall_ms(now) + self._ahead_ms

    def tick(self, due_ms: int | None, now: float) -> int | None:
        """The time to put into the log, where something was due by now."""
        time_ms = self.time_ms(now)
        is_late = due_ms is not None and due_ms <= time_ms and now >= self._waits_until
        if not is_late or time_ms < self._ticked_ms + _TICK_MS:
            return None
        self._ticked_ms = time_ms
        return time_ms

    def next_deadline(self, due_ms: int | None) -> float:
        """When `tick` gives the time for what is due."""
        if due_ms is None:
            return _NEVER
        # Where the own clock is not the time, a millisecond more, or a rounding might bring somebody too early.
        time_ms = max(due_ms, self._ticked_ms + _TICK_MS) - self._ahead_ms + bool(self._ahead_ms)
        return max(time_ms / 1000 - self.wall_ms(0.0) / 1000, self._waits_until)
