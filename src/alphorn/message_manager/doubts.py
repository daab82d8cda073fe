"""Transactions that nobody brings to their end: the primary asks Client Managers, one after the other, to do so.

Whoever coordinates a transaction may die at any step. What was prepared must not wait for ever, and what was decided
must reach every channel. All of this is soft: a new primary finds the same transactions in the log and waits anew.
"""

from collections.abc import Callable, Mapping, Sequence

from alphorn.message_manager.transaction_state import Record
from alphorn.model.link import InDoubt

DOUBT_S = 8.0  # longer than a coordinator waits for its channels
AGAIN_S = 2.0


class Doubts:
    """Since when each transaction is unresolved."""

    __slots__ = ("_asked", "_deadlines")

    def __init__(self, unresolved: Mapping[bytes, Record] | None = None, now: float = 0.0) -> None:
        self._deadlines: dict[tuple[bytes, int], float] = {}
        self._asked = 0
        self.look(unresolved or {}, now)

    def look(self, unresolved: Mapping[bytes, Record], now: float) -> None:
        """Something was applied: new ones begin to wait, others are resolved."""
        if not unresolved and not self._deadlines:
            return
        deadlines = self._deadlines
        names = ((session, record.counter) for session, record in unresolved.items())
        self._deadlines = {name: deadlines.get(name, now + DOUBT_S) for name in names}

    def ask(
        self,
        unresolved: Mapping[bytes, Record],
        now: float,
        links: Sequence[int],
        tell: Callable[[int, InDoubt], None],
    ) -> None:
        """Asks about those that have waited long enough; each time another Client Manager."""
        for (session, counter), deadline in self._deadlines.items():
            if deadline <= now and links:
                self._asked += 1
                tell(links[self._asked % len(links)], InDoubt(session, counter, unresolved[session].channels))
            if deadline <= now:
                self._deadlines[session, counter] = now + AGAIN_S

    def next_deadline(self) -> float:
        """When the next one has waited long enough."""
        return min(self._deadlines.values(), default=float("inf"))
