"""Orders numbered batches, as fast as the window allows or at a given rate, and keeps account of every answer."""

import asyncio
import os
import time
from collections.abc import Callable

from alphorn.io.control import BatchesOrdered, BatchRefused, Event, LoadStarted, LoadStopped, StartLoad
from alphorn.model.errors import Misuse
from alphorn.node.tally import HEAD

PACE_S = 0.002  # between two looks at the clock when a rate is given


class Load:
    """One run of numbered batches. Each counter is ordered once and never again, whatever the answer.

    `order` gives a handle; `say` takes the events. Answers of one turn become one event.
    """

    def __init__(self, asked: StartLoad, *, order: Callable[[bytes], int], say: Callable[[Event], None]) -> None:
        if asked.size < HEAD.size:
            raise Misuse(f"a batch of {asked.size} bytes cannot carry its number; make it {HEAD.size} or more")
        self._asked = asked
        self._order = order
        self._say = say
        self._sender = os.urandom(8)
        self._filling = os.urandom(asked.size - HEAD.size)
        self._counters: dict[int, int] = {}  # by handle
        self._sent = 0
        self._ordered = 0
        self._refused = 0
        self._answered: list[int] = []
        self._answered_at = 0.0
        self._is_open = True
        self._is_ending = False
        self._is_filling = False
        self._has_told_end = False
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._pace: asyncio.TimerHandle | None = None
        say(LoadStarted(self._sender.hex()))
        self._fill()

    @property
    def is_done(self) -> bool:
        """Whether it was told to end and every batch has its answer."""
        return self._is_ending and not self._counters

    def end(self) -> None:
        """Orders no more; `LoadStopped` follows the last answer."""
        if not self._is_ending:
            self._is_ending = True
            if self._pace is not None:
                self._pace.cancel()
            self._tell_end()

    def abandon(self) -> None:
        """Stops at once, whatever is open."""
        self._is_ending = True
        if self._pace is not None:
            self._pace.cancel()

    def on_ordered(self, handle: int) -> None:
        """An answer; a handle of another load is ignored."""
        counter = self._counters.pop(handle, 0)
        if not counter:
            return
        self._ordered += 1
        if not self._answered:
            self._answered_at = time.monotonic()
            self._loop.call_soon(self._tell_ordered)
        self._answered.append(counter)

    def on_refused(self, handle: int, reason: str, *, is_unknown: bool) -> None:
        """The other answer."""
        counter = self._counters.pop(handle, 0)
        if not counter:
            return
        self._refused += 1
        self._say(BatchRefused(counter=counter, reason=reason, is_unknown=is_unknown))
        self._loop.call_soon(self._go_on)

    def on_window(self, *, is_open: bool) -> None:
        """Whether to go on."""
        self._is_open = is_open
        self._fill()

    def _tell_ordered(self) -> None:
        answered, self._answered = self._answered, []
        if not self._asked.is_quiet:
            self._tell_ranges(answered)
        self._go_on()

    def _tell_ranges(self, answered: list[int]) -> None:
        first = last = answered[0]
        for counter in answered[1:]:
            if counter != last + 1:
                self._say(BatchesOrdered(first=first, last=last, at=self._answered_at))
                first = counter
            last = counter
        self._say(BatchesOrdered(first=first, last=last, at=self._answered_at))

    def _go_on(self) -> None:
        self._fill()
        self._tell_end()

    def _tell_end(self) -> None:
        if self.is_done and not self._answered and not self._has_told_end:
            self._has_told_end = True
            self._say(LoadStopped(ordered=self._ordered, refused=self._refused))

    def _fill(self) -> None:
        if self._is_filling:  # ordering may close the window, which asks for more
            return
        self._is_filling = True
        while not self._is_ending and self._is_open and len(self._counters) < self._asked.in_flight:
            if not self._is_due():
                break
            if self._sent and self._sent == self._asked.count:
                self._is_ending = True
                break
            self._sent += 1
            handle = self._order(HEAD.pack(self._sender, self._sent) + self._filling)
            self._counters[handle] = self._sent
        self._is_filling = False

    def _is_due(self) -> bool:
        """Whether the rate allows one more now; else looks again a little later."""
        if not self._asked.per_s or (self._loop.time() - self._began) * self._asked.per_s >= self._sent:
            return True
        if self._pace is None:
            self._pace = self._loop.call_later(PACE_S, self._on_pace)
        return False

    def _on_pace(self) -> None:
        self._pace = None
        self._fill()
