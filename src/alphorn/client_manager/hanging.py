"""Tells a Client Manager that it hung: stopped, starved or unable to read for so long that clients may be gone.

A client that hears nothing for a while goes on through another Client Manager and asks there once more what was not
answered. What it had said here lies unread in its old stream, before the end of that. Done now it would be done again,
after all that the client has done since: a purge would let go of messages that were confirmed in between. So who wakes
up hears none of it and hangs up on everybody; those who are still there come back, and repeat what was not answered.
"""

LOOK_S = 1.0  # looks at the clock at least this often, so that a long time without one means that none could be taken
HUNG_S = 10.0  # half of the shortest time after which a client that hears nothing leaves


class Wakefulness:
    """When somebody was last seen awake."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: float | None = None

    def look(self, now: float) -> float:
        """Awake now; gives how many seconds it hung before that, 0 where it did not."""
        last, self._last = self._last, now
        return now - last if last is not None and now - last >= HUNG_S else 0.0
