"""The message servers as one work process sees them: which it has joined, and whom they reach."""

from collections.abc import Iterable

from alphorn.model.internal import Row


class Server:
    """The connection to one server."""

    __slots__ = ("_by_name", "_by_run", "heard_at", "is_connected", "is_joined", "joined_with", "run", "said_at")

    def __init__(self) -> None:
        self.is_connected = False
        self.is_joined = False
        self.run = b""
        self.heard_at = self.said_at = 0.0
        self.joined_with: list[str] = []  # kinds of events
        self._by_run: dict[bytes, Row] = {}  # that it reaches
        self._by_name: dict[str, Row] = {}

    def __len__(self) -> int:
        return len(self._by_run)

    @property
    def rows(self) -> Iterable[Row]:
        """Whom it reaches."""
        return self._by_run.values()

    def reach(self, row: Row) -> None:
        """It reaches this one."""
        self._by_run[row.run] = self._by_name[row.name] = row

    def lose(self, run: bytes) -> None:
        """It does not reach this one any more."""
        row = self._by_run.pop(run, None)
        if row is not None and self._by_name[row.name].run == run:
            del self._by_name[row.name]

    def of_run(self, run: bytes) -> Row | None:
        """The row of a run that it reaches."""
        return self._by_run.get(run)

    def of_name(self, name: str) -> Row | None:
        """The row of who has this name, as far as it reaches anybody of that name."""
        return self._by_name.get(name)


class Servers:
    """All servers of the cluster file, in its order."""

    __slots__ = ("_servers", "home")

    def __init__(self, names: Iterable[str]) -> None:
        self._servers = {name: Server() for name in names}
        self.home = ""  # of the process; empty where there is none

    def __getitem__(self, name: str) -> Server:
        return self._servers[name]

    def items(self) -> list[tuple[str, Server]]:
        """Each with its name."""
        return list(self._servers.items())

    def begin(self, name: str, now: float, wants: list[str]) -> None:
        """There is a connection, and the process asks to join, as one that wants these events."""
        server = self._servers[name] = Server()
        server.is_connected = True
        server.heard_at = server.said_at = now
        server.joined_with = wants

    def lose(self, name: str) -> bool:
        """It is gone; whether the server was joined by it."""
        lost, self._servers[name] = self._servers[name], Server()
        if name == self.home:
            self.home = ""
        return lost.is_joined

    @property
    def joined(self) -> list[str]:
        """Those that have welcomed the process."""
        return [name for name, server in self._servers.items() if server.is_joined]

    @property
    def best(self) -> str:
        """The one that reaches most processes; of equals the first."""
        return max(self.joined, key=lambda name: len(self._servers[name]), default="")

    def rows(self) -> dict[bytes, Row]:
        """Whom any of them reaches."""
        return {row.run: row for server in self._servers.values() for row in server.rows}

    def find(self, name: str, run: bytes) -> tuple[Row, str] | None:
        """Who has this name, and the server to say it to: the home first, and the run that had it before."""
        if not self.home:
            return None
        order = [self.home, *(server for server in self.joined if server != self.home)]
        for server in order:
            row = self._servers[server].of_run(run)
            if row is not None:
                return row, server
        for server in order:
            row = self._servers[server].of_name(name)
            if row is not None:
                return row, server
        return None
