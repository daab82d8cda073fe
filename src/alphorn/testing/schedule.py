"""Virtual time: a heap of events, and the random streams of one seed.

Each stream serves one purpose, so that one more draw for a disk never shifts what the network does. Events at the same
time run in an order drawn from the `schedule` stream, which finds hidden dependence on arrival order; without a stream
they run in the order in which they were asked for.
"""

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[..., None]


class Streams:
    """The random streams of one seed."""

    __slots__ = ("disk", "faults", "machines", "network", "plan", "schedule", "workload")

    def __init__(self, seed: int) -> None:
        self.plan = random.Random(f"{seed}/plan")
        self.network = random.Random(f"{seed}/network")
        self.disk = random.Random(f"{seed}/disk")
        self.schedule = random.Random(f"{seed}/schedule")
        self.workload = random.Random(f"{seed}/workload")
        self.faults = random.Random(f"{seed}/faults")
        self.machines = random.Random(f"{seed}/machines")


class Schedule:
    """What happens next, and when. `now` is virtual seconds since the start of the run."""

    __slots__ = ("_count", "_draw", "_heap", "events", "now")

    def __init__(self, stream: random.Random | None) -> None:
        self.now = 0.0
        self.events = 0
        self._draw: Callable[[], float] = _no_draw if stream is None else stream.random
        self._count = 0
        self._heap: list[tuple[float, float, int, Action, tuple[Any, ...]]] = []

    def at(self, time: float, action: Action, *arguments: Any) -> None:
        """Runs `action(*arguments)` at this time, or now when it has passed."""
        self._count += 1
        heappush(self._heap, (max(time, self.now), self._draw(), self._count, action, arguments))

    def after(self, delay: float, action: Action, *arguments: Any) -> None:
        """Runs `action(*arguments)` this much later."""
        self.at(self.now + delay, action, *arguments)

    def run_until(self, end: float) -> None:
        """Runs every event up to and including `end`, and leaves `now` there."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, _, action, arguments = heappop(heap)
            self.events += 1
            action(*arguments)
        self.now = max(self.now, end)

    def next_time(self) -> float | None:
        """When the next event runs; None when nothing is left."""
        return self._heap[0][0] if self._heap else None


def _no_draw() -> float:
    return 0.0
