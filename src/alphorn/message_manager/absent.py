"""Connections that are gone without goodbye: they may come back, through this Client Manager or another.

For a few seconds what their consumers hold stays with them, so that a client that reconnects goes on as if nothing had
happened; then it comes back for others. A client may come back without a consumer, which it closed meanwhile: so each
consumer is away until it is attached again. After a minute the connection is forgotten, with all that it owned.

Who looks late could not hear meanwhile who has come back, and perhaps is not even primary any more without knowing it:
a process that was stopped or starved. Then everybody has that time once more.
"""

from collections.abc import Iterable
from itertools import takewhile

HOLD_S = 5.0
RESUME_S = 60.0
LATE_S = 1.0  # after a time that was to be looked at


class Absent:
    """Who is away, and until when: in the order of these times, so that of very many only the first are looked at."""

    __slots__ = ("_connections", "_consumers", "_spared")

    def __init__(self) -> None:
        self._spared: set[bytes] = set()  # those that were looked at late, and have their time once more
        self._connections: dict[bytes, float] = {}
        self._consumers: dict[bytes, float] = {}

    def lose(self, connection: bytes, now: float) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)
        self._connections[connection] = now + RESUME_S

    def lose_consumers(self, consumers: Iterable[bytes], now: float) -> None:
        """These are reached no more; who was lost before is not waited for any longer by that."""
        for consumer in consumers:
            self._consumers.setdefault(consumer, now + HOLD_S)

    def back(self, connection: bytes) -> None:
        """It has come back; its consumers say so themselves."""
        self._connections.pop(connection, None)
        self._spared.discard(connection)

    def consumer_back(self, consumer: bytes) -> None:
        """It is attached again; what it holds it has said."""
        self._consumers.pop(consumer, None)
        self._spared.discard(consumer)

    def overdue_consumers(self, now: float) -> list[bytes]:
        """Takes out and gives the consumers that are given up."""
        return self._take_due(self._consumers, now, HOLD_S)

    def overdue_connections(self, now: float) -> list[bytes]:
        """Takes out and gives the connections that are forgotten."""
        return self._take_due(self._connections, now, RESUME_S)

    def next_deadline(self) -> float:
        """When the next of them is given up."""
        never = float("inf")
        return min(next(iter(self._consumers.values()), never), next(iter(self._connections.values()), never))

    def _take_due(self, until: dict[bytes, float], now: float, patience_s: float) -> list[bytes]:
        due = [name for name, _ in takewhile(lambda item: item[1] <= now, until.items())]
        is_late = bool(due) and now - until[due[0]] >= LATE_S
        given_up = []
        for name in due:
            del until[name]
            if is_late and name not in self._spared:
                until[name] = now + patience_s
                self._spared.add(name)
            else:
                self._spared.discard(name)
                given_up.append(name)
        return given_up
