"""Clients that take nothing at the moment: their consumers get nothing, so that others do.

A client may have very many consumers, and be slow for a moment again and again. So none of them is touched when it is
slow or not any more, but those that would have been given something meanwhile.
"""

from alphorn.message_manager.consumers import Consumer
from alphorn.message_manager.outlet import Outlet
from alphorn.model.commands import connection_of


class _Client:
    __slots__ = ("client_manager", "passed_over")

    def __init__(self, client_manager: int) -> None:
        self.client_manager = client_manager
        self.passed_over: dict[Consumer, Outlet] = {}


class Slowness:
    """Who is slow, as the Client Managers say."""

    __slots__ = ("_clients",)

    def __init__(self) -> None:
        self._clients: dict[bytes, _Client] = {}

    def __bool__(self) -> bool:
        return bool(self._clients)

    def begin(self, connection: bytes, client_manager: int) -> None:
        """This client takes nothing now."""
        self._clients.setdefault(connection, _Client(client_manager))

    def end(self, connection: bytes, client_manager: int | None = None) -> list[Outlet]:
        """It does again, or (no Client Manager) nobody says any more that it does not.

        Gives where its consumers may be given something. One that it has left does not speak for it.
        """
        client = self._clients.get(connection)
        if client is None or client_manager not in (None, client.client_manager):
            return []
        del self._clients[connection]
        for consumer, outlet in client.passed_over.items():
            consumer.is_slow = False
            if consumer.is_attached:
                outlet.seat(consumer)
        return list(client.passed_over.values())

    def leave(self, client_manager: int) -> list[Outlet]:
        """A Client Manager is gone, and with it its word."""
        gone = [name for name, client in self._clients.items() if client.client_manager == client_manager]
        return [outlet for connection in gone for outlet in self.end(connection)]

    def pass_over(self, outlet: Outlet) -> None:
        """Consumers of slow clients get nothing from this one."""
        for consumer in outlet.seated:
            client = self._clients.get(connection_of(consumer.key))
            if client is not None:
                consumer.is_slow = True
                client.passed_over[consumer] = outlet
                outlet.seat(consumer)
