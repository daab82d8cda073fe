"""Connections that are gone without goodbye: they may come back, through this Client Manager or another.

For a few seconds what their consumers hold stays with them, so that a client that reconnects goes on as if nothing had
happened; then it comes back for others. After a minute the connection is forgotten, with all that it owned.
"""

from collections.abc import Iterable

HOLD_S = 5.0
RESUME_S = 60.0


class Absent:
    """Who is away, and until when."""

    __slots__ = ("_connections", "_consumers")

    def __init__(self) -> None:
        self._connections: dict[bytes, float] = {}
        self._consumers: dict[bytes, tuple[float, tuple[bytes, ...]]] = {}  # by connection

    def lose(self, connection: bytes, consumers: Iterable[bytes], now: float) -> None:
        """A connection is gone; these are its consumers."""
        self._connections[connection] = now + RESUME_S
        keys = tuple(consumers)
        if keys:
            self._consumers[connection] = (now + HOLD_S, keys)

    def back(self, connection: bytes) -> None:
        """It has come back; what it holds it says itself."""
        self._connections.pop(connection, None)
        self._consumers.pop(connection, None)

    def overdue_consumers(self, now: float) -> list[bytes]:
        """Takes out and gives the consumers that are given up."""
        late = [connection for connection, (until, _) in self._consumers.items() if until <= now]
        return [key for connection in late for key in self._consumers.pop(connection)[1]]

    def overdue_connections(self, now: float) -> list[bytes]:
        """Takes out and gives the connections that are forgotten."""
        late = [connection for connection, until in self._connections.items() if until <= now]
        for connection in late:
            del self._connections[connection]
        return late

    def next_deadline(self) -> float:
        """When the next of them is given up."""
        untils = [until for until, _ in self._consumers.values()]
        return min([*untils, *self._connections.values()], default=float("inf"))
