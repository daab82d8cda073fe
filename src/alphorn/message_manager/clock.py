"""When the primary puts the time into the log: as soon as something is due, and not all the time."""

from collections.abc import Callable

_TICK_MS = 10  # ticks are not closer than this
_NEVER = float("inf")


class Clock:
    """The calendar of one replica. `wall_ms` turns the time of a turn into milliseconds since 1970."""

    __slots__ = ("_ticked_ms", "wall_ms")

    def __init__(self, wall_ms: Callable[[float], int]) -> None:
        self.wall_ms = wall_ms
        self._ticked_ms = 0

    def tick(self, due_ms: int | None, now: float) -> int | None:
        """The time to put into the log, where something was due by now."""
        wall = self.wall_ms(now)
        if due_ms is None or due_ms > wall or wall < self._ticked_ms + _TICK_MS:
            return None
        self._ticked_ms = wall
        return wall

    def next_deadline(self, due_ms: int | None) -> float:
        """When `tick` gives the time for what is due."""
        if due_ms is None:
            return _NEVER
        return max(due_ms, self._ticked_ms + _TICK_MS) / 1000 - self.wall_ms(0.0) / 1000
