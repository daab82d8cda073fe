"""What the Client Manager said takes nothing at the moment: destinations, and this connection's own sessions.

It is a matter of the stream: a new one begins with nothing blocked, and its Client Manager says what is.
"""

from collections.abc import Iterable, Mapping

from alphorn.client.lane import Lane
from alphorn.client.outbox import Outbox
from alphorn.model.conversation import Flow, Hold, Postponed


class Pauses:
    """Reasons to wait, by destination and by session."""

    __slots__ = ("_sessions", "places")

    def __init__(self) -> None:
        self.places: dict[int, str] = {}
        self._sessions: dict[int, str] = {}

    def receive(self, frame: Postponed | Flow | Hold, outboxes: Mapping[int, Outbox | Lane]) -> None:
        """The Client Manager says who is to wait, or (without a reason) to go on; and who is to send again."""
        match frame:
            case Flow(places, reason):
                for place in places:
                    _note(self.places, place, reason)
                self.apply(outbox for outbox in outboxes.values() if outbox.place in places)
            case Hold(session, reason):
                _note(self._sessions, session, reason)
                self.apply(outbox for outbox in outboxes.values() if outbox.session == session)
            case Postponed(producer, counter, taken) if producer in outboxes:
                outboxes[producer].on_postponed(counter, taken)

    def clear(self, outboxes: Iterable[Outbox | Lane]) -> None:
        """There is another Client Manager."""
        self.places.clear()
        self._sessions.clear()
        self.apply(outboxes)

    def apply(self, outboxes: Iterable[Outbox | Lane]) -> None:
        """Tells outboxes what holds for them now."""
        for outbox in outboxes:
            outbox.blocked = self._sessions.get(outbox.session, "") or self.places.get(outbox.place, "")

    def describe(self) -> dict[str, int]:
        """The printable state."""
        return {"destinations": len(self.places), "sessions": len(self._sessions)}


def _note(reasons: dict[int, str], number: int, reason: str) -> None:
    if reason:
        reasons[number] = reason
    else:
        reasons.pop(number, None)
