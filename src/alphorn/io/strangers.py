"""Who has connected and said nothing yet: it must say its first frame in time, or go.

Whoever may connect may also say nothing for ever, and each connection costs. One timer serves all.
"""

import asyncio
from collections.abc import Callable

from alphorn.io.streams import FrameStream


class Strangers:
    """The streams of one door that have not said anything. `dismiss` gets those that took too long."""

    __slots__ = ("_dismiss", "_is_timed", "_patience_s", "_waiting")

    def __init__(self, patience_s: float, dismiss: Callable[[int, FrameStream], None]) -> None:
        self._patience_s = patience_s
        self._dismiss = dismiss
        self._waiting: dict[int, tuple[FrameStream, float]] = {}  # and until when; in that order
        self._is_timed = False  # a timer runs

    def add(self, number: int, stream: FrameStream) -> None:
        """Somebody has connected."""
        loop = asyncio.get_running_loop()
        self._waiting[number] = stream, loop.time() + self._patience_s
        if not self._is_timed:
            self._is_timed = True
            loop.call_later(self._patience_s, self._look)

    def forget(self, number: int) -> None:
        """It has spoken, or is gone."""
        self._waiting.pop(number, None)

    def __len__(self) -> int:
        return len(self._waiting)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            number, (stream, until) = next(iter(self._waiting.items()))
            if until > loop.time():
                loop.call_at(until, self._look)
                return
            del self._waiting[number]
            self._dismiss(number, stream)
        self._is_timed = False
