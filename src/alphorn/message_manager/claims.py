"""Clients that want to enter under an id of their own.

One connection at a time has a client id. A claim is granted once nobody has the id, or only one that is lost; it is
refused when that is not so for `WAIT_S`: who closes a connection and opens the next one through another Client Manager
may be here before the word that the first one has ended.
"""

from collections.abc import Container

from alphorn.message_manager.presence import Presence
from alphorn.model.errors import Misuse
from alphorn.model.link import Answered, ClaimClient

WAIT_S = 0.5


class Claims:
    """Those that are not decided, in their order."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: list[tuple[int, ClaimClient, float]] = []  # link, claim, until when it waits

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, link: int, claim: ClaimClient, now: float) -> None:
        """A Client Manager asks."""
        self._open.append((link, claim, now + WAIT_S))

    def decide(self, presence: Presence, links: Container[int], now: float) -> list[tuple[int, ClaimClient, Answered]]:
        """Takes out and gives what can be decided, with its answer; claims through links that are gone are dropped."""
        claims, self._open = self._open, []
        decided = []
        for number, claim, until in claims:
            try:
                if number in links:
                    presence.claim(claim.client, claim.connection, number)
                    decided.append((number, claim, Answered(claim.request)))
            except Misuse as refusal:
                if now < until:
                    self._open.append((number, claim, until))
                else:
                    decided.append((number, claim, Answered(claim.request, 0, Misuse.__name__, str(refusal))))
        return decided

    def next_deadline(self) -> float:
        """When the next of them is refused."""
        return min((until for _, _, until in self._open), default=float("inf"))
