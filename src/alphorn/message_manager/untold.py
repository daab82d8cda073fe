"""Answers that their Client Manager may not have heard; it hears them when it introduces itself.

The log may bring a request before its Client Manager has a link here. And one that has lost its link repeats its
requests as soon as the next one is open: the log may bring them before the introduction on that one, while the old link
is not known here to be broken. So while nothing was said yet on some link, whatever is told to anybody is kept as well.
To hear an answer twice does no harm.
"""

from collections import deque

from alphorn.model.link import Answered

UNTOLD_MAX = 10_000  # answers that are kept for one Client Manager


class Untold:
    """Answers by the origin of the Client Manager that they are for, each one's in their order."""

    __slots__ = ("_silent", "_told", "_waiting")

    def __init__(self) -> None:
        self._silent: set[int] = set()  # links on which nothing was said yet
        self._told: dict[bytes, deque[Answered]] = {}  # on a link that may be broken
        self._waiting: dict[bytes, deque[Answered]] = {}  # for Client Managers that have no link

    def on_opened(self, link: int) -> None:
        """A link is there; whose it is will be said."""
        self._silent.add(link)

    def settle(self, link: int) -> None:
        """Something was said on a link, and served; or it is gone."""
        self._silent.discard(link)
        if not self._silent:
            self._told.clear()

    def keep(self, origin: bytes, answer: Answered, *, is_told: bool) -> None:
        """An answer for a Client Manager that has no link, or is told on the one that is known."""
        if self._silent or not is_told:
            kept = self._told if is_told else self._waiting
            kept.setdefault(origin, deque(maxlen=UNTOLD_MAX)).append(answer)

    def take(self, origin: bytes, link: int) -> list[Answered]:
        """A Client Manager introduces itself: takes out and gives what it may not have heard."""
        told = self._told.pop(origin, ()) if link in self._silent else ()
        return [*told, *self._waiting.pop(origin, ())]

    def forget(self, origin: bytes) -> None:
        """A Client Manager has left."""
        self._told.pop(origin, None)
        self._waiting.pop(origin, None)

    def forget_all(self) -> None:
        """Everybody asks again."""
        self._told.clear()
        self._waiting.clear()
