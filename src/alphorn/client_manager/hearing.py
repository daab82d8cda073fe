"""What a Client Manager hears of one channel's log by a member of its group: all that is committed, in order.

An own entry is told with the handle under which the machine ordered it, once everything before it has been heard.

A Client Manager knows nothing of the log's past, and begins at the newest number. A member that replays the past first
has it begin later; what was ordered before then is told as something whose past nobody has heard.
"""

from alphorn.client_manager.machine import Committed, Input, Lost


class Hearing:
    """One member's outcomes and deliveries, turned into inputs of the machine."""

    __slots__ = ("_channel", "_delivered", "_handles", "_ordered", "has_begun")

    def __init__(self, channel: int, *, has_begun: bool) -> None:
        self._channel = channel
        self.has_begun = has_begun
        self._handles: dict[int, int] = {}  # the bus's to the machine's
        self._ordered: dict[int, int] = {}  # sequence → the machine's handle, until it is delivered
        self._delivered = 0

    def order(self, handle: int, mine: int) -> None:
        """The bus took an entry under `handle` that the machine knows as `mine`."""
        self._handles[handle] = mine

    def is_mine(self, handle: int) -> bool:
        """Whether the entry is one of these; a member may have others who order."""
        return handle in self._handles

    def on_deliver(self, sequence: int, payload: bytes | memoryview, epoch: int) -> list[Input]:
        """The next entry of the log, and the epoch in which it got its number."""
        if not self.has_begun:
            return self.pass_over(sequence)
        self._delivered = sequence
        return [Committed(self._channel, sequence, self._ordered.pop(sequence, 0), bytes(payload), epoch)]

    def on_ordered(self, handle: int, sequence: int) -> list[Input]:
        """An own entry is in the log under this number; 0 where nobody can tell what came before it."""
        mine = self._handles.pop(handle)
        if sequence > self._delivered:
            self._ordered[sequence] = mine
            return []
        return [Committed(self._channel, sequence if self.has_begun else 0, mine, b"")]

    def on_refused(self, handle: int, reason: str, *, is_unknown: bool) -> list[Input]:
        """An own entry was not taken, or the group has given the member up that had it."""
        return [Lost(self._channel, self._handles.pop(handle), reason, is_unknown)]

    def pass_over(self, through: int) -> list[Input]:
        """Everything through this number goes by unheard."""
        self._delivered = through
        passed = sorted(sequence for sequence in self._ordered if sequence <= through)
        return [Committed(self._channel, 0, self._ordered.pop(sequence), b"") for sequence in passed]
