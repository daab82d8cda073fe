"""When the messages of a destination came, as far as its policy needs to know: in steps, not per message.

Nothing but a Tick says what time it is, so messages get the time of the first Tick after them. A mark says that all
messages through a position had come by then. Marks closer than the resolution become one: that of the shortest time of
interest for what came within it, and for what is older a part of the whole time that is known of.
"""

from bisect import bisect_left, bisect_right

RESOLUTION_MS_MIN = 100
STEPS = 1000  # marks over a time that is of interest; at times twice as many
MARKS_MAX = 6 * STEPS


class Timeline:
    """Marks in order of time, and so of position."""

    __slots__ = ("throughs", "times")

    def __init__(self) -> None:
        self.throughs: list[int] = []
        self.times: list[int] = []

    def mark(self, through: int, now_ms: int, span_ms: int) -> None:
        """All messages through this position came by now; `span_ms` is the shortest time that is of interest."""
        if self.throughs and through <= self.throughs[-1]:
            return
        resolution_ms = max(RESOLUTION_MS_MIN, span_ms // STEPS)
        if len(self.times) > 1 and now_ms - self.times[-2] < resolution_ms:
            self.throughs[-1], self.times[-1] = through, now_ms
            return
        self.throughs.append(through)
        self.times.append(now_ms)
        if len(self.times) > MARKS_MAX:
            self._thin(bisect_right(self.times, now_ms - span_ms))

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

    def _thin(self, end: int) -> None:
        """Of the marks before this place, those that are close become one; it has the time of the last of them."""
        resolution_ms = (self.times[-1] - self.times[0]) // STEPS
        kept: list[int] = []
        for place in range(end):
            is_last = place + 1 == len(self.times)
            if not kept or is_last or self.times[place + 1] - self.times[kept[-1]] >= resolution_ms:
                kept.append(place)
        for column in (self.throughs, self.times):
            column[:end] = [column[place] for place in kept]
