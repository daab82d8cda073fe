"""The way out to clients: how much is on its way to each, and who is told when one does not take it.

Rules.
- At most `consumer_bytes_max` is handed to a client's stream before the stream has been found to take it. What is given
  to its consumers beyond that waits here by reference, which costs next to nothing, whatever the messages' size.
- A consumer that has more than it can use says so itself, and is passed nothing until it can.
- The primary hears of both: it gives those consumers nothing more, so that a queue serves others meanwhile. A stream
  that is merely busy for a moment is no reason (`PATIENCE_S`).
- A client that has taken nothing for `STUCK_S` is cut off. It may come back; if not, others get what it held.
"""

from collections.abc import Callable

from alphorn.client_manager.connection import Connection, Consumer
from alphorn.client_manager.desk import Desk
from alphorn.client_manager.machine import Gauge
from alphorn.model import link

PATIENCE_S = 0.05
STUCK_S = 60.0

_NEVER = float("inf")


class Outflow:
    """All clients' streams. `go_on` passes on what waits for a consumer."""

    __slots__ = ("_desk", "_go_on", "_slow")

    def __init__(self, desk: Desk, go_on: Callable[[Consumer], None]) -> None:
        self._desk = desk
        self._go_on = go_on
        self._slow: dict[Connection, float] = {}  # whose stream is full, and since when

    def may_pass(self, consumer: Consumer) -> bool:
        """Whether something may be handed to this consumer's stream now."""
        connection = self._desk.connections.get(consumer.stream)
        if connection is None or consumer.is_blocked or not connection.is_writable:
            return False
        return connection.unproven < self._desk.settings.consumer_bytes_max

    def pass_on(self, consumer: Consumer, size: int) -> None:
        """So much was handed to the consumer's stream."""
        connection = self._desk.connections[consumer.stream]
        before, limit = connection.unproven, self._desk.settings.consumer_bytes_max
        connection.unproven += size
        if before < limit <= connection.unproven:
            self._desk.outbox.append(Gauge(connection.stream))

    def on_writable(self, connection: Connection, *, is_writable: bool) -> None:
        """A client's stream is full, or takes more: then all that was handed to it is on the network."""
        connection.is_writable = is_writable
        if not is_writable:
            self._slow.setdefault(connection, self._desk.now)
            return
        self._slow.pop(connection, None)
        connection.unproven = 0
        for consumer in [consumer for consumer in connection.consumers.values() if consumer.waiting]:
            self._go_on(consumer)
        if connection.is_writable and connection.is_slow_told:
            connection.is_slow_told = False
            self._tell(connection)

    def regulate(self, connection: Connection, consumer: Consumer, *, is_blocked: bool) -> None:
        """A consumer can use no more at the moment, or again."""
        if consumer.is_blocked is is_blocked:
            return
        consumer.is_blocked = is_blocked
        if not is_blocked:
            self._go_on(consumer)
        if consumer.is_attached:
            self._desk.ask_primary(consumer.channel, link.Regulate([consumer.key], is_blocked))

    def attach(self, connection: Connection, consumer: Consumer) -> None:
        """A consumer was attached at a primary, which does not know yet whether it takes anything."""
        if consumer.is_blocked:
            self._desk.ask_primary(consumer.channel, link.Regulate([consumer.key], is_blocked=True))
        if connection.is_slow_told:
            self._desk.ask_primary(consumer.channel, link.RegulateClient(connection.id, is_slow=True))

    def leave(self, connection: Connection) -> None:
        """A client is gone."""
        self._slow.pop(connection, None)
        if connection.is_slow_told:
            connection.is_slow_told = False
            self._tell(connection)

    def on_time(self, now: float) -> list[Connection]:
        """Primaries hear of clients that stay slow; gives those who are cut off."""
        for connection, since in self._slow.items():
            if not connection.is_slow_told and since + PATIENCE_S <= now:
                connection.is_slow_told = True
                self._tell(connection)
        return [connection for connection, since in self._slow.items() if since + STUCK_S <= now]

    def next_deadline(self) -> float:
        """When a slow client has been waited for long enough."""
        dues = (
            since + (STUCK_S if connection.is_slow_told else PATIENCE_S) for connection, since in self._slow.items()
        )
        return min(dues, default=_NEVER)

    def describe(self) -> dict[str, object]:
        """For people."""
        consumers = self._desk.consumers.values()
        return {"slow_clients": len(self._slow), "blocked_consumers": sum(c.is_blocked for c in consumers)}

    def _tell(self, connection: Connection) -> None:
        for channel in range(len(self._desk.channels)):
            self._desk.ask_primary(channel, link.RegulateClient(connection.id, connection.is_slow_told))
