"""How long a server has been silent: when it is asked whether it is there, and when it is left."""

PING_AFTER_S = 10.0
DEAD_AFTER_S = 30.0


class Silence:
    """Of one server after the other."""

    __slots__ = ("_moved_at", "_pinged_at", "heard_at")

    def __init__(self) -> None:
        self.heard_at = self._pinged_at = self._moved_at = 0.0

    def begin(self, now: float) -> None:
        """A stream to another server is there."""
        self.heard_at = self._pinged_at = self._moved_at = now

    def on_movement(self, now: float) -> None:
        """Part of a frame came, or the stream was full and has taken more: a large frame takes long on a slow line.

        What merely fits into a stream is no sign of life: the kernel takes that for a server which hangs.
        """
        self._moved_at = now

    def is_death(self, now: float) -> bool:
        """Whether it has lasted so long that the server is left."""
        return now - max(self.heard_at, self._moved_at) >= DEAD_AFTER_S

    def asks(self, now: float) -> bool:
        """Whether the server is to be asked now, which is noted."""
        if now - max(self.heard_at, self._pinged_at) < PING_AFTER_S:
            return False
        self._pinged_at = now
        return True

    @property
    def deadline(self) -> float:
        """When it has lasted long enough for one of these."""
        dead_at = max(self.heard_at, self._moved_at) + DEAD_AFTER_S
        return min(max(self.heard_at, self._pinged_at) + PING_AFTER_S, dead_at)
