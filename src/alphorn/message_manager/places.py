"""Where consumers are attached, by connection: whoever goes costs by its own, however many others there are."""

from collections.abc import Iterable, Iterator

from alphorn.message_manager.outlet import Outlet
from alphorn.model.commands import connection_of


class Places:
    """Consumers' keys, and the outlet of each."""

    __slots__ = ("_outlets",)

    def __init__(self) -> None:
        self._outlets: dict[bytes, dict[bytes, Outlet]] = {}  # connection → consumer →

    def __iter__(self) -> Iterator[bytes]:
        """The connections that have consumers."""
        return iter(self._outlets)

    def get(self, key: bytes) -> Outlet | None:
        """Where a consumer is attached."""
        mine = self._outlets.get(connection_of(key))
        return None if mine is None else mine.get(key)

    def put(self, key: bytes, outlet: Outlet) -> None:
        """A consumer is attached there, and nowhere else."""
        self._outlets.setdefault(connection_of(key), {})[key] = outlet

    def pop(self, key: bytes) -> Outlet | None:
        """A consumer is attached no more; gives where it was."""
        connection = connection_of(key)
        mine = self._outlets.get(connection, {})
        outlet = mine.pop(key, None)
        if outlet is not None and not mine:
            del self._outlets[connection]
        return outlet

    def reached(self, client_manager: int, connections: Iterable[bytes]) -> list[bytes]:
        """The consumers of these connections that are reached through a Client Manager."""
        return [
            key
            for connection in connections
            for key, outlet in self._outlets.get(connection, {}).items()
            if outlet.consumers[key].client_manager == client_manager
        ]
