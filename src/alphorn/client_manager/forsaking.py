"""What is to be done again, and what is over, when the group has given up the member that had entries of a channel.

None of these entries is ever ordered. What was wanted for a client it has from another Client Manager by then, or it
wants it again when it comes back; what this Client Manager wants itself goes into the next entries, in its order.
"""

from collections.abc import Iterable

from alphorn.client_manager.wishes import Pending, Wish, is_own
from alphorn.model.errors import Unavailable
from alphorn.model.link import Answered

Owned = tuple[Wish, bytes]  # with whose turn it is


class Forsaking:
    """Entries that the bus has; and from the first that is lost to the end of the turn, what comes after that."""

    __slots__ = ("_again", "_entries", "_kept")

    def __init__(self) -> None:
        self._entries: dict[int, tuple[list[int], list[Owned]]] = {}  # by handle: requests, and own wishes
        self._again: list[Owned] = []  # what lost entries had
        self._kept: list[Owned] | None = None  # what was wanted after those

    @property
    def is_under_way(self) -> bool:
        """Whether something was lost in this turn."""
        return self._kept is not None

    def depart(self, handle: int, requests: list[int], own: list[Owned]) -> None:
        """The bus gets an entry."""
        self._entries[handle] = (requests, own)

    def landed(self, handle: int) -> None:
        """It is in the log, or nobody knows."""
        self._entries.pop(handle, None)

    def lose(self, handle: int) -> list[int]:
        """It is never ordered; gives the requests that were in it."""
        requests, own = self._entries.pop(handle)
        self._again += own
        return list(requests)

    def begin(self, waiting: Iterable[Owned]) -> None:
        """The first entry is lost: of what waits, only what is wanted here itself is kept."""
        self._kept = [(wish, whose) for wish, whose in waiting if is_own(wish, whose)]

    def keep(self, wish: Wish, whose: bytes) -> None:
        """Something is wanted before the end of the turn."""
        assert self._kept is not None, "nothing is lost"
        self._kept.append((wish, whose))

    def settle(self, pending: dict[int, Pending], over: Iterable[int], reason: str) -> None:
        """These requests are lost, or refused for this reason, but for own ones."""
        owned = {wish.request for wish, _ in (*self._again, *(self._kept or ()))}
        for request in over:
            if request not in pending or request in owned:
                continue
            found = pending.pop(request)
            if found.lost is not None:
                found.lost()
            else:
                found.answer(Answered(request, 0, Unavailable.__name__, reason))

    def take(self, pending: dict[int, Pending]) -> list[Owned]:
        """What is to be wanted again; what is asked comes once, be it that a new primary was to be asked already."""
        again, kept = self._again, self._kept or []
        self._again, self._kept = [], None
        repeated = {wish.request for wish, _ in again if wish.request}
        for request in repeated.intersection(pending):
            pending[request].has_left = False
        return again + [each for each in kept if each[0].request not in repeated]
