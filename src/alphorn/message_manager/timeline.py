"""When the messages of a destination came, as far as its policy needs to know: in steps, not per message.

Nothing but a Tick says what time it is, so messages get the time of the first Tick after them. A mark says that all
messages through a position had come by then. Marks closer than the resolution become one.
"""

from bisect import bisect_left, bisect_right

RESOLUTION_MS_MIN = 100
_STEPS = 1000  # marks over the time that is of interest


class Timeline:
    """Marks in order of time, and so of position."""

    __slots__ = ("throughs", "times")

    def __init__(self) -> None:
        self.throughs: list[int] = []
        self.times: list[int] = []

    def mark(self, through: int, now_ms: int, span_ms: int) -> None:
        """All messages through this position came by now; `span_ms` is how long that is of interest."""
        if self.throughs and through <= self.throughs[-1]:
            return
        resolution_ms = max(RESOLUTION_MS_MIN, span_ms // _STEPS)
        if len(self.times) > 1 and now_ms - self.times[-2] < resolution_ms:
            self.throughs[-1], self.times[-1] = through, now_ms
            return
        self.throughs.append(through)
        self.times.append(now_ms)

    def through(self, time_ms: int) -> int:
        """The last position that had come by this time; 0 for none."""
        place = bisect_right(self.times, time_ms)
        return self.throughs[place - 1] if place else 0

    def first_from(self, time_ms: int) -> int:
        """The first position that may have come at this time or later."""
        place = bisect_left(self.times, time_ms)
        return self.throughs[place - 1] + 1 if place else 0

    def next_time(self, after_ms: int) -> int | None:
        """The time of the first mark after this one."""
        place = bisect_right(self.times, after_ms)
        return self.times[place] if place < len(self.times) else None

    def drop(self, through: int) -> None:
        """Marks through this position are of no interest any more."""
        place = bisect_right(self.throughs, through)
        del self.throughs[:place], self.times[:place]
