"""What the Client Manager said takes nothing at the moment: destinations, and this connection's own sessions.

It is a matter of the stream: a new one begins with nothing blocked, and its Client Manager says what is.
"""

from collections.abc import Iterable

from alphorn.client.outbox import Outbox


class Pauses:
    """Reasons to wait, by destination and by session."""

    __slots__ = ("_sessions", "places")

    def __init__(self) -> None:
        self.places: dict[int, str] = {}
        self._sessions: dict[int, str] = {}

    def on_flow(self, places: list[int], reason: str, outboxes: Iterable[Outbox]) -> None:
        """These destinations take nothing, or (without a reason) messages again."""
        for place in places:
            if reason:
                self.places[place] = reason
            else:
                self.places.pop(place, None)
        self.apply(outbox for outbox in outboxes if outbox.place in places)

    def on_hold(self, session: int, reason: str, outboxes: Iterable[Outbox]) -> None:
        """A session is to wait, or (without a reason) to go on."""
        if reason:
            self._sessions[session] = reason
        else:
            self._sessions.pop(session, None)
        self.apply(outbox for outbox in outboxes if outbox.session == session)

    def clear(self, outboxes: Iterable[Outbox]) -> None:
        """There is another Client Manager."""
        self.places.clear()
        self._sessions.clear()
        self.apply(outboxes)

    def apply(self, outboxes: Iterable[Outbox]) -> None:
        """Tells outboxes what holds for them now."""
        for outbox in outboxes:
            outbox.blocked = self._sessions.get(outbox.session, "") or self.places.get(outbox.place, "")

    def describe(self) -> dict[str, int]:
        """The printable state."""
        return {"destinations": len(self.places), "sessions": len(self._sessions)}
