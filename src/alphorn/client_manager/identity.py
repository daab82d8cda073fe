"""What proves that somebody is the client to whom a connection was given.

A connection's id is no secret: ids follow each other, and every message shows that of its sender. So whoever is welcome
is told the connection's *secret* too, and says it when it comes back. It is made of the id and the cluster's signet,
which all Client Managers have, so any of them can check it, whoever gave it and whether that lives; nothing is kept
for each connection.

The log of the first channel has the signet. A Client Manager offers a draft there and is answered with the one that
holds; before that it can welcome nobody.
"""

import hmac
from collections.abc import Callable

from alphorn.client_manager.desk import Desk
from alphorn.model.commands import KeepSignet
from alphorn.model.link import Answered


class Identity:
    """The signet, as soon as it is known, and what is made of it."""

    __slots__ = ("_desk", "_draft", "_on_known", "_request", "_signet")

    def __init__(self, desk: Desk, draft: bytes, on_known: Callable[[], None]) -> None:
        self._desk = desk
        self._draft = draft
        self._on_known = on_known
        self._signet = b""
        self._request = 0  # by which it is asked for

    @property
    def is_known(self) -> bool:
        """Whether connections can be given secrets, and these be checked."""
        return bool(self._signet)

    def secret_of(self, connection: bytes) -> bytes:
        """What its client alone is told."""
        assert self._signet, "nobody is welcome before the signet is known"
        return hmac.digest(self._signet, connection, "sha256")

    def is_proven(self, connection: bytes, secret: bytes) -> bool:
        """Whether this is the secret of that connection."""
        return hmac.compare_digest(self.secret_of(connection), secret)

    def on_primary(self) -> None:
        """The first channel has a primary: it is asked for the signet, unless that is known or asked for."""
        channel = self._desk.channels[0]
        if not self._signet and self._request not in channel.pending:
            self._request = channel.request(KeepSignet(self._draft), self._on_answer)

    def on_lost(self) -> None:
        """Nobody knows what became of an entry of the first channel, which may have been the one that asks."""
        self._desk.channels[0].pending.pop(self._request, None)
        self.on_primary()

    def know(self, signet: bytes) -> None:
        """This is the signet, for ever."""
        self._signet = signet
        self._on_known()

    def _on_answer(self, answer: Answered) -> None:
        if answer.signet:
            self.know(answer.signet)
