"""Consumers as the dispatcher sees them: soft, for as long as the primary that was told of them."""

from alphorn.message_manager.ready import Ready
from alphorn.model.link import DeliveredRun
from alphorn.model.ranges import RangeSet


class Consumer:
    """Somebody who was given messages, and may be given more while attached."""

    __slots__ = (
        "again",
        "client_manager",
        "is_attached",
        "is_blocked",
        "is_slow",
        "key",
        "outstanding",
        "parked",
        "prefetch",
        "runs",
        "selector",
    )

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.client_manager = 0
        self.prefetch = 0
        self.selector = ""
        self.is_attached = True
        self.is_blocked = False  # can use no more at the moment,
        self.is_slow = False  # or its client takes nothing
        self.outstanding = 0  # positions it holds
        self.again: RangeSet | None = None  # while it is paused: what came back from it, and stays its own
        self.parked = Ready()  # of its groups: nobody else may have them, and it has no room
        self.runs: list[DeliveredRun] = []  # given out and not yet told

    @property
    def room(self) -> int:
        """How many more messages it may get."""
        return 0 if self.is_blocked or self.is_slow else self.prefetch - self.outstanding

    def give(self, run: DeliveredRun) -> None:
        """One more run to tell; it grows the last one where it goes on from there."""
        grown = self.runs[-1].grown_by(run) if self.runs else None
        if grown is None:
            self.runs.append(run)
        else:
            self.runs[-1] = grown
