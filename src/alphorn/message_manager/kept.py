"""Priorities and delays of the messages that a topic keeps, so that a replay gives them out as it was done before.

Plain messages are not named here, nor is a delay that is over.
"""

from alphorn.message_manager.backlog import forget, within
from alphorn.model.messages import PRIORITY_DEFAULT
from alphorn.model.ranges import RangeSet


class KeptParticulars:
    """What is particular about kept positions; all of them are kept."""

    __slots__ = ("delays", "priorities")

    def __init__(self) -> None:
        self.priorities: dict[int, RangeSet] = {}  # the positions of other than the default priority
        self.delays: dict[int, int] = {}  # position → due, ms since 1970

    def prioritise(self, first: int, last: int, priority: int) -> None:
        """These messages have this priority; what has the default priority needs no word."""
        if priority != PRIORITY_DEFAULT:
            self.priorities.setdefault(priority, RangeSet()).add(first, last)

    def delay(self, first: int, last: int, due_ms: int) -> None:
        """These messages are not given out before this time."""
        self.delays.update(dict.fromkeys(range(first, last + 1), due_ms))

    def is_delayed(self, first: int, last: int, due_ms: int) -> bool:
        """Whether any of these waits for this time."""
        return any(self.delays.get(position) == due_ms for position in range(first, last + 1))

    def delayed(self, first: int, last: int) -> dict[int, RangeSet]:
        """Those of these that wait, by the time they wait for."""
        found: dict[int, RangeSet] = {}
        for position in within(self.delays, first, last):
            found.setdefault(self.delays[position], RangeSet()).add(position, position)
        return found

    def end_delays(self, first: int, last: int, now_ms: int) -> None:
        """Those of these whose time has come wait no more."""
        for position in within(self.delays, first, last):
            if self.delays[position] <= now_ms:
                del self.delays[position]

    def forget(self, first: int, last: int) -> None:
        """These are not kept any more."""
        if self.delays:
            forget(self.delays, first, last)
        for priority in list(self.priorities):
            self.priorities[priority].remove(first, last)
            if not self.priorities[priority]:
                del self.priorities[priority]
