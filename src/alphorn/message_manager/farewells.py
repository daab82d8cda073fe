"""Whether a Client Manager may have left a short while ago.

What it had comes back by the primary's word, some time later. Whoever becomes primary before that does not know what it
was; nor does one that goes on from a checkpoint, and has not read whether somebody left.
"""

from alphorn.message_manager.absent import HOLD_S

LATELY_S = 2 * HOLD_S


class Farewells:
    """One replica's view."""

    __slots__ = ("_is_unread", "_until")

    def __init__(self) -> None:
        self._until = 0.0
        self._is_unread = False

    def begin_turn(self, now: float) -> None:
        """The time goes on."""
        if self._is_unread:
            self._is_unread = False
            self.on_left(now)

    def on_left(self, now: float) -> None:
        """A Client Manager has left."""
        self._until = now + LATELY_S

    def on_restored(self) -> None:
        """The log before this moment was not read."""
        self._is_unread = True

    def is_recent(self, now: float) -> bool:
        """Whether it is so lately that one left that nobody may know what it had."""
        return now < self._until
