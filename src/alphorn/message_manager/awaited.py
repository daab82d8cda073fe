"""How long a primary waits for a Client Manager that it has no link to, and for what that one's clients hold.

A new primary knows from the log who was there. One without a link may be on its way; or it has died, and its clients
come back through others. Where this replica had a link to it before, it knows when that broke, and so did the clients.
Where others have found this replica long ago and that one never did, it died before this replica started.
"""

from collections.abc import Iterable

from alphorn.message_manager.absent import HOLD_S

UNLINKED_S = 0.5  # for a Client Manager without a link, and then for its clients elsewhere
RETURN_S = 0.3  # for clients of one whose link has broken, where they can go elsewhere at once
FIND_S = 1.0  # for one to find a replica that another has found; more than it waits between two attempts
_NEVER = float("inf")


class Awaited:
    """By the origins of Client Managers."""

    __slots__ = ("_broken", "_found_at", "_known", "_linked", "_until")

    def __init__(self) -> None:
        self._known: set[bytes] = set()  # were there when this replica became primary
        self._linked: set[bytes] = set()  # had a link then
        self._until: dict[bytes, float] = {}  # have no link, and until when they are waited for
        self._broken: dict[bytes, float] = {}  # had a link before, and when it broke
        self._found_at: dict[bytes, float] = {}  # have a link, and since when

    def on_promoted(self, known: Iterable[bytes], linked: set[bytes], now: float) -> None:
        """This replica is primary; of those that the log knows some have links."""
        self._known, self._linked = set(known), linked
        self._until = {origin: self._deadline(origin, now) for origin in self._known if origin not in linked}
        self._broken.clear()

    def on_introduced(self, origin: bytes, now: float) -> None:
        """One is here. Clients of the others come back through it; where it is new, they could not do so before."""
        self.on_linked(origin, now)
        self._until.pop(origin, None)
        if origin not in self._linked:
            for other in self._until:
                self._until[other] = max(self._until[other], now + UNLINKED_S)

    def on_linked(self, origin: bytes, now: float) -> None:
        """One has a link, be this replica primary or not."""
        self._found_at.setdefault(origin, now)

    def on_broken(self, origin: bytes, now: float) -> None:
        """The link of one that had introduced itself is gone."""
        self._broken[origin] = now
        self._found_at.pop(origin, None)

    def lose(self, origin: bytes, now: float) -> None:
        """The primary has no link to it any more.

        One that came later may have broken off before it was a member; then the log never says that it has left.
        """
        self._until[origin] = now + (UNLINKED_S if origin in self._known else HOLD_S)

    def leave(self, origin: bytes) -> None:
        """It has left, or is not waited for any more."""
        self._known.discard(origin)
        self._until.pop(origin, None)
        self._broken.pop(origin, None)
        self._found_at.pop(origin, None)

    def overdue(self, now: float) -> list[bytes]:
        """Those that were waited for long enough."""
        return [origin for origin, until in self._until.items() if until <= now]

    def next_deadline(self) -> float:
        """When one of them has been."""
        return min(self._until.values(), default=_NEVER)

    def _deadline(self, origin: bytes, now: float) -> float:
        if not self._linked:
            return now + UNLINKED_S
        if origin in self._broken:
            return self._broken[origin] + RETURN_S
        found_at = min(self._found_at.get(other, now) for other in self._linked)
        return min(now + UNLINKED_S, found_at + FIND_S)
