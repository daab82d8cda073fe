"""Who is in the cluster: work processes by run and by name, here, at the other server, or away for a while.

A name belongs to one run at a time, and keeps to it while that is there. Names of nodes are reserved to nodes.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from alphorn.message_server.ring import Cursor
from alphorn.model.errors import AccessDenied, Error, Misuse
from alphorn.model.internal import PROGRAM, Row

NEVER = float("inf")


class Process:
    """One work process."""

    __slots__ = (
        "away_since",
        "connection",
        "cursor",
        "heard_at",
        "held",
        "is_at_peer",
        "is_down",
        "is_suspected",
        "row",
        "said_at",
        "taken",
    )

    def __init__(self, row: Row) -> None:
        self.row = row
        self.connection: int | None = None  # to this server
        self.is_at_peer = False  # it has a connection to the other server
        self.away_since = NEVER  # when it had none at all
        self.is_down = False  # it has been away for so long that everybody was told
        self.is_suspected = False
        self.heard_at = 0.0
        self.said_at = 0.0
        self.cursor: Cursor | None = None  # in the ring, where its home is here
        self.taken = 0  # it was told that its lane is safe through this number
        self.held = 0  # and with the other server through this one

    @property
    def run(self) -> bytes:
        """This start of it."""
        return self.row.run

    @property
    def is_reachable(self) -> bool:
        """Whether either server has a connection to it."""
        return self.connection is not None or self.is_at_peer


class Roster:
    """All processes that this server knows."""

    __slots__ = ("_by_connection", "_by_name", "_ended", "_names_max", "_nodes", "_processes")

    def __init__(self, nodes: Mapping[str, str], names_max: int) -> None:
        self._nodes = nodes
        self._names_max = names_max
        self._processes: dict[bytes, Process] = {}
        self._by_name: dict[str, Process] = {}
        self._by_connection: dict[int, Process] = {}
        self._ended: OrderedDict[str, float] = OrderedDict()  # names of processes that have ended → when

    def __len__(self) -> int:
        return len(self._processes)

    def __iter__(self) -> Iterator[Process]:
        return iter(self._processes.values())

    @property
    def here(self) -> list[Process]:
        """Those with a connection to this server."""
        return list(self._by_connection.values())

    def check_name(self, row: Row, ticket: str) -> None:
        """Raises an `Error` where nobody may have this name in this way."""
        if row.kind != PROGRAM:
            if ticket:
                raise AccessDenied(f"a ticket lets a program in, and {row.name} wants to be a {row.kind}")
            if self._nodes.get(row.name) != row.kind:
                raise Misuse(f"the cluster has no {row.kind} named {row.name}; see its cluster file")
            return
        if row.name in self._nodes:
            raise Misuse(f"{row.name} is the name of a node of this cluster; take another name")
        if not row.name or not row.name.isprintable():
            raise Misuse("a work process needs a name of printable characters")
        if ticket and ticket != row.name:
            raise AccessDenied(f"the ticket is for {ticket}, and not for {row.name}; ask for one of that name")

    def is_known(self, name: str) -> bool:
        """Whether a node has this name, or a process that is or was here."""
        return name in self._nodes or name in self._by_name or name in self._ended

    def names(self) -> list[str]:
        """Every name that can be spoken to."""
        return sorted({*self._nodes, *self._by_name})

    def ended(self) -> list[str]:
        """Names of processes that were here."""
        return list(self._ended)

    def remember(self, name: str, now: float) -> None:
        """A process of this name has ended."""
        if name not in self._nodes:
            self._ended[name] = now
            self._ended.move_to_end(name)
            if len(self._ended) > self._names_max:
                self._ended.popitem(last=False)

    def forget(self, before: float) -> None:
        """Names of processes that ended before this time are not known any more."""
        while self._ended and next(iter(self._ended.values())) < before:
            self._ended.popitem(last=False)

    def of_run(self, run: bytes) -> Process | None:
        """The process of this run."""
        return self._processes.get(run)

    def of_name(self, name: str) -> Process | None:
        """The process that has this name now."""
        return self._by_name.get(name)

    def of_connection(self, connection: int) -> Process | None:
        """The process at this connection."""
        return self._by_connection.get(connection)

    def add(self, row: Row) -> Process:
        """A process that was not known."""
        assert row.run not in self._processes
        assert row.name not in self._by_name
        process = Process(row)
        self._processes[row.run] = self._by_name[row.name] = process
        self._ended.pop(row.name, None)
        return process

    def connect(self, process: Process, connection: int, now: float) -> None:
        """It has a connection here."""
        assert process.connection is None
        self._by_connection[connection] = process
        process.connection = connection
        process.is_suspected = False
        process.heard_at = process.said_at = now

    def disconnect(self, process: Process) -> None:
        """Its connection here is gone."""
        if process.connection is not None:
            del self._by_connection[process.connection]
            process.connection = None

    def remove(self, process: Process, now: float) -> None:
        """It has ended."""
        self.disconnect(process)
        del self._processes[process.run]
        del self._by_name[process.row.name]
        self.remember(process.row.name, now)


def taken(row: Row) -> Error:
    """Why somebody else cannot have the name of this process."""
    who = f"process {row.pid}" + (f" at {row.address}" if row.address else "")
    return Misuse(f"the name {row.name} is taken by {who}, which runs; end that one, or take another name")
