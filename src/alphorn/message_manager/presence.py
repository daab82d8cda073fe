"""Where clients' connections live: which Client Managers say so, and how often each client has come back.

A client that was cut off comes back through another Client Manager, often before the first one has noticed. So a
connection is away only when no Client Manager names it any more, and whoever speaks for an earlier stream of it than is
known is not heard.
"""


class Presence:
    """All connections, by the links of Client Managers that named them."""

    __slots__ = ("_links", "_resumptions")

    def __init__(self) -> None:
        self._links: dict[bytes, set[int]] = {}
        self._resumptions: dict[bytes, int] = {}

    def enter(self, connection: bytes, link: int) -> None:
        """A Client Manager has this connection."""
        self._links.setdefault(connection, set()).add(link)

    def is_current(self, connection: bytes, resumption: int) -> bool:
        """Whether this is the newest stream of the connection, as far as is known; it is remembered as that."""
        newest = self._resumptions.get(connection, 0)
        if resumption > newest:
            self._resumptions[connection] = resumption
        return resumption >= newest

    def is_here(self, connection: bytes) -> bool:
        """Whether a Client Manager has this connection."""
        return connection in self._links

    def leave(self, connection: bytes, link: int) -> bool:
        """A Client Manager has it no more; True when nobody else has it."""
        links = self._links.get(connection)
        if links is None:
            return True
        links.discard(link)
        if links:
            return False
        del self._links[connection]
        return True

    def leave_all(self, link: int) -> list[bytes]:
        """A Client Manager is gone; gives the connections that nobody else has."""
        named = [connection for connection, links in self._links.items() if link in links]
        return [connection for connection in named if self.leave(connection, link)]

    def forget(self, connection: bytes) -> None:
        """It will not come back."""
        self._links.pop(connection, None)
        self._resumptions.pop(connection, None)
