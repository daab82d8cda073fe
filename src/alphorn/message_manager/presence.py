"""Where clients' connections live: which Client Managers say so, how often each client has come back, under which id.

A client that was cut off comes back through another Client Manager, often before the first one has noticed. So a
connection is away only when no Client Manager names it any more, and whoever speaks for an earlier stream of it than is
known is not heard.

It is *lost* once its Client Manager has said so, or has left the cluster itself. A link that breaks says nothing about
the clients behind it: nobody takes anything from them for that, before they would be given up anyway.
"""

from collections import Counter

from alphorn.message_manager.absent import HOLD_S
from alphorn.model.errors import Misuse


class Presence:
    """All connections, by the links of Client Managers that named them."""

    __slots__ = ("_clients", "_counts", "_cut", "_left", "_links", "_lost", "_names", "_resumptions", "now")

    def __init__(self) -> None:
        self._links: dict[bytes, set[int]] = {}
        self._counts: Counter[int] = Counter()  # of connections, by link
        self._resumptions: dict[bytes, int] = {}
        self._lost: set[bytes] = set()
        self._cut: dict[bytes, tuple[bytes, float]] = {}  # those behind a broken link: whose it was, and since when
        self._left: set[bytes] = set()  # origins of Client Managers that have left, and whose link is still there
        self._clients: dict[str, bytes] = {}  # client id → the connection that has it
        self._names: dict[bytes, str] = {}  # and back
        self.now = 0.0  # of this turn

    def enter(self, connection: bytes, link: int) -> None:
        """A Client Manager has this connection."""
        links = self._links.setdefault(connection, set())
        if link not in links:
            links.add(link)
            self._counts[link] += 1
        self._lost.discard(connection)
        self._cut.pop(connection, None)

    def is_current(self, connection: bytes, resumption: int) -> bool:
        """Whether this is the newest stream of the connection, as far as is known; it is remembered as that."""
        newest = self._resumptions.get(connection, 0)
        if resumption > newest:
            self._resumptions[connection] = resumption
        return resumption >= newest

    def is_here(self, connection: bytes) -> bool:
        """Whether a Client Manager has this connection."""
        return connection in self._links

    def named_by(self, link: int) -> set[bytes]:
        """The connections that a Client Manager has, by its own word."""
        return {connection for connection, links in self._links.items() if link in links}

    def count(self, link: int) -> int:
        """How many connections a Client Manager has, by its own word."""
        return self._counts[link]

    def is_lost(self, connection: bytes) -> bool:
        """Whether its client is known to be cut off; it may come back all the same."""
        _, since = self._cut.get(connection, (b"", self.now))
        return connection in self._lost or self.now - since >= HOLD_S

    def claim(self, client: str, connection: bytes, link: int) -> None:
        """A client enters under an id of its own; raises `Misuse` while another connection has that.

        Of one that is lost it is taken over, and then that one does not come back.
        """
        owner = self._clients.get(client, connection)
        if owner != connection and not self.is_lost(owner):
            raise Misuse(f"the client id {client!r} is in use by another connection; close that, or choose another id")
        self.name(connection, client)
        self.enter(connection, link)

    def name(self, connection: bytes, client: str) -> None:
        """A connection has this client id."""
        self._names.pop(self._clients.get(client, b""), None)
        self._clients[client] = connection
        self._names[connection] = client

    def leave(self, connection: bytes, link: int) -> bool:
        """A Client Manager has lost it; True when nobody else has it."""
        if not self._strike(connection, link):
            return False
        self._lost.add(connection)
        return True

    def leave_all(self, link: int, origin: bytes) -> list[bytes]:
        """The link of a Client Manager broke; gives the connections that nobody else has."""
        away = [connection for connection in sorted(self.named_by(link)) if self._strike(connection, link)]
        self._cut.update(dict.fromkeys(away, (origin, self.now)))
        del self._counts[link]  # a Counter forgets what it does not know as well
        if origin in self._left:
            self._left.discard(origin)
            self.give_up(origin)
        return away

    def give_up(self, origin: bytes) -> None:
        """A Client Manager has named all that it has: who was behind its broken link is lost."""
        for connection in [connection for connection, (whose, _) in self._cut.items() if whose == origin]:
            del self._cut[connection]
            self._lost.add(connection)

    def on_left(self, origin: bytes, *, is_linked: bool) -> None:
        """A Client Manager has left the cluster; its link breaks before or after that."""
        if is_linked:
            self._left.add(origin)
        self.give_up(origin)

    def forget(self, connection: bytes) -> None:
        """It will not come back."""
        self._counts.subtract(self._links.pop(connection, ()))
        self._resumptions.pop(connection, None)
        self._lost.discard(connection)
        self._cut.pop(connection, None)
        client = self._names.pop(connection, None)
        if client is not None:
            del self._clients[client]

    def _strike(self, connection: bytes, link: int) -> bool:
        links = self._links.get(connection)
        if links is None:
            return True
        if link in links:
            links.remove(link)
            self._counts[link] -= 1
        if links:
            return False
        del self._links[connection]
        return True
