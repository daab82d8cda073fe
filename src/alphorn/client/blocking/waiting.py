"""Waits for a change of what a lock guards; the handler of a signal may raise meanwhile, as Ctrl-C does.

`threading.Condition` is not made for that: it gives the lock back while it waits and takes it again before it goes on,
and where a handler raises in between, the lock is released by somebody who does not have it. Here nobody has the lock
while he waits, and what is waited on cannot be left half taken.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue


class Waiting:
    """Those who wait, each on a turn of his own."""

    __slots__ = ("_lock", "_turns")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._turns: set[SimpleQueue[None]] = set()

    def __len__(self) -> int:
        return len(self._turns)

    def wait_for(self, is_done: Callable[[], object], timeout: float | None = None) -> bool:
        """Waits until something holds, which is looked at under the lock; False when the time is over first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        turn: SimpleQueue[None] = SimpleQueue()
        try:
            while True:
                with self._lock:
                    if is_done():
                        return True
                    self._turns.add(turn)  # whatever changes from now on is heard
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                with suppress(Empty):
                    turn.get(timeout=left)
        finally:
            self._turns.discard(turn)

    def notify_all(self) -> None:
        """Under the lock: lets everybody look again."""
        for turn in tuple(self._turns):
            turn.put(None)
            self._turns.discard(turn)  # who still waits then comes back
