"""What consumers that want the same share: the messages they may get, and whose turn it is.

Each message is looked at once for all of them, and only when one of them has room.
"""

from alphorn.message_manager.consumers import Consumer
from alphorn.message_manager.contents import Batch, Contents
from alphorn.message_manager.ready import Ready, Stretch
from alphorn.message_manager.segments import Segments
from alphorn.message_manager.selector import Selector
from alphorn.model.ranges import RangeSet

POSITION_MAX = (1 << 63) - 1


class Budget:
    """How many more messages may be looked at before others get their turn."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Filter:
    """Messages that may be given out, as far as a selector takes them, and the consumers with room for them.

    Positions below `below` are unseen until they were looked at; all others are ready. With `is_final`, what was looked
    at and not taken is for nobody else either, and is kept for `take_refused`.
    """

    __slots__ = (
        "_below",
        "_is_final",
        "_no_local",
        "is_stalled",
        "is_unfinished",
        "ready",
        "refused",
        "ring",
        "selector",
        "unseen",
        "users",
    )

    def __init__(
        self,
        selector: Selector | None,
        *,
        no_local: bytes = b"",
        below: int = POSITION_MAX,
        is_final: bool = False,
    ) -> None:
        self.selector = selector
        self._no_local = no_local  # the connection whose messages are refused
        self._is_final = is_final
        self._below = below if selector is not None or no_local else 0
        self.ready = Ready()
        self.unseen = Ready()
        self.refused = RangeSet()
        self.users = 0  # attached consumers
        self.ring: dict[Consumer, None] = {}  # those of them with room, in the order of their turns
        self.is_stalled = False  # what comes next cannot be read now
        self.is_unfinished = False  # the budget did not suffice to find out what comes next

    def __bool__(self) -> bool:
        """Whether there is anything to be given out or to be looked at."""
        return bool(self.ready) or bool(self.unseen)

    def add(self, stretch: Stretch) -> None:
        """These may be given out, as far as the selector takes them."""
        rank, first, last = stretch
        if first >= self._below:
            self.ready.add(stretch)
            return
        self.unseen.add(Stretch(rank, first, min(last, self._below - 1)))
        if last >= self._below:
            self.ready.add(Stretch(rank, self._below, last))

    def remove(self, first: int, last: int) -> None:
        """These may not be given out any more."""
        self.ready.remove(first, last)
        if self._below:
            self.unseen.remove(first, last)

    def head(self, segments: Segments, contents: Contents, budget: Budget) -> Stretch | None:
        """What is to be given out first; None for nothing, or where the budget did not suffice to find it."""
        if self._below == 0:
            return self.ready.head()
        self.is_stalled = self.is_unfinished = False
        while True:
            known, unseen = self.ready.head(), self.unseen.head()
            if unseen is None or (known is not None and known < unseen):
                return known
            if budget.left <= 0:
                self.is_unfinished = True
                return None
            if not self._look(unseen, segments, contents, budget):
                return None

    def takes(self, batch: Batch, index: int, priority: int) -> bool:
        """Whether a message is one for these consumers."""
        if self._no_local and batch.connection == self._no_local:
            return False
        return self.selector is None or batch.is_selected(index, self.selector, priority)

    def take_refused(self) -> RangeSet:
        """What was looked at and refused since the last time."""
        refused, self.refused = self.refused, RangeSet()
        return refused

    def choose(self, count: int) -> Consumer:
        """Who is next to get so many messages: one with room for all of them, or else the one with most room."""
        best: Consumer | None = None
        for consumer in self.ring:
            if consumer.room >= count:
                return consumer
            if best is None or consumer.room > best.room:
                best = consumer
        assert best is not None, "nobody has room"
        return best

    def _look(self, unseen: Stretch, segments: Segments, contents: Contents, budget: Budget) -> bool:
        """Looks at the next messages of one batch; False if they cannot be read now."""
        rank, first, last = unseen
        run = next(segments.runs(first, min(last, first + budget.left - 1)))
        batch = contents.batch(run)
        if batch is None:
            self.is_stalled = True
            return False
        budget.left -= run.count
        self.unseen.remove(first, first + run.count - 1)
        for place in range(run.count):
            position = first + place
            if self.takes(batch, run.index + place, unseen.priority):
                self.ready.add(Stretch(rank, position, position))
            elif self._is_final:
                self.refused.add(position, position)
        return True
