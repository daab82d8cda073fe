"""When the messages that a topic keeps were sent, by their own timestamps: exact, and one step for a batch at most.

A replay that begins with a time begins with the first message whose timestamp is then or later. For that it suffices to
know where the latest timestamp so far grew: such a step is the first message of its time. Only the newest steps are
known; further back, the timeline's marks serve.
"""

from bisect import bisect_left, bisect_right

STEPS_MAX = 100_000  # of one topic
TIME_MS_MAX = 1 << 62  # what no clock says is not remembered


class Moments:
    """Positions at which the latest timestamp grew, and what it was then."""

    __slots__ = ("positions", "times")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.times: list[int] = []

    def note(self, position: int, time_ms: int) -> None:
        """The messages of a batch from this position on were sent then."""
        latest = self.times[-1] if self.times else -1
        if not latest < time_ms < TIME_MS_MAX:
            return
        self.positions.append(position)
        self.times.append(time_ms)
        if len(self.times) > STEPS_MAX:
            del self.positions[: STEPS_MAX // 2], self.times[: STEPS_MAX // 2]

    def first_from(self, time_ms: int, *, end: int) -> int:
        """The first position of this time or later, `end` for none; 0 where that is further back than is known."""
        place = bisect_left(self.times, time_ms)
        if place == len(self.times):
            return end if self.times else 0
        return self.positions[place] if place else 0

    def drop(self, first: int) -> None:
        """Messages before this position are not kept any more."""
        place = max(0, bisect_right(self.positions, first) - 1)
        del self.positions[:place], self.times[:place]

    def clear(self) -> None:
        """Nothing is kept."""
        self.positions.clear()
        self.times.clear()
